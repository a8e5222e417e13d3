// Replacing values of a region by others.
#include "passes/rewrite.h"

#include "ir/op_info.h"

namespace gacc::passes {

void Replacements::set(ir::ValueId value, ir::Operand with) {
  const auto index = static_cast<size_t>(value.index);
  if (by_.size() <= index) by_.resize(index + 1);
  by_[index] = std::move(with);
}

ir::Operand Replacements::operator()(ir::Operand operand) const {
  while (const ir::ValueId* value = ir::as_value(operand)) {
    const auto index = static_cast<size_t>(value->index);
    if (index >= by_.size() || !by_[index]) break;
    operand = *by_[index];
  }
  return operand;
}

void Replacements::apply(ir::Op& op) const {
  for (ir::Operand& operand : op.operands) operand = (*this)(operand);
  if (op.when) op.when = (*this)(*op.when);
}

void Replacements::apply(std::vector<ir::Yield>& yields) const {
  for (ir::Yield& yield : yields) yield.what = (*this)(yield.what);
}

bool writes_operand(const ir::Op& op, size_t i) { return (op.info->writes >> i & 1U) != 0; }

void rename(ir::Region& region, ir::ValueId value, const std::string& wanted) {
  std::string name = wanted;
  for (int suffix = 2; region.find(name).value_or(value) != value; ++suffix)
    name = fmt::format("{}.{}", wanted, suffix);
  region[value].name = name;
}

}  // namespace gacc::passes
