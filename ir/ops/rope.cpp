// Rotary positions: pairs of a head's channels are turned by an angle that grows with the position, so that
// the product of a query and a key depends on how far apart they are (Su et al., "RoFormer", 2021).
//
//   angle(t, i) = t theta^(-2 i / R) c_i    i = 0 .. R / 2 - 1, of the R rotated channels of a head
//   y_a = x_a cos - x_b sin                 (a, b) = (i, i + R / 2), or (2 i, 2 i + 1) where pairs interleave
//   y_b = x_b cos + x_a sin
//
// c_i is 1, or what `factors` has (frontend/rope_scaling.cpp). Heads of queries and keys are turned, those of values are copied. A turn's gradient is the turn back.
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
  const auto& factors = std::get<std::vector<double>>(op.attr("factors"));
  if (!factors.empty() && static_cast<int64_t>(factors.size()) != rotated / 2)
    refuse(op, Kind::out_of_range, "there are {} factors, not one for each of {} pairs", factors.size(),
           rotated / 2);
  for (const double factor : factors)
    if (!(factor > 0 && factor <= 1))
      refuse(op, Kind::out_of_range, "a factor is {}, not above 0 and at most 1", factor);
}

void reference(EvalView& view) {
  const Heads h = heads_of(view.op);
  const int64_t length = view.op.operand(0).shape[1], rotated = view.op.integer("rotated");
  const bool interleaved = view.op.flag("interleaved");
  const double theta = view.op.real("theta"), sign = view.op.flag("inverse") ? -1 : 1;
  const auto& factors = std::get<std::vector<double>>(view.op.attr("factors"));
  const std::vector<double>& x = view.operand(0).data;
  std::vector<double>& y = view.result().data;
  y = x;
  for (size_t row = 0; row < x.size() / static_cast<size_t>(h.row()); ++row) {
    const auto position = static_cast<double>(static_cast<int64_t>(row) % length);
    for (int64_t i = 0; i < rotated / 2; ++i) {
      const double angle = position *
                           std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotated)) *
                           (factors.empty() ? 1 : factors[static_cast<size_t>(i)]);
      const double cosine = std::cos(angle), sine = sign * std::sin(angle);
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

extern const OpInfo op_rope{
    .name = "rope",
    .summary =
        "turns the pairs of the first `rotated` channels of each head of queries and keys in qkv [B,T,(heads "
        "+ 2 kv_heads) D] by position * theta^(-2 i / rotated) for pair i, times factors[i] where given, "
        "back where `inverse`; pairs are "
        "half of them apart, or side by side where `interleaved`. Values stay",
    .operands = 1,
    .local = true,
    .attrs = {{"heads", int64_t{1}},
              {"kv_heads", int64_t{0}},
              {"theta", 10000.0},
              {"rotated", int64_t{0}},
              {"factors", std::vector<double>{}},
              {"interleaved", false},
              {"inverse", false}},
    .infer = [](const OpView& op) -> Types {
      expect_heads(op);
      expect_rotation(op);
      return {op.operand(0)};
    },
    .lowering = Lowering::special,
    .gradient =
        [](GradBuilder& g) {
          Attrs attrs = g.op().attrs;
          attrs["inverse"] = !g.view().flag("inverse");
          g.add(0, g.b.make("rope", g.d_name(0), {*g.d_result()}, std::move(attrs)));
        },
    .reference = reference,
    .precision = Precision::half,
};

}  // namespace gacc::ir
