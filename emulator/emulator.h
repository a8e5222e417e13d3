// The emulator: loads PTX, owns device memory, runs kernels and collects reports. Not thread safe; one launch
// at a time, each finished on return.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/memory.h"
#include "emulator/program.h"
#include "emulator/report.h"
#include "runtime/status.h"

namespace gacc::emulator {

// The emulated GPU, an H100: NVIDIA's figures of compute capability 9.0.
struct EmulatedGpu {
  static constexpr int64_t kMultiprocessors = 132;
  // The most that a multiprocessor has.
  static constexpr int64_t kBlocks = 32, kWarps = 64, kRegisters = 65536;
  // Bytes of shared memory of a multiprocessor, and those that the system takes for each block.
  static constexpr int64_t kShared = 228 * 1024, kSharedOfSystem = 1024;
  // The threads of a block, and its z; the y and z of a grid.
  static constexpr int64_t kThreads = 1024, kDepth = 64, kGridSide = 65535;
};

struct LoadedModule {
  std::deque<Kernel> kernels;       // in the file's order
  std::vector<uint64_t> variables;  // allocations of .global and .const
  const Kernel* find(std::string_view name) const;
};

// Reads any bytes. With only this, variables have made-up addresses and nothing can run.
Status list_kernels(std::string_view text, std::vector<KernelInfo>& kernels);

class Emulator {
 public:
  Status load(std::string_view text, std::unique_ptr<LoadedModule>& module);
  void unload(const LoadedModule& module);

  uint64_t allocate(int64_t bytes, std::string name = "memory");  // 0 when out of memory
  bool release(uint64_t address) { return memory_.release(address); }
  // False when the range is not inside one allocation.
  bool write(uint64_t address, const void* from, int64_t bytes);
  bool read(uint64_t address, void* to, int64_t bytes);
  // `bytes` is a multiple of `pattern_bytes`.
  bool fill(uint64_t address, uint32_t pattern, int pattern_bytes, int64_t bytes);
  // From the first call on, only declared ranges of that allocation may be touched by kernels.
  bool declare_live(uint64_t allocation, int64_t offset, int64_t bytes, std::string name);

  // When values live: what is launched from here on is phase 0, and in a cooperative launch each barrier of
  // its grid begins another phase. The next call ends the one that is then running.
  void begin_values(std::vector<ValueLife> values) { lifetimes_.begin(std::move(values)); }

  // `params` is the parameter block, laid out as KernelInfo says. Defects are reports; an error is a launch
  // that a device would refuse.
  Status launch(const Kernel& kernel, Dim3 grid, Dim3 block, int64_t dynamic_shared,
                const std::vector<uint8_t>& params, bool cooperative = false);

  const std::vector<Report>& reports() const { return reports_.all(); }
  // Limits the instructions that a warp may execute in one launch, besides kPerByte for each byte of allocated memory;
  // a warp beyond that counts as endless.
  void limit_warps(uint64_t instructions) { limit_ = instructions; }
  void clear_reports() { reports_.clear(); }
  GlobalMemory& memory() { return memory_; }
  uint64_t executed() const { return executed_; }     // warp instructions so far
  const LaunchCounts& last() const { return last_; }  // of the last launch

 private:
  GlobalMemory memory_;
  Lifetimes lifetimes_{memory_};
  Reports reports_;
  Clocks clocks_;
  uint64_t executed_ = 0;
  LaunchCounts last_;
  // A loop of ours walks memory: 32 columns of f16 take 64 bytes a row, and some 75 instructions.
  static constexpr uint64_t kPerByte = 4;
  uint64_t limit_ = uint64_t{1} << 24;
};

}  // namespace gacc::emulator
