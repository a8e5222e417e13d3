// Folding: what can be computed now is, and what changes nothing goes.
//
//   1. A pointwise op of numbers alone is a number, computed by its own formula and rounded to f32.
//   2. x + 0, x - 0, x * 1, x / 1, a cast to x's own type and a choice between x and x are x.
//   3. A pointwise op reads through a broadcast where its own type stays.
//   4. A reshape of a reshape reshapes the original; one to the same shape is its operand.
//
// Not x * 0: it is NaN for an infinite x, and the finite test must see that.
#include <algorithm>
#include <cmath>

#include "ir/op_info.h"
#include "passes/analysis/rewrite.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

// `op` with this number as operand `at` is its other operand.
struct Identity {
  const OpInfo* op;
  size_t at;
  double number;
};
constexpr Identity kIdentities[] = {{&op_add, 0, 0}, {&op_add, 1, 0}, {&op_sub, 1, 0},
                                    {&op_mul, 0, 1}, {&op_mul, 1, 1}, {&op_div, 1, 1}};

std::optional<Operand> constant(const Module& module, const Region& region, const Op& op) {
  const bool numbers = !op.operands.empty() && std::ranges::all_of(op.operands, [](const Operand& o) {
    return as_number(o) != nullptr;
  });
  if (!numbers || op.info->formula == nullptr || op.info->writes != 0 || op.results.size() != 1)
    return std::nullopt;
  if (region[op.results.front()].type != Type{}) return std::nullopt;  // numbers are f32[]
  Op rounded_op = op;                                                  // numbers are f32 on the device
  for (Operand& operand : rounded_op.operands)
    operand = static_cast<double>(static_cast<float>(*as_number(operand)));
  double result = 0;
  evaluate(record(OpView{module, region, rounded_op}), {}, 0, 0, std::span(&result, 1));
  const double rounded = static_cast<float>(result);
  if (!std::isfinite(rounded)) return std::nullopt;  // left for the device to show
  return rounded;
}

std::optional<Operand> identity(const Module& module, const Region& region, const Op& op) {
  if (op.results.size() != 1) return std::nullopt;
  const Type& result = region[op.results.front()].type;
  const auto same_type = [&](const Operand& operand) {
    return operand_type(module, region, operand) == result;
  };
  for (const Identity& rule : kIdentities) {
    if (op.info != rule.op) continue;
    const double* number = as_number(op.operands[rule.at]);
    const Operand& other = op.operands[1 - rule.at];
    if (number != nullptr && *number == rule.number && same_type(other)) return other;
  }
  if (op.info == &op_select && op.operands[1] == op.operands[2] && same_type(op.operands[1]))
    return op.operands[1];
  const bool renames =
      op.info->lowering == Lowering::alias || op.info == &op_cast || op.info == &op_broadcast;
  if (renames && same_type(op.operands.front())) return op.operands.front();
  return std::nullopt;
}

// Reads through broadcasts; `repeated` says what a value repeats.
void skip_broadcasts(const Module& module, const Region& region,
                     const std::vector<std::optional<Operand>>& repeated, Op& op) {
  if (op.info->lowering != Lowering::pointwise || op.results.size() != 1 || op.info->writes != 0) return;
  for (Operand& operand : op.operands) {
    const ValueId* value = as_value(operand);
    if (value == nullptr || !repeated[index(*value)]) continue;
    const Operand before = operand;
    operand = *repeated[index(*value)];
    Diag ignored;
    const auto types = infer_types({module, region, op}, ignored);
    if (!types || types->front() != region[op.results.front()].type) operand = before;
  }
}

void fold_region(const Module& module, Region& region) {
  std::vector<std::optional<Operand>> reshaped(region.values.size());  // what a value is a reshape of
  std::vector<std::optional<Operand>> repeated(region.values.size());  // what a value is a broadcast of
  rewrite(region, [&](Op& op, Replacements& replaced) {
    skip_broadcasts(module, region, repeated, op);
    if (op.info == &op_broadcast) repeated[index(op.results.front())] = op.operands.front();
    if (op.info->lowering == Lowering::alias) {
      if (const ValueId* value = as_value(op.operands.front())) {
        if (const auto& original = reshaped[index(*value)]) op.operands.front() = *original;
      }
      reshaped[index(op.results.front())] = op.operands.front();
    }
    std::optional<Operand> by = constant(module, region, op);
    if (!by) by = identity(module, region, op);
    if (by) replaced.set(op.results.front(), *by);
    return !by;
  });
}

}  // namespace

bool fold(Module& module, const Options&, Diag&) {
  for (const RegionKind kind : all_regions) fold_region(module, module.region(kind));
  return true;
}

}  // namespace gacc::passes
