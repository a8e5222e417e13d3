// Layers that compute nothing: another shape, another order, several inputs side by side.
#include <algorithm>

#include "frontend/layers.h"

namespace gacc::frontend {

// flatten is the reshape to one axis.
Flow LayerLowering::reshape(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  const ir::Shape& from = type(x).shape;
  const int64_t count = ir::elements(from, 1);
  const bool flatten = spec.kind == LayerKind::flatten;
  const ir::Shape to = with_batch(flatten ? ir::Shape{count} : spec.shape);
  if (!ir::fits(to, 1) || ir::elements(to, 1) != count) {
    diag_
        .error(Kind::shape_mismatch, spec.shape_at,
               "layer `{}` reshapes to {}, {} gives {}, which has {} elements", spec.name,
               ir::shape_text(spec.shape), x.label, shape_of(x), count)
        .note(x.at, x.defined_here());
    return wrong();
  }
  if (to == from) return x;
  return {.value = b_.make("reshape", scope.prefix + spec.name, {*x.value}, {{"shape", to}})};
}

// Axis i of the output is axis axes[i] of the input. Where only axes of one element change their places,
// nothing moves and a reshape says it.
Flow LayerLowering::permute(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  const ir::Shape from = type(x).shape;
  if (spec.axes.size() + 1 != from.size()) {
    diag_
        .error(Kind::shape_mismatch, spec.axes_at, "layer `{}` permutes {} axes, {} gives {}", spec.name,
               spec.axes.size(), x.label, shape_of(x))
        .note(x.at, x.defined_here());
    return wrong();
  }
  if (std::is_sorted(spec.axes.begin(), spec.axes.end())) return x;
  ir::Shape to{ir::kBatch};
  std::vector<int64_t> moved;
  for (const int64_t axis : spec.axes) {
    to.push_back(from[static_cast<size_t>(axis) + 1]);
    if (to.back() > 1) moved.push_back(axis);
  }
  const std::string path = scope.prefix + spec.name;
  if (std::is_sorted(moved.begin(), moved.end()))
    return {.value = b_.make("reshape", path, {*x.value}, {{"shape", to}})};
  return {.value = b_.make("permute", path, {*x.value}, {{"axes", spec.axes}})};
}

Flow LayerLowering::concat(const LayerSpec& spec, const std::vector<Flow>& inputs, const Scope& scope) {
  const ir::Shape first = type(inputs.front()).shape;
  const size_t axis = static_cast<size_t>(spec.axes.front()) + 1;
  if (axis >= first.size()) {
    diag_
        .error(Kind::out_of_range, spec.axes_at, "layer `{}` joins along axis {}, {} gives {}", spec.name,
               axis - 1, inputs[0].label, shape_of(inputs[0]))
        .note(inputs[0].at, inputs[0].defined_here());
    return wrong();
  }
  std::vector<ir::Operand> operands;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ir::Shape same = type(inputs[i]).shape;
    if (same.size() == first.size()) same[axis] = first[axis];
    if (same != first) {
      const Location at = i < spec.inputs.size() ? spec.inputs[i].at : spec.type_at;
      diag_
          .error(Kind::shape_mismatch, at, "layer `{}` cannot join {} {} and {} {} along axis {}", spec.name,
                 inputs[0].label, shape_of(inputs[0]), inputs[i].label, shape_of(inputs[i]), axis - 1)
          .note(inputs[0].at, inputs[0].defined_here())
          .note(inputs[i].at, inputs[i].defined_here());
      return wrong();
    }
    operands.emplace_back(*inputs[i].value);
  }
  if (operands.size() == 1) return inputs.front();
  return {.value = b_.make("concat", scope.prefix + spec.name, std::move(operands),
                           {{"axis", spec.axes.front()}})};
}

}  // namespace gacc::frontend
