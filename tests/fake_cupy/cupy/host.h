// CUDA kernels on the host, to test their logic. Each thread of a block is a fiber of one system thread; it runs until
// it waits (at a barrier, in a warp's vote or shuffle) and then the next one does. So a missing barrier is seen: a
// thread runs far ahead of its neighbours, or far behind.
//
// order 0 runs one block after another, threads in order. Any other number seeds an adversarial order that CUDA allows
// too: four blocks at a time of a shuffled grid, switching between them, and between threads in shuffled order, at each
// wait and each atomic operation. Shared memory holds garbage at first. A kernel that does not end is reported.
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <ucontext.h>

using std::exp, std::fabs, std::fmax, std::isfinite, std::log, std::log1p, std::min;

#define __global__
#define __device__
#define __restrict__
#define __launch_bounds__(threads)
// One copy for the block that runs; the host keeps those of the blocks that wait.
#define __shared__ static __attribute__((section("shared_memory")))
extern "C" char __start_shared_memory[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_shared_memory[] __attribute__((weak, visibility("hidden")));

struct Dim {
    unsigned x, y, z;
};
static Dim gridDim, blockDim, blockIdx, threadIdx;

namespace host {

const unsigned RESIDENT = 4, WARP = 32, PATIENCE = 20000;
const size_t STACK = 1 << 16;

struct Barrier {
    unsigned arrived = 0, passed = 0;
};

struct Block {
    Dim index{};
    unsigned left = 0;  // threads that have not ended
    Barrier barrier;
    std::vector<Barrier> warps;
    std::vector<unsigned long long> said;  // what each thread contributes to its warp's vote or shuffle
    std::vector<bool> ended;
    std::vector<char> shared;
};

struct Fiber {
    ucontext_t start{};
    jmp_buf place{};
    bool begun = false;
};

static std::vector<Fiber> fibers;
static std::function<void()> kernel;
static Block *block;
static unsigned self;  // the running thread's number in its block
static Fiber *fiber;
static jmp_buf scheduler;
static std::minstd_rand random;
static bool adversarial;
static bool stuck;  // the last kernel: its fibers are still in the middle of it
static unsigned long progress;

// Let others run.
inline void suspend() {
    if (!_setjmp(fiber->place)) _longjmp(scheduler, 1);
}

inline void pass(Barrier &barrier) {
    barrier.arrived = 0;
    barrier.passed++;
}

inline void wait(Barrier &barrier, unsigned expected) {
    unsigned before = barrier.passed;
    if (++barrier.arrived == expected) return pass(barrier);
    while (barrier.passed == before) suspend();
}

static void life() {
    for (;;) {
        kernel();
        block->ended[self] = true;
        progress++;
        // CUDA's barrier waits for the threads that have not ended.
        if (--block->left && block->barrier.arrived == block->left) pass(block->barrier);
        suspend();
    }
}

static void resume(unsigned slot, unsigned thread) {
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    fiber = &fibers[slot * threads + thread];
    self = thread;
    blockIdx = block->index;
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
    if (_setjmp(scheduler)) return;
    if (fiber->begun) _longjmp(fiber->place, 1);
    fiber->begun = true;
    setcontext(&fiber->start);
}

static void make_fibers(size_t count) {
    for (size_t i = 0; i < fibers.size(); i++) munmap(fibers[i].start.uc_stack.ss_sp, STACK);
    fibers = std::vector<Fiber>(count);
    for (Fiber &each : fibers) {
        getcontext(&each.start);
        each.start.uc_stack.ss_sp =
            mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        each.start.uc_stack.ss_size = STACK;
        makecontext(&each.start, life, 0);
    }
}

enum { ENDED, STUCK, ODD_BLOCK };

static int run(std::function<void()> body, const unsigned *grid, const unsigned *size, unsigned order) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {size[0], size[1], size[2]};
    unsigned blocks = grid[0] * grid[1] * grid[2], threads = size[0] * size[1] * size[2];
    if (threads % WARP || threads > 1024 || !threads || !blocks) return ODD_BLOCK;
    kernel = body;
    adversarial = order;
    random.seed(order);
    unsigned resident = std::min(blocks, order ? RESIDENT : 1);
    if (stuck || fibers.size() < resident * threads) make_fibers(resident * threads);
    stuck = false;
    std::vector<unsigned> turns(threads), places(blocks);
    std::iota(turns.begin(), turns.end(), 0);
    std::iota(places.begin(), places.end(), 0);
    if (order) std::shuffle(places.begin(), places.end(), random);
    size_t shared = __start_shared_memory ? __stop_shared_memory - __start_shared_memory : 0;
    std::vector<Block> slots(resident);
    std::vector<unsigned> busy;
    unsigned started = 0;
    auto begin = [&](unsigned slot) {
        unsigned place = places[started++];
        Block &fresh = slots[slot] = Block();
        fresh.index = {place % grid[0], place / grid[0] % grid[1], place / grid[0] / grid[1]};
        fresh.left = threads;
        fresh.warps.resize(threads / WARP);
        fresh.said.resize(threads);
        fresh.ended.resize(threads);
        fresh.shared.assign(shared, (char)0xCD);
    };
    for (unsigned slot = 0; slot < resident; slot++) begin(slot), busy.push_back(slot);
    unsigned long seen = progress;
    for (unsigned idle = 0; !busy.empty(); idle = progress == seen ? idle + 1 : 0) {
        seen = progress;
        unsigned pick = order ? random() % busy.size() : 0, slot = busy[pick];
        block = &slots[slot];
        if (order) std::shuffle(turns.begin(), turns.end(), random);
        if (shared) memcpy(__start_shared_memory, block->shared.data(), shared);
        for (unsigned thread : turns)
            if (!block->ended[thread]) resume(slot, thread);
        if (shared) memcpy(block->shared.data(), __start_shared_memory, shared);
        if (!block->left) {
            if (started < blocks) begin(slot);
            else busy.erase(busy.begin() + pick);
        }
        if (idle > PATIENCE) return stuck = true, STUCK;
    }
    return ENDED;
}

// A warp's threads tell each other something; each gets at what all said.
template <class T, class Read>
T exchange(T mine, Read read) {
    unsigned first = self / WARP * WARP;
    memcpy(&block->said[self], &mine, sizeof mine);
    Barrier &warp = block->warps[self / WARP];
    wait(warp, WARP);
    T result = read([&](unsigned lane) {
        T other;
        memcpy(&other, &block->said[first + lane], sizeof other);
        return other;
    });
    wait(warp, WARP);
    return result;
}

template <class T, class Change>
T atomic(T *place, Change change) {
    T before = *place;
    *place = change(before);
    progress++;
    if (adversarial) suspend();
    return before;
}

// A parameter's type as NumPy writes it, "p" before that of what it points to.
template <class T>
std::string type() {
    if constexpr (std::is_pointer_v<T>) return "p" + type<std::remove_cv_t<std::remove_pointer_t<T>>>();
    else return (std::is_floating_point_v<T> ? "f" : std::is_unsigned_v<T> ? "u" : "i") + std::to_string(sizeof(T));
}

template <class... T>
std::string types(void (*)(T...)) {
    std::string all;
    ((all += type<T>() + " "), ...);
    return all;
}

template <class... T, size_t... I>
std::function<void()> bound(void (*function)(T...), void **arguments, std::index_sequence<I...>) {
    return [=] { function(*(T *)arguments[I]...); };
}

template <class... T>
int launch(void (*function)(T...), void **arguments, const unsigned *grid, const unsigned *size, unsigned order) {
    return run(bound(function, arguments, std::index_sequence_for<T...>()), grid, size, order);
}

}  // namespace host

inline void __syncthreads() {
    host::progress++;
    host::wait(host::block->barrier, host::block->left);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
    return host::exchange<unsigned>(vote, [](auto said) {
        unsigned votes = 0;
        for (unsigned lane = 0; lane < 32; lane++) votes |= said(lane) << lane;
        return votes;
    });
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote); }
template <class T>
T __shfl_sync(unsigned, T mine, unsigned lane) {
    return host::exchange<T>(mine, [=](auto said) { return said(lane % 32); });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T mine, unsigned other) {
    return __shfl_sync(mask, mine, host::self % 32 ^ other);
}
template <class T>
T __shfl_up_sync(unsigned mask, T mine, unsigned distance) {
    unsigned lane = host::self % 32;
    return __shfl_sync(mask, mine, lane < distance ? lane : lane - distance);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
template <class T>
T atomicAdd(T *place, T x) {
    return host::atomic(place, [=](T old) { return old + x; });
}
template <class T>
T atomicExch(T *place, T x) {
    return host::atomic(place, [=](T) { return x; });
}
template <class T>
T atomicMin(T *place, T x) {
    return host::atomic(place, [=](T old) { return std::min(old, x); });
}

// What the launching side calls: one pair of functions a kernel.
#define KERNEL(name)                                                                                             \
    extern "C" int launch_##name(void **arguments, const unsigned *grid, const unsigned *size, unsigned order) { \
        return host::launch(name, arguments, grid, size, order);                                                 \
    }                                                                                                            \
    extern "C" const char *types_##name() {                                                                      \
        static std::string types = host::types(name);                                                            \
        return types.c_str();                                                                                    \
    }
