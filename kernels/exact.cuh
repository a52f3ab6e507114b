// Sums, products, quotients and roots that are rounded once, for rules that must give the bits of the CPU. `a * b + c`
// would become a fused multiply-add, and CuPy always compiles with -ftz=true, which flushes subnormal numbers to 0 (a
// decaying velocity becomes subnormal). These PTX instructions do neither, whatever the compiler's options.
#pragma once

#ifdef __CUDA_ARCH__
#define ROUNDED(name, operation)                                                \
    __device__ inline float name(float a, float b) {                            \
        float c;                                                                \
        asm(operation ".rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));        \
        return c;                                                               \
    }                                                                           \
    __device__ inline double name(double a, double b) {                         \
        double c;                                                               \
        asm(operation ".rn.f64 %0, %1, %2;" : "=d"(c) : "d"(a), "d"(b));        \
        return c;                                                               \
    }
ROUNDED(add, "add")
ROUNDED(sub, "sub")
ROUNDED(mul, "mul")
ROUNDED(quotient, "div")
__device__ inline float root(float a) {
    float c;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(c) : "f"(a));
    return c;
}
__device__ inline double root(double a) {
    double c;
    asm("sqrt.rn.f64 %0, %1;" : "=d"(c) : "d"(a));
    return c;
}
#else  // compiled for the host, where tests run the same kernels
__device__ inline real add(real a, real b) { return a + b; }
__device__ inline real sub(real a, real b) { return a - b; }
__device__ inline real mul(real a, real b) { return a * b; }
__device__ inline real quotient(real a, real b) { return a / b; }
__device__ inline real root(real a) { return sqrt(a); }
#endif

// v ← μv − ηg, as in all momentum rules. For μ = 0, v is not multiplied: 0·v is −0 or NaN for some v.
__device__ inline real accelerated(real v, real g, real eta, real mu) {
    return mu == 0 ? mul(-eta, g) : sub(mul(mu, v), mul(eta, g));
}
