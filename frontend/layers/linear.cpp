// linear, and activations.
#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

// The weight of another layer, when it has the shape that this one needs.
std::optional<ir::BufferId> tied(LayerContext& l, int64_t in, int64_t out) {
  const Named owner{l.keys.text("tied"), l.keys.at("tied")};
  const auto weight = l.tied_weight(owner);
  if (!weight) return std::nullopt;
  const ir::Buffer& buffer = l.b.module()[*weight];
  const ir::Shape& owned = buffer.type.shape;
  if (owned == ir::Shape{out, in}) return weight;
  if (owned.size() == 2 && owned.front() == out) {
    l.error(Kind::shape_mismatch, owner.at, "layer `{}` takes {} inputs, {} gives {}", l.spec.name,
            owned.back(), l.input().label, in)
        .note(buffer.at,
              fmt::format("the weight of `{}`, {}, is defined here", owner.name, ir::shape_text(owned)));
  } else {
    l.error(Kind::shape_mismatch, owner.at, "layer `{}` needs a weight [{},{}], `{}` has {}", l.spec.name,
            out, in, owner.name, ir::shape_text(owned))
        .note(buffer.at, "that weight is defined here");
  }
  return std::nullopt;
}

Layer lower_linear(LayerContext& l) {
  if (!l.has_last_axis()) return {};
  const int64_t in = l.shape().back(), out = l.keys.integer("features");
  const auto spread = Parameters::Standard::spread;
  const Location& at = l.keys.at("features");
  const auto weight =
      l.keys.has("tied") ? tied(l, in, out) : l.parameter("weight", {out, in}, spread, {in, out}, at);
  if (!weight) return {};
  std::optional<ir::BufferId> bias;
  if (l.keys.flag("bias")) {
    bias = l.parameter("bias", {out}, spread, {in, out}, at);
    if (!bias) return {};
  }
  const bool active = l.active();
  const std::optional<Adapting> by = l.adapting();
  const std::string sum = active ? l.path + ".pre" : l.path;  // what the activation takes
  ir::ValueId y =
      l.b.make("matmul", bias || active || by ? l.path + ".mm" : l.path, {l.x(), *weight}, {{"tb", true}});
  if (bias) y = l.b.make("add", by ? l.path + ".base" : sum, {y, *bias});
  if (by) {
    const auto change = l.adapter(*by, l.path, l.x(), out, l.b.module()[*weight].name);
    if (!change) return {};
    y = l.b.make("add", sum, {y, *change});
  }
  if (active) y = l.activate(y);
  return {{y}, weight};
}

}  // namespace

const LayerType layers::linear{
    .schema = {.name = "linear",
               .says = "y = x weight^T + bias over the last axis; weight [features, in], bias [features].",
               .keys = {features_key,
                        bias_key,
                        activation_key,
                        slope_key,
                        lora_key,
                        {"tied", Form::text, no_default,
                         "the layer whose weight it has, instead of one of its own"}},
               .example = "features = 16\nactivation = \"relu\""},
    .weight = true,
    .bias = true,
    .check =
        [](const Values& keys, Diag& diag) {
          check_slope(keys, diag);
          adapting_of(keys, diag);
          if (const Node* lora = keys["lora"].node; lora != nullptr && lora->find("on") != nullptr)
            diag.error(Kind::conflict, lora->find("on")->at,
                       "`on` chooses among the products of attention; a linear layer has one");
          if (keys.has("tied") && keys.given("init"))
            diag.error(Kind::conflict, keys.at("init"),
                       "a tied weight starts as its owner does; set `init` at `{}`", keys.text("tied"));
        },
    .lower = lower_linear,
};

const LayerType layers::activation{
    .schema = {.name = "activation",
               .says = "Each element by itself.",
               .keys = {{"fn", Form::activation, required, "which one"}, slope_key},
               .example = "fn = \"gelu\""},
    .check = check_slope,
    .lower = [](LayerContext& l) -> Layer { return {{l.activate(l.x(), "fn")}}; },
};

}  // namespace gacc::frontend
