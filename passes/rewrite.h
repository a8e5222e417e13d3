// What passes that replace values share.
#pragma once
#include <optional>
#include <vector>

#include "ir/module.h"

namespace gacc::passes {

// What takes a value's place, by value index; entries may name values that are replaced themselves.
class Replacements {
 public:
  explicit Replacements(const ir::Region& region) : by_(region.values.size()) {}
  void set(ir::ValueId value, ir::Operand with);
  ir::Operand operator()(ir::Operand operand) const;  // follows chains
  void apply(ir::Op& op) const;                       // to what it reads
  void apply(std::vector<ir::Yield>& yields) const;

 private:
  std::vector<std::optional<ir::Operand>> by_;
};

// Whether the op writes its operand i.
bool writes_operand(const ir::Op& op, size_t i);

// Gives `value` the name `wanted`, or the first free one made from it.
void rename(ir::Region& region, ir::ValueId value, const std::string& wanted);

}  // namespace gacc::passes
