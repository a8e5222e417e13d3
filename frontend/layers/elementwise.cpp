// add, mul, softmax and log_softmax: ops of the same name.
#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

// The op of two inputs or more, from left to right.
Layer from_left(LayerContext& l) {
  ir::ValueId y = l.x();
  ir::Shape shape = l.shape();
  const std::string_view op = l.spec.type->schema.name;
  for (size_t i = 1; i < l.inputs.size(); ++i) {
    const Flow& input = l.inputs[i];
    const std::optional<ir::Shape> both = ir::broadcast(shape, l.b.type(*input.value).shape);
    if (!both || !ir::has_batch(*both))
      throw Refused(l.error(Kind::shape_mismatch, l.keys.nodes("inputs")[i].at,
                            "layer `{}` cannot {} {} {} and {} {}", l.spec.name,
                            op == "add" ? "add" : "multiply", l.input.label, l.shape_text(), input.label,
                            l.layers.shape_of(input))
                        .note(l.input.at, l.input.defined_here())
                        .note(input.at, input.defined_here()));
    shape = *both;
    const bool last = i + 1 == l.inputs.size();
    y = l.b.make(op, last ? l.path : fmt::format("{}.part{}", l.path, i), {y, *input.value});
  }
  return {{y}};
}

Layer over_last_axis(LayerContext& l) {
  l.need_last_axis();
  return {{l.b.make(l.spec.type->schema.name, l.path, {l.x()})}};
}

}  // namespace

const LayerType layers::add{
    .schema = {.name = "add", .says = "The sum of its inputs.", .example = "inputs = [\"a\", \"b\"]"},
    .several = true,
    .lower = from_left,
};

const LayerType layers::mul{
    .schema = {.name = "mul", .says = "The product of its inputs.", .example = "inputs = [\"a\", \"b\"]"},
    .several = true,
    .lower = from_left,
};

const LayerType layers::softmax{
    .schema = {.name = "softmax", .says = "exp(x) by its sum over the last axis."},
    .lower = over_last_axis,
};

const LayerType layers::log_softmax{
    .schema = {.name = "log_softmax", .says = "The logarithm of softmax."},
    .lower = over_last_axis,
};

}  // namespace gacc::frontend
