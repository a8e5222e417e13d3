// The shared mathematics against std:: in double, over all exponents: the error in units of the last place of
// the result. The bounds are what was measured, rounded up.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "codegen/host/jit.h"
#include "tests/numeric/examples.h"

namespace gacc::codegen {
namespace {

// Runs a unary op over f32 values.
std::vector<float> values_of(const std::string& op, std::vector<float> x) {
  const ir::Module module = ir::parse_module(
      fmt::format("eval(%x : f32[{0}]) {{\n%y = {1} %x : f32[{0}]\nyield metric y %y\n}}", x.size(), op));
  std::string problem;
  const auto program = make_program(module, Purpose::host, problem);
  if (!program) return {};
  const auto code = HostCode::load(compile_host(*program, problem), *program, problem);
  EXPECT_TRUE(code) << problem;
  std::vector<float> y(x.size());
  char* operands[] = {reinterpret_cast<char*>(x.data()), reinterpret_cast<char*>(y.data())};
  const int64_t extents[] = {1, static_cast<int64_t>(x.size())};
  const BodyCall& call = program->calls(ir::RegionKind::eval)[0];
  code->function(call.function)(operands, extents, 0, extents[1]);
  return y;
}

double ulp(double value) {
  const auto f = static_cast<float>(std::fabs(value));
  if (f < 0x1p-126F) return 0x1p-149;
  return std::ldexp(1.0, std::ilogb(f) - 23);
}

// Every exponent, both signs, denormals too.
std::vector<float> sweep() {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < 0x100000000; bits += 4099) {
    const auto f = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isfinite(f)) x.push_back(f);
  }
  for (float f = -105; f < 105; f += 0.00123F) x.push_back(f);  // where the functions bend
  x.insert(x.end(), {22383.832F, 80404.2891F});                 // the worst of sin and cos, of all up to 1e5
  return x;
}

struct Case {
  const char* op;
  double (*exact)(double);
  double bound;             // ulp
  double absolute;          // error below 0 that cancellation in the formula explains
  double until = INFINITY;  // the bound holds up to here; beyond, the result is a number of [-1, 1]
};

class Function : public testing::TestWithParam<Case> {};
const Case kCases[] = {
    {"exp", [](double x) { return std::exp(x); }, 1.2, 0},
    {"log", [](double x) { return std::log(x); }, 1.2, 0},
    {"tanh", [](double x) { return std::tanh(x); }, 2.0, 0},
    {"sqrt", [](double x) { return std::sqrt(x); }, 0.5001, 0},
    {"reciprocal", [](double x) { return 1 / x; }, 0.5001, 0},
    {"sin", [](double x) { return std::sin(x); }, 2.3, 0, 1e5},
    {"cos", [](double x) { return std::cos(x); }, 2.3, 0, 1e5},
    // 1 + erf loses bits for x < 0.
    {"gelu", [](double x) { return x * 0.5 * std::erfc(-x * std::sqrt(0.5)); }, 3.0, 5e-7},
};
INSTANTIATE_TEST_SUITE_P(Math, Function, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.op; });

TEST_P(Function, IsWithinItsBound) {
  const Case& c = GetParam();
  const std::vector<float> x = sweep(), y = values_of(c.op, x);
  ASSERT_EQ(x.size(), y.size());
  double worst = 0;
  float at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::fabs(x[i]) > c.until) {
      ASSERT_LE(std::fabs(y[i]), 1) << c.op << "(" << x[i] << ")";
      continue;
    }
    const double want = c.exact(x[i]);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(y[i])) << c.op << "(" << x[i] << ") is " << y[i];
      continue;
    }
    if (std::isinf(static_cast<float>(want)) || std::isinf(y[i])) {
      ASSERT_EQ(y[i], static_cast<float>(want)) << c.op << "(" << x[i] << ")";
      continue;
    }
    if (x[i] < 0 && std::fabs(y[i] - want) <= c.absolute) continue;
    const double error = std::fabs(y[i] - want) / ulp(want);
    if (error > worst) worst = error, at = x[i];
  }
  fmt::print("{}: {:.3f} ulp at {}\n", c.op, worst, at);
  EXPECT_LE(worst, c.bound) << "at " << at;
}

TEST(Math, SpecialValues) {
  const float inf = INFINITY, nan = NAN;
  const std::vector<float> x = {0, -0.0F, inf, -inf, nan, -1, 88.8F, 88.7F, -103.9F, -104.5F, 1e-45F};
  const auto expect = [&](const char* op, const std::vector<float>& want) {
    const std::vector<float> y = values_of(op, x);
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i])) {
        EXPECT_TRUE(std::isnan(y[i])) << op << "(" << x[i] << ") is " << y[i];
      } else {
        EXPECT_EQ(std::signbit(y[i]), std::signbit(want[i])) << op << "(" << x[i] << ")";
        EXPECT_FLOAT_EQ(y[i], want[i]) << op << "(" << x[i] << ")";
      }
    }
  };
  expect("exp", {1, 1, inf, 0, nan, std::exp(-1.0F), inf, std::exp(88.7F), 1e-45F, 0, 1});
  expect("log",
         {-inf, -inf, inf, nan, nan, nan, std::log(88.8F), std::log(88.7F), nan, nan, std::log(1e-45F)});
  expect("tanh", {0, -0.0F, 1, -1, nan, std::tanh(-1.0F), 1, 1, -1, -1, 1e-45F});
  expect("sin", {0, -0.0F, nan, nan, nan, std::sin(-1.0F), std::sin(88.8F), std::sin(88.7F),
                 std::sin(-103.9F), std::sin(-104.5F), 1e-45F});
  expect("cos", {1, 1, nan, nan, nan, std::cos(-1.0F), std::cos(88.8F), std::cos(88.7F), std::cos(-103.9F),
                 std::cos(-104.5F), 1});
  expect("relu", {0, -0.0F, inf, 0, nan, 0, 88.8F, 88.7F, 0, 0, 1e-45F});
}

}  // namespace
}  // namespace gacc::codegen
