// Rates and powers as the host computes them in f32, against the contract's formulas in double: within 1e-6.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numbers>

#include "codegen/host/jit.h"
#include "tests/numeric/examples.h"

namespace gacc::codegen {
namespace {

// Every t up to a thousand, then ever farther apart.
std::vector<int32_t> times() {
  std::vector<int32_t> t;
  for (int64_t i = 0; i < 0x7fffffff; i += 1 + (i > 1000 ? i / 97 : 0)) t.push_back(static_cast<int32_t>(i));
  return t;
}

constexpr float kRate = 0.0123F;

// The op's scalar result for every t; operands before it as given ("%t" is the count).
std::vector<float> results(const std::string& op, const std::string& type = "f32") {
  const ir::Module module = ir::parse_module(fmt::format(
      "state @lr : f32[] given\nstate @t : i32[]\nstate @n : i32[]\nupdate {{ }}\neval {{\n%y = {0} : "
      "{1}[]{2}\nyield metric y %y\n}}",
      op.substr(0, op.find('{')), type,
      op.find('{') == std::string::npos ? "" : " " + op.substr(op.find('{'))));
  std::string problem;
  const auto program = make_program(module, Purpose::host, problem);
  EXPECT_TRUE(program) << problem;
  if (!program) return {};
  const auto code = HostCode::load(compile_host(*program, problem), *program, problem);
  EXPECT_TRUE(code) << problem;
  const BodyCall& call = program->calls(ir::RegionKind::eval)[0];
  std::vector<float> out;
  float lr = kRate, y = 0;
  int32_t t = 0, n = 7;
  std::vector<char*> operands;
  for (const ir::Operand& operand : call.operands) {
    const std::string name = operand_text(module, module.eval, operand);
    char* place = reinterpret_cast<char*>(&y);
    if (name == "@lr") place = reinterpret_cast<char*>(&lr);
    if (name == "@t") place = reinterpret_cast<char*>(&t);
    if (name == "@n") place = reinterpret_cast<char*>(&n);
    operands.push_back(place);
  }
  std::vector<int64_t> extents = {1, 1};
  for (size_t i = extents.size(); i < call.extents.size(); ++i) extents.push_back(call.extents[i].factor);
  for (const int32_t now : times()) {
    t = now;
    code->function(call.function)(operands.data(), extents.data(), 0, 1);
    if (type == "i32") {
      int32_t whole = 0;
      std::memcpy(&whole, &y, sizeof whole);
      out.push_back(whole == now / 7 ? 1 : 0);
    } else {
      out.push_back(y);
    }
  }
  return out;
}

template <class Rate>
void expect_rates(const std::string& op, Rate rate) {
  const std::vector<int32_t> t = times();
  const std::vector<float> got = results(op);
  ASSERT_EQ(got.size(), t.size());
  double worst = 0;
  for (size_t i = 0; i < t.size(); ++i) {
    const double want = rate(t[i]);
    if (std::fabs(want) > 1e35) continue;  // the factor is no f32
    // Below the smallest normal f32 digits are lost.
    const double error = std::fabs(static_cast<double>(got[i]) - want) / std::max(std::fabs(want), 1e-36);
    EXPECT_LE(error, 1e-6) << op << " at " << t[i] << ": " << got[i] << ", " << want;
    worst = std::max(worst, error);
  }
  std::printf("%-80s %.2g\n", op.c_str(), worst);
}

const double kLr = static_cast<double>(kRate);

TEST(Schedules, FollowTheContract) {
  const auto warm = [](int64_t t, int64_t w, auto after) { return t < w ? kLr * (t + 1) / w : after(t - w); };
  expect_rates("schedule.constant @lr, @t {warmup = 300}",
               [&](int64_t t) { return warm(t, 300, [](int64_t) { return kLr; }); });
  for (const int64_t size : {1, 7, 1000})
    for (const double gamma : {0.1, 0.97, 0.5, 1.0001})
      expect_rates(
          fmt::format("schedule.step @lr, @t {{gamma = {:#}, step_size = {}, warmup = 5}}", gamma, size),
          [&](int64_t t) { return warm(t, 5, [&](int64_t u) { return kLr * std::pow(gamma, u / size); }); });
  expect_rates(
      "schedule.multistep @lr, @t {gamma = 0.3, milestones = [0, 10, 10, 5000], warmup = 2}", [&](int64_t t) {
        return warm(t, 2,
                    [](int64_t u) { return kLr * std::pow(0.3, (u >= 0) + 2 * (u >= 10) + (u >= 5000)); });
      });
  for (const double gamma : {0.5, 0.9, 0.999, 0.99999, 1.0000001})
    expect_rates(fmt::format("schedule.exponential @lr, @t {{gamma = {:#}}}", gamma),
                 [&](int64_t t) { return kLr * std::pow(gamma, t); });
  for (const int64_t total : {2, 1000, 123456789}) {
    for (const double low : {0.0, 0.001}) {
      const std::string attrs =
          fmt::format(" @lr, @t {{least = {:#}, total = {}, warmup = 1}}", low / kLr, total);
      const auto left = [&](int64_t u) {  // 1 - f, without its cancellation
        return static_cast<double>(std::max<int64_t>(0, total - 1 - u)) / static_cast<double>(total - 1);
      };
      expect_rates("schedule.linear" + attrs, [&](int64_t t) {
        return warm(t, 1, [&](int64_t u) { return low + (kLr - low) * left(u); });
      });
      expect_rates("schedule.cosine" + attrs, [&](int64_t t) {
        return warm(t, 1, [&](int64_t u) {
          return low + (kLr - low) * std::pow(std::sin(std::numbers::pi / 2 * left(u)), 2);
        });
      });
    }
  }
}

TEST(Schedules, PowersAndTheirComplements) {
  for (const double base : {0.0, 0.5, 0.9, 0.999, 0.999999}) {
    expect_rates(fmt::format("power @t {{base = {:#}}}", base), [&](int64_t t) { return std::pow(base, t); });
    expect_rates(fmt::format("power @t {{base = {:#}, complement}}", base), [&](int64_t t) {
      return t == 0 ? 0 : -std::expm1(static_cast<double>(t) * std::log(base));
    });
  }
}

TEST(Schedules, EpochsAreWhole) {
  for (const float right : results("quotient @t, @n", "i32")) EXPECT_EQ(right, 1);
}

}  // namespace
}  // namespace gacc::codegen
