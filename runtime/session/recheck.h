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
  // which `before` was made by other processes.
  void begin(int64_t every, const TrainState& before = {});

  // Counts a run of the program, whichever rank makes it; true where it is to be rechecked.
  bool count(Program program);
  // Makes the run that was counted last. Waits. An error where the two runs differ: the state is then that before them.
  Status run(Program program, int64_t samples, std::span<const ArenaWrite> inputs);

  const RecheckCounts& counts() const { return counts_; }

 private:
  // Bytes of the arena: a part of what a program writes, or of one buffer that it reads.
  struct Piece {
    int64_t offset = 0, bytes = 0;
    int64_t place = 0;                   // in a block of all that is written
    const PlanBuffer* buffer = nullptr;  // of one that is read
  };
  using Block = std::vector<std::byte>;
  // The exclusive ors of a piece's words of 8 bytes, which stand in rows of so many.
  struct Parity {
    std::vector<uint64_t> rows;
    std::array<uint64_t, 512> columns{};
  };

  std::vector<Piece> written(const PlanProgram& program) const;
  std::vector<Piece> read(const PlanProgram& program) const;
  // Adds bytes of the arena in pieces, each for one thread of the device.
  void add_pieces(Piece all, std::vector<Piece>& pieces) const;
  // Returns bytes of the arena: where they are, or copied to `scratch_`.
  Result<std::span<const std::byte>> view(int64_t offset, int64_t bytes);
  std::span<std::byte> in(Block& block, const Piece& piece) const {
    return std::span(block).subspan(static_cast<size_t>(piece.place), static_cast<size_t>(piece.bytes));
  }
  Result<Parity> parity(const Piece& piece);
  // Names the first element of a piece that the two runs wrote differently.
  Result<std::string> difference(const PlanProgram& program, const Piece& piece);
  // Looks for a change of what the program only reads, and undoes one within a row; names the first element of it.
  Result<std::string> change(const Piece& piece, const Parity& before);

  Device& device_;
  const Plan& plan_;
  RecheckCounts counts_;
  std::array<int64_t, std::size(kPrograms)> made_{};
  Block before_, first_, scratch_;  // before the two runs, after the first one
};

}  // namespace gacc
