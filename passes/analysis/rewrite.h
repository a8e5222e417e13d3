// Shared by passes that replace values.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/module.h"

namespace gacc::passes {

// The replacement of each value, by value index; entries may name values that are replaced themselves.
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

// Goes over the ops of a region, in which each then reads what replaces its operands. visit(op, replacements) returns
// whether the op stays; it may say what replaces the op's results, and put ops before it, at the end of region.ops.
template <class Visit>
void rewrite(ir::Region& region, Visit&& visit) {
  Replacements replaced(region);
  for (ir::Op& op : std::exchange(region.ops, {})) {
    replaced.apply(op);
    if (visit(op, replaced)) region.ops.push_back(std::move(op));
  }
  replaced.apply(region.yields);
  compact(region);
}

// The op that adds to the buffer; null where none does.
const ir::Op* adds_to(const ir::Region& region, std::optional<ir::BufferId> buffer);

// Returns the name of a value or a buffer.
const std::string& name_of(const ir::Module& module, const ir::Region& region, const ir::Operand& operand);
// Returns the name of what the op makes, or writes.
const std::string& name_of(const ir::Module& module, const ir::Region& region, const ir::Op& op);

// Gives `value` the name `wanted`, or the first free one made from it.
void rename(ir::Region& region, ir::ValueId value, const std::string& wanted);

}  // namespace gacc::passes
