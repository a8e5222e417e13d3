// Layers that compute nothing: another shape, another order, several inputs side by side.
#include <algorithm>

#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

Layer reshaped(LayerContext& l, const ir::Shape& to) {
  if (to == l.shape()) return {l.input};
  return {{l.b.make("reshape", l.path, {l.x()}, {{"shape", to}})}};
}

Layer lower_reshape(LayerContext& l) {
  const int64_t count = ir::elements(l.shape(), 1);
  const ir::Shape shape = l.keys.integers("shape"), to = with_batch(shape);
  if (!ir::fits(to, 1) || ir::elements(to, 1) != count)
    l.refuse(Kind::shape_mismatch, l.keys.at("shape"),
             "layer `{}` reshapes to {}, {} gives {}, which has {} elements", l.spec.name,
             ir::shape_text(shape), l.input.label, l.shape_text(), count);
  return reshaped(l, to);
}

// Axis i of the output is axis axes[i] of the input. Where only axes of one element change their places,
// nothing moves and a reshape says it.
Layer lower_permute(LayerContext& l) {
  const ir::Shape from = l.shape();
  const std::vector<int64_t> axes = l.keys.integers("axes");
  if (axes.size() + 1 != from.size())
    l.refuse(Kind::shape_mismatch, l.keys.at("axes"), "layer `{}` permutes {} axes, {} gives {}", l.spec.name,
             axes.size(), l.input.label, l.shape_text());
  if (std::is_sorted(axes.begin(), axes.end())) return {l.input};
  ir::Shape to{ir::kBatch};
  std::vector<int64_t> moved;
  for (const int64_t axis : axes) {
    to.push_back(from[static_cast<size_t>(axis) + 1]);
    if (to.back() > 1) moved.push_back(axis);
  }
  if (std::is_sorted(moved.begin(), moved.end())) return reshaped(l, to);
  return {{l.b.make("permute", l.path, {l.x()}, l.attrs_of("permute"))}};
}

Layer lower_concat(LayerContext& l) {
  const ir::Shape first = l.shape();
  const auto axis = static_cast<size_t>(l.keys.integer("axis")) + 1;
  if (axis >= first.size())
    l.refuse(Kind::out_of_range, l.keys.at("axis"), "layer `{}` joins along axis {}, {} gives {}",
             l.spec.name, axis - 1, l.input.label, l.shape_text());
  std::vector<ir::Operand> operands;
  for (size_t i = 0; i < l.inputs.size(); ++i) {
    const Flow& input = l.inputs[i];
    ir::Shape same = l.b.type(*input.value).shape;
    if (same.size() == first.size()) same[axis] = first[axis];
    if (same != first)
      throw Refused(l.error(Kind::shape_mismatch, l.keys.nodes("inputs")[i].at,
                            "layer `{}` cannot join {} {} and {} {} along axis {}", l.spec.name,
                            l.input.label, l.shape_text(), input.label, l.layers.shape_of(input), axis - 1)
                        .note(l.input.at, l.input.defined_here())
                        .note(input.at, input.defined_here()));
    operands.emplace_back(*input.value);
  }
  return {{l.b.make("concat", l.path, std::move(operands), l.attrs_of("concat"))}};
}

void check_axes(const Values& keys, Diag& diag) {
  std::vector<int64_t> sorted = keys.integers("axes");
  std::ranges::sort(sorted);
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] == static_cast<int64_t>(i)) continue;
    diag.error(Kind::out_of_range, keys.at("axes"), "`axes` must name each axis from 0 to {} once",
               sorted.size() - 1);
    return;
  }
}

constexpr Range axis_range = between(0, kMaxRank - 1);

}  // namespace

const LayerType layers::flatten{
    .schema = {.name = "flatten", .says = "All of a sample as one axis."},
    .lower = [](LayerContext& l) { return reshaped(l, with_batch({ir::elements(l.shape(), 1)})); },
};

const LayerType layers::reshape{
    .schema = {.name = "reshape",
               .says = "The same elements under another shape.",
               .keys = {{"shape", Form::integers, required, "of a sample", extent, {}, kMaxRank}},
               .example = "shape = [2, 8]"},
    .lower = lower_reshape,
};

const LayerType layers::permute{
    .schema =
        {.name = "permute",
         .says = "Axis i of a sample becomes what was axis axes[i].",
         .keys = {{"axes", Form::integers, required, "of a sample, each once", axis_range, {}, kMaxRank}},
         .example = "axes = [1, 0]"},
    .check = check_axes,
    .lower = lower_permute,
};

const LayerType layers::concat{
    .schema = {.name = "concat",
               .says = "Its inputs side by side.",
               .keys = {{"axis", Form::integer, required, "of a sample, along which they lie", axis_range}},
               .example = "inputs = [\"a\", \"b\"]\naxis = 0"},
    .several = true,
    .lower = lower_concat,
};

}  // namespace gacc::frontend
