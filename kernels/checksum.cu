// Did a vector arrive as it left? A sum modulo 2^64 over its bytes: the same whatever the order in which blocks run, and
// another one when a bit flips or two elements change places. One pass over memory.
#include "block.cuh"
#include "common.cuh"

typedef unsigned long long Word;

// The numbers that neighbours are told apart by: the golden ratio's, as in splitmix64 (Steele, Lea & Flood 2014).
constexpr Word STEP = 0x9e3779b97f4a7c15;

// splitmix64's finaliser: another number for each number, every bit of which depends on every bit of x.
__device__ inline Word mix(Word x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// sum += Σ mix(w_i + (i + 1)·STEP) over words w of 64 bits: the lower halves are the first half of n 32-bit `words`, the
// upper ones the second half, so that neighbouring threads read neighbours wherever the vector begins. Of an odd n the
// last one is a word of its own. Integers may be added in any order, so here atomics do no harm.
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
