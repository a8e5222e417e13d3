// A driver that does nothing: of a run with it, the time that is left is the host's (scripts/bench/host_alone). It has
// a GPU of compute capability 9.0. Memory is the host's, and is not touched; every kernel and copy is done at once;
// what is read back is ones, so that no window counts as skipped or empty.
#include <cstdlib>
#include <cstring>

#include "runtime/cuda/cuda_driver.h"

using namespace gacc::cuda;

namespace {

constexpr size_t kPage = 4096;
char thing[64];  // contexts, streams, events, graphs, modules, functions: any address but null

template <class Handle>
int give(Handle* handle) {
  *handle = reinterpret_cast<Handle>(thing);
  return 0;
}

int give_text(const char** text) {
  *text = "the idle driver has no errors";
  return 0;
}

void* pages(size_t bytes) { return std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage); }

// Returns an attribute of the GPU: the numbers are the driver's (CUdevice_attribute).
int attribute(int number) {
  constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76;
  return number == kMajor ? 9 : number == kMinor ? 0 : number == kMultiprocessors ? 132 : 1;
}

}  // namespace

#define GACC_GIVES(symbol, parameters, result) \
  int symbol parameters { return result; }
#define GACC_IDLE(symbol, parameters) GACC_GIVES(symbol, parameters, 0)

extern "C" {

GACC_IDLE(cuInit, (unsigned))
GACC_GIVES(cuDriverGetVersion, (int* version), (*version = 13000, 0))
GACC_GIVES(cuGetErrorName, (int, const char** text), give_text(text))
GACC_GIVES(cuGetErrorString, (int, const char** text), give_text(text))
GACC_GIVES(cuDeviceGetCount, (int* count), (*count = 1, 0))
GACC_GIVES(cuDeviceGet, (int* device, int), (*device = 0, 0))
GACC_GIVES(cuDeviceGetName, (char* name, int length, int),
           (std::strncpy(name, "idle", static_cast<size_t>(length)), 0))
GACC_GIVES(cuDeviceGetAttribute, (int* value, int number, int), (*value = attribute(number), 0))
GACC_GIVES(cuDevicePrimaryCtxRetain, (Context * context, int), give(context))
GACC_IDLE(cuDevicePrimaryCtxRelease_v2, (int))
GACC_IDLE(cuCtxPushCurrent_v2, (Context))
GACC_GIVES(cuCtxPopCurrent_v2, (Context * context), give(context))
GACC_GIVES(cuMemGetInfo_v2, (size_t * free, size_t* total), (*free = *total = size_t{80} << 30, 0))
GACC_GIVES(cuMemAlloc_v2, (Pointer * pointer, size_t bytes),
           (*pointer = reinterpret_cast<Pointer>(pages(bytes)), *pointer == 0))
GACC_GIVES(cuMemFree_v2, (Pointer pointer), (std::free(reinterpret_cast<void*>(pointer)), 0))
GACC_GIVES(cuMemHostAlloc, (void** pointer, size_t bytes, unsigned),
           (*pointer = pages(bytes), *pointer == nullptr))
GACC_GIVES(cuMemFreeHost, (void* pointer), (std::free(pointer), 0))
GACC_IDLE(cuMemsetD8Async, (Pointer, unsigned char, size_t, Stream))
GACC_IDLE(cuMemcpyHtoDAsync_v2, (Pointer, const void*, size_t, Stream))
int cuMemcpyDtoHAsync_v2(void* to, Pointer, size_t bytes, Stream) {
  const float one = 1;
  for (size_t at = 0; at + sizeof one <= bytes; at += sizeof one)
    std::memcpy(static_cast<char*>(to) + at, &one, sizeof one);
  return 0;
}
GACC_GIVES(cuStreamCreate, (Stream * stream, unsigned), give(stream))
GACC_IDLE(cuStreamDestroy_v2, (Stream))
GACC_IDLE(cuStreamSynchronize, (Stream))
GACC_IDLE(cuStreamBeginCapture_v2, (Stream, int))
GACC_GIVES(cuStreamEndCapture, (Stream, Graph* graph), give(graph))
GACC_GIVES(cuGraphInstantiateWithFlags, (GraphExec * executable, Graph, unsigned long long), give(executable))
GACC_IDLE(cuGraphUpload, (GraphExec, Stream))
GACC_IDLE(cuGraphLaunch, (GraphExec, Stream))
GACC_IDLE(cuGraphExecDestroy, (GraphExec))
GACC_IDLE(cuGraphDestroy, (Graph))
GACC_GIVES(cuEventCreate, (Event * event, unsigned), give(event))
GACC_IDLE(cuEventRecord, (Event, Stream))
GACC_IDLE(cuStreamWaitEvent, (Stream, Event, unsigned))
GACC_IDLE(cuEventSynchronize, (Event))
GACC_IDLE(cuEventDestroy_v2, (Event))
GACC_GIVES(cuEventElapsedTime, (float* milliseconds, Event, Event), (*milliseconds = 1, 0))
GACC_GIVES(cuModuleLoadDataEx, (Module * module, const void*, unsigned, int*, void**), give(module))
GACC_IDLE(cuModuleUnload, (Module))
GACC_GIVES(cuModuleGetFunction, (Function * function, Module, const char*), give(function))
GACC_GIVES(cuFuncGetAttribute, (int* value, int, Function), (*value = 1024, 0))
GACC_GIVES(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int* blocks, Function, int, size_t),
           (*blocks = 2, 0))
GACC_IDLE(cuLaunchCooperativeKernel,
          (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**))
GACC_IDLE(cuLaunchKernel, (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           Stream, void**, void**))

}  // extern "C"
