// Defects that the emulator found in a kernel: one report for each kind of defect at each line, with the block and
// thread that met it first and the number of times.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace gacc::emulator {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
  Dim3 at(uint32_t i) const { return {i % x, i / x % y, i / x / y}; }  // the i-th of them
};

// Work of a launch: the instructions of its warps (of all, and of the one that executed most) and barriers, and its
// lanes' accesses to global memory with their bytes (without atomics and polls). Copies are cp.async.
struct LaunchCounts {
  uint64_t instructions = 0, longest_warp = 0, barriers = 0;
  uint64_t loads = 0, loaded_bytes = 0, copies = 0, copied_bytes = 0, stores = 0, stored_bytes = 0;
  std::vector<uint64_t> longest_of_blocks{};  // longest_warp of each block
};

enum class Defect : uint8_t {
#define GACC_DEFECT(name, text) name,
#include "emulator/defects.def"
};

struct Report {
  Defect defect = Defect::out_of_bounds;
  std::string kernel;
  int line = 0;  // of the PTX file
  Dim3 block, thread;
  std::string text;
  int64_t count = 1;
  // "add0: line 12: out-of-bounds access: …, block (0,0,0) thread (3,0,0), 5 times"
  std::string render() const;
};

class Reports {
 public:
  // Null when this defect is already known at this line (it is counted); else a report to fill.
  Report* add(Defect defect, const std::string& kernel, int line);
  const std::vector<Report>& all() const { return reports_; }
  void clear() { reports_.clear(), index_.clear(); }

 private:
  std::vector<Report> reports_;  // in order of their first occurrence
  std::map<std::tuple<Defect, std::string, int>, size_t> index_;
};

}  // namespace gacc::emulator
