// Blocks: layers under one name. What is in them is checked even when their input is wrong.
#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

Layer lower_sequential(LayerContext& l) {
  const bool repeats = l.keys.has("repeat");
  const int64_t copies = repeats ? l.keys.integer("repeat") : 1;
  const int32_t outer = l.b.segment;
  Flow x = l.input;
  for (int64_t i = 0; i < copies; ++i) {
    // Under the other policies the layers of a block that is not repeated are units themselves.
    l.b.segment = outer;
    if (repeats || *l.model.settings.recompute.policy == "marked") l.open_segment();
    const size_t before = l.b.diag().reports().size();
    x = l.body(std::move(x), repeats ? fmt::format("{}.{}.", l.path, i) : l.path + ".", i);
    if (l.b.diag().reports().size() != before || (!x.value && i > 0))
      return {};  // other copies would say the same again
  }
  return {x};
}

Layer lower_residual(LayerContext& l) {
  const Flow &x = l.input, y = l.body(x, l.path + ".");
  if (!x.value || !y.value) return {};
  l.need_floats();
  if (l.shape() != l.b.type(*y.value).shape)
    throw Refused(l.error(Kind::shape_mismatch, l.keys.type_at,
                          "residual `{}` adds its input to its body's output: {} gives {}, {} gives {}",
                          l.spec.name, x.label, l.shape_text(), y.label, l.layers.shape_of(y))
                      .note(y.at, fmt::format("the body ends in {}", y.label)));
  l.b.location = l.keys.type_at;
  return {{l.b.make("add", l.path, {*x.value, *y.value})}};
}

const Key layers_key{"layers", Form::tables, required, "its body, written [[layers.layers]]"};

}  // namespace

const LayerType layers::sequential{
    .schema = {.name = "sequential",
               .says =
                   "A named block. With `repeat`, even 1, its copies are called NAME.0, NAME.1 and so on.",
               .keys = {{"repeat", Form::integer, no_default, "how many copies", extent}, layers_key},
               .example =
                   "name = \"block\"\nrepeat = 2\n[[layers.layers]]\ntype = \"linear\"\nfeatures = 16"},
    .block = true,
    .lower = lower_sequential,
};

const LayerType layers::residual{
    .schema = {.name = "residual",
               .says = "Adds its input to the output of its body.",
               .keys = {layers_key},
               .example = "name = \"block\"\n[[layers.layers]]\ntype = \"layer_norm\""},
    .block = true,
    .lower = lower_residual,
};

}  // namespace gacc::frontend
