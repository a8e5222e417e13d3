// Activations: one scalar formula each, and its derivative. One that needs only the result says
// Saves::result, so that the operand need not be kept.
#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

// 1 / (1 + exp(-x)) without an overflow on either side: exp only of what is not positive.
Scalar logistic(Scalar x) {
  const Scalar e = exp(-abs(x));
  return select(x < 0, e, 1) / (1 + e);
}

constexpr double kInvSqrt2 = 0.70710678118654752440;
constexpr double kInvSqrt2Pi = 0.39894228040143267794;
constexpr double kSqrt2OverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;  // Hendrycks and Gimpel, "Gaussian error linear units", 2016
constexpr double k2InvSqrtPi = 1.12837916709551257390;

// 0.5 (1 + tanh(u)) is logistic(2 u), which needs one exponential, and 1 + tanh(u) loses digits where u < 0.
Scalar gelu_gate(Scalar x) { return logistic(2 * kSqrt2OverPi * (x + kCubic * x * x * x)); }

// The common part of all activations.
OpInfo activation(OpInfo op) {
  op.infer = infer_float;
  op.precision = Precision::half;
  op.activation = true;
  return op;
}

}  // namespace

extern const OpInfo op_relu = activation({
    .name = "relu",
    .summary = "max(x, 0); NaN stays NaN",
    .formula = [](const FormulaView& view) { view.result(max(view.operand(0), 0)); },
    // not `y > 0`: a NaN must pass its gradient on
    .derivative = [](Scalar y, Scalar dy, const OpView&) { return select(y <= 0, 0, dy); },
    .saves = Saves::result,
});

extern const OpInfo op_leaky_relu = activation({
    .name = "leaky_relu",
    .summary = "x where x > 0, else slope * x",
    .attrs = {{"slope", 0.01}},
    .formula =
        [](const FormulaView& view) {
          const Scalar x = view.operand(0);
          view.result(select(x > 0, x, view.op.real("slope") * x));
        },
    .derivative = [](Scalar x, Scalar dy,
                     const OpView& op) { return select(x > 0, dy, op.real("slope") * dy); },
    .saves = Saves::operands,
});

extern const OpInfo op_gelu = activation({
    .name = "gelu",
    .summary = "x * Phi(x), Phi the normal distribution function, by erf",
    .formula =
        [](const FormulaView& view) {
          const Scalar x = view.operand(0);
          view.result(0.5 * x * (1 + erf(kInvSqrt2 * x)));
        },
    // d_x = dy * (Phi(x) + x * phi(x)),  phi(x) = exp(-x^2 / 2) / sqrt(2 pi)
    .derivative =
        [](Scalar x, Scalar dy, const OpView&) {
          return dy * (0.5 * (1 + erf(kInvSqrt2 * x)) + x * (kInvSqrt2Pi * exp(-0.5 * x * x)));
        },
    .saves = Saves::operands,
});

extern const OpInfo op_gelu_tanh = activation({
    .name = "gelu_tanh",
    .summary = "0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))",
    .formula =
        [](const FormulaView& view) {
          const Scalar x = view.operand(0);
          view.result(x * gelu_gate(x));
        },
    // with s = 0.5 (1 + tanh):  d_x = dy * (s + x s (1 - s) 2 sqrt(2 / pi) (1 + 3 * 0.044715 x^2))
    .derivative =
        [](Scalar x, Scalar dy, const OpView&) {
          const Scalar s = gelu_gate(x);
          return dy * (s + x * s * (1 - s) * (2 * kSqrt2OverPi * (1 + 3 * kCubic * x * x)));
        },
    .saves = Saves::operands,
});

extern const OpInfo op_silu = activation({
    .name = "silu",
    .summary = "x * sigmoid(x)",
    .formula = [](const FormulaView& view) { view.result(view.operand(0) * logistic(view.operand(0))); },
    // with s = sigmoid(x):  d_x = dy * s * (1 + x * (1 - s))
    .derivative =
        [](Scalar x, Scalar dy, const OpView&) {
          const Scalar s = logistic(x);
          return dy * s * (1 + x * (1 - s));
        },
    .saves = Saves::operands,
});

extern const OpInfo op_sigmoid = activation({
    .name = "sigmoid",
    .summary = "1 / (1 + exp(-x))",
    .formula = [](const FormulaView& view) { view.result(logistic(view.operand(0))); },
    .derivative = [](Scalar y, Scalar dy, const OpView&) { return dy * y * (1 - y); },
    .saves = Saves::result,
});

extern const OpInfo op_tanh = activation({
    .name = "tanh",
    .summary = "hyperbolic tangent of x",
    .formula = [](const FormulaView& view) { view.result(tanh(view.operand(0))); },
    .derivative = [](Scalar y, Scalar dy, const OpView&) { return dy * (1 - y * y); },
    .saves = Saves::result,
});

extern const OpInfo op_erf{
    .name = "erf",
    .summary = "the error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x",
    .infer = infer_float,
    .formula = [](const FormulaView& view) { view.result(erf(view.operand(0))); },
    // d_x = dy * 2 / sqrt(pi) * exp(-x^2)
    .derivative = [](Scalar x, Scalar dy, const OpView&) { return dy * (k2InvSqrtPi * exp(-(x * x))); },
    .saves = Saves::operands,
    .precision = Precision::half,
};

}  // namespace gacc::ir
