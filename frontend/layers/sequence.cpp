// Attention and dropout.
#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

// A layer's masks are its own by its path.
Layer lower_dropout(LayerContext& l) {
  const double p = l.keys.real("p");
  if (p == 0 || !l.drops()) return {l.input()};
  if (ir::elements(l.shape(), 1) >= int64_t{1} << 32) {
    l.error(Kind::out_of_range, l.spec.type_at,
            "layer `{}` drops of {} per sample; it can tell 2^32 - 1 elements apart", l.spec.name,
            l.shape_text());
    return {};
  }
  std::vector<ir::Operand> operands = l.parameters().sample_words();
  operands.insert(operands.begin(), l.x());
  return {
      {l.b.make("dropout", l.path, std::move(operands), {{"p", p}, {"stream", Parameters::stream(l.path)}})}};
}

// x [B,T,C] -> qkv [B,T,3 C] -> heads [B,T,C] -> y [B,T,C]
Layer lower_attention(LayerContext& l) {
  const ir::Shape shape = l.shape();
  if (shape.size() != 3)
    return l.refuse_input(Kind::shape_mismatch, l.spec.type_at,
                          "layer `{}` takes positions and features, [T, C]; {} gives {}", l.spec.name,
                          l.input().label, l.shape_text());
  const int64_t length = shape[1], width = shape[2], heads = l.keys.integer("heads");
  if (width % heads != 0)
    return l.refuse_input(Kind::shape_mismatch, l.keys.at("heads"),
                          "layer `{}` cannot divide {} features into {} heads", l.spec.name, width, heads);
  const double p = l.keys.real("dropout");
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  if (p > 0 && real(heads) * real(length) * real(length) >= 0x1p32) {
    l.error(Kind::out_of_range, l.spec.type_at,
            "layer `{}` drops of {} heads of {} x {} probabilities; it can tell 2^32 - 1 apart", l.spec.name,
            heads, length, length);
    return {};
  }
  if (!ir::fits({3, width, width}, 1) || !ir::fits({3 * width, length}, l.model.micro_batch)) {
    l.error(Kind::out_of_range, l.spec.type_at, "layer `{}` is too large", l.spec.name);
    return {};
  }
  const auto qkv = l.projection("qkv.", l.path + ".qkv", l.x(), 3 * width);
  if (!qkv) return {};
  std::vector<ir::Operand> operands{*qkv};
  ir::Attrs attrs{{"heads", heads}, {"causal", l.keys.flag("causal")}};
  const bool drops = p > 0 && l.drops();
  if (drops) {
    for (const ir::Operand& word : l.parameters().sample_words()) operands.push_back(word);
    attrs["p"] = p;
    attrs["stream"] = Parameters::stream(l.path);
  }
  const auto results =
      l.b.make_n(drops ? "attention.dropout" : "attention", {l.path + ".heads", l.path + ".softmax"},
                 std::move(operands), std::move(attrs));
  const auto y = l.projection("proj.", l.path, results.front(), width);
  if (!y) return {};
  return {{*y}};
}

}  // namespace

const LayerType layers::dropout{
    .schema = {.name = "dropout",
               .says = "Zeros with probability p, the rest by 1 / (1 - p); evaluations drop nothing.",
               .keys = {{"p", Form::real, required, "the probability of a zero", below_one}},
               .example = "p = 0.1"},
    .lower = lower_dropout,
};

const LayerType layers::attention{
    .schema =
        {.name = "attention",
         .says =
             "Self-attention of [positions, features]; qkv.weight [3 C, C], qkv.bias, proj.weight [C, C], "
             "proj.bias.",
         .keys = {{"heads", Form::integer, required, "divides the features", extent},
                  {"causal", Form::flag, false, "true: a position sees those before it and itself"},
                  bias_key,
                  {"dropout", Form::real, 0.0, "the probability of a zero among the weights", below_one}},
         .example = "heads = 2\ncausal = true"},
    .weight = true,
    .bias = true,
    .lower = lower_attention,
};

}  // namespace gacc::frontend
