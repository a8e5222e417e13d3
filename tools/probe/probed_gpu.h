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
#include <random>
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
    if (get("cannot ask for the number of GPUs", driver_.device_count) == 0)
      throw Failed{"the NVIDIA driver finds no GPU"};
    std::array<char, 256> name{};
    device_ = get("cannot ask about GPU 0", driver_.device_get, 0);
    check(driver_.device_name(name.data(), static_cast<int>(name.size()) - 1, device_),
          "cannot ask about GPU 0");
    name_ = name.data();
    context_ = get("cannot use GPU 0", driver_.context_retain, device_);
    check(driver_.context_set(context_), "cannot use the GPU's context");
    stream_ = get("cannot create a stream", driver_.stream_create, cuda::kStreamNonBlocking);
    module_ = get("the driver does not take the kernels", driver_.module_load, kKernels.c_str(), 0, nullptr,
                  nullptr);
    for (const char* kernel :
         {"probe_copy", "probe_read", "probe_barrier", "probe_empty", "probe_links", "probe_chain"})
      functions_[kernel] =
          get(fmt::format("cannot find kernel {}", kernel), driver_.module_function, module_, kernel);
    for (cuda::Event& event : events_) event = get("cannot create an event", driver_.event_create, 0);
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
  int cuda_version() const { return get("cannot ask for the driver's version", driver_.driver_version); }
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
    return get("cannot ask about a kernel", driver_.occupancy, function(kernel), threads, 0);
  }

  Pointer allocate(size_t bytes) {
    const std::string what = fmt::format("cannot allocate {} bytes on the GPU", bytes);
    return memory_.emplace_back(get(what, driver_.allocate, bytes));
  }
  void* allocate_on_host(size_t bytes) {  // page-locked
    return host_memory_.emplace_back(
        get("cannot allocate page-locked memory", driver_.host_allocate, bytes, 0));
  }
  void release_all() {  // what was allocated on the device
    for (const Pointer memory : memory_) driver_.release(memory);
    memory_.clear();
  }
  // Random numbers of a type, of either sign, from 1/4 to 1; the same ones again after 4 MiB.
  void fill(Pointer to, size_t bytes, cuda::Element type, unsigned seed) const {
    constexpr uint32_t kMask[] = {0x80ffffff, 0x87ff87ff, 0x80ff80ff};  // in the order of Element
    constexpr uint32_t kBase[] = {0x3e800000, 0x34003400, 0x3e803e80};
    const auto at = static_cast<size_t>(type);
    std::mt19937 random(seed);
    std::vector<uint32_t> words(std::min(bytes, size_t{4} << 20) / 4);
    for (uint32_t& word : words) word = (static_cast<uint32_t>(random()) & kMask[at]) + kBase[at];
    for (size_t begin = 0; begin < bytes; begin += 4 * words.size())
      copy_in(to + begin, words.data(), std::min(4 * words.size(), bytes - begin));
    wait();
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
      const float milliseconds =
          get("cannot read an event's time", driver_.event_elapsed, events_[0], events_[1]);
      found.push_back(static_cast<double>(milliseconds) * 1e-3 / times);
    }
    std::ranges::sort(found);
    return found[found.size() / 2];
  }
  double seconds(const char* kernel, int64_t blocks, int64_t threads,
                 std::initializer_list<uint64_t> arguments, int times, bool cooperative = false) const {
    return seconds([&] { launch(kernel, blocks, threads, arguments, cooperative); }, times);
  }

 private:
  void check(int error, std::string_view what) const { need(driver_.check(error, what)); }
  // What a function of the driver gives by its first parameter.
  template <class Value, class... Parameters, class... Arguments>
  Value get(std::string_view what, int (*function)(Value*, Parameters...), Arguments... arguments) const {
    Value value{};
    check(function(&value, arguments...), what);
    return value;
  }
  int attribute(int which) const {
    return get("cannot ask about the GPU", driver_.device_attribute, which, device_);
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
