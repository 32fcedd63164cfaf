// Runs CUDA C++ of kernels on the processor: the blocks one after the other, the threads of a block as coroutines that take
// turns at barriers. Reads and writes outside of memory end the launch with an error (`cuda_on_cpu.py` puts guards around buffers).

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
#define __launch_bounds__(count)

struct Dimensions {
    unsigned x, y, z;
};
static Dimensions gridDim, blockDim, blockIdx, threadIdx;

namespace on_cpu {

const unsigned MOST = 1024;
const size_t STACK = 1 << 16;
static ucontext_t scheduler, threads[MOST];
static bool done[MOST];
static unsigned current;
static sigjmp_buf fault;

static Dimensions position(unsigned lane) {
    return {lane % blockDim.x, lane / blockDim.x % blockDim.y, lane / blockDim.x / blockDim.y};
}

// Yield to the other threads of the block, which all come here before any goes on.
static void barrier() {
    unsigned self = current;
    swapcontext(&threads[self], &scheduler);
    threadIdx = position(self);
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

static void thread() {
    job.run(job.kernel, job.arguments);
    done[current] = true;
    swapcontext(&threads[current], &scheduler);
}

static void block_with_barriers(unsigned count, char* stacks) {
    for (unsigned lane = 0; lane < count; lane++) {
        done[lane] = false;
        getcontext(&threads[lane]);
        threads[lane].uc_stack.ss_sp = stacks + lane * STACK;
        threads[lane].uc_stack.ss_size = STACK;
        threads[lane].uc_link = nullptr;
        makecontext(&threads[lane], thread, 0);
    }
    for (bool busy = true; busy;) {
        busy = false;
        for (current = 0; current < count; current++)
            if (!done[current]) {
                threadIdx = position(current);
                swapcontext(&scheduler, &threads[current]);
                busy = true;
            }
    }
}

// Run all blocks; 0 if nothing was read or written outside of memory.
template <class... A> int launch(void (*kernel)(A...), void** arguments, const unsigned* sizes, bool barriers) {
    static char* stacks = (char*)mmap(nullptr, MOST * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], sizes[4], sizes[5]};
    unsigned count = blockDim.x * blockDim.y * blockDim.z;
    if (count > MOST) return 2;
    job = {[](void* k, void** a) { enter((void (*)(A...))k, a); }, (void*)kernel, arguments};
    struct sigaction mine = {}, segment, bus;
    mine.sa_handler = on_fault;
    sigaction(SIGSEGV, &mine, &segment);
    sigaction(SIGBUS, &mine, &bus);
    int failed = sigsetjmp(fault, 1);
    if (!failed)
        for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
            for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
                for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
                    if (barriers)
                        block_with_barriers(count, stacks);
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

static void __syncthreads() { on_cpu::barrier(); }
