#include "passes/analysis/rewrite.h"

#include <algorithm>

#include "ir/op_info.h"

namespace gacc::passes {

void Replacements::set(ir::ValueId value, ir::Operand with) {
  if (by_.size() <= index(value)) by_.resize(index(value) + 1);
  by_[index(value)] = std::move(with);
}

ir::Operand Replacements::operator()(ir::Operand operand) const {
  while (const ir::ValueId* value = ir::as_value(operand)) {
    if (index(*value) >= by_.size() || !by_[index(*value)]) break;
    operand = *by_[index(*value)];
  }
  return operand;
}

void Replacements::apply(ir::Op& op) const {
  op.each_operand([&](ir::Operand& operand) { operand = (*this)(operand); });
}

void Replacements::apply(std::vector<ir::Yield>& yields) const {
  for (ir::Yield& yield : yields) yield.what = (*this)(yield.what);
}

const ir::Op* adds_to(const ir::Region& region, std::optional<ir::BufferId> buffer) {
  const auto found = std::ranges::find_if(region.ops, [&](const ir::Op& op) {
    return buffer && op.info->is_written(0) && op.operands.front() == ir::Operand(*buffer);
  });
  return found == region.ops.end() ? nullptr : &*found;
}

const std::string& name_of(const ir::Module& module, const ir::Region& region, const ir::Operand& operand) {
  const ir::ValueId* value = ir::as_value(operand);
  return value != nullptr ? region[*value].name : module[*ir::as_buffer(operand)].name;
}

const std::string& name_of(const ir::Module& module, const ir::Region& region, const ir::Op& op) {
  return name_of(module, region, op.results.empty() ? op.operands.front() : op.results.front());
}

void rename(ir::Region& region, ir::ValueId value, const std::string& wanted) {
  std::string name = wanted;
  for (int suffix = 2; region.find(name).value_or(value) != value; ++suffix)
    name = fmt::format("{}.{}", wanted, suffix);
  region[value].name = name;
}

}  // namespace gacc::passes
