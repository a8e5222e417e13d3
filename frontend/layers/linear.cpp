// linear, and activations.
#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

// The weight of another layer, when it has the shape that this one needs.
ir::BufferId tied(LayerContext& l, int64_t in, int64_t out) {
  const Node& owner = l.keys.nodes("tied").front();
  const ir::BufferId weight = l.tied_weight(owner);
  const ir::Buffer& buffer = l.b.module()[weight];
  const ir::Shape& owned = buffer.type.shape;
  if (owned == ir::Shape{out, in}) {
    if (l.training()) l.layers.parameters.ties.emplace_back(l.path + ".weight", buffer.name);
    return weight;
  }
  Report& report = owned.size() == 2 && owned.front() == out
                       ? l.error(Kind::shape_mismatch, owner.at, "layer `{}` takes {} inputs, {} gives {}",
                                 l.spec.name, owned.back(), l.input.label, in)
                       : l.error(Kind::shape_mismatch, owner.at, "layer `{}` needs a weight [{},{}]",
                                 l.spec.name, out, in);
  throw Refused(report.note(
      buffer.at, fmt::format("the weight of `{}`, {}, is defined here", owner.text, ir::shape_text(owned))));
}

Layer lower_linear(LayerContext& l) {
  l.need_last_axis();
  const int64_t in = l.shape().back(), out = l.keys.integer("features");
  const auto spread = Parameters::Standard::spread;
  const ir::BufferId weight =
      l.keys.has("tied") ? tied(l, in, out) : l.parameter("weight", {out, in}, spread, {in, out}, "features");
  std::optional<ir::BufferId> bias;
  if (l.keys.flag("bias")) bias = l.parameter("bias", {out}, spread, {in, out}, "features");
  const bool active = l.keys.has("activation"), caps = l.keys.has("softcap");
  const double scale = l.keys.real("scale");
  const Values* by = l.adapting();
  // Names of what the activation or the cap takes, and of what is scaled to be that.
  const std::string last = active || caps ? l.path + ".pre" : l.path;
  const std::string sum = scale != 1 ? l.path + ".sum" : last;
  const bool more = bias || active || caps || scale != 1 || by != nullptr;
  ir::ValueId y = l.b.make("matmul", more ? l.path + ".mm" : l.path, {l.x(), weight}, {{"tb", true}});
  if (bias) y = l.b.make("add", by != nullptr ? l.path + ".base" : sum, {y, *bias});
  if (by != nullptr)
    y = l.b.make("add", sum, {y, l.adapter(*by, l.path, l.x(), out, l.b.module()[weight].name)});
  if (scale != 1) y = l.b.make("mul", last, {y, scale});
  if (active) y = l.activate(y);
  if (caps) {
    const double cap = l.keys.real("softcap");
    const ir::ValueId share = l.b.make("div", l.path + ".share", {y, cap});
    y = l.b.make("mul", l.path, {l.b.make("tanh", l.path + ".tanh", {share}), cap});
  }
  return {{y}, weight};
}

void check_linear(const Values& keys, Diag& diag) {
  if (const Values* lora = keys.find("lora"); lora != nullptr && lora->given("on"))
    diag.error(Kind::conflict, lora->at("on"),
               "`on` chooses among the products of attention; a linear layer has one");
  if (keys.has("tied") && keys.given("init"))
    diag.error(Kind::conflict, keys.at("init"), "a tied weight starts as its owner does; set `init` at `{}`",
               keys.text("tied"));
  if (keys.has("softcap") && keys.has("activation"))
    diag.error(Kind::conflict, keys.at("softcap"),
               "`softcap` is applied to the result, and so is `activation`: a layer has one of them");
}

}  // namespace

const LayerType layers::linear{
    .schema = {.name = "linear",
               .says = "y = x weight^T + bias over the last axis; weight [features, in], bias [features].",
               .keys = {features_key,
                        bias_key,
                        activation_key,
                        slope_key,
                        {"scale", Form::real, 1.0, "what the result is multiplied by first", above(0)},
                        {"softcap", Form::real, no_default,
                         "the result y is softcap * tanh(y / softcap), as of a head's logits", above(0)},
                        lora_key,
                        {"tied", Form::text, no_default,
                         "the layer whose weight it has, instead of one of its own"}},
               .example = "features = 16\nactivation = \"relu\""},
    .weight = true,
    .bias = true,
    .check = check_linear,
    .lower = lower_linear,
};

const LayerType layers::activation{
    .schema = {.name = "activation",
               .says = "Each element by itself.",
               .keys = {{"fn", Form::activation, required, "which one"}, slope_key},
               .example = "fn = \"gelu\""},
    .lower = [](LayerContext& l) -> Layer { return {{l.activate(l.x(), "fn")}}; },
};

}  // namespace gacc::frontend
