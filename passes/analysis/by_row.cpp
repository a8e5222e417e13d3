#include "passes/analysis/by_row.h"

#include <algorithm>

namespace gacc::passes {

namespace {

using namespace ir;

// A random number belongs to an element of a sample, which is another one in a part.
bool is_random(const OpView& op) {
  const ScalarProgram program = record(op);
  return std::ranges::any_of(program.nodes, [](const ScalarNode& node) {
    return node.op == ScalarOp::element || node.op == ScalarOp::sample_uniform;
  });
}

// Tells whether every row reads the same of it.
bool is_shared(const Shape& shape) {
  return !has_batch(shape) &&
         (shape.empty() || std::all_of(shape.begin(), shape.end() - 1, [](int64_t n) { return n == 1; }));
}

}  // namespace

bool has_rows(const Shape& shape, int64_t positions) {
  return shape.size() > 1 && has_batch(shape) && shape[1] == positions;
}

bool works_by_row(const OpView& op, int64_t positions) {
  const OpInfo& info = *op.op.info;
  const size_t first = info.writes != 0 ? 1 : 0;  // of what is read
  const auto cut = [&](size_t i) { return has_rows(op.operand(i).shape, positions); };
  switch (info.lowering) {
    case Lowering::pointwise:
      for (size_t i = 0; i < op.op.operands.size(); ++i)
        if (!cut(i) && !is_shared(op.operand(i).shape)) return false;
      return info.writes == 0 && op.op.results.size() == 1 && has_rows(op.result().shape, positions) &&
             !is_random(op);
    case Lowering::row_reduce:
      return cut(0);
    case Lowering::column_reduce:
      return cut(first) && info.combine == Combine::sum;
    case Lowering::gemm:
      if (first == 1) return op.flag("ta") && !op.flag("tb") && cut(1) && cut(2);
      return !op.flag("ta") && cut(0) && !has_batch(op.operand(1).shape);
    default:
      return false;
  }
}

}  // namespace gacc::passes
