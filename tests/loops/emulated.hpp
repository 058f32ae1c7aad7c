// Blocks of CUDA threads on a CPU: each is a context of its own, which runs until it has to wait for the others.
//
// Between two barriers the threads run one after the other, in the order that `order` names: whoever reads what
// another thread writes there finds the old value in one order and the new one in another. Threads that wait in
// different places, or never meet, are reported: nothing is guessed.
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(threads)
#define INLINE static inline
#define LARGEST DBL_MAX
#define LARGESTf FLT_MAX
struct Number { int x; };
static Number threadIdx, blockIdx;
namespace emulated {
enum State { READY, AT_BARRIER, AT_EXCHANGE, AT_MEETING, DONE };
const int MOST = 4096, STACK = 64 * 1024;
struct Thread {
    ucontext_t context;
    char* stack;
    State state;
    int exchanges, by;
    char slots[2][8];
};
static Thread threads[MOST];
static ucontext_t home;
static int now, size, first_block;
static unsigned char* memory;
static size_t memory_size;
static void (*body)();
static void begin() {
    body();
    threads[now].state = DONE;
    swapcontext(&threads[now].context, &home);
}
static void turn(int t) {
    now = t;
    threadIdx.x = t % size;
    blockIdx.x = first_block + t / size;
}
static void wait(State state) {
    const int own = now;
    threads[own].state = state;
    swapcontext(&threads[own].context, &home);
    turn(own);
}
// Runs some blocks together. 0: all threads went their way; 1: some wait for others that never come.
static int run_blocks(int threads_each, int blocks, int order, int first, void (*function)()) {
    const int count = threads_each * blocks;
    if (count > MOST) return 2;
    body = function, size = threads_each, first_block = first;
    int turns[MOST];
    unsigned random = order;
    for (int t = 0; t < count; ++t) {
        Thread& thread = threads[t];
        if (!thread.stack) thread.stack = (char*)malloc(STACK);
        thread.state = READY;
        thread.exchanges = 0;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack;
        thread.context.uc_stack.ss_size = STACK;
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, begin, 0);
        turns[t] = order == 1 ? count - 1 - t : t;
    }
    for (;;) {
        for (int k = count - 1; order > 1 && k > 0; --k) {
            random = 1664525 * random + 1013904223;
            const int other = (random >> 8) % (k + 1), mine = turns[k];
            turns[k] = turns[other], turns[other] = mine;
        }
        bool moved = false;
        for (int k = 0; k < count; ++k) {
            const int t = turns[k];
            if (threads[t].state != READY) continue;
            turn(t);
            moved = true;
            swapcontext(&home, &threads[t].context);
        }
        int meeting = 0, done = 0;
        for (int t = 0; t < count; ++t) meeting += threads[t].state == AT_MEETING, done += threads[t].state == DONE;
        if (done == count) return 0;
        if (meeting == count) {
            for (int t = 0; t < count; ++t) threads[t].state = READY;
            continue;
        }
        for (int block = 0; block < count; block += size) {
            bool all = true;
            for (int t = block; t < block + size; ++t) all &= threads[t].state == AT_BARRIER;
            if (!all) continue;
            for (int t = block; t < block + size; ++t) threads[t].state = READY;
            moved = true;
        }
        for (int first = 0; first < count; first += 32) {
            const int last = first + 32 < count ? first + 32 : count;
            bool all = true;
            for (int t = first; t < last; ++t)
                all &= threads[t].state == AT_EXCHANGE && threads[t].by == threads[first].by;
            if (!all) continue;
            for (int t = first; t < last; ++t) threads[t].state = READY;
            moved = true;
        }
        if (!moved) return 1;
    }
}
}  // namespace emulated
#define shared (emulated::memory + (blockIdx.x - emulated::first_block) * emulated::memory_size)
static void __syncthreads() { emulated::wait(emulated::AT_BARRIER); }
static void meet(unsigned*, unsigned&) { emulated::wait(emulated::AT_MEETING); }
template <typename T> static T __shfl_xor_sync(unsigned, T x, int by) {
    emulated::Thread& own = emulated::threads[emulated::now];
    const int number = emulated::now, slot = own.exchanges++ & 1;
    own.by = by;
    memcpy(own.slots[slot], &x, sizeof(T));
    emulated::wait(emulated::AT_EXCHANGE);
    T other;
    memcpy(&other, emulated::threads[number ^ by].slots[slot], sizeof(T));
    return other;
}
