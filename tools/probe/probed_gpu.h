// A GPU as the probe uses it: one context, one stream, the probe's kernels, memory that lives as long as the
// probe. What fails is thrown as Failed and ends one measurement (gacc_probe.cpp), not the others.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/gemm_engine.h"

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
  explicit Machine(const std::string& driver);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine();

  const cuda::Driver& driver() const { return driver_; }
  cuda::Stream stream() const { return stream_; }
  const std::string& name() const { return name_; }
  int attribute(int which) const;
  int capability() const { return 10 * attribute(cuda::kAttributeMajor) + attribute(cuda::kAttributeMinor); }
  int multiprocessors() const { return attribute(cuda::kAttributeMultiprocessors); }
  int cuda_version() const;
  std::string library() const;  // the driver's, as a path
  size_t free_bytes() const;
  // Blocks of a kernel that run at once on a multiprocessor.
  int blocks_at_once(const char* kernel, int threads) const;

  Pointer allocate(size_t bytes);
  void* allocate_on_host(size_t bytes);  // page-locked
  void release_all();                    // what was allocated on the device
  // Random numbers of a type, of either sign, from 1/4 to 1.
  void fill(Pointer to, size_t bytes, cuda::Element type, uint64_t seed) const;
  void clear(Pointer to, size_t bytes) const;

  void launch(const char* kernel, int64_t blocks, int64_t threads, std::initializer_list<uint64_t> arguments,
              bool cooperative = false) const;
  void copy_in(Pointer to, const void* from, size_t bytes) const;
  void read(void* to, Pointer from, size_t bytes) const;  // waits
  void wait() const;
  // `work` as a graph; it lives until the machine is gone.
  cuda::GraphExec capture(const std::function<void()>& work);
  void launch(cuda::GraphExec graph) const;

  // Seconds on the GPU that `work` takes, one of `times` in a row: the median of `rounds`, after one for
  // warming up.
  double seconds(const std::function<void()>& work, int times, int rounds = 5) const;

 private:
  void check(int error, std::string_view what) const { need(driver_.check(error, what)); }
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
