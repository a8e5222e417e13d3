#include "kernels/approximate.h"

#include <algorithm>

namespace gacc::kernels {

namespace {

using ir::Operand;
using ir::ScalarOp;

bool of_half(const ir::Module& module, const ir::Region& region, const Operand& operand,
             const std::vector<bool>& half) {
  if (ir::as_number(operand) != nullptr) return false;
  if (const ir::ValueId* value = ir::as_value(operand)) return half[index(*value)];
  return ir::is_narrow(ir::operand_type(module, region, operand).dtype);
}

// Returns true if a relative error of argument `i` is no larger in the result.
bool passes_error(ScalarOp op, size_t i) {
  switch (op) {
    case ScalarOp::mul:
    case ScalarOp::neg:
    case ScalarOp::abs:
      return true;
    case ScalarOp::div:
      return i == 0;
    case ScalarOp::select:
      return i != 0;
    default:
      return false;
  }
}

}  // namespace

std::vector<bool> half_values(const ir::Module& module, const ir::Region& region) {
  std::vector<bool> half;
  for (const ir::Value& value : region.values) half.push_back(ir::is_narrow(value.type.dtype));
  for (const ir::Op& op : region.ops) {
    if (op.info->lowering != ir::Lowering::pointwise) continue;
    const bool from = std::ranges::any_of(
        op.operands, [&](const Operand& operand) { return of_half(module, region, operand, half); });
    if (!from) continue;
    for (const ir::ValueId result : op.results)
      half[index(result)] = region[result].type.dtype != ir::DType::i32;
  }
  return half;
}

std::vector<int32_t> approximate_nodes(const ir::OpView& op, const ir::ScalarProgram& formula,
                                       const std::vector<ir::DType>& types, const std::vector<bool>& half) {
  const auto& nodes = formula.nodes;
  std::vector<bool> hidden(nodes.size(), true);  // by the rounding of every result that it reaches
  for (size_t r = 0; r < types.size(); ++r)
    if (!ir::is_narrow(types[r])) hidden[formula.results[r]] = false;
  for (size_t n = nodes.size(); n-- > 0;) {
    for (size_t i = 0; i < std::size(nodes[n].args) && nodes[n].args[i] >= 0; ++i)
      if (!hidden[n] || !passes_error(nodes[n].op, i)) hidden[nodes[n].args[i]] = false;
  }
  const bool any = std::ranges::any_of(
      op.op.operands, [&](const Operand& operand) { return of_half(op.module, op.region, operand, half); });
  const bool functions = any || std::ranges::all_of(types, ir::is_narrow);
  std::vector<int32_t> approximate;
  std::vector<bool> from_function(nodes.size());  // made from what is approximate: has its error already
  for (size_t n = 0; n < nodes.size(); ++n) {
    const ir::ScalarNode& node = nodes[n];
    const bool function = node.op == ScalarOp::exp || node.op == ScalarOp::tanh || node.op == ScalarOp::erf;
    from_function[n] = (function && functions) || std::ranges::any_of(node.args, [&](int32_t arg) {
                         return arg >= 0 && from_function[arg];
                       });
    const bool division = node.op == ScalarOp::div && (hidden[n] || from_function[node.args[1]]);
    if ((function && functions) || division) approximate.push_back(static_cast<int32_t>(n));
  }
  return approximate;
}

}  // namespace gacc::kernels
