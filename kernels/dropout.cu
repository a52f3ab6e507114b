// Dropout of the same units as on the CPU: each draw is a function of its number, by the generator of mpitrain/sampling/rng.py,
// Philox 4×64 with 10 rounds (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011). Block b of the generator
// consists of four 64-bit numbers, each of which gives two draws, the lower half first; NumPy converts the upper 24 bits
// of a half to a float32 in [0, 1).
#include "common.cuh"

constexpr int THREADS = 256;
typedef unsigned long long Word;

// The block of a counter, in place.
__device__ inline void philox(Word v[4], Word key0, Word key1) {
    constexpr Word FACTOR0 = 0xD2E7470EE14C6C93ull, FACTOR1 = 0xCA5A826395121157ull;
    constexpr Word GOLDEN = 0x9E3779B97F4A7C15ull, ROOT3 = 0xBB67AE8584CAA73Bull;
    for (int round = 0; round < 10; round++) {
        Word low0 = FACTOR0 * v[0], high0 = __umul64hi(FACTOR0, v[0]);
        Word low1 = FACTOR1 * v[2], high1 = __umul64hi(FACTOR1, v[2]);
        v[0] = high1 ^ v[1] ^ key0;
        v[1] = low1;
        v[2] = high0 ^ v[3] ^ key1;
        v[3] = low0;
        key0 += GOLDEN;
        key1 += ROOT3;
    }
}

// scale ← keep·(draw ≥ rate);  y ← x·scale. Element i uses draw `start` + i of the generator with
// this key. Each thread computes a block of the generator, and then elements adjacent to those of neighbouring threads.
extern "C" __global__ __launch_bounds__(THREADS) void dropout(
    const real *x, real *y, real *scale, Index n, Index start, Word key0, Word key1, float rate, real keep) {
    __shared__ unsigned char kept[THREADS];  // one bit for each of a thread's eight draws
    Index block = start / 8 + (Index)blockIdx.x * THREADS;
    Word v[4] = {(Word)block + threadIdx.x + 1, 0, 0, 0};  // NumPy increments the counter before it draws
    philox(v, key0, key1);
    unsigned bits = 0;
    for (int k = 0; k < 8; k++) {
        unsigned half = (unsigned)(v[k / 2] >> k % 2 * 32);
        float draw = (half >> 8) * (1.0f / (1 << 24));
        bits |= (draw >= rate) << k;
    }
    kept[threadIdx.x] = (unsigned char)bits;
    __syncthreads();
    Index first = block * 8 + threadIdx.x - start;
    real loaded[8];  // all before any is stored
    for (int k = 0; k < 8; k++) {
        Index i = first + k * THREADS;
        if (0 <= i && i < n) loaded[k] = x[i];
    }
    for (int k = 0; k < 8; k++) {
        Index i = first + k * THREADS;
        if (i < 0 || i >= n) continue;
        int t = threadIdx.x + k * THREADS;
        real factor = kept[t / 8] >> t % 8 & 1 ? keep : 0;
        scale[i] = factor;
        y[i] = loaded[k] * factor;
    }
}
