// A GPU as the probe uses it: one context, one stream, the probe's kernels, memory that lives as long as the
// probe. What fails is thrown as Failed and ends one measurement (gacc_probe.cpp), not the others.
#pragma once
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/gemm_engine.h"
#include "tools/probe/kernels.h"

namespace gacc::probe {

using cuda::Pointer;

struct Failed {
  std::string text;
};
inline void need(const Status& status) {
  if (!status) throw Failed{status.text()};
}

class Machine {
 public:
  explicit Machine(const std::string& driver) {
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
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine() {
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

  cuda::Stream stream() const { return stream_; }
  const std::string& name() const { return name_; }
  int capability() const { return 10 * attribute(cuda::kAttributeMajor) + attribute(cuda::kAttributeMinor); }
  int multiprocessors() const { return attribute(cuda::kAttributeMultiprocessors); }
  int cuda_version() const {
    int version = 0;
    check(driver_.driver_version(&version), "cannot ask for the driver's version");
    return version;
  }
  std::string library() const {  // the driver's, as a path
    const link_map* map = nullptr;
    return dlinfo(driver_.library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : "";
  }
  size_t free_bytes() const {
    size_t free = 0, total = 0;
    check(driver_.memory_info(&free, &total), "cannot ask for the GPU's memory");
    return free;
  }
  // Blocks of a kernel that run at once on a multiprocessor.
  int blocks_at_once(const char* kernel, int threads) const {
    int blocks = 0;
    check(driver_.occupancy(&blocks, function(kernel), threads, 0), "cannot ask about a kernel");
    return blocks;
  }

  Pointer allocate(size_t bytes) {
    Pointer memory = 0;
    check(driver_.allocate(&memory, bytes), fmt::format("cannot allocate {} bytes on the GPU", bytes));
    memory_.push_back(memory);
    return memory;
  }
  void* allocate_on_host(size_t bytes) {  // page-locked
    void* memory = nullptr;
    check(driver_.host_allocate(&memory, bytes, 0), "cannot allocate page-locked memory");
    host_memory_.push_back(memory);
    return memory;
  }
  void release_all() {  // what was allocated on the device
    for (const Pointer memory : memory_) driver_.release(memory);
    memory_.clear();
  }
  // Random numbers of a type, of either sign, from 1/4 to 1.
  void fill(Pointer to, size_t bytes, cuda::Element type, uint64_t seed) const {
    constexpr uint64_t kMask[] = {0x80ffffff, 0x87ff87ff, 0x80ff80ff};  // in the order of Element
    constexpr uint64_t kBase[] = {0x3e800000, 0x34003400, 0x3e803e80};
    const auto at = static_cast<size_t>(type);
    launch("probe_fill", std::clamp<int64_t>(static_cast<int64_t>(bytes) / 4096, 1, 8L * multiprocessors()),
           256, {to, bytes / 4, seed, kMask[at], kBase[at]});
  }
  void clear(Pointer to, size_t bytes) const {
    check(driver_.fill_bytes(to, 0, bytes, stream_), "cannot clear memory");
  }

  void launch(const char* kernel, int64_t blocks, int64_t threads, std::initializer_list<uint64_t> arguments,
              bool cooperative = false) const {
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
  void copy_in(Pointer to, const void* from, size_t bytes) const {
    check(driver_.copy_in(to, from, bytes, stream_), "cannot copy to the GPU");
  }
  void read(void* to, Pointer from, size_t bytes) const {  // waits
    check(driver_.copy_out(to, from, bytes, stream_), "cannot copy from the GPU");
    wait();
  }
  void wait() const { check(driver_.stream_wait(stream_), "the GPU failed"); }
  // `work` as a graph; it lives until the machine is gone.
  cuda::GraphExec capture(const std::function<void()>& work) {
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
  void launch(cuda::GraphExec graph) const {
    check(driver_.graph_launch(graph, stream_), "the GPU does not take a launch");
  }

  // Seconds on the GPU that `work` takes, one of `times` in a row: the median of `rounds`, after one for
  // warming up.
  double seconds(const std::function<void()>& work, int times, int rounds = 5) const {
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
  double seconds(const char* kernel, int64_t blocks, int64_t threads,
                 std::initializer_list<uint64_t> arguments, int times, bool cooperative = false) const {
    return seconds([&] { launch(kernel, blocks, threads, arguments, cooperative); }, times);
  }

 private:
  void check(int error, std::string_view what) const { need(driver_.check(error, what)); }
  int attribute(int which) const {
    int value = 0;
    check(driver_.device_attribute(&value, which, device_), "cannot ask about the GPU");
    return value;
  }
  cuda::Function function(const char* kernel) const { return functions_.at(kernel); }

  cuda::Driver driver_;
  int device_ = 0;
  std::string name_;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  cuda::Module module_ = nullptr;
  cuda::Event events_[2] = {};
  std::map<std::string, cuda::Function, std::less<>> functions_;
  std::vector<Pointer> memory_;
  std::vector<void*> host_memory_;
  std::vector<cuda::GraphExec> graphs_;
};

}  // namespace gacc::probe
