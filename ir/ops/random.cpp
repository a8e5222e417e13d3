// Initial values of parameters. Random numbers are a pure function of (seed, stream, element): the stream is
// made of the parameter's name, so that a parameter's values depend neither on the others nor on the device.
#include <numbers>

#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

Types infer_random(const OpView& op) {
  expect_write(op, 0);
  if (!is_float(op.operand(0).dtype)) expect_dtype(op, 0, DType::f32);
  expect_scalars(op, 1, 2, DType::i32);
  const int64_t stream = op.integer("stream");
  if (stream != static_cast<int32_t>(stream))
    refuse(op, Kind::out_of_range, "stream {} is not an i32", stream);
  return {};
}

// 2 u - 1, in (-1, 1), symmetric and exact in f32.
Scalar symmetric(const FormulaView& view) {
  const auto stream = static_cast<double>(view.op.integer("stream"));
  const Scalar u = uniform(view.operand(1), view.operand(2), stream, 0, view.recorder.element());
  return 2.0 * u - 1.0;
}

// The inverse error function of x in (-1, 1): the single-precision polynomials of M. Giles, "Approximating
// the erfinv function" (GPU Computing Gems, 2011); relative error below 4e-7.
Scalar inverse_erf(Scalar x) {
  const Scalar w = -log((1 - x) * (1 + x));
  const auto polynomial = [](Scalar t, std::initializer_list<double> coefficients) {
    Scalar p = 0.0;
    for (const double c : coefficients) p = c + p * t;
    return p;
  };
  const Scalar central =
      polynomial(w - 2.5, {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                           -0.00125372503, -0.00417768164, 0.246640727, 1.50140941});
  const Scalar tail =
      polynomial(sqrt(w) - 3, {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                               -0.0076224613, 0.00943887047, 1.00167406, 2.83297682});
  return select(w < 5, central, tail) * x;
}

// Fills a buffer with numbers of a distribution, which has one attribute besides the stream.
OpInfo random(std::string_view name, std::string_view summary, std::string_view width,
              void (*formula)(const FormulaView& view)) {
  return {.name = name,
          .summary = summary,
          .operands = 3,
          .writes = operand_bits({0}),
          .discards = operand_bits({0}),
          .blocks = operand_bits({0}),
          .attrs = {{width, 1.0}, {"stream", int64_t{0}}},
          .infer = infer_random,
          .formula = formula,
          .precision = Precision::f32,
          .half_copy = true};
}

}  // namespace

extern const OpInfo op_fill{
    .name = "fill",
    .summary = "buffer = value; f32 or i32",
    .writes = operand_bits({0}),
    .discards = operand_bits({0}),
    .blocks = operand_bits({0}),
    .attrs = {{"value", 0.0}},
    .infer = [](const OpView& op) -> Types {
      expect_write(op, 0);
      const double value = op.real("value");
      if (op.operand(0).dtype == DType::i32 && value != static_cast<int32_t>(value))
        refuse(op, Kind::type_mismatch, "{}, the value is {}", describe(op, {0}), value);
      return {};
    },
    .formula = [](const FormulaView& view) { view.result(view.op.real("value")); },
    .half_copy = true,
};

extern const OpInfo op_random_uniform =
    random("random.uniform",
           "buffer = uniform in (-bound, bound), Philox4x32-10; operands: buffer, seed low, seed high (i32)",
           "bound", [](const FormulaView& view) { view.result(view.op.real("bound") * symmetric(view)); });

extern const OpInfo op_random_normal = random(
    "random.normal",
    "buffer = normal with mean 0, by the inverse error function of Philox4x32-10; operands: buffer, seed "
    "low, seed high (i32)",
    "std", [](const FormulaView& view) {
      view.result(std::numbers::sqrt2 * view.op.real("std") * inverse_erf(symmetric(view)));
    });

}  // namespace gacc::ir
