// Definitions for all kernels. Elements are `real`: float, or double in tests that check an equality.
#pragma once

typedef REAL real;
typedef long long Index;

// A loop over n elements with a grid of any size:  for (Index i = thread(); i < n; i += threads())
__device__ inline Index thread() { return (Index)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline Index threads() { return (Index)gridDim.x * blockDim.x; }

// x ← f(x, i) for n elements in place. A thread loads four elements before it stores one: with a single load in flight,
// an H200 comes to 0.7 of its memory's speed.
template <class Function>
__device__ inline void in_place(real *x, Index n, Function f) {
    constexpr int FEW = 4;
    for (Index i = thread(); i < n; i += FEW * threads()) {
        real old[FEW];
        for (int k = 0; k < FEW; k++)
            if (i + k * threads() < n) old[k] = x[i + k * threads()];
        for (int k = 0; k < FEW; k++)
            if (i + k * threads() < n) x[i + k * threads()] = f(old[k], i + k * threads());
    }
}
