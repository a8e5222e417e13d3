// The values that share bytes of global memory one after another. Bytes of a value count as unwritten from the
// beginning of its life until something writes them, and after its end. Time is counted in phases: a launch,
// or in a cooperative launch what lies between two barriers of the grid.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "emulator/memory.h"

namespace gacc::emulator {

// Written in phase `first`, read until phase `last`. A value that is there before the first phase has -1;
// what is still there behind the last one a later number than any.
struct ValueLife {
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t first = 0, last = 0;
};

class Lifetimes {
 public:
  explicit Lifetimes(GlobalMemory& memory) : memory_(memory) {}

  // Ends the phase that is running, and with it what was told before; phase 0 of these values begins.
  void begin(std::vector<ValueLife> values);
  // A block of a launch of `blocks` has released what it did at this address. Once all have, the next phase
  // begins: they met at a barrier of the grid.
  void arrive(uint64_t address, int block, int64_t blocks);

 private:
  struct Meeting {
    std::vector<bool> arrived;
    int64_t missing = 0;
  };
  void enter();
  void leave();
  // Changes the shadow of each byte of the values that are chosen.
  template <class Choose, class Change>
  void each(const Choose& choose, const Change& change);

  GlobalMemory& memory_;
  std::vector<ValueLife> values_;
  int64_t phase_ = 0;
  std::unordered_map<uint64_t, Meeting> meetings_;  // by address
};

}  // namespace gacc::emulator
