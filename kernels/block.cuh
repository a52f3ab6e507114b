// Reductions over the threads of a block.
#pragma once

constexpr unsigned ALL = 0xffffffffu;  // every lane of a warp

// The sum and the maximum over a block, returned to all its threads. `partial` is in shared memory, with an element for
// each warp. The order of additions is fixed, so that the same numbers give the same bits.
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
