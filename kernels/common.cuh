// What the kernels share. Elements are `real`: float, or double where tests want to see an equality.
#pragma once

typedef REAL real;
typedef long long Index;

// A loop over n elements, whatever the size of the grid:  for (Index i = thread(); i < n; i += threads())
__device__ inline Index thread() { return (Index)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline Index threads() { return (Index)gridDim.x * blockDim.x; }
