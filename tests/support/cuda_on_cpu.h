// Runs CUDA C++ of kernels on the processor: the blocks one after the other, the threads of a block as coroutines that take
// turns at barriers, and at exchanges of registers in a warp. Reads and writes outside of memory end the launch with an error
// (`cuda_on_cpu.py` puts guards around buffers), and so do threads that wait for others which never come.

#include <csetjmp>
#include <csignal>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <type_traits>
#include <ucontext.h>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __constant__ static
#define __launch_bounds__(...)

// The products of four bytes by four bytes, and a number, added up.
inline int __dp4a(int a, int b, int c) {
    for (int k = 0; k < 32; k += 8) c += int((signed char)(a >> k)) * int((signed char)(b >> k));
    return c;
}

struct Dimensions {
    unsigned x, y, z;
};
static Dimensions gridDim, blockDim, blockIdx, threadIdx;

namespace on_cpu {

const unsigned MOST = 1024, WARP = 32;
const size_t STACK = 1 << 16;
enum Failure { OUTSIDE = 1, TOO_MANY = 2, NEVER_MEET = 3 };
enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };
// Where the scheduler and the threads go on. Jumps between stacks take no call of the system, as swapcontext does.
static jmp_buf scheduler, places[MOST];
static bool begun[MOST];
static State states[MOST];
static unsigned current;
// What each thread gives to its warp. One that goes on may give the next value before others have read this one.
static unsigned given[2][MOST], exchanges[MOST];
static sigjmp_buf fault;

static Dimensions position(unsigned lane) {
    return {lane % blockDim.x, lane / blockDim.x % blockDim.y, lane / blockDim.x / blockDim.y};
}

// Go back to the scheduler, which resumes the thread here.
static void pause() {
    if (!_setjmp(places[current])) _longjmp(scheduler, 1);
}

// Yield to the other threads, until all of the block are at a barrier, or all of the warp at an exchange.
static void wait(State state) {
    unsigned self = current;
    states[self] = state;
    pause();
    threadIdx = position(self);
}

// What the thread of the same warp gives whose number differs in these bits.
static unsigned exchange(unsigned value, unsigned bits) {
    unsigned self = current, *values = given[exchanges[self]++ % 2];
    values[self] = value;
    wait(AT_EXCHANGE);
    return values[self ^ bits];
}

static void on_fault(int) { siglongjmp(fault, 1); }

// Pointers are given as they are, numbers by their addresses.
template <class T> T argument(void* given) {
    if constexpr (std::is_pointer_v<T>)
        return (T)given;
    else
        return *(T*)given;
}

template <class... A, size_t... I> void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(argument<A>(arguments[I])...);
}

template <class... A> void enter(void (*kernel)(A...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<A...>());
}

struct Job {
    void (*run)(void*, void**);
    void* kernel;
    void** arguments;
};
static Job job;

// A thread of each block in turn.
static void thread() {
    while (true) {
        job.run(job.kernel, job.arguments);
        states[current] = DONE;
        pause();
    }
}

static void resume(char* stacks) {
    if (_setjmp(scheduler)) return;
    if (begun[current]) _longjmp(places[current], 1);
    begun[current] = true;
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = stacks + current * STACK;
    start.uc_stack.ss_size = STACK;
    start.uc_link = nullptr;
    makecontext(&start, thread, 0);
    setcontext(&start);
}

// Whether all threads from the first to before the last are in a state, or have ended if that is allowed.
static bool all(unsigned first, unsigned last, State state, bool or_done) {
    for (unsigned lane = first; lane < last; lane++)
        if (states[lane] != state && !(or_done && states[lane] == DONE)) return false;
    return true;
}

static void go_on(unsigned first, unsigned last) {
    for (unsigned lane = first; lane < last; lane++)
        if (states[lane] != DONE) states[lane] = READY;
}

// False if threads wait for others that never come.
static bool block_of_coroutines(unsigned count, char* stacks) {
    for (unsigned lane = 0; lane < count; lane++) {
        states[lane] = READY;
        exchanges[lane] = 0;
    }
    while (true) {
        for (current = 0; current < count; current++)
            if (states[current] == READY) {
                threadIdx = position(current);
                resume(stacks);
            }
        bool moved = false;
        for (unsigned first = 0; first + WARP <= count; first += WARP)
            if (all(first, first + WARP, AT_EXCHANGE, false)) go_on(first, first + WARP), moved = true;
        if (moved) continue;
        if (all(0, count, DONE, false)) return true;
        if (!all(0, count, AT_BARRIER, true)) return false;
        go_on(0, count);
    }
}

// Run all blocks; 0, or how it failed.
template <class... A> int launch(void (*kernel)(A...), void** arguments, const unsigned* sizes, bool coroutines) {
    static char* stacks = (char*)mmap(nullptr, MOST * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], sizes[4], sizes[5]};
    unsigned count = blockDim.x * blockDim.y * blockDim.z;
    if (count > MOST) return TOO_MANY;
    job = {[](void* k, void** a) { enter((void (*)(A...))k, a); }, (void*)kernel, arguments};
    struct sigaction mine = {}, segment, bus;
    mine.sa_handler = on_fault;
    sigaction(SIGSEGV, &mine, &segment);
    sigaction(SIGBUS, &mine, &bus);
    volatile int failed = sigsetjmp(fault, 1) ? OUTSIDE : 0;
    memset(begun, 0, sizeof begun);
    if (!failed)
        for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
            for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
                for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
                    if (coroutines)
                        failed = failed || block_of_coroutines(count, stacks) ? failed : NEVER_MEET;
                    else
                        for (unsigned lane = 0; lane < count; lane++) {
                            threadIdx = position(lane);
                            enter(kernel, arguments);
                        }
    sigaction(SIGSEGV, &segment, nullptr);
    sigaction(SIGBUS, &bus, nullptr);
    return failed;
}

}  // namespace on_cpu

static void __syncthreads() { on_cpu::wait(on_cpu::AT_BARRIER); }
static unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned bits) { return on_cpu::exchange(value, bits); }
