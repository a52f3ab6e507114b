// What the kernels share. Elements are `real`: float, or double where tests want to see an equality.
#pragma once

typedef REAL real;
typedef long long Index;

const unsigned ALL = 0xffffffffu;   // every lane of a warp
const unsigned NONE = 0xffffffffu;  // no index

// A loop over n elements, whatever the size of the grid:  for (Index i = thread(); i < n; i += threads())
__device__ inline Index thread() { return (Index)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline Index threads() { return (Index)gridDim.x * blockDim.x; }

// The sum, and the maximum, over a block, for all its threads. `partial` is shared, a place for each warp. The order of
// additions is fixed: the same numbers give the same bits.
template <class T>
__device__ T block_sum(T x, T *partial) {
    for (int distance = 16; distance; distance /= 2) x += __shfl_xor_sync(ALL, x, distance);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++) x += partial[warp];
    __syncthreads();  // the next sum may overwrite `partial`
    return x;
}

template <class T>
__device__ T block_max(T x, T *partial) {
    for (int distance = 16; distance; distance /= 2) x = fmax(x, __shfl_xor_sync(ALL, x, distance));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = partial[0];
    for (unsigned warp = 1; warp < blockDim.x / 32; warp++) x = fmax(x, partial[warp]);
    __syncthreads();
    return x;
}
