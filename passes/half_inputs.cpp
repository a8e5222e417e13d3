// Pass `half-inputs`: an f32 input that is only read rounded is rounded by the runtime when it writes the
// input (Session::write_inputs), as the cast would have done it. So the step has the same bits, a kernel less,
// and half the bytes of the input. Data, files and the library's arrays stay f32.
//
//   1. What an op only copies may be rounded before or after: an input is read rounded where all that read it
//      are casts to the half type, or ops that copy it alone into values that are themselves read rounded.
//   2. An input is one in all regions, and stays f32 in all if one of them reads it as it is.
//   3. The others become half, and so do their copies; their casts go.
#include <algorithm>
#include <set>

#include "ir/op_info.h"
#include "passes/analysis/rewrite.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

constexpr RegionKind kReaders[] = {RegionKind::step, RegionKind::eval, RegionKind::predict,
                                   RegionKind::measure};

bool only_copies(const Op& op) { return op.info->copies && op.operands.size() == 1 && !op.when; }

// By value: f32, and read rounded; nobody's reading is that, too.
std::vector<bool> read_rounded(const Region& region, DType half) {
  std::vector<bool> rounded(region.values.size());
  for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = region.values[i].type.dtype == DType::f32;
  const auto as_it_is = [&](const Operand& operand) {
    if (const ValueId* value = as_value(operand)) rounded[index(*value)] = false;
  };
  for (const Yield& yield : region.yields) as_it_is(yield.what);
  for (size_t k = region.ops.size(); k-- > 0;) {
    const Op& op = region.ops[k];
    const bool casts = op.info == &op_cast && region[op.results.front()].type.dtype == half;
    if (casts || (only_copies(op) && rounded[index(op.results.front())])) continue;
    op.each_operand(as_it_is);
  }
  return rounded;
}

void halve(Region& region, DType half, const std::set<std::string>& inputs) {
  Replacements replacements(region);
  std::vector<bool> halved(region.values.size());
  const auto become_half = [&](ValueId value) {
    halved[index(value)] = true;
    region[value].type.dtype = half;
  };
  for (const ValueId input : region.inputs)
    if (inputs.contains(region[input].name)) become_half(input);
  for (const Op& op : region.ops) {
    const ValueId* value = op.operands.empty() ? nullptr : as_value(op.operands.front());
    if (value == nullptr || !halved[index(*value)]) continue;
    if (only_copies(op))
      become_half(op.results.front());
    else
      replacements.set(op.results.front(), *value);
  }
  for (Op& op : region.ops) replacements.apply(op);
  replacements.apply(region.yields);
  remove_dead(region);
}

}  // namespace

bool half_inputs(Module& module, const Options&, Diag&) {
  const DType half = *module.settings.precision.compute;
  if (!is_narrow(half)) return true;
  std::set<std::string> rounded, kept;
  for (const RegionKind kind : kReaders) {
    const Region& region = module.region(kind);
    const std::vector<bool> by_value = read_rounded(region, half);
    for (const ValueId input : region.inputs)
      (by_value[index(input)] ? rounded : kept).insert(region[input].name);
  }
  if (const auto& own = module.measure.inputs; !own.empty()) kept.insert(module.measure[own.front()].name);
  for (const std::string& name : kept) rounded.erase(name);
  for (const RegionKind kind : kReaders) halve(module.region(kind), half, rounded);
  return true;
}

}  // namespace gacc::passes
