// Half types in the reference: rounding, and which results are half (docs/ir.md, half precision).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/numeric/examples.h"

namespace gacc::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Half, RoundsToNearestTiesToEven) {
  const struct {
    DType dtype;
    double from, to;
  } cases[] = {
      {DType::f16, 1 + 0x1p-11, 1},
      {DType::f16, 1 + 0x3p-11, 1 + 0x1p-9},
      {DType::f16, 0.1, 0.0999755859375},
      {DType::f16, 65519.9, 65504},
      {DType::f16, 65520, kInf},
      {DType::f16, -1e6, -kInf},
      {DType::f16, 0x1p-24, 0x1p-24},  // the smallest
      {DType::f16, 0x1p-25, 0},
      {DType::f16, 0x1.8p-24, 0x1p-23},
      {DType::f16, -0x1.4p-24, -0x1p-24},
      {DType::f16, 2047, 2047},
      {DType::f16, 2049, 2048},
      {DType::bf16, 256 + 1, 256},
      {DType::bf16, 256 + 3, 260},
      {DType::bf16, 1e-40, 0x1p-133},
      {DType::bf16, 3.4e38, kInf},
      {DType::bf16, 3.39e38, 0x1.fep127},
      {DType::f32, 0.1, 0.1},
  };
  for (const auto& one : cases)
    EXPECT_EQ(rounded(one.dtype, one.from), one.to) << dtype_text(one.dtype) << " " << one.from;
  EXPECT_TRUE(std::signbit(rounded(DType::f16, -0.0)));
  EXPECT_TRUE(std::isnan(rounded(DType::f16, std::nan(""))));
}

// Every f16 value is its own rounding.
TEST(Half, RoundingKeepsWhatIsHalf) {
  for (int exponent = -14; exponent < 16; ++exponent) {
    for (int fraction = 0; fraction < 1024; ++fraction) {
      const double value = std::ldexp(1024 + fraction, exponent - 10);
      EXPECT_EQ(rounded(DType::f16, value), value);
    }
  }
  for (int fraction = 0; fraction < 1024; ++fraction)
    EXPECT_EQ(rounded(DType::f16, std::ldexp(fraction, -24)), std::ldexp(fraction, -24));
}

// x = 2048 and y = 1: their f16 sum is 2048. A full op gives f32, and so does an f32 operand.
TEST(Half, ResultsRoundAndFullOpsDoNot) {
  const Module module = parse_module(
      "eval(%x : f16[B,2], %w : f32[B,1]) { %s = row_sum %x : f32[B,1]\n %d = add %x, 1.0 : f16[B,2]\n"
      "%e = add %x, %w : f32[B,2]\n %r = cast %e : f16[B,2] {to = \"f16\"} }");
  State state;
  const auto values =
      evaluate(module, RegionKind::eval, 1, {{"x", {{1, 2}, {2048, 1}}}, {"w", {{1, 1}, {1}}}}, state);
  EXPECT_EQ(values.at("s").data, (std::vector<double>{2049}));
  EXPECT_EQ(values.at("d").data, (std::vector<double>{2048, 2}));
  EXPECT_EQ(values.at("e").data, (std::vector<double>{2049, 2}));
  EXPECT_EQ(values.at("r").data, (std::vector<double>{2048, 2}));
}

// The master is f32, its copy is what the master is after the update, rounded; a skipped update leaves both.
TEST(Half, CopiesFollowTheirMasters) {
  const Module module = parse_module(
      "param @w : f32[2]\nstate @w.h : f16[2]\nstate @ok : i32[]\n"
      "update { sgd.half @w, 0.25, 1.0, @w.h when(@ok) }");
  State state;
  state.buffers["w"] = {{2}, {2049.25, 1}};
  state.buffers["ok"] = {{}, {0}};
  evaluate(module, RegionKind::update, 1, {}, state);
  EXPECT_EQ(state.buffers["w.h"].data, (std::vector<double>{0, 0}));
  state.buffers["ok"] = {{}, {1}};
  evaluate(module, RegionKind::update, 1, {}, state);
  EXPECT_EQ(state.buffers["w"].data, (std::vector<double>{2049, 0.75}));
  EXPECT_EQ(state.buffers["w.h"].data, (std::vector<double>{2048, 0.75}));
}

// Pain 18: in half, 256 + 1 would stay 256 (bf16) and 2048 + 1 2048 (f16). Accumulators are f32.
TEST(Half, Pain18AccumulatorsAreF32) {
  for (const char* dtype : {"f16", "bf16"}) {
    const Module module = parse_module(
        fmt::format("accum @a : f32[2] total sum\nparam @b : f32[1,1]\naccum @c : f32[1,1]\n"
                    "eval(%x : {0}[B,2]) {{ column_sum.acc @a, %x\n matmul.acc @c, %x, %x {{tb}} }}",
                    dtype));
    State state;
    state.buffers["a"] = {{2}, {256, 2048}};
    state.buffers["c"] = {{1, 1}, {2048}};
    evaluate(module, RegionKind::eval, 1, {{"x", {{1, 2}, {1, 0}}}}, state);
    evaluate(module, RegionKind::eval, 1, {{"x", {{1, 2}, {0, 1}}}}, state);
    EXPECT_EQ(state.buffers["a"].data, (std::vector<double>{257, 2049}));
    EXPECT_EQ(state.buffers["c"].data, (std::vector<double>{2050}));
  }
}

}  // namespace
}  // namespace gacc::ir
