// The table of accepted arithmetic spellings, filled once for the instruction set of this machine.
#include <algorithm>
#include <functional>
#include <map>

#include "emulator/lane_ops.h"

namespace gacc::emulator {
namespace {

struct Table final : LaneSink {
  std::map<std::string, LaneOp, std::less<>> ops;
  Table() {
#if defined(GACC_EMU_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      avx2::add_integer_lanes(*this);
      avx2::add_float_lanes(*this);
    } else
#endif
    {
      base::add_integer_lanes(*this);
      base::add_float_lanes(*this);
    }
    add_half_lanes(*this);
    add_convert_lanes(*this);
  }
  void add(const char* name, LaneFn fn, uint8_t result, const uint8_t* source, int sources,
           bool divides) override {
    LaneOp& op = ops[name];
    op = {name, fn, result, {}, static_cast<uint8_t>(sources), divides};
    std::copy(source, source + sources, op.source);
  }
};

const Table& table() {
  static const Table made;
  return made;
}

}  // namespace

const LaneOp* find_lane_op(std::string_view name) {
  auto found = table().ops.find(name);
  return found == table().ops.end() ? nullptr : &found->second;
}

std::vector<const LaneOp*> all_lane_ops() {
  std::vector<const LaneOp*> all;
  for (const auto& [name, op] : table().ops) all.push_back(&op);
  return all;
}

}  // namespace gacc::emulator
