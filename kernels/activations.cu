// Add a bias and apply the activation, in one pass and in place over y [rows, units]; without a bias, only the
// activation. The derivatives are computed from outputs; where a ReLU's output is 0, the gradient is exactly 0.
#include "common.cuh"

__device__ inline real biased(real y, const real *bias, Index i, unsigned units) {
    return bias ? y + bias[(unsigned)i % units] : y;
}

// y ← y + b
extern "C" __global__ void add_bias(real *y, const real *bias, Index n, unsigned units) {
    in_place(y, n, [=](real x, Index i) { return biased(x, bias, i, units); });
}

// y ← max(y + b, 0), keeping NaN
extern "C" __global__ void bias_relu(real *y, const real *bias, Index n, unsigned units) {
    in_place(y, n, [=](real x, Index i) {
        x = biased(x, bias, i, units);
        return x < 0 ? 0 : x;
    });
}

// y ← 1 / (1 + exp(−(y + b)))
extern "C" __global__ void bias_sigmoid(real *y, const real *bias, Index n, unsigned units) {
    in_place(y, n, [=](real x, Index i) { return 1 / (1 + exp(-biased(x, bias, i, units))); });
}

// dy ← dy where y > 0, else 0
extern "C" __global__ void relu_backward(const real *y, real *dy, Index n) {
    for (Index i = thread(); i < n; i += threads()) {
        real gradient = dy[i];  // loaded unconditionally, so that it does not wait for y
        dy[i] = y[i] > 0 ? gradient : 0;
    }
}

// dy ← dy·y·(1 − y)
extern "C" __global__ void sigmoid_backward(const real *y, real *dy, Index n) {
    for (Index i = thread(); i < n; i += threads()) dy[i] *= y[i] * (1 - y[i]);
}
