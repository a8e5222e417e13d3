#include "tools/probe/probed_gpu.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>

#include "tools/probe/kernels.h"

namespace gacc::probe {

Machine::Machine(const std::string& driver) {
  need(driver_.open(driver));
  int count = 0;
  check(driver_.device_count(&count), "cannot ask for the number of GPUs");
  if (count == 0) throw Failed{"the NVIDIA driver finds no GPU"};
  std::array<char, 256> name{};
  check(driver_.device_get(&device_, 0), "cannot ask about GPU 0");
  check(driver_.device_name(name.data(), static_cast<int>(name.size()) - 1, device_),
        "cannot ask about GPU 0");
  name_ = name.data();
  check(driver_.context_retain(&context_, device_), "cannot use GPU 0");
  check(driver_.context_set(context_), "cannot use the GPU's context");
  check(driver_.stream_create(&stream_, cuda::kStreamNonBlocking), "cannot create a stream");
  check(driver_.module_load(&module_, kKernels.c_str(), 0, nullptr, nullptr),
        "the driver does not take the kernels");
  for (const char* kernel : {"probe_fill", "probe_copy", "probe_read", "probe_barrier", "probe_empty",
                             "probe_links", "probe_chain"})
    check(driver_.module_function(&functions_[kernel], module_, kernel),
          fmt::format("cannot find kernel {}", kernel));
  for (cuda::Event& event : events_) check(driver_.event_create(&event, 0), "cannot create an event");
}

Machine::~Machine() {
  if (!context_) return;
  if (stream_) driver_.stream_wait(stream_);
  for (const cuda::GraphExec graph : graphs_) driver_.graph_exec_destroy(graph);
  for (const cuda::Event event : events_)
    if (event) driver_.event_destroy(event);
  release_all();
  for (void* memory : host_memory_) driver_.host_release(memory);
  if (module_) driver_.module_unload(module_);
  if (stream_) driver_.stream_destroy(stream_);
  driver_.context_release(device_);
}

int Machine::attribute(int which) const {
  int value = 0;
  check(driver_.device_attribute(&value, which, device_), "cannot ask about the GPU");
  return value;
}

int Machine::cuda_version() const {
  int version = 0;
  check(driver_.driver_version(&version), "cannot ask for the driver's version");
  return version;
}

std::string Machine::library() const {
  const link_map* map = nullptr;
  return dlinfo(driver_.library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : "";
}

size_t Machine::free_bytes() const {
  size_t free = 0, total = 0;
  check(driver_.memory_info(&free, &total), "cannot ask for the GPU's memory");
  return free;
}

int Machine::blocks_at_once(const char* kernel, int threads) const {
  int blocks = 0;
  check(driver_.occupancy(&blocks, function(kernel), threads, 0), "cannot ask about a kernel");
  return blocks;
}

Pointer Machine::allocate(size_t bytes) {
  Pointer memory = 0;
  check(driver_.allocate(&memory, bytes), fmt::format("cannot allocate {} bytes on the GPU", bytes));
  memory_.push_back(memory);
  return memory;
}

void* Machine::allocate_on_host(size_t bytes) {
  void* memory = nullptr;
  check(driver_.host_allocate(&memory, bytes, 0), "cannot allocate page-locked memory");
  host_memory_.push_back(memory);
  return memory;
}

void Machine::release_all() {
  for (const Pointer memory : memory_) driver_.release(memory);
  memory_.clear();
}

void Machine::fill(Pointer to, size_t bytes, cuda::Element type, uint64_t seed) const {
  constexpr uint64_t kMask[] = {0x80ffffff, 0x87ff87ff, 0x80ff80ff};  // in the order of Element
  constexpr uint64_t kBase[] = {0x3e800000, 0x34003400, 0x3e803e80};
  const auto at = static_cast<size_t>(type);
  launch("probe_fill", std::clamp<int64_t>(static_cast<int64_t>(bytes) / 4096, 1, 8L * multiprocessors()),
         256, {to, bytes / 16, seed, kMask[at], kBase[at]});
}

void Machine::clear(Pointer to, size_t bytes) const {
  check(driver_.fill_bytes(to, 0, bytes, stream_), "cannot clear memory");
}

void Machine::launch(const char* kernel, int64_t blocks, int64_t threads,
                     std::initializer_list<uint64_t> arguments, bool cooperative) const {
  std::vector<uint64_t> values(arguments);
  std::vector<void*> parameters;
  for (uint64_t& value : values) parameters.push_back(&value);
  const auto grid = static_cast<unsigned>(blocks), block = static_cast<unsigned>(threads);
  const cuda::Function entry = function(kernel);
  check(cooperative
            ? driver_.launch_cooperative(entry, grid, 1, 1, block, 1, 1, 0, stream_, parameters.data())
            : driver_.launch(entry, grid, 1, 1, block, 1, 1, 0, stream_, parameters.data(), nullptr),
        fmt::format("cannot launch {}", kernel));
}

void Machine::copy_in(Pointer to, const void* from, size_t bytes) const {
  check(driver_.copy_in(to, from, bytes, stream_), "cannot copy to the GPU");
}

void Machine::read(void* to, Pointer from, size_t bytes) const {
  check(driver_.copy_out(to, from, bytes, stream_), "cannot copy from the GPU");
  wait();
}

void Machine::wait() const { check(driver_.stream_wait(stream_), "the GPU failed"); }

cuda::GraphExec Machine::capture(const std::function<void()>& work) {
  check(driver_.capture_begin(stream_, cuda::kCaptureRelaxed), "cannot capture a graph");
  work();
  cuda::Graph captured = nullptr;
  check(driver_.capture_end(stream_, &captured), "cannot capture a graph");
  cuda::GraphExec graph = nullptr;
  const int error = driver_.graph_instantiate(&graph, captured, 0);
  driver_.graph_destroy(captured);
  check(error, "cannot prepare a graph");
  graphs_.push_back(graph);
  check(driver_.graph_upload(graph, stream_), "cannot upload a graph");
  return graph;
}

void Machine::launch(cuda::GraphExec graph) const {
  check(driver_.graph_launch(graph, stream_), "the GPU does not take a launch");
}

double Machine::seconds(const std::function<void()>& work, int times, int rounds) const {
  work();
  std::vector<double> found;
  for (int round = 0; round < rounds; ++round) {
    check(driver_.event_record(events_[0], stream_), "cannot record an event");
    for (int i = 0; i < times; ++i) work();
    check(driver_.event_record(events_[1], stream_), "cannot record an event");
    check(driver_.event_wait(events_[1]), "the GPU failed");
    float milliseconds = 0;
    check(driver_.event_elapsed(&milliseconds, events_[0], events_[1]), "cannot read an event's time");
    found.push_back(static_cast<double>(milliseconds) * 1e-3 / times);
  }
  std::sort(found.begin(), found.end());
  return found[found.size() / 2];
}

}  // namespace gacc::probe
