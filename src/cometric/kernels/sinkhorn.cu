// Sweeps of many pairs of histograms; sinkhorn_cuda.py describes the arguments and compiles this.
//
// A group of G lanes holds the scalings v of a pair in Q vectors of 16 bytes per lane, and takes U
// rows of the partner at a time. The groups of a warp share a partner with many bins; they take
// one each if it has few. Which warp computes a pair depends on timing, but not what it computes.
//
// If few pairs of a source remain, all warps of a program share each of them.
//
// T, G, Q, U, THREADS, SHARED and FEW are defined by the caller.

constexpr int VEC = 16 / sizeof(T);
constexpr int GROUPS = 32 / G; // of a warp
constexpr int WARPS = THREADS / 32;
constexpr int HOLDERS = G / U; // lanes that hold the same row after the sums
constexpr unsigned ALL = 0xffffffffu;

struct alignas(16) Vec {
    T x[VEC];
};
struct alignas(4 * U) Rows {
    int x[U];
};
struct Lane {
    int first; // lane of its group
    int place; // in its group
    int turn;  // of its group among those that share a pair
    int share; // how many do
};

__device__ __forceinline__ float quotient(float b, float x) { return __fdividef(b, x); }
__device__ __forceinline__ double quotient(double b, double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    y = y * (2.0 - x * y);
    y = y * (2.0 - x * y);
    return b * y;
}
__device__ __forceinline__ float logarithm(float x) { return __logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }

template <typename N> __device__ __forceinline__ N sum_group(N x) {
#pragma unroll
    for (int off = G / 2; off >= 1; off /= 2) x += __shfl_xor_sync(ALL, x, off);
    return x;
}

// The sums of U rows over a group, each in HOLDERS of its lanes: row place / HOLDERS.
__device__ __forceinline__ T sum_rows(T *x, int place) {
    int off = G / 2;
#pragma unroll
    for (int m = U / 2; m >= 1; m /= 2) {
        bool high = place & off;
#pragma unroll
        for (int j = 0; j < m; j++) {
            T sent = high ? x[j] : x[j + m];
            T kept = high ? x[j + m] : x[j];
            x[j] = kept + __shfl_xor_sync(ALL, sent, off);
        }
        off /= 2;
    }
#pragma unroll
    for (; off >= 1; off /= 2) x[0] += __shfl_xor_sync(ALL, x[0], off);
    return x[0];
}

// Adds K u of the rows `at` to `end` to ku; returns <b, log u> of the rows that this lane holds.
__device__ __forceinline__ double multiply(const T *rows, const int *offsets, const T *weight,
                                           int at, int end, const Vec *v, Vec *ku, Lane lane) {
    int stride = U * lane.share;
    int steps = __reduce_max_sync(ALL, (end - at + stride - 1) / stride);
    rows += lane.place * VEC;
    at += U * lane.turn;
    int mine = lane.place / HOLDERS;
    double logs = 0.0;
    T some = 0, kept = 1, mass = 0;
    Rows next = {};
    T after = 0;
    if (at < end) {
        next = *reinterpret_cast<const Rows *>(offsets + at);
        after = weight[at + mine];
    }
    for (int step = 0; step < steps; step++) {
        Rows now = next;
        T b = after;
        at += stride;
        after = 0;
        if (at < end) {
            next = *reinterpret_cast<const Rows *>(offsets + at);
            after = weight[at + mine];
        }
        Vec tile[U][Q];
        T x[U];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int q = 0; q < Q; q++)
                tile[u][q] = *reinterpret_cast<const Vec *>(rows + now.x[u] + G * q * VEC);
#pragma unroll
        for (int u = 0; u < U; u++) {
            x[u] = 0;
#pragma unroll
            for (int q = 0; q < Q; q++)
#pragma unroll
                for (int k = 0; k < VEC; k++) x[u] += tile[u][q].x[k] * v[q].x[k];
        }
        T kv = sum_rows(x, lane.place);
        T scaling = b > 0 ? quotient(b, kv) : T(0);
#pragma unroll
        for (int u = 0; u < U; u++) {
            T part = __shfl_sync(ALL, scaling, lane.first + u * HOLDERS);
#pragma unroll
            for (int q = 0; q < Q; q++)
#pragma unroll
                for (int k = 0; k < VEC; k++) ku[q].x[k] += tile[u][q].x[k] * part;
        }
        if (b > 0 && lane.place % HOLDERS == step % HOLDERS) { // the holders of a row take turns
            kept = scaling;
            mass = b;
        }
        if ((step + 1) % HOLDERS == 0) {
            some += mass * logarithm(kept);
            mass = 0;
        }
        if (step % 16 == 15) {
            logs += double(some);
            some = 0;
        }
    }
    return logs + double(some + mass * logarithm(kept));
}

// The sum over the groups that share a pair.
template <typename N> __device__ __forceinline__ N sum_shares(N x, int share) {
#pragma unroll
    for (int off = G; off < 32; off *= 2)
        if (share > 1) x += __shfl_xor_sync(ALL, x, off);
    return x;
}

// v = a / ku in place; the error of the marginal before, of this lane.
__device__ __forceinline__ T update(const T *a, const Vec *ku, Vec *v, int width, int place) {
    T error = 0;
#pragma unroll
    for (int q = 0; q < Q; q++) {
        int at = (place + G * q) * VEC;
        Vec mass = {};
        if (at < width) mass = *reinterpret_cast<const Vec *>(a + at);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            bool real = mass.x[k] > 0;
            error += real ? magnitude(v[q].x[k] * ku[q].x[k] - mass.x[k]) : T(0);
            v[q].x[k] = real ? quotient(mass.x[k], ku[q].x[k]) : T(0);
        }
    }
    return error;
}

// <a, log v> of this lane.
__device__ __forceinline__ double log_sum(const T *a, const Vec *v, int width, int place) {
    double logs = 0.0;
#pragma unroll
    for (int q = 0; q < Q; q++) {
        int at = (place + G * q) * VEC;
        Vec mass = {};
        if (at < width) mass = *reinterpret_cast<const Vec *>(a + at);
        T some = 0;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            some += mass.x[k] > 0 ? mass.x[k] * logarithm(v[q].x[k]) : T(0);
        logs += double(some);
    }
    return logs;
}

__device__ __forceinline__ void load(Vec *to, const T *from, int width, int place) {
#pragma unroll
    for (int q = 0; q < Q; q++) {
        int at = (place + G * q) * VEC;
        to[q] = Vec{};
        if (at < width) to[q] = *reinterpret_cast<const Vec *>(from + at);
    }
}

__device__ __forceinline__ void store(T *to, const Vec *from, int width, int place) {
#pragma unroll
    for (int q = 0; q < Q; q++) {
        int at = (place + G * q) * VEC;
        if (at < width) *reinterpret_cast<Vec *>(to + at) = from[q];
    }
}

// rows[l][k] = kernel[bins[k]][l] for l < d.
__device__ void fill(T *rows, const T *kernel, const int *bins, int d, int width, int stride) {
    constexpr int AHEAD = 4; // loads of a lane in flight, for every number of a vector
    int strips = (d + 32 * AHEAD - 1) / (32 * AHEAD);
    for (int w = threadIdx.x / 32; w < strips * (width / VEC); w += THREADS / 32) {
        int c = w / strips, l = (w % strips) * 32 * AHEAD + threadIdx.x % 32;
        Vec some[AHEAD];
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            const T *from = kernel + (size_t)bins[c * VEC + k] * d;
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (l + 32 * j < d) some[j].x[k] = from[l + 32 * j];
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (l + 32 * j < d)
                *reinterpret_cast<Vec *>(rows + (l + 32 * j) * stride + c * VEC) = some[j];
    }
    // Lanes without bins read beyond the bins of their row, and multiply what they find by zero
    if (stride > width)
        for (int l = threadIdx.x; l < d; l += THREADS)
            *reinterpret_cast<Vec *>(rows + l * stride + width) = Vec{};
    for (int k = stride + threadIdx.x; k < G * Q * VEC; k += THREADS)
        rows[(d - 1) * stride + k] = 0;
}

// Sweeps of one pair by all warps, which share its rows; `sums` has room for WARPS + 1 vectors K u.
__device__ void solve_together(const T *rows, const int *offsets, const T *weight, int begin,
                               int end, const T *a, T *scalings, double *value, double *last_error,
                               Vec *sums, int width, int sweeps, double tol, Lane lane) {
    __shared__ double logs_of[2][WARPS]; // of two sweeps: some warps still read those of the last
    int warp = threadIdx.x / 32, group = lane.first / G, vectors = width / VEC;
    lane.turn = warp * GROUPS + group;
    lane.share = WARPS * GROUPS;
    Vec v[Q], ku[Q];
    T error;
    double logs;
    load(v, scalings, width, lane.place);
    for (int done = 1; true; done++) {
#pragma unroll
        for (int q = 0; q < Q; q++) ku[q] = Vec{};
        logs = multiply(rows, offsets, weight, begin, end, v, ku, lane);
#pragma unroll
        for (int q = 0; q < Q; q++)
#pragma unroll
            for (int k = 0; k < VEC; k++) ku[q].x[k] = sum_shares(ku[q].x[k], lane.share);
        logs = sum_shares(sum_group(logs), lane.share);
        if (group == 0) store(reinterpret_cast<T *>(sums + warp * vectors), ku, width, lane.place);
        if (threadIdx.x % 32 == 0) logs_of[done % 2][warp] = logs;
        __syncthreads();
        for (int c = threadIdx.x; c < vectors; c += THREADS) {
            Vec total = sums[c];
            for (int w = 1; w < WARPS; w++)
#pragma unroll
                for (int k = 0; k < VEC; k++) total.x[k] += sums[w * vectors + c].x[k];
            sums[WARPS * vectors + c] = total;
        }
        __syncthreads();
        load(ku, reinterpret_cast<const T *>(sums + WARPS * vectors), width, lane.place);
        logs = 0.0;
        for (int w = 0; w < WARPS; w++) logs += logs_of[done % 2][w];
        error = sum_group(update(a, ku, v, width, lane.place));
        if (done >= sweeps || !(double(error) > tol)) break;
    }
    logs += sum_group(log_sum(a, v, width, lane.place));
    if (lane.turn == 0) store(scalings, v, width, lane.place);
    if (threadIdx.x == 0) {
        *value = logs;
        *last_error = double(error);
    }
    __syncthreads();
}

// Numbers of the partners whose error exceeds `tol`, in order, and how many are long; by one warp.
__device__ void list_active(int *list, int *counts, const double *errors, int last, int step,
                            int total, int longs, double tol) {
    int lane = threadIdx.x, found = 0, found_long = 0;
    for (int from = 0; from < total; from += 32) {
        int p = last - (from + lane) * step;
        bool active = from + lane < total && errors[p] > tol;
        unsigned votes = __ballot_sync(ALL, active);
        if (active) list[found + __popc(votes & ((1u << lane) - 1))] = p;
        found += __popc(votes);
        found_long += __popc(__ballot_sync(ALL, active && p >= longs));
    }
    if (lane == 0) {
        counts[0] = found;
        counts[1] = found_long;
    }
}

struct Arguments { // in the order of sinkhorn_cuda.Arguments
    const T *kernel;
    const int *bins;
    const T *masses;
    const int *pointers, *offsets;
    const T *weight;
    T *state;
    double *values, *errors;
    int *queue;
    double tol;
    int sources, partners, line, longs, d, width, stride, chunk, sweeps, resume;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) sweep(const Arguments given) {
    const auto [kernel, bins, masses, pointers, offsets, weight, state, values, errors, queue, tol,
                sources, partners, line, longs, d, width, stride, chunk, sweeps, resume] = given;
    extern __shared__ Vec space[];
    int *list = reinterpret_cast<int *>(space);
    T *block = reinterpret_cast<T *>(space + (chunk + 3) / 4);
    __shared__ int next, item, counts[2]; // of all partners, and of the long ones
    Lane lane = {int(threadIdx.x % 32) / G * G, int(threadIdx.x % G), 0, 1};
    int group = lane.first / G;
    int chunks = (partners + chunk - 1) / chunk;

    while (true) {
        __syncthreads();
        if (threadIdx.x == 0) item = atomicAdd(queue, 1);
        __syncthreads();
        if (item >= sources * chunks) break;
        int i = item / chunks, part = item % chunks;
        // Partners p > i, the longest first, dealt to the chunks
        int left = partners - 1 - i - part, last = partners - 1 - part;
        int most = left > 0 ? (left + chunks - 1) / chunks : 0;
        const T *a = masses + (size_t)i * width;
        size_t row = (size_t)i * line; // of the values and the errors
        if (threadIdx.x == 0) {
            next = 0;
            counts[0] = most;
            counts[1] = last < longs ? 0 : min(most, (last - longs) / chunks + 1);
        }
        if (resume && threadIdx.x < 32)
            list_active(list, counts, errors + row, last, chunks, most, longs, tol);
        __syncthreads();
        if (counts[0] == 0) continue;
        const T *rows = kernel + (size_t)i * d * width;
        if (SHARED) {
            rows = block;
            fill(block, kernel, bins + (size_t)i * width, d, width, stride);
            __syncthreads();
        }
        int total = counts[0], total_long = counts[1];
        if (!SHARED && resume && total <= FEW) {
            for (int t = 0; t < total; t++) {
                int p = list[t];
                T *scalings = state + ((size_t)i * partners + p) * width;
                solve_together(rows, offsets, weight, pointers[p], pointers[p + 1], a, scalings,
                               values + row + p, errors + row + p, reinterpret_cast<Vec *>(block),
                               width, sweeps, tol, lane);
            }
            continue;
        }
        while (true) {
            int t = 0;
            if (threadIdx.x % 32 == 0) t = atomicAdd(&next, 1);
            t = __shfl_sync(ALL, t, 0);
            bool is_long = t < total_long;
            lane.turn = is_long ? group : 0;
            lane.share = is_long ? GROUPS : 1;
            if (!is_long) t = total_long + (t - total_long) * GROUPS;
            if (t >= total) break;
            if (!is_long) t += group;
            bool running = t < total;
            int p = !running ? partners - 1 : resume ? list[t] : last - t * chunks;
            size_t pair = (size_t)i * partners + p;
            int begin = pointers[p], end = running ? pointers[p + 1] : begin;
            Vec v[Q], ku[Q];
            load(v, state + pair * width, width, lane.place);
            for (int done = 1; true; done++) {
#pragma unroll
                for (int q = 0; q < Q; q++) ku[q] = Vec{};
                double logs = multiply(rows, offsets, weight, begin, end, v, ku, lane);
                if (is_long)
#pragma unroll
                    for (int q = 0; q < Q; q++)
#pragma unroll
                        for (int k = 0; k < VEC; k++)
                            ku[q].x[k] = sum_shares(ku[q].x[k], lane.share);
                T error = 0;
                if (running) error = update(a, ku, v, width, lane.place);
                error = sum_group(error);
                bool over = running && (done >= sweeps || !(double(error) > tol));
                if (__any_sync(ALL, over)) {
                    if (over && lane.turn == 0) logs += log_sum(a, v, width, lane.place);
                    logs = sum_shares(sum_group(logs), lane.share);
                    if (over) {
                        if (lane.turn == 0) store(state + pair * width, v, width, lane.place);
                        if (lane.turn == 0 && lane.place == 0) {
                            values[row + p] = logs;
                            errors[row + p] = double(error);
                        }
                        running = false;
                        end = begin;
                    }
                }
                if (!__any_sync(ALL, running)) break;
            }
        }
    }
}
