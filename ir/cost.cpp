// FLOPs and bytes from the op table. An op without a cost of its own does one operation per element it
// touches and moves all its operands and results.
#include "ir/cost.h"

#include <algorithm>

namespace gacc::ir {

Cost cost(const OpView& op) {
  if (op.op.info->cost != nullptr) return op.op.info->cost(op);
  const int64_t batch = op.module.micro_batch();
  Cost total;
  for (size_t i = 0; i < op.op.operands.size(); ++i) {
    if (as_number(op.op.operands[i]) != nullptr) continue;
    const Type type = op.operand(i);
    total.flops = std::max(total.flops, elements(type.shape, batch));
    total.bytes += type_bytes(type, batch) * (op.op.info->is_written(i) + op.op.info->is_read(i));
  }
  for (size_t i = 0; i < op.op.results.size(); ++i) {
    total.flops = std::max(total.flops, elements(op.result(i).shape, batch));
    total.bytes += type_bytes(op.result(i), batch);
  }
  return total;
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
