// Learned vectors: by the number of a token, and by its position.
#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

// y[..] = scale * weight[token]; weight [vocab, features]. Where the token is `padding` no gradient flows.
Layer lower_embedding(LayerContext& l) {
  const int64_t vocab = l.keys.integer("vocab"), features = l.keys.integer("features");
  l.choose_rows(vocab, l.keys.at("vocab"));
  const ir::BufferId weight =
      l.parameter("weight", {vocab, features}, Parameters::Standard::normal, {features, vocab}, "vocab");
  const int64_t padding = l.keys.has("padding") ? l.keys.integer("padding") : -1;
  if (padding >= vocab)
    l.refuse(Kind::out_of_range, l.keys.at("padding"), "`padding` is {}, and layer `{}` has {} vectors",
             padding, l.spec.name, vocab);
  const double scale = l.keys.real("scale");
  const ir::ValueId row =
      l.b.make("embedding", scale != 1 ? l.path + ".row" : l.path, {l.x(), weight}, {{"padding", padding}});
  return {{scale != 1 ? l.b.make("mul", l.path, {row, scale}) : row}, weight};
}

// y = x + weight, x [B, positions, features], weight [positions, features] or with more rows; in documents, x +
// weight[position in its document]
Layer lower_position_embedding(LayerContext& l) {
  l.need_positions();
  const ir::Shape shape = l.shape();
  const int64_t positions = l.keys.has("positions") ? l.keys.integer("positions") : shape[1];
  if (positions < shape[1])
    l.refuse(Kind::shape_mismatch, l.keys.at("positions"), "layer `{}` has {} positions, {} gives {}",
             l.spec.name, positions, l.input.label, shape[1]);
  const ir::BufferId weight = l.parameter("weight", {positions, shape[2]}, Parameters::Standard::normal,
                                          {shape[2], positions}, l.keys.has("positions") ? "positions" : "");
  ir::Operand rows = weight;
  const LayerLowering::Documents* documents = l.layers.documents();
  if (documents != nullptr && documents->length == shape[1])
    rows = l.b.make("embedding", l.path + ".rows", {documents->positions, weight});
  else if (positions > shape[1])
    rows = l.b.make("slice", l.path + ".rows", {weight},
                    {{"axis", int64_t{0}}, {"from", int64_t{0}}, {"size", shape[1]}});
  return {{l.b.make("add", l.path, {l.x(), rows})}, weight};
}

}  // namespace

const LayerType layers::embedding{
    .schema = {.name = "embedding",
               .says = "A learned vector for each number of an i32 input; weight [vocab, features].",
               .keys = {{"vocab", Form::integer, required, "how many vectors", extent},
                        features_key,
                        {"scale", Form::real, 1.0, "what the vectors are multiplied by", above(0)},
                        {"padding", Form::integer, no_default,
                         "a number whose vector gets no gradient, as PyTorch's padding_idx",
                         count_from_zero}},
               .example = "vocab = 100\nfeatures = 16"},
    .weight = true,
    .tokens = true,
    .lower = lower_embedding,
};

const LayerType layers::position_embedding{
    .schema =
        {.name = "position_embedding",
         .says = "Adds a learned vector to each position of [positions, features]; weight of that shape. "
                 "In documents (attention.documents) positions count from the begin of each.",
         .keys = {{"positions", Form::integer, no_default,
                   "the rows of weight, of which the first ones are added; default: the input's positions",
                   extent}}},
    .weight = true,
    .lower = lower_position_embedding,
};

}  // namespace gacc::frontend
