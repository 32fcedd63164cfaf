// NVIDIA's driver on the processor, for tests of the calls that Opweave makes through NVIDIA's bindings for Python.
//
// It does no work before it is waited for, so that memory which is changed or freed too early gives wrong results. It returns
// the driver's errors for calls without a context, and for handles that are gone. A module is the address of a function of
// `cuda_on_cpu.py`, with the kinds of its arguments: p for pointers, v for values.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

enum { OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600 };
typedef unsigned long long Address;
typedef int (*Function)(void**, const unsigned*);

struct Context {
    int device, retained = 0;
};
struct Stream {
    Context* context;
    std::deque<std::function<void()>> work;
    uint64_t submitted = 0, done = 0;
};
struct Event {
    Stream* stream = nullptr;
    uint64_t ticket = 0;
};
struct Module {
    Function function;
    std::string kinds;
};
struct Launch {
    Module* module;
    unsigned sizes[6];
    std::vector<uint64_t> values;
};
struct Graph {
    std::vector<Launch*> nodes;
    size_t edges = 0;
};
static int early_edges = 0;
struct Edge {
    unsigned char from_port, to_port, type, reserved[5];
};
struct Executable {
    std::vector<Launch> launches;
    std::vector<Launch*> nodes;
};
struct Parameters {  // CUDA_KERNEL_NODE_PARAMS_v2
    Module* function;
    unsigned sizes[6], shared;
    void** arguments;
    void **extra, *kernel, *context;
};

static std::recursive_mutex mutex;
static Context contexts[2] = {{0}, {1}};
static std::map<Context*, Stream> defaults;
static thread_local std::vector<Context*> current;
static std::set<void*> streams, events, modules, graphs, executables, pinned;
static std::map<Address, std::pair<size_t, int>> memory;
static std::map<void*, size_t> pinned_sizes;

#define API extern "C" __attribute__((visibility("default"))) int
#define LOCKED std::lock_guard<std::recursive_mutex> lock(mutex)
#define IN_CONTEXT \
    LOCKED;        \
    if (current.empty()) return INVALID_CONTEXT
#define KNOWN(set, handle) \
    if (!set.count((void*)(handle))) return INVALID_HANDLE

static Stream* stream_of(void* handle) {
    if ((uintptr_t)handle <= 2) {
        Stream* found = &defaults[current.back()];
        found->context = current.back();
        return found;
    }
    return streams.count(handle) ? (Stream*)handle : nullptr;
}

static void run(Stream* stream, uint64_t ticket) {
    while (stream->done < ticket && !stream->work.empty()) {
        auto work = stream->work.front();
        stream->work.pop_front();
        stream->done++;
        work();
    }
}

static int submit(void* handle, std::function<void()> work) {
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->context != current.back()) return INVALID_CONTEXT;
    stream->work.push_back(work);
    stream->submitted++;
    return OK;
}

static std::vector<uint64_t> values_of(Module* module, void** arguments) {
    std::vector<uint64_t> values;
    for (size_t k = 0; k < module->kinds.size(); k++) {
        values.push_back(0);
        memcpy(&values.back(), arguments[k], 8);
    }
    return values;
}

static void launch(const Launch& given) {
    std::vector<uint64_t> values = given.values;
    std::vector<void*> arguments;
    for (size_t k = 0; k < values.size(); k++)
        arguments.push_back(given.module->kinds[k] == 'p' ? (void*)values[k] : (void*)&values[k]);
    if (given.module->function(arguments.data(), given.sizes)) abort();  // it reads or writes outside of memory
}

// Devices and contexts

API cuInit(unsigned) { return OK; }
API cuDriverGetVersion(int* version) { return *version = 13000, OK; }
API cuDeviceGetCount(int* count) { return *count = 2, OK; }
API cuDeviceGet(int* device, int number) { return *device = number, number < 2 ? OK : 101; }
API cuDeviceGetName(char* name, int size, int) { return strncpy(name, "a processor", size), OK; }
API cuDeviceTotalMem(size_t* bytes, int) { return *bytes = 1 << 30, OK; }
API cuDeviceGetAttribute(int* value, int attribute, int) {
    // Compute capability 9.0; else a number that suits sizes.
    return *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 49152, OK;
}
API cuDevicePrimaryCtxRetain(Context** context, int device) {
    LOCKED;
    return *context = &contexts[device], contexts[device].retained++, OK;
}
API cuDevicePrimaryCtxRelease(int device) {
    LOCKED;
    return contexts[device].retained-- > 0 ? OK : INVALID_CONTEXT;
}
API cuCtxPushCurrent(Context* context) { return current.push_back(context), OK; }
API cuCtxPopCurrent(Context** context) {
    if (current.empty()) return INVALID_CONTEXT;
    return *context = current.back(), current.pop_back(), OK;
}
API cuCtxGetCurrent(Context** context) { return *context = current.empty() ? nullptr : current.back(), OK; }
API cuCtxGetDevice(int* device) {
    IN_CONTEXT;
    return *device = current.back()->device, OK;
}
API cuCtxSynchronize() {
    IN_CONTEXT;
    run(stream_of(nullptr), UINT64_MAX);
    for (void* each : streams)
        if (((Stream*)each)->context == current.back()) run((Stream*)each, UINT64_MAX);
    return OK;
}

// Streams and events

API cuStreamCreate(Stream** stream, unsigned) {
    IN_CONTEXT;
    *stream = new Stream{current.back()};
    return streams.insert(*stream), OK;
}
API cuStreamDestroy(Stream* stream) {
    IN_CONTEXT;
    KNOWN(streams, stream);
    run(stream, UINT64_MAX);
    return streams.erase(stream), OK;  // never deleted: its address stays unknown
}
API cuStreamSynchronize(void* handle) {
    IN_CONTEXT;
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    return run(stream, UINT64_MAX), OK;
}
API cuStreamGetCtx(void* handle, Context** context) {
    IN_CONTEXT;
    Stream* stream = stream_of(handle);
    return stream ? (*context = stream->context, OK) : INVALID_HANDLE;
}
API cuStreamGetDevice(void* handle, int* device) {
    LOCKED;
    KNOWN(streams, handle);
    return *device = ((Stream*)handle)->context->device, OK;
}
API cuEventCreate(Event** event, unsigned) {
    IN_CONTEXT;
    *event = new Event();
    return events.insert(*event), OK;
}
API cuEventRecord(Event* event, void* handle) {
    IN_CONTEXT;
    KNOWN(events, event);
    Stream* stream = stream_of(handle);
    if (!stream || stream->context != current.back()) return INVALID_HANDLE;
    return *event = {stream, stream->submitted}, OK;
}
API cuEventSynchronize(Event* event) {
    IN_CONTEXT;
    KNOWN(events, event);
    if (event->stream) run(event->stream, event->ticket);
    return OK;
}
API cuEventQuery(Event* event) {
    IN_CONTEXT;
    KNOWN(events, event);
    return !event->stream || event->stream->done >= event->ticket ? OK : NOT_READY;
}
API cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
    IN_CONTEXT;
    KNOWN(events, start);
    KNOWN(events, end);
    return *milliseconds = 0.25f, OK;
}
API cuEventDestroy(Event* event) {
    IN_CONTEXT;
    KNOWN(events, event);
    return events.erase(event), delete event, OK;
}
API cuStreamWaitEvent(void* handle, Event* event, unsigned) {
    IN_CONTEXT;
    KNOWN(events, event);
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    Event copy = *event;  // of any context
    stream->work.push_back([copy] { run(copy.stream, copy.ticket); });
    return stream->submitted++, OK;
}

// Memory

API cuMemAllocAsync(Address* address, size_t count, void* stream) {
    IN_CONTEXT;
    if (!count) return INVALID_VALUE;
    *address = (Address)aligned_alloc(256, (count + 255) / 256 * 256);
    memory[*address] = {count, current.back()->device};
    memset((void*)*address, 0xAB, count);
    return submit(stream, [] {});
}
API cuMemFreeAsync(Address address, void* stream) {
    IN_CONTEXT;
    if (!memory.count(address)) return INVALID_VALUE;
    size_t count = memory[address].first;
    memory.erase(address);
    // Poisoned, never given to others: what is used after it shows.
    return submit(stream, [address, count] { memset((void*)address, 0xCD, count); });
}
API cuMemsetD8Async(Address address, unsigned char value, size_t count, void* stream) {
    IN_CONTEXT;
    return submit(stream, [=] { memset((void*)address, value, count); });
}
static int copy(void* target, const void* source, size_t count, void* stream) {
    return submit(stream, [=] { memcpy(target, source, count); });
}
static bool is_pinned(const void* at) {
    for (auto& [start, size] : pinned_sizes)
        if ((char*)start <= (char*)at && (char*)at < (char*)start + size) return true;
    return false;
}
API cuMemcpyHtoDAsync(Address target, const void* source, size_t count, void* stream) {
    IN_CONTEXT;
    return is_pinned(source) ? copy((void*)target, source, count, stream) : INVALID_VALUE;
}
API cuMemcpyDtoHAsync(void* target, Address source, size_t count, void* stream) {
    IN_CONTEXT;
    return is_pinned(target) ? copy(target, (void*)source, count, stream) : INVALID_VALUE;
}
API cuMemcpyDtoDAsync(Address target, Address source, size_t count, void* stream) {
    IN_CONTEXT;
    return copy((void*)target, (void*)source, count, stream);
}
API cuMemHostAlloc(void** address, size_t count, unsigned) {
    IN_CONTEXT;
    *address = malloc(count);
    return pinned.insert(*address), pinned_sizes[*address] = count, OK;
}
API cuMemFreeHost(void* address) {
    IN_CONTEXT;
    KNOWN(pinned, address);
    memset(address, 0xEF, pinned_sizes[address]);
    return pinned.erase(address), pinned_sizes.erase(address), OK;
}
API cuPointerGetAttribute(void* value, int attribute, Address address) {
    IN_CONTEXT;
    for (auto& [start, found] : memory)
        if (start <= address && address < start + found.first) return *(int*)value = found.second, attribute == 9 ? OK : INVALID_VALUE;
    return INVALID_VALUE;
}

// Kernels

API cuModuleLoadData(Module** module, const char* image) {
    IN_CONTEXT;
    char* kinds;
    Function function = (Function)strtoull(image, &kinds, 10);
    *module = new Module{function, kinds + 1};
    return modules.insert(*module), OK;
}
API cuModuleGetFunction(Module** function, Module* module, const char*) {
    IN_CONTEXT;
    KNOWN(modules, module);
    return *function = module, OK;
}
API cuModuleUnload(Module* module) {
    IN_CONTEXT;
    KNOWN(modules, module);
    return modules.erase(module), OK;
}
API cuFuncSetAttribute(Module* module, int, int) {
    IN_CONTEXT;
    KNOWN(modules, module);
    return OK;
}
API cuLaunchKernel(Module* module, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned, void* stream,
                   void** arguments, void**) {
    IN_CONTEXT;
    KNOWN(modules, module);
    Launch given{module, {x, y, z, a, b, c}, values_of(module, arguments)};
    return submit(stream, [given] { launch(given); });
}
static Launch launch_of(const Parameters* p) {
    Launch made{p->function, {}, values_of(p->function, p->arguments)};
    memcpy(made.sizes, p->sizes, sizeof(made.sizes));
    return made;
}
API cuGraphCreate(Graph** graph, unsigned flags) {
    IN_CONTEXT;
    if (flags) return INVALID_VALUE;
    *graph = new Graph();
    return graphs.insert(*graph), OK;
}
API cuGraphAddKernelNode(Launch** node, Graph* graph, Launch* const* before, size_t count, const Parameters* parameters) {
    IN_CONTEXT;
    KNOWN(graphs, graph);
    KNOWN(modules, parameters->function);
    if (count > 1 || (count == 1 && (graph->nodes.empty() || before[0] != graph->nodes.back()))) return INVALID_VALUE;
    graph->edges += count;
    *node = new Launch(launch_of(parameters));
    return graph->nodes.push_back(*node), OK;
}
API cuGraphAddDependencies(Graph* graph, Launch* const* from, Launch* const* to, const Edge* edge, size_t count) {
    IN_CONTEXT;
    KNOWN(graphs, graph);
    size_t size = graph->nodes.size();
    bool is_early = edge->from_port == 1 && edge->to_port == 0 && edge->type == 1;  // of kernels that wait by themselves
    if (count != 1 || size < 2 || from[0] != graph->nodes[size - 2] || to[0] != graph->nodes[size - 1] || !is_early) {
        return INVALID_VALUE;
    }
    return early_edges++, graph->edges++, OK;
}
API cuGraphInstantiateWithFlags(Executable** made, Graph* graph, unsigned long long flags) {
    IN_CONTEXT;
    KNOWN(graphs, graph);
    if (flags || (!graph->nodes.empty() && graph->edges + 1 != graph->nodes.size())) return INVALID_VALUE;
    *made = new Executable();
    for (Launch* node : graph->nodes) (*made)->launches.push_back(*node), (*made)->nodes.push_back(node);
    return executables.insert(*made), OK;
}
API cuGraphExecKernelNodeSetParams(Executable* made, Launch* node, const Parameters* parameters) {
    IN_CONTEXT;
    KNOWN(executables, made);
    for (size_t k = 0; k < made->nodes.size(); k++)
        if (made->nodes[k] == node) {
            if (made->launches[k].module != parameters->function) return INVALID_VALUE;
            return made->launches[k] = launch_of(parameters), OK;
        }
    return INVALID_VALUE;
}
API cuGraphLaunch(Executable* made, void* stream) {
    IN_CONTEXT;
    KNOWN(executables, made);
    std::vector<Launch> launches = made->launches;  // later changes are for later launches
    return submit(stream, [launches] {
        for (const Launch& each : launches) launch(each);
    });
}
API cuGraphExecDestroy(Executable* made) {
    IN_CONTEXT;
    KNOWN(executables, made);
    return executables.erase(made), OK;
}
API cuGraphDestroy(Graph* graph) {
    IN_CONTEXT;
    KNOWN(graphs, graph);
    return graphs.erase(graph), OK;
}

// The rest

API cuGetErrorString(int, const char** text) { return *text = "an error of the driver on the processor", OK; }
API cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) {
        static void* self = dlopen("libcuda.so.1", RTLD_NOW);
        *function = dlsym(self, name);
    }
    if (status) *status = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
API cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

// How many edges lead to kernels that wait by themselves.
API opweave_early_edges() { return early_edges; }

// What is left: memory, streams, events, modules, graphs, executable graphs, page-locked blocks, contexts, and those that are current.
API opweave_left(int* counts) {
    LOCKED;
    size_t found[] = {memory.size(), streams.size(), events.size(), modules.size(), graphs.size(), executables.size(), pinned.size(),
                      (size_t)(contexts[0].retained + contexts[1].retained), current.size()};
    for (int k = 0; k < 9; k++) counts[k] = (int)found[k];
    return OK;
}
