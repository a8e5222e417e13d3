// A fake NVIDIA driver: a library with the driver's names that records calls and has its "device" memory on
// the host. Nothing queued on a stream happens before somebody waits for it, so memory that is reused too
// early shows. The test and the library share this header; the test finds `gacc_fake_driver` with dlsym.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace gacc::test {

struct FakeLaunch {
  std::string kernel;
  unsigned grid = 0, block = 0;
  std::vector<uint64_t> arguments;
};

struct FakeDriver {
  // What the machine is like. Environment variables GACC_FAKE_... replace these, for whole commands.
  int init_error = 0;
  int version = 13000;
  std::vector<int> capabilities = {80};  // of each GPU
  size_t total_bytes = size_t{1} << 30;
  size_t free_bytes = size_t{1} << 29;  // falls with every allocation
  size_t lockable_bytes = size_t{1} << 29;
  size_t graph_bytes = 4096;  // that a graph takes
  std::string jit_log;        // not empty: loading a module fails with it
  int max_threads = 1024;
  int multiprocessors = 4, blocks_at_once = 2;  // of a kernel on each
  int failing_launch = 0;  // the error that surfaces at the wait after the next graph launch
  int refused_launch = 0;  // the error of the next launches of a kernel
  // What a kernel does; null: nothing.
  void (*kernel)(const FakeLaunch& launch, void* context) = nullptr;
  void* context = nullptr;

  // What happened.
  std::map<std::string, int> calls;      // by exported name
  std::vector<std::string> graphs;       // each graph launch as "kernel kernel ..."
  std::vector<FakeLaunch> launches;      // each kernel run, in order
  std::vector<std::string> images;       // each text that was loaded
  int live_allocations = 0;              // device, host, streams, events, modules, graphs not yet destroyed
  std::vector<void*> contexts;           // of the thread, the last one is current
  std::set<std::string> out_of_context;  // calls that work in a context, made in another one
  std::map<void*, int> queued;           // on each stream, since somebody waited for it

  int count(const std::string& name) const {
    auto found = calls.find(name);
    return found == calls.end() ? 0 : found->second;
  }
};

using FakeDriverFunction = FakeDriver* (*)();

}  // namespace gacc::test
