// Sweeps by products; products_cuda.py describes the arguments and compiles this.
//
// A tile is 64 partners of one source, from its next histogram on. `divide` gives u = b / (K v) of a
// tile on some bins, `update` gives v = a / (K u) on some bins of the source, `collect` adds up what
// both have left of a tile's values and errors, in a fixed order, `count` counts the pairs left to
// solve. Tensor cores multiply; the rows of K that a source selects are read where they are.
//
// Four warps have a quarter of COLUMNS bins and 64 partners each. STAGES - 1 steps of DEPTH bins are
// on their way to shared memory while one is multiplied. T is double, or float for products in TF32.
// T, COLUMNS, DEPTH, STAGES and PROGRAMS, the programs of a multiprocessor, are defined by the caller.

constexpr int EDGE = 64; // partners of a tile
constexpr int THREADS = 128;
constexpr int VEC = 16 / sizeof(T);  // numbers of a copy
constexpr int QUARTER = COLUMNS / 2; // columns of a warp
constexpr int EIGHTS = QUARTER / 8;
// Numbers from a row to the next in shared memory, so that no two lanes of a load collide
constexpr int SHORT = DEPTH + 4, LONG = COLUMNS + 32 / sizeof(T);
constexpr int LEFT = EDGE * SHORT, RIGHT = COLUMNS * SHORT; // numbers of a stage
constexpr int SMALL = DEPTH / VEC, WIDE = COLUMNS / VEC;    // copies of a row
constexpr unsigned ALL = 0xffffffffu;

struct Tile {
    int source;  // counted from the first one of the call
    int partner; // the first of the tile, among all histograms
};

struct alignas(2 * sizeof(T)) Two {
    T x, y;
};

struct Arguments { // in the order of products_cuda.Arguments
    const T *kernel, *hist; // (d, d), and all histograms (n, d)
    const long long *states, *bins, *masses; // addresses for each source
    const int *widths, *strides;             // bins of each source, and numbers between scalings
    const Tile *tiles;
    const int *chosen; // numbers of tiles; null: from `begin` on
    T *u;
    double *sums_u, *sums_v, *marginals;
    double *values, *errors;
    int *late; // pairs of each tile whose error exceeds `tol`
    double tol;
    int n, d, first, line, pieces, parts; // pieces of d and of the widest source
    int begin;
};

__device__ __forceinline__ Tile tile_of(const Arguments &given, int slot) {
    return given.tiles[given.chosen == nullptr ? given.begin + slot : given.chosen[slot]];
}

__device__ __forceinline__ float quotient(float b, float x) { return __fdividef(b, x); }
__device__ __forceinline__ double quotient(double b, double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    y = y * (2.0 - x * y);
    y = y * (2.0 - x * y);
    return b * y;
}
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }

__device__ __forceinline__ void copy(T *to, const T *from, bool there) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(there ? 16 : 0));
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2)); }

__device__ __forceinline__ double rounded(double x) { return x; }
__device__ __forceinline__ float rounded(float x) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}
__device__ __forceinline__ void multiply(double *c, const double *a, const double *b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}
__device__ __forceinline__ void multiply(float *c, const float *a, const float *b) {
    const unsigned *x = reinterpret_cast<const unsigned *>(a), *y = reinterpret_cast<const unsigned *>(b);
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}

struct Lane {
    int row, column; // of the warp's quarter
    int group, turn; // place in the fragments of a product
};
__device__ __forceinline__ Lane lane_of(int thread) {
    int warp = thread / 32;
    return {warp / 2 * 32, warp % 2 * QUARTER, thread % 32 / 4, thread % 4};
}

// Adds the product of one stage. Instructions want what they read in adjacent registers: numbers are
// loaded one by one, wider loads would need a move for each.
// BY_ROWS: the right side has a row for each bin, not for each column.
template <bool BY_ROWS>
__device__ __forceinline__ void multiply_stage(T c[2][EIGHTS][4], const T *left, const T *right,
                                               Lane at) {
    left += (at.row + at.group) * SHORT + at.turn;
    right += BY_ROWS ? at.turn * LONG + at.column + at.group
                     : (at.column + at.group) * SHORT + at.turn;
#pragma unroll
    for (int begin = 0; begin < DEPTH; begin += 8) {
        T a[2][4], b[EIGHTS][2];
#pragma unroll
        for (int q = 0; q < 2; q++) {
            int k = begin + 4 * q;
#pragma unroll
            for (int m = 0; m < 4; m++) a[m / 2][2 * q + m % 2] = rounded(left[8 * m * SHORT + k]);
#pragma unroll
            for (int j = 0; j < EIGHTS; j++)
                b[j][q] = rounded(BY_ROWS ? right[k * LONG + 8 * j] : right[8 * j * SHORT + k]);
        }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < EIGHTS; j++) multiply(c[m][j], a[m], b[j]);
    }
}

// The sum over the four lanes of a row and the two warps that share it, in the order of columns.
__device__ __forceinline__ void sum_row(double *shared, double x, int row, int column, int turn) {
    x += __shfl_xor_sync(ALL, x, 1);
    x += __shfl_xor_sync(ALL, x, 2);
    if (turn == 0) shared[(column != 0) * EDGE + row] = x;
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS) divide(const Arguments given) {
    extern __shared__ double space[];
    T *left = reinterpret_cast<T *>(space), *right = left + STAGES * LEFT;
    const int d = given.d;
    const int slot = blockIdx.x / given.pieces;
    const Tile tile = tile_of(given, slot);
    const int bin = blockIdx.x % given.pieces * COLUMNS;
    const int width = given.widths[tile.source], stride = given.strides[tile.source];
    const T *state = reinterpret_cast<const T *>(given.states[tile.source]);
    const int *bins = reinterpret_cast<const int *>(given.bins[tile.source]);
    const int count = min(EDGE, given.n - tile.partner);
    state += (size_t)tile.partner * stride;
    const int own = threadIdx.x / WIDE;
    int ahead[WIDE * DEPTH / THREADS]; // the bins of the next stage to load
    auto look = [&](int step) {
#pragma unroll
        for (int j = 0; j < WIDE * DEPTH / THREADS; j++)
            ahead[j] = bins[min(step * DEPTH + own + j * (THREADS / WIDE), width - 1)];
    };
    const int steps = (width + DEPTH - 1) / DEPTH;
    auto load = [&](int step) {
        T *to = left + step % STAGES * LEFT;
#pragma unroll
        for (int j = 0; j < EDGE * SMALL / THREADS; j++) {
            int row = threadIdx.x / SMALL + j * (THREADS / SMALL), k = threadIdx.x % SMALL * VEC;
            bool there = row < count && step * DEPTH + k < width;
            copy(to + row * SHORT + k,
                 state + (there ? (size_t)row * stride + step * DEPTH + k : 0), there);
        }
        to = right + step % STAGES * RIGHT;
#pragma unroll
        for (int j = 0; j < WIDE * DEPTH / THREADS; j++) {
            int row = threadIdx.x / WIDE + j * (THREADS / WIDE), k = threadIdx.x % WIDE * VEC;
            int column = bin + k;
            bool there = column < d;
            copy(to + row * LONG + k,
                 given.kernel + (size_t)ahead[j] * d + (there ? column : 0), there);
        }
        look(min(step + 1, steps - 1));
    };
    look(0);
    const Lane at = lane_of(threadIdx.x);
    T c[2][EIGHTS][4] = {};
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) load(step);
        commit();
    }
    for (int step = 0; step < steps; step++) {
        wait();
        __syncthreads();
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        commit();
        multiply_stage<true>(c, left + step % STAGES * LEFT, right + step % STAGES * RIGHT, at);
    }
    __syncthreads();

    // Logarithms take long, and most masses are zero: lanes list the others before
    double *sums = space;
    Two *list = reinterpret_cast<Two *>(space + 2 * EDGE) + threadIdx.x;
    T *u = given.u + (size_t)slot * EDGE * d;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        Two b[2][EIGHTS]; // all loads before the first store: the compiler would keep their order
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < EIGHTS; j++) {
                int row = at.row + 16 * m + 8 * h + at.group;
                int column = bin + at.column + 8 * j + 2 * at.turn;
                const T *from = given.hist + (size_t)(tile.partner + row) * d + column;
                b[h][j] = row < count && column < d ? *reinterpret_cast<const Two *>(from)
                                                    : Two{0, 0};
            }
        int listed[2], length = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = at.row + 16 * m + 8 * h + at.group;
#pragma unroll
            for (int j = 0; j < EIGHTS; j++) {
                int column = bin + at.column + 8 * j + 2 * at.turn;
                Two mass = b[h][j], found = {0, 0};
                if (row < count) {
                    found.x = quotient(mass.x, c[m][j][2 * h]);
                    found.y = quotient(mass.y, c[m][j][2 * h + 1]);
                }
                if (mass.x > 0) list[length++ * THREADS] = {mass.x, found.x};
                if (mass.y > 0) list[length++ * THREADS] = {mass.y, found.y};
                if (column < d) *reinterpret_cast<Two *>(u + (size_t)row * d + column) = found;
            }
            listed[h] = length;
        }
        double logs[2] = {0.0, 0.0};
        for (int j = 0; j < listed[1]; j++) {
            Two one = list[j * THREADS];
            double term = one.x * logarithm(one.y);
            logs[0] += j < listed[0] ? term : 0.0;
            logs[1] += j < listed[0] ? 0.0 : term;
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            sum_row(sums, logs[h], at.row + 16 * m + 8 * h + at.group, at.column, at.turn);
    }
    __syncthreads();
    int row = threadIdx.x;
    if (row < EDGE)
        given.sums_u[((size_t)slot * EDGE + row) * given.pieces + bin / COLUMNS] =
            sums[row] + sums[EDGE + row];
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS) update(const Arguments given) {
    extern __shared__ double space[];
    T *left = reinterpret_cast<T *>(space), *right = left + STAGES * LEFT;
    const int d = given.d;
    const int slot = blockIdx.x / given.parts, origin = blockIdx.x % given.parts * COLUMNS;
    const Tile tile = tile_of(given, slot);
    const int width = given.widths[tile.source], stride = given.strides[tile.source];
    if (origin >= width) return;
    T *state = reinterpret_cast<T *>(given.states[tile.source]);
    const int *bins = reinterpret_cast<const int *>(given.bins[tile.source]);
    const T *masses = reinterpret_cast<const T *>(given.masses[tile.source]);
    const int count = min(EDGE, given.n - tile.partner);
    state += (size_t)tile.partner * stride;
    const T *u = given.u + (size_t)slot * EDGE * d;
    const int line = threadIdx.x / SMALL, place = threadIdx.x % SMALL * VEC;
    const T *rows[COLUMNS * SMALL / THREADS];
#pragma unroll
    for (int j = 0; j < COLUMNS * SMALL / THREADS; j++) {
        int k = origin + line + j * (THREADS / SMALL);
        rows[j] = given.kernel + (size_t)bins[min(k, width - 1)] * d + place;
    }
    auto load = [&](int step) {
        T *to = left + step % STAGES * LEFT, *other = right + step % STAGES * RIGHT;
        bool there = step * DEPTH + place < d;
        int from = there ? step * DEPTH : 0;
#pragma unroll
        for (int j = 0; j < EDGE * SMALL / THREADS; j++) {
            int row = line + j * (THREADS / SMALL);
            copy(to + row * SHORT + place, u + (size_t)row * d + from + place, there);
        }
#pragma unroll
        for (int j = 0; j < COLUMNS * SMALL / THREADS; j++) {
            int row = line + j * (THREADS / SMALL);
            copy(other + row * SHORT + place, rows[j] + from, there);
        }
    };
    const int steps = (d + DEPTH - 1) / DEPTH;
    const Lane at = lane_of(threadIdx.x);
    T c[2][EIGHTS][4] = {};
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) load(step);
        commit();
    }
    for (int step = 0; step < steps; step++) {
        wait();
        __syncthreads();
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        commit();
        // Warps without bins of the source have nothing to multiply
        if (origin + at.column < width)
            multiply_stage<false>(c, left + step % STAGES * LEFT, right + step % STAGES * RIGHT, at);
    }
    __syncthreads();

    double *sums = space, *gaps = space + 2 * EDGE;
    Two a[EIGHTS];
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) {
        int k = origin + at.column + 8 * j + 2 * at.turn;
        a[j] = k < width ? *reinterpret_cast<const Two *>(masses + k) : Two{0, 0};
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        Two v[2][EIGHTS]; // all loads before the first store, as above
        auto here = [&](int h, int j) {
            int row = at.row + 16 * m + 8 * h + at.group;
            int k = origin + at.column + 8 * j + 2 * at.turn;
            bool there = k < width && row < count;
            return there ? reinterpret_cast<Two *>(state + (size_t)row * stride + k) : nullptr;
        };
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < EIGHTS; j++)
                v[h][j] = here(h, j) ? *here(h, j) : Two{0, 0};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            double logs = 0.0, gap = 0.0;
#pragma unroll
            for (int j = 0; j < EIGHTS; j++) {
                Two *to = here(h, j);
                if (to == nullptr) continue;
                Two ku = {c[m][j][2 * h], c[m][j][2 * h + 1]}, next;
                gap += magnitude(v[h][j].x * ku.x - a[j].x);
                gap += magnitude(v[h][j].y * ku.y - a[j].y);
                next.x = quotient(a[j].x, ku.x);
                next.y = quotient(a[j].y, ku.y);
                if (a[j].x > 0) logs += a[j].x * logarithm(next.x);
                if (a[j].y > 0) logs += a[j].y * logarithm(next.y);
                *to = next;
            }
            int row = at.row + 16 * m + 8 * h + at.group;
            sum_row(sums, logs, row, at.column, at.turn);
            sum_row(gaps, gap, row, at.column, at.turn);
        }
    }
    __syncthreads();
    int row = threadIdx.x;
    if (row < EDGE) {
        size_t to = ((size_t)slot * EDGE + row) * given.parts + origin / COLUMNS;
        given.sums_v[to] = sums[row] + sums[EDGE + row];
        given.marginals[to] = gaps[row] + gaps[EDGE + row];
    }
}

__device__ __forceinline__ size_t place_of(const Arguments &given, Tile tile, int row) {
    return (size_t)tile.source * given.line + tile.partner + row - given.first;
}

extern "C" __global__ void collect(const Arguments given) {
    const Tile tile = tile_of(given, blockIdx.x);
    const int row = threadIdx.x;
    if (row >= given.n - tile.partner) return;
    const size_t from = (size_t)blockIdx.x * EDGE + row;
    const int parts = (given.widths[tile.source] + COLUMNS - 1) / COLUMNS;
    double value = 0.0, error = 0.0;
    for (int j = 0; j < given.pieces; j++) value += given.sums_u[from * given.pieces + j];
    for (int j = 0; j < parts; j++) {
        value += given.sums_v[from * given.parts + j];
        error += given.marginals[from * given.parts + j];
    }
    const size_t to = place_of(given, tile, row);
    given.values[to] = value;
    given.errors[to] = error;
}

extern "C" __global__ void count(const Arguments given) {
    const Tile tile = tile_of(given, blockIdx.x);
    const int row = threadIdx.x;
    bool there = row < given.n - tile.partner;
    int late = __syncthreads_count(there && given.errors[place_of(given, tile, row)] > given.tol);
    if (row == 0) given.late[blockIdx.x] = late;
}
