// An op without a cost of its own does one operation per element it touches and moves all its operands and results.
#include "ir/cost.h"

#include <algorithm>

namespace gacc::ir {

Cost cost(const OpView& op) {
  if (op.op.info->cost != nullptr) return op.op.info->cost(op);
  return {.flops = most_elements(op), .bytes = moved_bytes(op)};
}

int64_t most_elements(const OpView& op) {
  const int64_t batch = op.module.micro_batch();
  int64_t most = 0;
  for (size_t i = 0; i < op.op.operands.size(); ++i)
    if (as_number(op.op.operands[i]) == nullptr) most = std::max(most, elements(op.operand(i).shape, batch));
  for (size_t i = 0; i < op.op.results.size(); ++i)
    most = std::max(most, elements(op.result(i).shape, batch));
  return most;
}

int64_t moved_bytes(const OpView& op) {
  const int64_t batch = op.module.micro_batch();
  int64_t bytes = 0;
  for (size_t i = 0; i < op.op.operands.size(); ++i)
    if (as_number(op.op.operands[i]) == nullptr)
      bytes += type_bytes(op.operand(i), batch) * (op.op.info->is_written(i) + op.op.info->is_read(i));
  for (size_t i = 0; i < op.op.results.size(); ++i) bytes += type_bytes(op.result(i), batch);
  return bytes;
}

Cost cost(const Module& module, const Region& region) {
  Cost total;
  for (const Op& op : region.ops) {
    const Cost one = cost(OpView{module, region, op});
    total.flops += one.flops;
    total.bytes += one.bytes;
  }
  return total;
}

int64_t function_calls(const OpView& op) {
  if (op.op.info->lowering != Lowering::pointwise) return 0;
  const ScalarProgram program = record(op);
  constexpr ScalarOp kCalls[] = {ScalarOp::exp, ScalarOp::log, ScalarOp::tanh,    ScalarOp::erf,
                                 ScalarOp::sin, ScalarOp::cos, ScalarOp::uniform, ScalarOp::sample_uniform};
  const auto calls =
      std::ranges::count_if(program.nodes, [&](const ScalarNode& node) { return contains(kCalls, node.op); });
  return calls * elements(pointwise_domain(op), op.module.micro_batch());
}

}  // namespace gacc::ir
