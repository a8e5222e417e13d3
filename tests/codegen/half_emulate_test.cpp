// The PTX of kernels over half types in the emulator, without one report: exact arithmetic bit for bit as the
// host's, on sm_75 (f16 conversions one by one, bf16 by integers) and sm_80 (both by pairs); functions of
// half precision against double, for every number.
#include <gtest/gtest.h>

#include <bit>
#include <regex>

#include "tests/codegen/emulated.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/half_values.h"
#include "tests/codegen/host.h"

namespace gacc::codegen {
namespace {

using ir::DType;

// Vectors of 8, of 4 and single elements; values that stay in registers; one half, one f32 result.
ir::Module kernels(DType dtype, int columns) {
  std::string text = R"(set train.micro_batch = 9
    param @b : H[C]
    eval(%x : H[B,C], %y : H[B,C], %r : f32[B,1]) {
      %a = add %x, @b : H[B,C]
      %g = leaky_relu %a : H[B,C]
      %d = mul %g, %y : H[B,C]
      %e = mul %d, 1.5 : f32[B,C]
      yield metric d %d, metric e %e
    })";
  for (const auto& [what, with] :
       {std::pair{"H", std::string(ir::dtype_text(dtype))}, std::pair{"C]", std::to_string(columns) + "]"}})
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
      text.replace(at, std::string(what).size(), with);
  ir::Module module = ir::parse_module(text);
  group_ops(module, module.eval);
  return module;
}

// Runs the module's eval on the host and in the emulator: the named results have the same bits.
void expect_the_hosts_bits(const ir::Module& module, const std::map<std::string, ir::Tensor>& inputs,
                           const ir::State& state, int64_t batch, const char* target,
                           const std::vector<const char*>& results) {
  const Host host(module);
  Machine native(module, host.program, ir::RegionKind::eval, batch);
  native.set(inputs, state);
  host.run(native, batch);
  Device gpu(module, target);
  Machine machine(module, gpu.program(), ir::RegionKind::eval, batch);
  machine.set(inputs, state);
  gpu.run(machine, batch);
  for (const char* name : results) EXPECT_EQ(machine.words(name), native.words(name)) << name;
}

class HalfEmulated : public testing::TestWithParam<std::pair<DType, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Types, HalfEmulated,
                         testing::Values(std::pair{DType::f16, "sm_75"}, std::pair{DType::bf16, "sm_75"},
                                         std::pair{DType::f16, "sm_80"}, std::pair{DType::bf16, "sm_80"}),
                         [](const auto& info) {
                           return fmt::format("{}_{}", ir::dtype_text(info.param.first), info.param.second);
                         });

TEST_P(HalfEmulated, TheHostsBits) {
  const auto [dtype, target] = GetParam();
  constexpr int64_t batch = 7;
  for (const int columns : {24, 20, 7}) {
    SCOPED_TRACE(columns);
    const ir::Module module = kernels(dtype, columns);
    std::mt19937 random(3);
    auto inputs = ir::random_inputs(module, batch, false, random);
    ir::State state = ir::random_state(module, random);
    for (const char* name : {"x", "y"})
      for (double& value : inputs.at(name).data) value = nearest_half(8 * value * value * value, dtype);
    for (double& value : state.buffers.at("b").data) value = nearest_half(value, dtype);
    inputs.at("y").data[5] = INFINITY;

    expect_the_hosts_bits(module, inputs, state, batch, target, {"%d", "%e"});
  }
}

// A thread of interleaved pairs has 16 bytes of its row at a time: twice as many are no access of a GPU, and
// LLVM's parts of such a load have registers of f32 for the bits of halves.
TEST_P(HalfEmulated, RotaryPairsSideBySide) {
  const auto [dtype, target] = GetParam();
  for (const auto& [width, rotated] : {std::pair{192, 32}, {192, 16}, {96, 16}, {48, 4}}) {
    SCOPED_TRACE(fmt::format("{} channels, {} turned", width, rotated));
    ir::Module module = ir::parse_module(fmt::format(
        "set train.micro_batch = 3\neval(%x : {0}[B,5,{1}]) {{\n"
        "%y = rope %x : {0}[B,5,{1}] {{heads = 2, interleaved, rotated = {2}}}\nyield metric y %y\n}}",
        ir::dtype_text(dtype), width, rotated));
    group_ops(module, module.eval);
    std::mt19937 random(3);
    auto inputs = ir::random_inputs(module, 3, false, random);
    for (double& value : inputs.at("x").data) value = nearest_half(value, dtype);
    expect_the_hosts_bits(module, inputs, ir::random_state(module, random), 3, target, {"%y"});
  }
}

struct Function {
  const char *name, *formula;  // of %x and %z, with the type of the result
  double (*exact)(double x, double z);
  double absolute;  // the error that cancellation in f32 explains
};
double cdf(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }
double inner(double x) { return std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)); }
const Function kFunctions[] = {
    {"exp", "exp %x : H[B,C]", [](double x, double) { return std::exp(x); }, 0x1p-125},
    {"tanh", "tanh %x : H[B,C]", [](double x, double) { return std::tanh(x); }, 0},
    {"sigmoid", "sigmoid %x : H[B,C]", [](double x, double) { return 1 / (1 + std::exp(-x)); }, 0x1p-125},
    {"silu", "silu %x : H[B,C]", [](double x, double) { return x / (1 + std::exp(-x)); }, 0x1p-118},
    {"gelu", "gelu %x : H[B,C]", [](double x, double) { return x * cdf(x); }, 5e-7},
    {"gelu_tanh", "gelu_tanh %x : H[B,C]", [](double x, double) { return 0.5 * x * (1 + inner(x)); }, 5e-7},
    {"div", "div %x, %z : H[B,C]", [](double x, double z) { return x / z; }, 0},
    {"wide", "exp %w : f32[B,C]", [](double x, double) { return std::exp(x); }, 0x1p-125}};

// The text with a factor behind each result of a unit: the errors that the ISA allows it, or none.
std::string with_errors(const std::string& ptx, const char* power, const char* reciprocal) {
  const std::string one = R"(\s+(%f\d+), [^;]*;)", times = "$&\n mul.rn.f32 $1, $1, ";
  std::string text =
      std::regex_replace(ptx, std::regex(R"(ex2\.approx\.ftz\.f32)" + one), times + power + ";");
  text = std::regex_replace(text, std::regex(R"(rcp\.approx\.ftz\.f32)" + one), times + reciprocal + ";");
  return std::regex_replace(text, std::regex(R"(div\.full\.f32)" + one), times + power + ";");
}

struct UnitErrors {
  const char *power, *reciprocal;  // 1 and two units in the last place, 1 and one
};
const UnitErrors kUnitErrors[] = {{"0f3F800000", "0f3F800000"},
                                  {"0f3F800002", "0f3F800001"},
                                  {"0f3F7FFFFC", "0f3F800001"},
                                  {"0f3F800002", "0f3F7FFFFE"},
                                  {"0f3F7FFFFC", "0f3F7FFFFE"}};

// All numbers, and behind each other number another one, so that quotients are of every size.
TEST_P(HalfEmulated, FunctionsOfEveryNumber) {
  const auto [dtype, target] = GetParam();
  std::string model = "eval(%x : H[B,C], %z : H[B,C]) {\n%w = sub %x, 0.0 : f32[B,C]\n";
  std::string yields;
  for (const Function& f : kFunctions) {
    model += fmt::format("%{} = {}\n", f.name, f.formula);
    yields += fmt::format("{} metric {} %{}", yields.empty() ? "" : ",", f.name, f.name);
  }
  model += "yield" + yields + "\n}";
  for (const auto& [what, with] :
       {std::pair{"H[", std::string(ir::dtype_text(dtype)) + "["}, std::pair{"C]", std::string("8192]")}})
    for (size_t at = 0; (at = model.find(what, at)) != std::string::npos; at += with.size())
      model.replace(at, std::string(what).size(), with);
  ir::Module module = ir::parse_module("set train.micro_batch = 8\n" + model);
  group_ops(module, module.eval);
  std::mt19937 random(3);
  auto inputs = ir::random_inputs(module, 8, false, random);
  std::vector<double>&x = inputs.at("x").data, &z = inputs.at("z").data;
  ASSERT_EQ(x.size(), 65536U);
  for (uint32_t i = 0; i < 65536; ++i) {
    x[i] = half_value(static_cast<uint16_t>(i), dtype);
    z[i] = half_value(static_cast<uint16_t>(i * 40503), dtype);
  }
  Diag diag;
  const auto device = emit_nvptx(module, target, diag);
  ASSERT_TRUE(device) << diag.render();
  for (const char* unit : {"ex2.approx.ftz.f32", "rcp.approx.ftz.f32", "div.full.f32"})
    EXPECT_NE(device->ptx.find(unit), std::string::npos) << unit;
  EXPECT_EQ(device->ptx.find("tanh.approx"), std::string::npos) << "it is too coarse";
  const HalfFormat format = HalfFormat::of(dtype);
  for (const UnitErrors& errors : kUnitErrors) {
    SCOPED_TRACE(fmt::format("{} {}", errors.power, errors.reciprocal));
    const std::string text = with_errors(device->ptx, errors.power, errors.reciprocal);
    EXPECT_NE(text, device->ptx);
    Emulated gpu(*device, text);
    Machine machine(module, device->program, ir::RegionKind::eval, 8);
    machine.set(inputs, ir::random_state(module, random));
    gpu.run(module, machine, 8);
    EXPECT_EQ(gpu.emulator.reports().size(), 0U);
    for (const Function& f : kFunctions) {
      const bool half = std::string(f.name) != "wide";
      const std::vector<uint32_t> words = machine.words(fmt::format("%{}", f.name));
      std::vector<double> got(x.size());
      const size_t first = (words.size() - got.size() / (half ? 2 : 1)) / 2;  // guards stand on both sides
      for (size_t i = 0; i < got.size(); ++i)
        got[i] = half ? half_value(static_cast<uint16_t>(words[first + i / 2] >> (i % 2 * 16)), dtype)
                      : std::bit_cast<float>(words[first + i]);
      for (size_t i = 0; i < got.size(); ++i) {
        const double want = f.exact(x[i], z[i]);
        const double nearest = half ? nearest_half(want, dtype) : static_cast<float>(want);
        const auto what = [&] {
          return fmt::format("{}({}, {}) = {}, not {}", f.name, x[i], z[i], got[i], want);
        };
        if (std::isnan(want) || std::isinf(nearest)) {
          EXPECT_TRUE(std::isnan(want) ? std::isnan(got[i]) : got[i] == nearest) << what();
          continue;
        }
        // Half a unit of the result's last place, and a hundredth for what comes before; of f32 2^-16.
        const int exponent = want == 0 ? format.smallest : std::max(std::ilogb(want), format.smallest);
        const double unit =
            half ? 0.51 * std::ldexp(1, exponent - format.mantissa) : std::fabs(want) * 0x1p-16;
        ASSERT_LE(std::fabs(got[i] - want), unit + f.absolute) << what();
      }
    }
  }
}

// What is not of half precision stays exact.
TEST(HalfFunctions, NoneInSinglePrecision) {
  ir::Module module = ir::parse_module(R"(eval(%x : f32[B,64], %h : f16[B,64]) {
      %a = exp %x : f32[B,64]
      %b = tanh %a : f32[B,64]
      %c = div %b, %x : f32[B,64]
      %g = gelu_tanh %c : f32[B,64]
      %s = sigmoid %g : f32[B,64]
      %d = div %h, %x : f32[B,64]
      yield metric s %s, metric d %d
    })");
  group_ops(module, module.eval);
  Diag diag;
  const auto device = emit_nvptx(module, "sm_90a", diag);
  ASSERT_TRUE(device) << diag.render();
  EXPECT_EQ(device->ptx.find(".approx"), std::string::npos);
  EXPECT_EQ(device->ptx.find("div.full"), std::string::npos);
}

}  // namespace
}  // namespace gacc::codegen
