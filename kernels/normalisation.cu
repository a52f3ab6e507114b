// Local response normalisation across channels (Krizhevsky et al. 2012, §3.3): y_c = x_c·d_c^−power, where
// d_c = offset + scale·Σ x² over the channels within `half` of c. A block processes consecutive elements and keeps the
// terms of the sums, including those of `half` elements on either side, in shared memory.
#include "common.cuh"

constexpr int THREADS = 256, HALF_MAX = 32;

// Σ of `terms` over the channels around that of this thread, in the order of the CPU; missing channels count as 0.
__device__ inline real window_sum(const real *terms, int c, int channels, int half) {
    const real *own = terms + half + threadIdx.x;
    real sum = *own;
    for (int distance = 1; distance <= half; distance++) {
        if (c + distance < channels) sum += own[distance];
        if (c - distance >= 0) sum += own[-distance];
    }
    return sum;
}

// x and d are needed by the backward pass.
extern "C" __global__ __launch_bounds__(THREADS) void lrn_forward(
    const real *x, real *y, real *d, Index n, int channels, int half, real scale, real power, real offset) {
    __shared__ real squares[THREADS + 2 * HALF_MAX];
    Index start = (Index)blockIdx.x * THREADS, i = start + threadIdx.x;
    for (int t = threadIdx.x; t < THREADS + 2 * half; t += THREADS) {
        Index j = start + t - half;
        squares[t] = 0 <= j && j < n ? x[j] * x[j] : 0;
    }
    __syncthreads();
    if (i >= n) return;
    d[i] = scale * window_sum(squares, (int)((unsigned)i % channels), channels, half) + offset;
    y[i] = x[i] * exp(-power * log(d[i]));
}

// dx_c = dy_c·d_c^−power − 2·scale·power·x_c·Σ dy·x·d^(−power − 1), over the same channels: the window is its own
// adjoint. dx must not be dy, which neighbouring blocks still read.
extern "C" __global__ __launch_bounds__(THREADS) void lrn_backward(
    const real *x, const real *d, const real *dy, real *dx, Index n, int channels, int half, real scale, real power) {
    __shared__ real ratios[THREADS + 2 * HALF_MAX];
    Index start = (Index)blockIdx.x * THREADS, i = start + threadIdx.x;
    for (int t = threadIdx.x; t < THREADS + 2 * half; t += THREADS) {
        Index j = start + t - half;
        ratios[t] = 0 <= j && j < n ? dy[j] * x[j] * exp(-power * log(d[j])) / d[j] : 0;
    }
    __syncthreads();
    if (i >= n) return;
    real sum = window_sum(ratios, (int)((unsigned)i % channels), channels, half);
    dx[i] = dy[i] * exp(-power * log(d[i])) - 2 * scale * power * x[i] * sum;
}
