// The columns of K that every source selects, side by side; T is defined by the caller.
//
// out[i][l][k] = kernel[bins[i][k]][l], tiles of 32 x 32 by 32 x 8 threads; then `beyond` zeros.
// Sources with `wanted` zero are left out but for their first numbers, which are zeros: lanes without
// bins read there from the source before, and multiply by zero what must not be infinite or NaN.

struct Arguments { // in the order of sinkhorn_cuda.Copy
    const T *kernel;
    const int *bins;
    T *out;
    const long long *wanted; // may be null
    int d, width, beyond;
};

extern "C" __global__ void gather(const Arguments given) {
    const auto [kernel, bins, out, wanted, d, width, beyond] = given;
    __shared__ T tile[32][33];
    int k = blockIdx.x * 32, l = blockIdx.y * 32;
    size_t i = blockIdx.z;
    if (k == 0 && l == 0 && i == gridDim.z - 1 && threadIdx.y == 0)
        for (int j = threadIdx.x; j < beyond; j += 32) out[(i + 1) * d * width + j] = 0;
    if (wanted != nullptr && wanted[i] == 0) {
        if (k == 0 && l == 0 && threadIdx.y == 0)
            for (int j = threadIdx.x; j < beyond; j += 32) out[i * d * width + j] = 0;
        return;
    }
    for (int j = threadIdx.y; j < 32; j += 8)
        if (k + j < width && l + threadIdx.x < d)
            tile[j][threadIdx.x] = kernel[(size_t)bins[i * width + k + j] * d + l + threadIdx.x];
    __syncthreads();
    for (int j = threadIdx.y; j < 32; j += 8)
        if (l + j < d && k + threadIdx.x < width)
            out[(i * d + l + j) * width + k + threadIdx.x] = tile[threadIdx.x][j];
}
