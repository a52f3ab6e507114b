// Cross-entropy and its gradient over outputs z [rows, classes], with one block per row: a row is read from memory once,
// and later from the cache. The losses of the rows are stored separately instead of being added by atomics, so that the
// same minibatch gives the same bits.
#include "block.cuh"
#include "common.cuh"

// log Σ exp(z) − z[target], with the largest output subtracted first; NaN if an output is NaN. With `gradient`,
// z ← (softmax(z) − one-hot)·scale.
__device__ void softmax(real *z, const int *targets, double *losses, int classes, real scale, bool gradient) {
    __shared__ real partial[32];
    real *row = z + (Index)blockIdx.x * classes;
    int target = targets[blockIdx.x];
    real greatest = row[0], sum = 0;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) greatest = fmax(greatest, row[c]);
    greatest = block_max(greatest, partial);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) sum += exp(row[c] - greatest);
    sum = block_sum(sum, partial);
    if (threadIdx.x == 0) losses[blockIdx.x] = (double)log(sum) - (double)(row[target] - greatest);
    if (!gradient) return;
    __syncthreads();  // the loss has been read
    for (int c = threadIdx.x; c < classes; c += blockDim.x)
        row[c] = exp(row[c] - greatest) * (scale / sum) - (c == target ? scale : 0);
}

// Σ_c log(1 + exp(z_c)) − z[target], with log(1 + exp(z)) = max(z, 0) + log(1 + exp(−|z|)) (Krizhevsky 2014, §3).
// With `gradient`, z ← (logistic(z) − one-hot)·scale.
__device__ void logistic(real *z, const int *targets, double *losses, int classes, real scale, bool gradient) {
    __shared__ double partial[32];
    real *row = z + (Index)blockIdx.x * classes;
    int target = targets[blockIdx.x];
    double sum = 0;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        real x = row[c];
        sum += (double)(log1p(exp(-fabs(x))) + (x > 0 ? x : x != x ? x : 0)) - (c == target ? (double)x : 0);
        if (gradient) row[c] = (1 / (1 + exp(-x)) - (c == target ? 1 : 0)) * scale;
    }
    sum = block_sum(sum, partial);
    if (threadIdx.x == 0) losses[blockIdx.x] = sum;
}

extern "C" __global__ void softmax_loss(real *z, const int *targets, double *losses, int classes) {
    softmax(z, targets, losses, classes, 1, false);
}

extern "C" __global__ void softmax_gradient(real *z, const int *targets, double *losses, int classes) {
    softmax(z, targets, losses, classes, (real)1 / gridDim.x, true);
}

extern "C" __global__ void logistic_loss(real *z, const int *targets, double *losses, int classes) {
    logistic(z, targets, losses, classes, 1, false);
}

extern "C" __global__ void logistic_gradient(real *z, const int *targets, double *losses, int classes) {
    logistic(z, targets, losses, classes, (real)1 / gridDim.x, true);
}
