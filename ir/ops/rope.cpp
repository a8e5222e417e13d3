// Rotary positions: pairs of a head's channels are turned by an angle that grows with the position, so that
// the product of a query and a key depends on how far apart they are (Su et al., "RoFormer", 2021).
//
//   angle(t, i) = t s_i theta^(-2 i / R)    i = 0 .. R / 2 - 1, of the R rotated channels of a head
//   y_a = m (x_a cos - x_b sin)             (a, b) = (i, i + R / 2), or (2 i, 2 i + 1) where pairs interleave
//   y_b = m (x_b cos + x_a sin)
//
// s_i is 1, or `scales[i]` (frontend/rope_scaling.cpp has the known ones), and m is `magnitude`. Heads of
// queries and keys are turned, those of values are copied. t counts from the window's begin, or is
// operand 1. A turn's gradient is the turn back, times m.
#include <algorithm>
#include <cmath>

#include "ir/ops/heads.h"

namespace gacc::ir {

namespace {

void expect_rotation(const OpView& op) {
  const Heads h = heads_of(op);
  const int64_t rotated = op.integer("rotated");
  if (rotated < 2 || rotated % 2 != 0 || rotated > h.channels)
    refuse(op, Kind::out_of_range,
           "{} of {} channels of a head are rotated; it must be an even number of them", rotated, h.channels);
  const double theta = op.real("theta");
  if (theta < 1 || !std::isfinite(theta))
    refuse(op, Kind::out_of_range, "theta is {}, not at least 1", theta);
  const auto& scales = op.reals("scales");
  if (!scales.empty() && scales.size() != static_cast<size_t>(rotated / 2))
    refuse(op, Kind::out_of_range, "there are {} scales for {} pairs", scales.size(), rotated / 2);
  if (std::ranges::any_of(scales, [](double scale) { return !(scale > 0 && scale <= 1); }))
    refuse(op, Kind::out_of_range, "a scale is not above 0 and at most 1");
  const double magnitude = op.real("magnitude");
  if (!(magnitude > 0) || !std::isfinite(magnitude))
    refuse(op, Kind::out_of_range, "the magnitude is {}, not above 0", magnitude);
}

// Operand 1, where there is one, has the positions.
void expect_positions(const OpView& op) {
  const size_t count = op.op.operands.size();
  if (count > 2) refuse(op, Kind::out_of_range, "it takes one operand, or two with positions, not {}", count);
  const Type wanted{DType::i32, {kBatch, op.operand(0).shape[1]}};
  if (count == 2 && op.operand(1) != wanted)
    refuse(op, Kind::shape_mismatch, {0, 1}, "positions must be {}", type_text(wanted));
}

void rope_reference(EvalView& view) {
  const Heads h = heads_of(view.op);
  const int64_t length = view.op.operand(0).shape[1], rotated = view.op.integer("rotated");
  const bool interleaved = view.op.flag("interleaved");
  const double sign = view.op.flag("inverse") ? -1 : 1, magnitude = view.op.real("magnitude");
  const std::vector<double>& x = view.operand(0).data;
  std::vector<double>& y = view.result().data;
  y = x;
  for (size_t row = 0; row < x.size() / static_cast<size_t>(h.row()); ++row) {
    const double position = view.op.op.operands.size() > 1
                                ? view.operand(1).data[row]
                                : static_cast<double>(static_cast<int64_t>(row) % length);
    for (int64_t i = 0; i < rotated / 2; ++i) {
      const auto angle = position * static_cast<double>(rope_frequency(view.op, i));
      const double cosine = magnitude * std::cos(angle), sine = magnitude * sign * std::sin(angle);
      for (int64_t head = 0; head < h.heads + h.kv_heads; ++head) {
        const size_t first = row * static_cast<size_t>(h.row()) + static_cast<size_t>(head * h.channels);
        const size_t a = first + static_cast<size_t>(interleaved ? 2 * i : i);
        const size_t b = first + static_cast<size_t>(interleaved ? 2 * i + 1 : i + rotated / 2);
        y[a] = x[a] * cosine - x[b] * sine;
        y[b] = x[b] * cosine + x[a] * sine;
      }
    }
  }
}

}  // namespace

long double rope_frequency(const OpView& op, int64_t pair) {
  const auto& scales = op.reals("scales");
  const auto exponent = static_cast<long double>(-2 * pair) / static_cast<long double>(op.integer("rotated"));
  const long double scale = scales.empty() ? 1 : scales[pair];
  return scale * std::pow(static_cast<long double>(op.real("theta")), exponent);
}

extern const OpInfo op_rope{
    .name = "rope",
    .summary =
        "turns the pairs of the first `rotated` channels of each head of queries and keys in qkv [B,T,(heads "
        "+ 2 kv_heads) D] by position * theta^(-2 i / rotated) for pair i, back where `inverse`; pairs are "
        "half of them apart, or side by side where `interleaved`. Values stay. `scales` multiply the "
        "angles of the pairs, `magnitude` what is turned. A second operand i32 [B,T] has the positions, else "
        "they are 0 to T - 1",
    .operands = -1,
    .local = true,
    .attrs = {{"heads", int64_t{1}},
              {"kv_heads", int64_t{0}},
              {"theta", 10000.0},
              {"rotated", int64_t{0}},
              {"interleaved", false},
              {"inverse", false},
              {"scales", std::vector<double>{}},
              {"magnitude", 1.0}},
    .infer = [](const OpView& op) -> Types {
      expect_heads(op);
      expect_rotation(op);
      expect_positions(op);
      return {op.operand(0)};
    },
    .gradient =
        [](GradBuilder& g) {
          Attrs attrs = g.op().attrs;
          attrs["inverse"] = !g.view().flag("inverse");
          std::vector<Operand> operands = g.op().operands;
          operands.front() = *g.d_result();
          g.add(0, g.b.make("rope", g.d_name(0), std::move(operands), std::move(attrs)));
        },
    .reference = rope_reference,
    .precision = Precision::half,
};

}  // namespace gacc::ir
