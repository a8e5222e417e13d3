// What a launch of a planned module touches: where operands lie in the arena, and the shape of a matrix
// product. Both targets take it from here: the plan writer for the GPU's launches, the host device for its
// own.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ir/kernel.h"
#include "runtime/plan.h"

namespace gacc {

// Byte offset of a value or buffer in the arena: a reshape has that of what it is a reshape of. Nothing for
// numbers and register values.
std::optional<int64_t> arena_offset(const ir::Module& module, const ir::Region& region,
                                    const ir::Operand& operand);

// The product of elements of `shape` (or of the first `axes` of it) as an argument: constant or times B.
PlanArgument extent_argument(const ir::Shape& shape);

// A kernel of form gemm as a launch; `problem` says why not when something of the plan is missing.
std::optional<PlanLaunch> gemm_launch(const ir::Module& module, const ir::Region& region,
                                      const ir::Kernel& kernel, std::string& problem);

// The bytes of the arena [begin, end) that a kernel touches in a full micro-batch. The module is planned.
struct Range {
  int64_t begin, end;
};
struct Touched {
  std::vector<Range> reads, writes;
};
Touched touched(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel);
bool overlap(const std::vector<Range>& a, const std::vector<Range>& b);
// Whether one writes bytes that the other touches, so that their order matters.
bool conflict(const Touched& a, const Touched& b);

}  // namespace gacc
