// Attention and dropout.
#include "frontend/layers.h"

namespace gacc::frontend {

// A layer's masks are its own by its path.
Flow LayerLowering::dropout(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  if (!drops(spec)) return x;
  if (ir::elements(type(x).shape, 1) >= int64_t{1} << 32) {
    diag_.error(Kind::out_of_range, spec.type_at,
                "layer `{}` drops of {} per sample; it can tell 2^32 - 1 elements apart", spec.name,
                shape_of(x));
    return wrong();
  }
  const std::string path = scope.prefix + spec.name;
  std::vector<ir::Operand> operands = parameters_.sample_words();
  operands.insert(operands.begin(), *x.value);
  return {.value = b_.make("dropout", path, std::move(operands),
                           {{"p", spec.p}, {"stream", Parameters::stream(path)}})};
}

std::optional<ir::ValueId> LayerLowering::projection(const LayerSpec& spec, const std::string& name,
                                                     const std::string& value, ir::ValueId x, int64_t out,
                                                     const Scope& scope) {
  const int64_t in = b_.type(x).shape.back();
  const bool trainable = scope.trainable && spec.trainable;
  const auto weight = parameters_.get(name + ".weight", {out, in}, spec.init, Parameters::Standard::spread,
                                      {in, out}, trainable, spec.type_at);
  if (!weight) return std::nullopt;
  const ir::ValueId y = b_.make("matmul", spec.bias ? value + ".mm" : value, {x, *weight}, {{"tb", true}});
  if (!spec.bias) return y;
  const auto bias = parameters_.get(name + ".bias", {out}, spec.bias_init, Parameters::Standard::spread,
                                    {in, out}, trainable, spec.type_at);
  if (!bias) return std::nullopt;
  return b_.make("add", value, {y, *bias});
}

// x [B,T,C] -> qkv [B,T,3 C] -> heads [B,T,C] -> y [B,T,C]
LayerLowering::Layer LayerLowering::attention(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  const ir::Shape shape = type(x).shape;
  if (shape.size() != 3) {
    diag_
        .error(Kind::shape_mismatch, spec.type_at,
               "layer `{}` takes positions and features, [T, C]; {} gives {}", spec.name, x.label,
               shape_of(x))
        .note(x.at, x.defined_here());
    return {};
  }
  const int64_t length = shape[1], width = shape[2];
  if (width % spec.heads != 0) {
    diag_
        .error(Kind::shape_mismatch, spec.heads_at, "layer `{}` cannot divide {} features into {} heads",
               spec.name, width, spec.heads)
        .note(x.at, x.defined_here());
    return {};
  }
  const std::string path = scope.prefix + spec.name;
  if (spec.p > 0 &&
      static_cast<double>(spec.heads) * static_cast<double>(length) * static_cast<double>(length) >= 0x1p32) {
    diag_.error(Kind::out_of_range, spec.type_at,
                "layer `{}` drops of {} heads of {} x {} probabilities; it can tell 2^32 - 1 apart",
                spec.name, spec.heads, length, length);
    return {};
  }
  if (!ir::fits({3, width, width}, 1) || !ir::fits({3 * width, length}, model_.micro_batch)) {
    diag_.error(Kind::out_of_range, spec.type_at, "layer `{}` is too large", spec.name);
    return {};
  }
  const auto qkv = projection(spec, path + ".qkv", path + ".qkv", *x.value, 3 * width, scope);
  if (!qkv) return {};
  std::vector<ir::Operand> operands{*qkv};
  ir::Attrs attrs{{"heads", spec.heads}, {"causal", spec.causal}};
  if (drops(spec)) {
    for (const ir::Operand& word : parameters_.sample_words()) operands.push_back(word);
    attrs["p"] = spec.p;
    attrs["stream"] = Parameters::stream(path);
  }
  const auto heads = b_.make_n(drops(spec) ? "attention.dropout" : "attention",
                               {path + ".heads", path + ".softmax"}, std::move(operands), std::move(attrs));
  const auto y = projection(spec, path + ".proj", path, heads.front(), width, scope);
  if (!y) return {};
  return {.output = {.value = *y}};
}

}  // namespace gacc::frontend
