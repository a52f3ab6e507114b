// Which elements of the residual are sent? Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud
// Computing, Interspeech 2015, §2.6 steps 4 to 7: add the gradient, take the threshold from what exceeds it, and write
// down where. `take_levels` follows where an element has more than one bit (§2.5): how often is the threshold taken?
//
// One pass over memory: residual and gradient are read once, the residual is written once. The words come out in
// ascending order of index, because the codecs send gaps. So each block must know how many words the blocks before it
// found, and learns it by decoupled look-back (Merrill & Garland, Single-pass Parallel Prefix Scan, 2016).
#include "block.cuh"
#include "common.cuh"
#include "exact.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int ITEMS = 16;              // elements a thread holds: enough loads under way to keep the memory busy
constexpr int TILE = THREADS * ITEMS;  // elements a block treats
constexpr int SPANS = TILE / 32;       // a span is 32 neighbours, one for each lane of a warp

// What a tile has told the others, in the upper half of its state; the number itself is in the lower half. Both halves
// are written at once, so that no fence is needed.
enum Told : unsigned { NOTHING, COUNT, TOTAL };  // yet; its own words; all words up to its end

__device__ inline void tell(unsigned long long *state, Told what, unsigned number) {
    atomicExch(state, (unsigned long long)what << 32 | number);
}

// How many words the tiles before `tile` have, which has `count`. By a whole warp: lane l asks the l-th tile before.
__device__ unsigned words_before(unsigned long long *states, int tile, unsigned count) {
    int lane = threadIdx.x % 32;
    if (lane == 0) tell(&states[tile], COUNT, count);
    unsigned before = 0, totals = 0;
    for (int nearest = tile - 1; !totals; nearest -= 32) {
        int asked = nearest - lane;
        unsigned long long state = (unsigned long long)TOTAL << 32;  // before the first tile there are 0 words
        do {
            if (asked >= 0) state = *(volatile unsigned long long *)&states[asked];
        } while (__any_sync(ALL, state >> 32 == NOTHING));
        // Add up the counts back to the nearest tile that knows the total, and that total.
        totals = __ballot_sync(ALL, state >> 32 == TOTAL);
        unsigned number = !totals || lane < __ffs(totals) ? (unsigned)state : 0;
        for (int distance = 16; distance; distance /= 2) number += __shfl_xor_sync(ALL, number, distance);
        before += number;
    }
    if (lane == 0) tell(&states[tile], TOTAL, before + count);
    return before;
}

// residual += scale·gradient; the words of what exceeds the threshold, which loses `taken`, the threshold, or 0 if
// `take_levels` follows, which clips it, too; result = (how many words, the first index that is
// not finite, if it was 2³² − 1 before). `progress` is 0 at the start: a ticket, then the states of the tiles. n > 0.
extern "C" __global__ __launch_bounds__(THREADS) void accumulate(
    real *residual, const real *gradient, unsigned *words, unsigned *result, unsigned long long *progress, Index n,
    real scale, real threshold, real taken, real limit) {
    __shared__ unsigned hits[SPANS];    // a bit for each element to be sent
    __shared__ unsigned starts[SPANS];  // words of this tile before the span
    __shared__ unsigned tile, before;   // words of all tiles before this one
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // Tiles are assigned in the order in which blocks start, so that a block only waits for blocks that are running.
    if (threadIdx.x == 0) tile = (unsigned)atomicAdd(progress, 1ull);
    __syncthreads();
    Index start = (Index)tile * TILE;
    int size = (int)(n - start < TILE ? n - start : TILE);
    residual += start;
    gradient += start;

    // All loads come first, without conditions between them, so that they are in flight at the same time. Indices beyond
    // the end are replaced by that of the last element.
    real value[ITEMS], change[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int i = min((int)threadIdx.x + k * THREADS, size - 1);
        value[k] = residual[i];
        change[k] = gradient[i];
    }
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        bool inside = (int)threadIdx.x + k * THREADS < size;
        value[k] = add(value[k], mul(scale, change[k]));
        unsigned found = __ballot_sync(ALL, inside && !(fabs(value[k]) <= threshold));  // also true for NaN
        if (lane == 0) hits[k * WARPS + warp] = found;
    }
    __syncthreads();

    // The first warp counts and looks back while the others write their residuals.
    if (warp == 0) {
        constexpr int EACH = SPANS / 32;  // neighbouring spans of a lane
        unsigned sum = 0;
        for (int j = 0; j < EACH; j++) {
            starts[lane * EACH + j] = sum;
            sum += __popc(hits[lane * EACH + j]);
        }
        unsigned upto = sum;
        for (int distance = 1; distance < 32; distance *= 2) {
            unsigned left = __shfl_up_sync(ALL, upto, distance);
            if (lane >= distance) upto += left;
        }
        for (int j = 0; j < EACH; j++) starts[lane * EACH + j] += upto - sum;
        unsigned count = __shfl_sync(ALL, upto, 31);
        unsigned others = words_before(progress + 1, tile, count);
        if (lane == 0) before = others;
        if (lane == 0 && tile == gridDim.x - 1) result[0] = others + count;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int i = threadIdx.x + k * THREADS;
        real kept = value[k];
        bool sent = !(fabs(kept) <= threshold);
        if (sent) kept = kept < 0 ? add(kept, taken) : sub(kept, taken);
        if (fabs(kept) > limit && (taken || !sent)) kept = kept < 0 ? -limit : limit;
        if (i < size) residual[i] = kept;
    }
    __syncthreads();

#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        unsigned i = (unsigned)start + threadIdx.x + k * THREADS;
        unsigned found = hits[k * WARPS + warp], earlier = (1u << lane) - 1;
        if (found >> lane & 1) {
            words[before + starts[k * WARPS + warp] + __popc(found & earlier)] = i | (value[k] < 0 ? 1u << 31 : 0);
            if (!isfinite(value[k])) atomicMin(&result[1], i);
        }
    }
}

// levels = how often each of the `*count` words is sent: as often as the threshold fits into its residual, or if there
// is a quantum, the nearest number of those. The residual loses that, and what is left is clipped. All of it is exact in
// double, and rounded once.
extern "C" __global__ void take_levels(
    real *residual, const unsigned *words, const unsigned *count, unsigned *levels, real threshold, real limit,
    unsigned greatest, real quantum) {
    for (Index j = thread(); j < *count; j += threads()) {
        Index i = words[j] & ~(1u << 31);
        double value = residual[i];
        double unit = quantum ? quantum : threshold, units = fabs(value) / unit;
        double level = quantum ? rint(units) : floor(units);
        level = level < greatest ? fmax(level, 1.0) : greatest;
        double sent = level * unit;
        real kept = (real)(value < 0 ? value + sent : value - sent);
        residual[i] = fabs(kept) > limit ? (kept < 0 ? -limit : limit) : kept;
        levels[j] = (unsigned)level;
    }
}
