// The NVIDIA driver's interface as far as gacc uses it: own prototypes of about fifty functions, found by
// their versioned names in libcuda.so.1 (or in the emulator, which exports the same names). Nothing of the
// CUDA toolkit is needed to build or to run; a test compares the prototypes with cuda.h where that is
// installed.
//
// Enumerations are `int` here. Handles are the driver's own opaque structures. All functions return 0 for
// success.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/status.h"

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;

namespace gacc::cuda {

using Context = CUctx_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;
using Stream = CUstream_st*;
using Event = CUevent_st*;
using Graph = CUgraph_st*;
using GraphExec = CUgraphExec_st*;
using Pointer = unsigned long long;  // an address on the device

// member, exported name, parameters
#define GACC_CUDA_FUNCTIONS(F)                                                                     \
  F(init, cuInit, (unsigned flags))                                                                \
  F(driver_version, cuDriverGetVersion, (int* version))                                            \
  F(error_name, cuGetErrorName, (int error, const char** text))                                    \
  F(error_string, cuGetErrorString, (int error, const char** text))                                \
  F(device_count, cuDeviceGetCount, (int* count))                                                  \
  F(device_get, cuDeviceGet, (int* device, int ordinal))                                           \
  F(device_name, cuDeviceGetName, (char* name, int length, int device))                            \
  F(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, int device))               \
  F(context_retain, cuDevicePrimaryCtxRetain, (Context * context, int device))                     \
  F(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                                   \
  F(context_push, cuCtxPushCurrent_v2, (Context context))                                          \
  F(context_pop, cuCtxPopCurrent_v2, (Context * context))                                          \
  F(memory_info, cuMemGetInfo_v2, (size_t * free, size_t * total))                                 \
  F(allocate, cuMemAlloc_v2, (Pointer * pointer, size_t bytes))                                    \
  F(release, cuMemFree_v2, (Pointer pointer))                                                      \
  F(host_allocate, cuMemHostAlloc, (void** pointer, size_t bytes, unsigned flags))                 \
  F(host_release, cuMemFreeHost, (void* pointer))                                                  \
  F(fill_bytes, cuMemsetD8Async, (Pointer to, unsigned char value, size_t bytes, Stream stream))   \
  F(copy_in, cuMemcpyHtoDAsync_v2, (Pointer to, const void* from, size_t bytes, Stream stream))    \
  F(copy_out, cuMemcpyDtoHAsync_v2, (void* to, Pointer from, size_t bytes, Stream stream))         \
  F(stream_create, cuStreamCreate, (Stream * stream, unsigned flags))                              \
  F(stream_destroy, cuStreamDestroy_v2, (Stream stream))                                           \
  F(stream_wait, cuStreamSynchronize, (Stream stream))                                             \
  F(capture_begin, cuStreamBeginCapture_v2, (Stream stream, int mode))                             \
  F(capture_end, cuStreamEndCapture, (Stream stream, Graph * graph))                               \
  F(graph_instantiate, cuGraphInstantiateWithFlags,                                                \
    (GraphExec * executable, Graph graph, unsigned long long flags))                               \
  F(graph_upload, cuGraphUpload, (GraphExec executable, Stream stream))                            \
  F(graph_launch, cuGraphLaunch, (GraphExec executable, Stream stream))                            \
  F(graph_exec_destroy, cuGraphExecDestroy, (GraphExec executable))                                \
  F(graph_destroy, cuGraphDestroy, (Graph graph))                                                  \
  F(event_create, cuEventCreate, (Event * event, unsigned flags))                                  \
  F(event_record, cuEventRecord, (Event event, Stream stream))                                     \
  F(stream_wait_event, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))            \
  F(event_wait, cuEventSynchronize, (Event event))                                                 \
  F(event_destroy, cuEventDestroy_v2, (Event event))                                               \
  F(module_load, cuModuleLoadDataEx,                                                               \
    (Module * module, const void* image, unsigned count, int* options, void** values))             \
  F(module_unload, cuModuleUnload, (Module module))                                                \
  F(module_function, cuModuleGetFunction, (Function * function, Module module, const char* name))  \
  F(function_attribute, cuFuncGetAttribute, (int* value, int attribute, Function function))        \
  F(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                        \
    (int* blocks, Function function, int threads, size_t shared_bytes))                            \
  F(launch_cooperative, cuLaunchCooperativeKernel,                                                 \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,       \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters)) \
  F(event_elapsed, cuEventElapsedTime, (float* milliseconds, Event from, Event to))                \
  F(launch, cuLaunchKernel,                                                                        \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,       \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters,  \
     void** extra))

// Values of the driver's enumerations, compared with cuda.h by the same test.
inline constexpr int kErrorOutOfMemory = 2;
inline constexpr int kErrorStubLibrary = 34;
inline constexpr int kErrorNoDevice = 100;
inline constexpr int kAttributeMajor = 75, kAttributeMinor = 76;  // compute capability
inline constexpr int kAttributeMultiprocessors = 16, kAttributeCooperative = 95;
inline constexpr int kAttributePciBus = 33, kAttributePciDevice = 34, kAttributePciDomain = 50;
inline constexpr int kFunctionMaxThreads = 0;
inline constexpr int kCaptureRelaxed = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kJitErrorLog = 5, kJitErrorLogBytes = 6;

struct Driver {
#define GACC_CUDA_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  GACC_CUDA_FUNCTIONS(GACC_CUDA_MEMBER)
#undef GACC_CUDA_MEMBER

  void* library = nullptr;  // stays loaded until the process ends

  // Loads the library, finds every function and calls cuInit. One sentence when there is no driver, when it
  // lacks a function (too old), or when cuInit fails (no GPU; the toolkit's stub library).
  Status open(const std::string& path);

  // Success, or "WHAT: NAME (TEXT)" with the driver's own name and text of the error.
  Status check(int error, std::string_view what) const;

  Status make_stream(Stream& stream) const {
    return check(stream_create(&stream, kStreamNonBlocking), "cannot create a stream on the GPU");
  }
  Status make_event(Event& event, unsigned flags) const {
    return check(event_create(&event, flags), "cannot create an event");
  }
  Status record(Event event, Stream stream) const {
    return check(event_record(event, stream), "cannot record an event");
  }
  // Wait for all that was queued before.
  Status wait(Event event) const { return check(event_wait(event), "the GPU failed"); }
  Status wait(Stream stream) const { return check(stream_wait(stream), "the GPU failed"); }
  // Page-locks so many bytes of the host; without an error, `memory` is not null.
  int lock_host(std::byte*& memory, size_t bytes) const {
    void* at = nullptr;
    const int error = host_allocate(&at, bytes, 0);
    memory = error == 0 ? static_cast<std::byte*>(at) : nullptr;
    return error;
  }
  // Copies to the host, and waits.
  Status read(void* to, Pointer from, size_t bytes, Stream stream) const {
    const Status copied = check(copy_out(to, from, bytes, stream), "cannot copy from the GPU");
    return copied ? wait(stream) : copied;
  }
};

// Makes a context the thread's own while it lives. The thread then has the one from before again: another library of
// the process may work with another GPU.
class InContext {
 public:
  InContext(const Driver& driver, Context context)
      : driver_(driver),
        entered_(driver.check(driver.context_push(context), "cannot use the GPU's context")) {}
  ~InContext() {
    Context left = nullptr;
    if (entered_) driver_.context_pop(&left);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

  const Status& status() const { return entered_; }

 private:
  const Driver& driver_;
  Status entered_;
};

// "13.0" for the driver's 13000.
std::string version_text(int version);
// The lowest driver version (13000 for CUDA 13.0) that reads PTX of this text's `.version`; 0 when it has
// none or one that this gacc does not know (the driver then judges). `shown` receives the PTX version, "8.0".
int driver_for_ptx(std::string_view ptx, std::string& shown);

}  // namespace gacc::cuda
