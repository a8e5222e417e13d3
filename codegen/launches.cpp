// See launches.h.
#include "codegen/launches.h"

#include <fmt/format.h>

#include <algorithm>

namespace gacc {

std::optional<int64_t> arena_offset(const ir::Module& module, const ir::Region& region,
                                    const ir::Operand& operand) {
  if (const ir::ValueId* value = ir::as_value(operand)) return region[*value].offset;
  if (const ir::BufferId* buffer = ir::as_buffer(operand)) return module[*buffer].offset;
  return std::nullopt;
}

PlanArgument extent_argument(const ir::Shape& shape) {
  PlanArgument argument{PlanArgument::Kind::extent};
  argument.extent = ir::elements(shape, 1);
  argument.times_batch = ir::has_batch(shape);
  return argument;
}

namespace {

// An operand as the matrix [product of its leading extents, last extent].
struct Matrix {
  PlanArgument rows, columns;
};
Matrix matrix(const ir::Shape& shape) {
  ir::Shape leading = shape, last;
  if (!leading.empty()) {
    last = {leading.back()};
    leading.pop_back();
  }
  return {extent_argument(leading), extent_argument(last)};
}

}  // namespace

std::optional<PlanLaunch> gemm_launch(const ir::Module& module, const ir::Region& region,
                                      const ir::Kernel& kernel, std::string& problem) {
  const ir::Op& op = region.ops[kernel.members.front().op];
  // The op either writes its first operand, to which it adds, or yields a result.
  const bool accumulate = (op.info->writes & 1U) != 0;
  const ir::OpView view{module, region, op};
  const ir::Operand& a = op.operands[accumulate ? 1 : 0];
  const ir::Operand& b = op.operands[accumulate ? 2 : 1];
  const ir::Operand c = accumulate ? op.operands[0] : ir::Operand(op.results[0]);
  PlanLaunch launch;
  launch.transpose_a = view.flag("ta");
  launch.transpose_b = view.flag("tb");
  launch.accumulate = accumulate;
  launch.type = ir::dtype_text(ir::operand_type(module, region, a).dtype);
  launch.result = ir::dtype_text(ir::operand_type(module, region, c).dtype);
  const Matrix left = matrix(ir::operand_type(module, region, a).shape);
  const Matrix right = matrix(ir::operand_type(module, region, b).shape);
  launch.m = launch.transpose_a ? left.columns : left.rows;
  launch.k = launch.transpose_a ? left.rows : left.columns;
  launch.n = launch.transpose_b ? right.rows : right.columns;
  const ir::Operand* operands[] = {&a, &b, &c};
  int64_t* offsets[] = {&launch.a, &launch.b, &launch.c};
  for (int i = 0; i < 3; ++i) {
    const std::optional<int64_t> offset = arena_offset(module, region, *operands[i]);
    if (!offset) {
      problem = fmt::format("`{}`: {} has no place in the arena", op.info->name,
                            operand_text(module, region, *operands[i]));
      return std::nullopt;
    }
    *offsets[i] = *offset;
  }
  if (op.when) {
    problem = fmt::format("`{}` under a condition is not supported", op.info->name);
    return std::nullopt;
  }
  return launch;
}

Touched touched(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel) {
  const auto ranges = [&](const std::vector<ir::Operand>& operands) {
    std::vector<Range> list;
    for (const ir::Operand& operand : operands) {
      const std::optional<int64_t> offset = arena_offset(module, region, operand);
      if (!offset) continue;
      const int64_t bytes = ir::type_bytes(ir::operand_type(module, region, operand), module.micro_batch());
      list.push_back({*offset, *offset + bytes});
    }
    return list;
  };
  return {ranges(kernel.reads), ranges(kernel.writes)};
}

bool overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Range& x) {
    return std::any_of(b.begin(), b.end(),
                       [&](const Range& y) { return x.begin < y.end && y.begin < x.end; });
  });
}

bool conflict(const Touched& a, const Touched& b) {
  return overlap(a.writes, b.writes) || overlap(a.writes, b.reads) || overlap(a.reads, b.writes);
}

}  // namespace gacc
