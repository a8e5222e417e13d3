// See fake_driver.h.
#include "tests/cuda/fake_driver.h"

#include <cstring>
#include <deque>
#include <functional>

#include "runtime/cuda/cuda_driver.h"

using gacc::test::FakeDriver;
using gacc::test::FakeLaunch;

struct CUctx_st {};
struct CUmod_st {
  std::string ptx;
};
struct CUfunc_st {
  std::string name;
  int parameters = 0;
};
struct CUstream_st {
  bool capturing = false;
  std::vector<FakeLaunch> captured;
};
struct CUevent_st {
  size_t until = 0;  // how much of the queue it waits for
};
struct CUgraph_st {
  std::vector<FakeLaunch> launches;
};
struct CUgraphExec_st {
  std::vector<FakeLaunch> launches;
};

namespace {

using namespace gacc::cuda;

std::deque<std::function<void()>> queue;
size_t done = 0;  // entries of the queue that have run, ever
int pending_error = 0;
CUctx_st the_context;
std::map<std::string, CUfunc_st> functions;
std::map<Pointer, size_t> allocations;

FakeDriver from_environment() {
  FakeDriver fake;
  auto number = [](const char* name, auto& to) {
    if (const char* text = std::getenv(name)) to = static_cast<std::decay_t<decltype(to)>>(std::atoll(text));
  };
  number("GACC_FAKE_INIT_ERROR", fake.init_error);
  number("GACC_FAKE_VERSION", fake.version);
  number("GACC_FAKE_CAPABILITY", fake.capabilities[0]);
  number("GACC_FAKE_FREE", fake.free_bytes);
  if (const char* log = std::getenv("GACC_FAKE_JIT_LOG")) fake.jit_log = log;
  return fake;
}

FakeDriver& fake() {
  static FakeDriver driver = from_environment();
  return driver;
}

int called(const char* name) {
  ++fake().calls[name];
  return 0;
}

// Counts a call that works in the thread's context.
int called_within(const char* name) {
  if (fake().contexts.empty() || fake().contexts.back() != &the_context) fake().out_of_context.insert(name);
  return called(name);
}

void enqueue(std::function<void()> work) { queue.push_back(std::move(work)); }

int run_until(size_t end) {
  while (done < end && !queue.empty()) {
    queue.front()();
    queue.pop_front();
    ++done;
  }
  return pending_error;
}

void run_kernel(const FakeLaunch& launch) {
  fake().launches.push_back(launch);
  if (fake().kernel) fake().kernel(launch, fake().context);
}

int count_parameters(const std::string& ptx, const std::string& name) {
  const size_t at = ptx.find(".entry " + name + "(");
  if (at == std::string::npos) return -1;
  const size_t end = ptx.find(')', at);
  int count = 0;
  for (size_t next = ptx.find(".param", at); next < end; next = ptx.find(".param", next + 1)) ++count;
  return count;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) FakeDriver* gacc_fake_driver() { return &fake(); }

#define FAKE extern "C" __attribute__((visibility("default"))) int
}

FAKE cuInit(unsigned) {
  called("cuInit");
  return fake().init_error;
}
FAKE cuDriverGetVersion(int* version) {
  *version = fake().version;
  return 0;
}
FAKE cuGetErrorName(int error, const char** text) {
  *text = error == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == 218 ? "CUDA_ERROR_INVALID_PTX"
          : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                         : "CUDA_ERROR_UNKNOWN";
  return 0;
}
FAKE cuGetErrorString(int error, const char** text) {
  *text = error == 2     ? "out of memory"
          : error == 218 ? "a PTX JIT compilation failed"
          : error == 700 ? "an illegal memory access was encountered"
                         : "unknown error";
  return 0;
}
FAKE cuDeviceGetCount(int* count) {
  *count = static_cast<int>(fake().capabilities.size());
  return 0;
}
FAKE cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
FAKE cuDeviceGetName(char* name, int length, int device) {
  const std::string text = "Fake " + std::to_string(device);
  std::strncpy(name, text.c_str(), static_cast<size_t>(length));
  return 0;
}
FAKE cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = fake().capabilities[static_cast<size_t>(device)];
  *value = attribute == kAttributeMajor             ? capability / 10
           : attribute == kAttributeMultiprocessors ? fake().multiprocessors
           : attribute == kAttributeCooperative     ? 1
                                                    : capability % 10;
  return 0;
}
FAKE cuDevicePrimaryCtxRetain(Context* context, int) {
  *context = &the_context;
  ++fake().live_allocations;
  return called("cuDevicePrimaryCtxRetain");
}
FAKE cuDevicePrimaryCtxRelease_v2(int) {
  --fake().live_allocations;
  return 0;
}
FAKE cuCtxPushCurrent_v2(Context context) {
  fake().contexts.push_back(context);
  return called("cuCtxPushCurrent_v2");
}
FAKE cuCtxPopCurrent_v2(Context* context) {
  *context = static_cast<Context>(fake().contexts.back());
  fake().contexts.pop_back();
  return called("cuCtxPopCurrent_v2");
}
FAKE cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = fake().free_bytes;
  *total = fake().total_bytes;
  return 0;
}
FAKE cuMemAlloc_v2(Pointer* pointer, size_t bytes) {
  called_within("cuMemAlloc_v2");
  if (bytes > fake().free_bytes) return kErrorOutOfMemory;
  fake().free_bytes -= bytes;
  ++fake().live_allocations;
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, bytes) != 0) return kErrorOutOfMemory;
  std::memset(memory, 0xcd, bytes);  // what is not cleared shows
  *pointer = reinterpret_cast<Pointer>(memory);
  allocations[*pointer] = bytes;
  return 0;
}
FAKE cuMemFree_v2(Pointer pointer) {
  called_within("cuMemFree_v2");
  fake().free_bytes += allocations[pointer];
  allocations.erase(pointer);
  --fake().live_allocations;
  std::free(reinterpret_cast<void*>(pointer));
  return 0;
}
FAKE cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (bytes > fake().lockable_bytes) return kErrorOutOfMemory;
  *pointer = std::malloc(bytes);
  ++fake().live_allocations;
  return called_within("cuMemHostAlloc");
}
FAKE cuMemFreeHost(void* pointer) {
  std::free(pointer);
  --fake().live_allocations;
  return 0;
}
FAKE cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, Stream stream) {
  ++fake().queued[stream];
  enqueue([=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
  return called_within("cuMemsetD8Async");
}
FAKE cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, Stream stream) {
  ++fake().queued[stream];
  enqueue([=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
  return called_within("cuMemcpyHtoDAsync_v2");
}
FAKE cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, Stream stream) {
  ++fake().queued[stream];
  enqueue([=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
  return called_within("cuMemcpyDtoHAsync_v2");
}
FAKE cuStreamCreate(Stream* stream, unsigned) {
  *stream = new CUstream_st;
  ++fake().live_allocations;
  return called_within("cuStreamCreate");
}
FAKE cuStreamDestroy_v2(Stream stream) {
  called_within("cuStreamDestroy_v2");
  fake().queued.erase(stream);
  delete stream;
  --fake().live_allocations;
  return 0;
}
FAKE cuStreamSynchronize(Stream stream) {
  fake().queued.erase(stream);
  called_within("cuStreamSynchronize");
  return run_until(done + queue.size());
}
FAKE cuStreamBeginCapture_v2(Stream stream, int) {
  stream->capturing = true;
  stream->captured.clear();
  return called_within("cuStreamBeginCapture_v2");
}
FAKE cuStreamEndCapture(Stream stream, Graph* graph) {
  stream->capturing = false;
  *graph = new CUgraph_st{stream->captured};
  ++fake().live_allocations;
  return 0;
}
FAKE cuGraphInstantiateWithFlags(GraphExec* executable, Graph graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->launches};
  ++fake().live_allocations;
  fake().free_bytes -= fake().graph_bytes;
  return called_within("cuGraphInstantiateWithFlags");
}
FAKE cuGraphUpload(GraphExec, Stream) { return 0; }
FAKE cuGraphLaunch(GraphExec executable, Stream) {
  std::string text;
  for (const FakeLaunch& launch : executable->launches) text += (text.empty() ? "" : " ") + launch.kernel;
  fake().graphs.push_back(text);
  const int error = fake().failing_launch;
  enqueue([error, launches = executable->launches] {
    for (const FakeLaunch& launch : launches) run_kernel(launch);
    if (error) pending_error = error;
  });
  return called_within("cuGraphLaunch");
}
FAKE cuGraphExecDestroy(GraphExec executable) {
  delete executable;
  --fake().live_allocations;
  fake().free_bytes += fake().graph_bytes;
  return called_within("cuGraphExecDestroy");
}
FAKE cuGraphDestroy(Graph graph) {
  delete graph;
  --fake().live_allocations;
  return 0;
}
FAKE cuEventCreate(Event* event, unsigned) {
  *event = new CUevent_st;
  ++fake().live_allocations;
  return called_within("cuEventCreate");
}
FAKE cuEventRecord(Event event, Stream) {
  event->until = done + queue.size();
  return called_within("cuEventRecord");
}
// One queue, in the order of issue: what is waited for has run.
FAKE cuStreamWaitEvent(Stream, Event, unsigned) { return called_within("cuStreamWaitEvent"); }
FAKE cuEventSynchronize(Event event) {
  called_within("cuEventSynchronize");
  return run_until(event->until);
}
FAKE cuEventDestroy_v2(Event event) {
  delete event;
  --fake().live_allocations;
  return 0;
}
FAKE cuModuleLoadDataEx(Module* module, const void* image, unsigned count, int* options, void** values) {
  called_within("cuModuleLoadDataEx");
  if (!fake().jit_log.empty()) {
    for (unsigned i = 0; i < count; ++i)
      if (options[i] == kJitErrorLog) std::strcpy(static_cast<char*>(values[i]), fake().jit_log.c_str());
    return 218;
  }
  *module = new CUmod_st{static_cast<const char*>(image)};
  fake().images.emplace_back(static_cast<const char*>(image));
  functions.clear();
  pending_error = 0;
  ++fake().live_allocations;
  return 0;
}
FAKE cuModuleUnload(Module module) {
  delete module;
  --fake().live_allocations;
  return 0;
}
FAKE cuModuleGetFunction(Function* function, Module module, const char* name) {
  const int parameters = count_parameters(module->ptx, name);
  if (parameters < 0) return 500;  // CUDA_ERROR_NOT_FOUND
  CUfunc_st& entry = functions[name];
  entry = {name, parameters};
  *function = &entry;
  return 0;
}
FAKE cuFuncGetAttribute(int* value, int, Function) {
  *value = fake().max_threads;
  return 0;
}
FAKE cuLaunchKernel(Function function, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned,
                    unsigned, Stream stream, void** parameters, void**) {
  if (fake().refused_launch != 0) return fake().refused_launch;
  FakeLaunch launch{function->name, grid, block, {}};
  for (int i = 0; i < function->parameters; ++i)
    launch.arguments.push_back(*static_cast<const uint64_t*>(parameters[i]));
  if (stream->capturing)
    stream->captured.push_back(launch);
  else
    enqueue([launch] { run_kernel(launch); });
  return called_within("cuLaunchKernel");
}
FAKE cuLaunchCooperativeKernel(Function function, unsigned grid, unsigned, unsigned, unsigned block, unsigned,
                               unsigned, unsigned, Stream stream, void** parameters) {
  called_within("cuLaunchCooperativeKernel");
  return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, parameters, nullptr);
}
FAKE cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function, int, size_t) {
  *blocks = fake().blocks_at_once;
  return 0;
}
FAKE cuEventElapsedTime(float* milliseconds, Event, Event) {
  *milliseconds = 0.001F;
  return 0;
}
