// A checksum that reveals whether a vector was changed on its way: a sum modulo 2^64 over its bytes, which does not depend
// on the order in which blocks run, and changes if a bit flips or two elements are exchanged. One pass over memory.
#include "block.cuh"
#include "common.cuh"

typedef unsigned long long Word;

// Makes the sum depend on positions: the constant of the golden ratio, as in splitmix64 (Steele, Lea & Flood 2014).
constexpr Word STEP = 0x9e3779b97f4a7c15;

// splitmix64's finaliser, a bijection in which every bit of the result depends on every bit of x.
__device__ inline Word mix(Word x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// sum += Σ mix(w_i + (i + 1)·STEP) over 64-bit words w: the first half of n 32-bit `words` gives their lower halves, the
// second half the upper ones, so that neighbouring threads read neighbouring words whatever the vector's alignment. For
// odd n, the last word has no upper half. The order of integer additions does not matter, so atomics are acceptable.
extern "C" __global__ void checksum(const unsigned *words, Word *sum, Index n) {
    __shared__ Word partial[32];
    Index pairs = n / 2;
    Word total = 0;
#pragma unroll 4
    for (Index i = thread(); i < pairs; i += threads())
        total += mix(((Word)words[pairs + i] << 32 | words[i]) + (i + 1) * STEP);
    if (n % 2 && thread() == 0) total += mix(words[n - 1] + (pairs + 1) * STEP);
    total = block_sum(total, partial);
    if (threadIdx.x == 0) atomicAdd(sum, total);
}
