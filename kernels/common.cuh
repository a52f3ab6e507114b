// Definitions for all kernels. Elements are `real`: float, or double in tests that check an equality.
#pragma once

typedef REAL real;
typedef long long Index;

// A loop over n elements with a grid of any size:  for (Index i = thread(); i < n; i += threads())
__device__ inline Index thread() { return (Index)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline Index threads() { return (Index)gridDim.x * blockDim.x; }
