// What do received words do to a replica? Each moves one weight by `step` units of 2^-26, downhill (Strom 2015, §2.3),
// as often as its level says, if there are levels.
// Counts are integers, so replicas hold the same bits in whatever order the messages came. The indices of a message are
// all different: no two threads meet.
#include "common.cuh"

constexpr unsigned SIGN = 1u << 31, NONE = 0xffffffff;  // no index
constexpr Index COUNT_MAX = (1ll << 31) - 1;  // weights reach ±32
constexpr double UNIT = 1.0 / (1 << 26);

__device__ inline Index moved(const int *counts, unsigned word, unsigned level, int step) {
    return counts[word & ~SIGN] + (word & SIGN ? (Index)step : -(Index)step) * level;
}

// failed = the smallest index that a word would take out of range, if any does. A launch of its own, before `apply`: a
// message is applied whole or not at all, and nothing has to be asked of the device in between.
extern "C" __global__ void check(
    const unsigned *words, const unsigned *levels, Index size, int step, const int *counts, unsigned *failed) {
    for (Index j = thread(); j < size; j += threads()) {
        Index count = moved(counts, words[j], levels ? levels[j] : 1, step);
        if (count < -COUNT_MAX || count > COUNT_MAX) atomicMin(failed, words[j] & ~SIGN);
    }
}

// counts −= step·level·sign;  weights = fl(counts·UNIT), unless something has failed before.
extern "C" __global__ void apply(
    const unsigned *words, const unsigned *levels, Index size, int step, int *counts, real *weights, const unsigned *failed) {
    if (*failed != NONE) return;
    for (Index j = thread(); j < size; j += threads()) {
        unsigned index = words[j] & ~SIGN;
        Index count = moved(counts, words[j], levels ? levels[j] : 1, step);
        counts[index] = (int)count;
        weights[index] = (real)((double)count * UNIT);  // rounded once
    }
}
