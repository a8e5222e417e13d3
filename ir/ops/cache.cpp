// Keys and values of earlier positions, so that a text is gone on with one position at a time. The caches belong to
// one sample, of which there is but one, and have P positions:
//
//   keys   [K D, P]   a column for each position, so that a query meets neighbours side by side
//   values [P, K D]   a row for each position
//
// With position t, the last one so far, and the heads of attention (heads.h):
//   s_j = scale q k_j, capped as attention's (attention.cpp), for j <= t (window W: t - W < j <= t); else the least f32
//   out = sum_j p_j v_j, where p is the softmax of s
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/ops/heads.h"

namespace gacc::ir {

namespace {

void expect_one_position(const OpView& op, size_t i) {
  const Type wanted{DType::i32, {kBatch, 1}};
  if (op.operand(i) != wanted)
    refuse(op, Kind::shape_mismatch, {i}, "the position must be {}", type_text(wanted));
}

// The cache at operand i, of so many channels of a position; returns its positions.
int64_t expect_cache(const OpView& op, size_t i, int64_t channels, bool keys) {
  if (!is_float(op.operand(i).dtype)) refuse(op, Kind::type_mismatch, {i}, "a cache has floats");
  const Shape shape = op.operand(i).shape;
  if (shape.size() != 2 || has_batch(shape) || shape[keys ? 0 : 1] != channels)
    refuse(op, Kind::shape_mismatch, {i}, "it must be {}",
           keys ? fmt::format("[{},positions]", channels) : fmt::format("[positions,{}]", channels));
  return shape[keys ? 1 : 0];
}

// Heads of qkv [B,1,(H + 2 K) D] at operand i.
Heads expect_qkv(const OpView& op, size_t i) {
  expect_heads(op, i);
  if (op.operand(i).shape[1] != 1) refuse(op, Kind::shape_mismatch, {i}, "it must be of one position");
  return heads_of(op, i);
}

int64_t position_of(const EvalView& view, size_t operand) {
  return static_cast<int64_t>(view.operand(operand).data[0]);
}
int64_t first_seen(const EvalView& view, int64_t position) {
  const int64_t window = view.op.integer("window");
  return window > 0 ? std::max<int64_t>(position - window + 1, 0) : 0;
}

void put_reference(EvalView& view) {
  const Heads h = heads_of(view.op, 1);
  const bool keys = view.op.flag("keys");
  const int64_t channels = h.kv_heads * h.channels, position = position_of(view, 2);
  const int64_t positions = view.result().shape[keys ? 1 : 0];
  std::vector<double>& cache = view.result().data;
  cache = view.operand(0).data;
  for (int64_t c = 0; c < channels; ++c)
    cache[keys ? c * positions + position : position * channels + c] =
        view.operand(1).data[h.width() + (keys ? 0 : channels) + c];
}

void scores_reference(EvalView& view) {
  const Heads h = heads_of(view.op);
  const Tensor& keys = view.operand(1);
  const int64_t positions = keys.shape[1], position = position_of(view, 2);
  const double scale = score_scale(view.op), softcap = view.op.real("softcap");
  for (int64_t row = 0; row < view.result().shape[0] * h.heads; ++row) {
    const int64_t head = row % h.heads;
    const double* query = view.operand(0).data.data() + row / h.heads * h.row() + head * h.channels;
    for (int64_t j = 0; j < positions; ++j) {
      double score = 0;
      for (int64_t c = 0; c < h.channels; ++c)
        score += query[c] * keys.data[(head / h.group() * h.channels + c) * positions + j];
      const bool seen = j <= position && j >= first_seen(view, position);
      view.result().data[row * positions + j] =
          seen ? capped_score(score * scale, softcap) : std::numeric_limits<float>::lowest();
    }
  }
}

void read_reference(EvalView& view) {
  const Tensor &weights = view.operand(0), &values = view.operand(1);
  const int64_t heads = weights.shape[1], positions = weights.shape[2], position = position_of(view, 2);
  const int64_t kv_heads = view.op.integer("kv_heads"), channels = values.shape[1] / kv_heads;
  for (int64_t row = 0; row < weights.shape[0] * heads; ++row) {
    const int64_t met = row % heads / (heads / kv_heads);
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t j = first_seen(view, position); j <= position; ++j)
        sum += weights.data[row * positions + j] * values.data[j * values.shape[1] + met * channels + c];
      view.result().data[row * channels + c] = sum;
    }
  }
}

}  // namespace

extern const OpInfo op_cache_put{
    .name = "cache.put",
    .summary =
        "the cache with the keys (`keys`; else the values) of qkv [B,1,(heads + 2 kv_heads) D] of one "
        "sample at the position i32 [B,1]: a column of [kv_heads D, P] for keys, a row of [P, kv_heads "
        "D] for values. The result lies where the cache does",
    .operands = 3,
    .in_place = true,
    .numbers = 2,
    .numbered = [](const OpView& op) { return op.operand(0).shape[op.flag("keys") ? 1 : 0]; },
    .attrs = {{"heads", int64_t{1}}, {"kv_heads", int64_t{0}}, {"keys", false}},
    .infer = [](const OpView& op) -> Types {
      const Heads h = expect_qkv(op, 1);
      expect_cache(op, 0, h.kv_heads * h.channels, op.flag("keys"));
      expect_one_position(op, 2);
      if (op.operand(0).dtype != op.operand(1).dtype)
        refuse(op, Kind::type_mismatch, {0, 1}, "they must be of one type");
      return {op.operand(0)};
    },
    .reference = put_reference,
    .recompute = Recompute::never,
};

extern const OpInfo op_cache_scores{
    .name = "cache.scores",
    .summary =
        "f32 [B,heads,P]: the products of each query in qkv [B,1,(heads + 2 kv_heads) D] with the "
        "cached keys [kv_heads D, P], by `scale` and `softcap` as in `attention`; the least f32 behind the "
        "position i32 [B,1], and where `window` does not reach",
    .operands = 3,
    .numbers = 2,
    .numbered = [](const OpView& op) { return op.operand(1).shape[1]; },
    .attrs = {{"heads", int64_t{1}},
              {"kv_heads", int64_t{0}},
              {"scale", 0.0},
              {"softcap", 0.0},
              {"window", int64_t{0}}},
    .infer = [](const OpView& op) -> Types {
      const Heads h = expect_qkv(op, 0);
      expect_scores(op);
      const int64_t positions = expect_cache(op, 1, h.kv_heads * h.channels, true);
      expect_one_position(op, 2);
      if (op.operand(0).dtype != op.operand(1).dtype)
        refuse(op, Kind::type_mismatch, {0, 1}, "they must be of one type");
      return {{DType::f32, {kBatch, h.heads, positions}}};
    },
    .reference = scores_reference,
    .cost = [](const OpView& op) -> Cost {
      const Heads h = heads_of(op);
      const int64_t positions = op.result().shape.back();
      return {.flops = 2 * h.width() * positions,
              .bytes = type_bytes(op.operand(1), 1) + type_bytes(op.result(), 1)};
    },
    .precision = Precision::f32,
    .recompute = Recompute::never,
};

extern const OpInfo op_cache_read{
    .name = "cache.read",
    .summary =
        "[B,1,heads D]: the sums of the cached values [P, kv_heads D] with the weights f32 "
        "[B,heads,P], up to the position i32 [B,1] and as far back as `window`",
    .operands = 3,
    .keeps = operand_bits({0}),
    .numbers = 2,
    .numbered = [](const OpView& op) { return op.operand(1).shape[0]; },
    .attrs = {{"kv_heads", int64_t{1}}, {"window", int64_t{0}}},
    .infer = [](const OpView& op) -> Types {
      const Type weights = op.operand(0), values = op.operand(1);
      const int64_t kv_heads = op.integer("kv_heads");
      const bool fits = weights.dtype == DType::f32 && weights.shape.size() == 3 &&
                        has_batch(weights.shape) && kv_heads > 0 && weights.shape[1] % kv_heads == 0 &&
                        values.shape.size() == 2 && values.shape[1] % kv_heads == 0;
      if (!fits) refuse(op, Kind::shape_mismatch, {0, 1}, "they must be f32[B,heads,P] and [P,kv_heads D]");
      if (expect_cache(op, 1, values.shape[1], false) != weights.shape[2])
        refuse(op, Kind::shape_mismatch, {0, 1}, "they must have one number of positions");
      expect_one_position(op, 2);
      return {{values.dtype, {kBatch, 1, weights.shape[1] * (values.shape[1] / kv_heads)}}};
    },
    .reference = read_reference,
    .cost = [](const OpView& op) -> Cost {
      const int64_t positions = op.operand(0).shape.back();
      return {.flops = 2 * op.result().shape.back() * positions,
              .bytes = type_bytes(op.operand(1), 1) + type_bytes(op.operand(0), 1)};
    },
    .recompute = Recompute::never,
};

}  // namespace gacc::ir
