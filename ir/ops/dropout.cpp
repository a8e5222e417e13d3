// Dropout. No mask is stored: an element's random number is a pure function of (seed, layer, ordinal of its
// sample since training began, element within the sample), which backward and recompute ask again. So the
// mask depends neither on the device nor on how samples are cut into micro-batches.
#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

// Operands 1..4: seed and ordinal of the micro-batch's first sample, each low word, high word.
Types infer(const OpView& op) {
  expect_dropout(op, 1);
  const Type x = op.operand(0);
  if (!is_float(x.dtype)) refuse(op, Kind::type_mismatch, {0}, "it takes floats");
  if (!has_batch(x.shape)) refuse(op, Kind::shape_mismatch, {0}, "masks belong to samples");
  if (elements(x.shape, 1) >= int64_t{1} << 32)
    refuse(op, Kind::out_of_range, {0}, "a sample may have 2^32 - 1 elements");
  return {x};
}

}  // namespace

// y = x / (1 - p) where u >= p, else 0 x; the product keeps NaN, as PyTorch does. u is compared with p as an
// f32, which every target does alike.
extern const OpInfo op_dropout{
    .name = "dropout",
    .summary =
        "x / (1 - p), or 0 with probability p; operands: x, seed low and high, first sample's ordinal low "
        "and high",
    .operands = 5,
    .attrs = {{"p", 0.5}, {"stream", int64_t{0}}},
    .infer = infer,
    .formula =
        [](const FormulaView& view) {
          const double p = view.op.real("p");
          const Scalar u =
              sample_uniform(view.operand(1), view.operand(2), static_cast<double>(view.op.integer("stream")),
                             view.operand(3), view.operand(4), elements(view.op.operand(0).shape, 1));
          const Scalar factor = select(u < static_cast<double>(static_cast<float>(p)), 0.0, 1 / (1 - p));
          view.result(view.operand(0) * factor);
        },
    // d_x = dropout(dy), with the same mask
    .gradient =
        [](GradBuilder& g) {
          if (!g.wanted(0)) return;
          g.add(0, g.b.make("dropout", g.d_name(0),
                            {*g.d_result(), g.operand(1), g.operand(2), g.operand(3), g.operand(4)},
                            g.op().attrs));
        },
};

// low + B overflows exactly where low's top bit falls: a sum of fewer than 2^31 changes it to 0 only so.
extern const OpInfo op_samples_advance{
    .name = "samples.advance",
    .summary = "adds the samples of the micro-batch to the 64-bit ordinal (low, high)",
    .operands = 2,
    .writes = operand_bits({0, 1}),
    .infer = [](const OpView& op) -> Types {
      expect_scalars(op, 0, 2, DType::i32);
      return {};
    },
    .formula =
        [](const FormulaView& view) {
          const Scalar low = view.operand(0), next = low + view.recorder.samples();
          view.result(next);
          view.result(view.operand(1) + to_integer(low < 0 && 0 <= next));
        },
    .precision = Precision::f32,
};

}  // namespace gacc::ir
