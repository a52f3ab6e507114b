// Which units are dropped? The very ones that the CPU drops: a draw is a function of its number, by the generator of
// mpitrain/streams.py, Philox 4×64 with 10 rounds (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011).
// Block b of the generator is four 64-bit numbers, each of which gives two draws, the lower half first; NumPy makes a
// float32 in [0, 1) of the upper 24 bits of a half.
#include "common.cuh"

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

// scale ← (draw ≥ rate) / (1 − rate) = keep or 0;  y ← x·scale. Element i takes draw `start` + i of the generator with
// this key. A thread makes the elements of a block of the generator.
extern "C" __global__ void dropout(
    const real *x, real *y, real *scale, Index n, Index start, Word key0, Word key1, float rate, real keep) {
    Index first = start / 8, last = (start + n + 7) / 8;
    for (Index block = first + thread(); block < last; block += threads()) {
        Word v[4] = {(Word)block + 1, 0, 0, 0};  // NumPy counts up before it draws
        philox(v, key0, key1);
        for (int k = 0; k < 8; k++) {
            Index i = block * 8 + k - start;
            if (i < 0 || i >= n) continue;
            unsigned half = (unsigned)(v[k / 2] >> k % 2 * 32);
            float draw = (half >> 8) * (1.0f / (1 << 24));
            real factor = draw >= rate ? keep : 0;
            scale[i] = factor;
            y[i] = x[i] * factor;
        }
    }
}
