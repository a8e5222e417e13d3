// Rechecked runs of a program: every N-th one is made twice from the same state, and what the two leave must be the
// same bits. A machine that computes wrong now and then is found so.
//
// Kept aside, on the host, is only what the program writes: once as it was before, once as the first run left it. What
// it only reads has its parity taken, which also tells what has changed in it meanwhile. A run takes nothing but the
// arena: random numbers come from counters there, and inputs are written again before the second run.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device.h"
#include "runtime/plan.h"
#include "runtime/reports.h"

namespace gacc {

class Recheck {
 public:
  // Both must outlive it.
  Recheck(Device& device, const Plan& plan) : device_(device), plan_(plan) {}
  // From now on every `every`-th launch and update is rechecked (0: none), counted from the beginning of the run, of
  // which `launches` and `updates` were made before.
  void begin(int64_t every, int64_t launches, int64_t updates);

  // Counts a run of the program, whichever rank makes it; true where it is to be rechecked.
  bool count(Program program);
  // Makes the run that was counted last. Waits. An error where the two runs differ: the state is then that before them.
  Status run(Program program, int64_t samples, std::span<const ArenaWrite> inputs);

  const RecheckCounts& counts() const { return counts_; }

 private:
  // Bytes of the arena that follow each other, up to the padding between buffers.
  struct Range {
    int64_t offset = 0, bytes = 0;
  };
  using Block = std::vector<std::byte>;
  // The exclusive ors of a buffer's words of 8 bytes, which stand in rows of so many.
  struct Parity {
    std::vector<uint64_t> rows;
    std::array<uint64_t, 512> columns{};
  };

  // Returns bytes of the arena: where they are, or copied to `scratch_`.
  Result<std::span<const std::byte>> view(int64_t offset, int64_t bytes);
  Status keep(std::span<const Range> ranges, Block& to);
  Status put_back(std::span<const Range> ranges, const Block& from);
  Result<Parity> parity(const PlanBuffer& buffer);
  // Compares what the program writes with `first`, which the first run left; names the first element that differs.
  Result<std::string> difference(const PlanProgram& program, std::span<const Range> ranges,
                                 const Block& first);
  // Looks for a change of what the program only reads, and undoes one within a row; names the first element of it.
  Result<std::string> change(const PlanBuffer& buffer, const Parity& before);

  Device& device_;
  const Plan& plan_;
  RecheckCounts counts_;
  std::array<int64_t, std::size(kPrograms)> made_{};
  Block before_, first_, scratch_;
};

}  // namespace gacc
