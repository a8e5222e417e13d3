// GradBuilder: names of gradients, and the undoing of broadcasts.
#include "ir/builder.h"
#include "ir/kernel.h"

namespace gacc::ir {

namespace {

// Sums `d`, a gradient in a broadcast shape, down to the shape it was broadcast from. The cases are those of
// ir/types.h `broadcast`: one element, one value a row, trailing axes.
Operand sum_down(Builder& b, const std::string& name, Operand d, const Shape& wanted) {
  const Shape from = b.type(d).shape;
  const auto shaped = [&](const Operand& value) { return b.reshaped(name, value, wanted); };
  switch (access(wanted, from).value_or(Access::scalar)) {
    case Access::element:
      return shaped(d);
    case Access::scalar:
      return shaped(b.make("total_sum", name + ".sum", {d}));
    case Access::row:
      return shaped(b.make("row_sum", name + ".sum", {d}));
    case Access::channel: {
      // [..,C,s..] -> [C,1..]: a channel's elements become one axis, then the samples' sums are summed.
      std::ptrdiff_t inner = 0, first = 0;  // axes of a channel's elements, leading 1s
      for (auto axis = wanted.rbegin(); *axis == 1; ++axis) ++inner;
      for (auto axis = wanted.begin(); *axis == 1; ++axis) ++first;
      const std::ptrdiff_t own = static_cast<std::ptrdiff_t>(wanted.size()) - inner - first;
      Shape flat(from.begin(), from.end() - inner), samples(from.begin(), from.end() - inner - own);
      flat.push_back(channel_inner(wanted, from));
      samples.push_back(elements(wanted, 1));
      d = b.make("row_sum", name + ".row", {b.reshaped(name + ".flat", d, flat)});
      d = b.reshaped(name + ".rows", d, samples);
      return shaped(samples.size() == 1 ? d : Operand(b.make("column_sum", name + ".sum", {d})));
    }
    case Access::suffix:
      break;
  }
  // [.., T, C] -> [T, C]: the trailing axes become one column axis first.
  size_t axes = wanted.size();
  while (axes > 1 && wanted[wanted.size() - axes] == 1) --axes;
  if (axes > 1) {
    Shape flat(from.begin(), from.end() - static_cast<std::ptrdiff_t>(axes));
    flat.push_back(elements(wanted, 1));
    d = b.make("reshape", name + ".flat", {d}, {{"shape", flat}});
  }
  return shaped(b.make("column_sum", name + ".sum", {d}));
}

}  // namespace

std::string GradBuilder::d_name(size_t i) const {
  if (const ValueId* value = as_value(op_.operands[i])) return "d." + b.region()[*value].name;
  if (const BufferId* buffer = as_buffer(op_.operands[i])) return "d." + b.module()[*buffer].name;
  return "d.number";
}

void GradBuilder::add(size_t i, Operand contribution) {
  if (as_number(op_.operands[i]) != nullptr || !wanted(i)) return;
  const Shape wanted_shape = b.type(op_.operands[i]).shape;
  const Shape given = b.type(contribution).shape;
  // A gradient that is the same for many elements (that of a sum) is repeated: pointwise, so it costs no
  // memory. In an op that broadcasts it is repeated to the result's shape first, and then summed.
  const Shape& result = b.region()[op_.results[0]].type.shape;
  const bool broadcasting = op_.info->lowering == Lowering::pointwise;
  const Shape whole = broadcasting ? result : wanted_shape;
  if (given != whole && given != wanted_shape && broadcast(whole, given) == whole)
    contribution = b.make("broadcast", d_name(i) + ".all", {contribution}, {{"shape", whole}});
  if (b.type(contribution).shape != wanted_shape)
    contribution = sum_down(b, d_name(i), contribution, wanted_shape);
  std::optional<Operand>& sum = contributions_[i];
  sum = sum ? Operand(b.make("add", d_name(i) + ".sum", {*sum, contribution})) : contribution;
}

bool GradBuilder::run() {
  const OpInfo& info = *op_.info;
  if (!info.has_gradient()) {
    b.diag().error(Kind::no_gradient, op_.at, "`{}` has no gradient", info.name);
    return false;
  }
  if (info.gradient != nullptr) {
    info.gradient(*this);
    return true;
  }
  const Operand saved = info.saves == Saves::result ? result() : operand(0);
  if (wanted(0)) add(0, b.make(std::string(info.name) + ".grad", d_name(0), {saved, *d_result()}, op_.attrs));
  return true;
}

}  // namespace gacc::ir
