// Formulas: recording, folding, and the random generator against its published vectors.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/scalar.h"
#include "tests/numeric/examples.h"

namespace gacc::ir {
namespace {

double run(const ScalarProgram& program, std::vector<double> inputs) {
  double result = 0;
  evaluate(program, inputs, 0, 0, {&result, 1});
  return result;
}

// kat_vectors of Random123 (Salmon et al.), philox4x32 10.
TEST(Philox, PublishedVectors) {
  const struct {
    uint32_t counter[4], key[2], word[4];
  } vectors[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& vector : vectors) {
    const Philox got = philox(vector.counter, vector.key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], vector.word[i]);
  }
}

// The node's value: key (low, high), counter (index low, index high, ordinal, stream), the 23 top bits of
// word 0.
TEST(Philox, UniformIsExactInSinglePrecision) {
  ScalarRecorder recorder;
  recorder.result(uniform(recorder.input(0, ScalarKind::integer), recorder.input(1, ScalarKind::integer),
                          recorder.input(2, ScalarKind::integer), recorder.input(3, ScalarKind::integer),
                          recorder.input(4, ScalarKind::integer)));
  const ScalarProgram program = recorder.take();
  const uint32_t counter[4] = {5, 2, 3, 0xfffffff9};  // index 2 * 2^32 + 5, ordinal 3, stream -7
  const uint32_t key[2] = {0xffffffff, 1};
  const double want = ((philox(counter, key).word[0] >> 9) + 0.5) / 8388608.0;
  EXPECT_EQ(run(program, {-1, 1, -7, 3, 8589934597.0}), want);
  EXPECT_EQ(static_cast<double>(static_cast<float>(want)), want);
  EXPECT_LT(static_cast<float>((0x7fffff + 0.5) / 8388608.0), 1.0F);
}

TEST(Recorder, EqualNodesAreShared) {
  ScalarRecorder recorder;
  const Scalar x = recorder.input(0, ScalarKind::real);
  recorder.result(exp(x * 2.0) + exp(x * 2.0));
  const ScalarProgram program = recorder.take();
  EXPECT_EQ(program.nodes.size(), 5U);  // x, 2, x * 2, exp, add
  EXPECT_EQ(run(program, {0.5}), 2 * std::exp(1.0));
}

TEST(Recorder, ZerosOfBothSignsStayApart) {
  ScalarRecorder recorder;
  const Scalar x = recorder.input(0, ScalarKind::real);
  recorder.result(1.0 / (x * -0.0 + -0.0) + (x + 0.0) * 0.0);
  EXPECT_EQ(run(recorder.take(), {1}), -std::numeric_limits<double>::infinity());
}

TEST(Recorder, ConstantsFoldAndTakeTheKindTheyMeet) {
  EXPECT_EQ((Scalar(2) * Scalar(3.5)).constant_, 7);
  EXPECT_EQ(select(Scalar(1) < Scalar(2), 5, 6).constant_, 5);
  ScalarRecorder recorder;
  const Scalar i = recorder.input(0, ScalarKind::integer);
  recorder.result(select(i == 3, i + 1, 0), ScalarKind::integer);
  const ScalarProgram program = recorder.take();
  for (const ScalarNode& node : program.nodes) {
    if (node.op == ScalarOp::constant) {
      EXPECT_EQ(node.kind, ScalarKind::integer);
    }
  }
  EXPECT_EQ(run(program, {3}), 4);
  EXPECT_EQ(run(program, {2}), 0);
}

TEST(RecorderDeathTest, MixedKindsAreInternalErrors) {
  const auto mixed = [] {
    ScalarRecorder recorder;
    recorder.result(recorder.input(0, ScalarKind::real) + recorder.input(1, ScalarKind::integer));
  };
  EXPECT_EXIT(mixed(), testing::ExitedWithCode(3), "internal error: op table");
  const auto fraction = [] {
    ScalarRecorder recorder;
    recorder.result(recorder.input(0, ScalarKind::integer) + 0.5, ScalarKind::integer);
  };
  EXPECT_EXIT(fraction(), testing::ExitedWithCode(3), "0.5 stands where an integer is needed");
}

TEST(Recorder, EveryOperation) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto value = [](auto formula, double a, double b = 0) {
    ScalarRecorder recorder;
    recorder.result(formula(recorder.input(0, ScalarKind::real), recorder.input(1, ScalarKind::real)));
    return run(recorder.take(), {a, b});
  };
  EXPECT_EQ(value([](Scalar a, Scalar b) { return a - b; }, 5, 3), 2);
  EXPECT_EQ(value([](Scalar a, Scalar b) { return a / b; }, 6, 3), 2);
  EXPECT_EQ(value([](Scalar a, Scalar) { return -a; }, 6), -6);
  EXPECT_EQ(value([](Scalar a, Scalar) { return abs(a); }, -6), 6);
  EXPECT_EQ(value([](Scalar a, Scalar) { return sqrt(a); }, 9), 3);
  EXPECT_EQ(value([](Scalar a, Scalar) { return log(a); }, 9), std::log(9));
  EXPECT_EQ(value([](Scalar a, Scalar) { return tanh(a); }, 0.5), std::tanh(0.5));
  EXPECT_EQ(value([](Scalar a, Scalar) { return erf(a); }, 0.5), std::erf(0.5));
  EXPECT_EQ(value([](Scalar a, Scalar) { return sin(a); }, 0.5), std::sin(0.5));
  EXPECT_EQ(value([](Scalar a, Scalar) { return cos(a); }, 0.5), std::cos(0.5));
  EXPECT_EQ(value([](Scalar a, Scalar) { return floor(a); }, -0.5), -1);
  EXPECT_EQ(value([](Scalar a, Scalar b) { return max(a, b); }, 1, 2), 2);
  EXPECT_EQ(value([](Scalar a, Scalar b) { return min(a, b); }, 1, 2), 1);
  EXPECT_TRUE(std::isnan(value([](Scalar a, Scalar b) { return max(a, b); }, 1, kNan)));
  EXPECT_TRUE(std::isnan(value([](Scalar a, Scalar b) { return min(a, b); }, kNan, 1)));
  const auto truth = [&](auto formula, double a, double b = 0) {
    return value([&](Scalar x, Scalar y) { return to_real(formula(x, y)); }, a, b);
  };
  EXPECT_EQ(truth([](Scalar a, Scalar b) { return a < b; }, 1, 1), 0);
  EXPECT_EQ(truth([](Scalar a, Scalar b) { return a <= b; }, 1, 1), 1);
  EXPECT_EQ(truth([](Scalar a, Scalar b) { return a > b; }, 2, 1), 1);
  EXPECT_EQ(truth([](Scalar a, Scalar b) { return a == b; }, kNan, kNan), 0);
  EXPECT_EQ(truth([](Scalar a, Scalar b) { return a != b; }, kNan, kNan), 1);
  EXPECT_EQ(truth([](Scalar a, Scalar) { return is_finite(a); }, 1 / 0.0), 0);
  EXPECT_EQ(truth([](Scalar a, Scalar b) { return a < b && b < 3; }, 1, 2), 1);
  EXPECT_EQ(truth([](Scalar a, Scalar b) { return a < b && b < 2; }, 1, 2), 0);
  EXPECT_EQ(truth([](Scalar a, Scalar b) { return a < b || b < 2; }, 3, 2), 0);
  EXPECT_EQ(value([](Scalar a, Scalar) { return to_real(to_integer(a)); }, -1.75), -1);
}

// random.normal is the inverse distribution of random.uniform's numbers: erf(y / sqrt 2) gives 2 u - 1 back.
TEST(Random, NormalInvertsTheErrorFunction) {
  const Module module = parse_module(
      "param @n : f32[20000]\nparam @u : f32[20000]\nstate @seed.low : i32[]\nstate @seed.high : i32[]\n"
      "init { random.normal @n, @seed.low, @seed.high {stream = 9}\nrandom.uniform @u, @seed.low, @seed.high "
      "{stream = 9} }");
  State state;
  state.buffers["seed.low"] = {{}, {-5}};
  state.buffers["seed.high"] = {{}, {3}};
  evaluate(module, RegionKind::init, 1, {}, state);
  const std::vector<double>&normal = state.buffers["n"].data, &uniform = state.buffers["u"].data;
  double mean = 0, square = 0, spread = 0;
  for (size_t i = 0; i < normal.size(); ++i) {
    EXPECT_NEAR(std::erf(normal[i] / std::sqrt(2.0)), uniform[i], 1e-6);
    EXPECT_LT(std::fabs(uniform[i]), 1);
    mean += normal[i] / 20000;
    square += normal[i] * normal[i] / 20000;
    spread += uniform[i] * uniform[i] / 20000;
  }
  EXPECT_NEAR(mean, 0, 0.03);    // 4 / sqrt(20000)
  EXPECT_NEAR(square, 1, 0.04);  // 4 sqrt(2 / 20000)
  EXPECT_NEAR(spread, 1.0 / 3, 0.01);
}

}  // namespace
}  // namespace gacc::ir
