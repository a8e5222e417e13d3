// Blocks: layers under one name. What is in them is checked even when their input is wrong.
#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

Layer lower_sequential(LayerContext& l) {
  const bool repeats = l.keys.has("repeat");
  // A body without layers is an error that is reported already: its copies would not count towards any limit.
  const int64_t copies = repeats && !l.spec.bodies.front().empty() ? l.keys.integer("repeat") : 1;
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
  const double scale = l.keys.real("scale");
  const ir::ValueId branch = scale != 1 ? l.b.make("mul", l.path + ".branch", {*y.value, scale}) : *y.value;
  return {{l.b.make("add", l.path, {*x.value, branch})}};
}

const Key layers_key{"layers", Form::tables, required, "its body, written [[layers.layers]]"};

}  // namespace

const LayerType layers::sequential{
    .schema =
        {.name = "sequential",
         .says = "A named block. With `repeat`, even 1, its copies are called NAME.0, NAME.1 and so on.",
         .keys = {{"repeat", Form::integer, no_default, "how many copies", extent},
                  {"pattern", Form::tables, no_default,
                   "with repeat: what differs among the copies; copy n takes the keys of table n mod the "
                   "number of tables. A key that names a layer of the body holds keys of that layer, and so "
                   "on inwards; any other is for all layers in the body whose type has it"},
                  layers_key},
         .example = "name = \"block\"\nrepeat = 2\n[[layers.layers]]\ntype = \"linear\"\nfeatures = 16"},
    .block = true,
    .check =
        [](const Values& keys, Diag& diag) {
          if (!keys.given("pattern")) return;
          if (!keys.has("repeat"))
            diag.error(Kind::conflict, keys.at("pattern"),
                       "`pattern` says what differs among copies; it needs `repeat`");
          else if (keys["pattern"].good && keys.nodes("pattern").empty())
            diag.error(Kind::out_of_range, keys.at("pattern"),
                       "`pattern` is empty; it has a table for each copy");
        },
    .lower = lower_sequential,
};

const LayerType layers::residual{
    .schema = {.name = "residual",
               .says = "Adds its input to the output of its body, times `scale`.",
               .keys = {{"scale", Form::real, 1.0, "what the body's output is multiplied by", above(0)},
                        layers_key},
               .example = "name = \"block\"\n[[layers.layers]]\ntype = \"layer_norm\""},
    .block = true,
    .lower = lower_residual,
};

}  // namespace gacc::frontend
