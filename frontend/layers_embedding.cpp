// Learned vectors: by the number of a token, and by its position.
#include <algorithm>

#include "frontend/layers.h"

namespace gacc::frontend {

// y[..] = weight[token]; weight [vocab, features]
LayerLowering::Layer LayerLowering::embedding(const LayerSpec& spec, const Flow& tokens, const Scope& scope) {
  if (type(tokens).dtype != ir::DType::i32) {
    diag_.error(Kind::type_mismatch, spec.type_at, "layer `{}` takes i32, {} is f32", spec.name, tokens.label)
        .note(tokens.at, tokens.defined_here());
    return {};
  }
  if (!within_table(spec, tokens)) return {};
  const std::string path = scope.prefix + spec.name;
  const auto weight =
      parameters_.get(path + ".weight", {spec.vocab, spec.features}, spec.init, Parameters::Standard::normal,
                      {spec.features, spec.vocab}, scope.trainable && spec.trainable, spec.vocab_at);
  if (!weight) return {};
  return {.output = {.value = b_.make("embedding", path, {*tokens.value, *weight})}, .weight = weight};
}

// The runtime refuses data outside of an input's range, so that a kernel need not look: the range is that of
// the smallest table, unless the file says less.
bool LayerLowering::within_table(const LayerSpec& spec, const Flow& tokens) {
  for (const InputSpec& input : model_.inputs) {
    const Flow* flow = this->input(input.name);
    if (flow == nullptr || flow->value != tokens.value) continue;
    if (input.range && *input.range > spec.vocab) {
      diag_
          .error(Kind::shape_mismatch, input.range_at, "input `{}` has {} values, layer `{}` has {} vectors",
                 input.name, *input.range, spec.name, spec.vocab)
          .note(spec.vocab_at, "the number of vectors is set here");
      return false;
    }
    const auto rows = table_rows_.emplace(input.name, spec.vocab).first;
    rows->second = std::min(rows->second, spec.vocab);
    if (!input.range) b_.module().settings[fmt::format("inputs.{}.range", input.name)] = rows->second;
  }
  return true;
}

std::optional<int64_t> LayerLowering::rows_of(std::string_view input) const {
  const auto found = table_rows_.find(input);
  return found != table_rows_.end() ? std::optional(found->second) : std::nullopt;
}

// y = x + weight, x [B, positions, features], weight [positions, features]
LayerLowering::Layer LayerLowering::position_embedding(const LayerSpec& spec, const Flow& x,
                                                       const Scope& scope) {
  const ir::Shape& shape = type(x).shape;
  if (shape.size() != 3) {
    diag_
        .error(Kind::shape_mismatch, spec.type_at,
               "layer `{}` takes positions and features, two axes; {} gives {}", spec.name, x.label,
               shape_of(x))
        .note(x.at, x.defined_here());
    return {};
  }
  const std::string path = scope.prefix + spec.name;
  const auto weight =
      parameters_.get(path + ".weight", {shape[1], shape[2]}, spec.init, Parameters::Standard::normal,
                      {shape[2], shape[1]}, scope.trainable && spec.trainable, spec.type_at);
  if (!weight) return {};
  return {.output = {.value = b_.make("add", path, {*x.value, *weight})}, .weight = weight};
}

}  // namespace gacc::frontend
