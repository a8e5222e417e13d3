// Abilities of a GPU, for estimates: one card stands for each target. Every figure is a measurement, a data
// sheet's or a guess, and machine.cpp says which.
// docs/gpu.md has the formulas that use them.
#pragma once
#include <cstdint>
#include <string_view>

#include "kernels/gpu_target.h"

namespace gacc::kernels {

// Bytes a second between a GPU and the host's memory, one way: an estimate, of PCIe 3.0 x16.
inline constexpr double kHostLink = 12e9;

// Rates are per second, times in seconds, sizes in bytes.
struct Machine {
  std::string_view target, card;
  int64_t sms = 0;
  double clock = 0;                     // Hz that a long kernel runs at
  double copy = 0;                      // bytes of memory, reads and writes together, that a copy reaches
  double l2_bytes = 0, l2 = 0;          // size, and what all SMs together read from it
  int64_t warps = 0, blocks = 0;        // that an SM holds at once
  int64_t shared = 0;                   // bytes of an SM
  int64_t lanes = 0;                    // f32 multiply-adds of an SM a clock
  double half = 0;                      // FLOP/s, dense f16 with f32 sums, data sheet
  double library = 0;                   // of it, what cuBLASLt reaches with large aligned products
  double memory_wait = 0, l2_wait = 0;  // of a load that the next one needs the result of
  double gap = 0;                    // between two nodes of a graph, besides what the kernels themselves wait
  double barrier = 0;                // of the whole grid
  double forward = 0, backward = 0;  // share of `half` that attention by mma.sync reaches
  // Share of `library` where the least aligned leading dimension is a multiple of 16, 8, 4 or 2 bytes.
  double aligned[4] = {};
  // The rates that products are measured against: by the library and by the kernels of the artifact.
  double library_ceiling = 0, own_ceiling = 0;

  static constexpr int64_t kRegisters = 65536;  // of an SM
  static constexpr double kFunctions = 16;      // special functions of an SM a clock
  static constexpr double kLoadLanes = 32;      // of 4 bytes, of an SM a clock
  static constexpr double kIssued = 4 * 0.8;    // warp instructions of an SM a clock: four schedulers, mostly
  static constexpr double kSharedBytes = 128;   // that an SM's shared memory gives a clock
  static constexpr double kSmBytes = 48;        // that an SM draws from the second-level cache a clock
  static constexpr double kStarted = 0.92;      // blocks that the whole GPU starts a clock
  static constexpr double kBlockCycles = 400;   // from a block's end to its successor's first load
  static constexpr double kTile = 1e-6;         // prologue and epilogue of a product's tile
  static constexpr double kLibraryTile = 2e-6;  // ... of the library's

  double f32() const { return 2.0 * static_cast<double>(lanes * sms) * clock; }  // FLOP/s
};

// Returns the machine of a target as gaccc --target names it; for one that is not in the table the nearest before it.
const Machine& machine(std::string_view target);
const Machine& machine(const GpuTarget& target);

}  // namespace gacc::kernels
