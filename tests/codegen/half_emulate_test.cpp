// The PTX of kernels over half types in the emulator, without one report, and bit for bit what the host
// gives: on sm_75 (f16 conversions one by one, bf16 by integers) and sm_80 (both by pairs).
#include <gtest/gtest.h>

#include "codegen/host/jit.h"
#include "tests/codegen/emulated.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/half_values.h"

namespace gacc::codegen {
namespace {

using ir::DType;

// Vectors of 8, of 4 and single elements; values that stay in registers; one half, one f32 result.
ir::Module kernels(DType dtype, int columns) {
  std::string text = R"(set train.micro_batch = 9
    param @b : H[C]
    eval(%x : H[B,C], %y : H[B,C], %r : f32[B,1]) {
      %a = add %x, @b : H[B,C]
      %g = gelu %a : H[B,C]
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

    std::string problem;
    const auto host = make_program(module, Purpose::host, problem);
    const auto code = HostCode::load(compile_host(*host, problem), *host, problem);
    ASSERT_TRUE(code) << problem;
    Machine native(module, *host, ir::RegionKind::eval, batch);
    native.set(inputs, state);
    native.run([&](const Call& call, char* const* operands, const std::vector<int64_t>& extents) {
      code->function(call.function)(operands, extents.data(), 0, call.items.at(batch));
    });

    Diag diag;
    const auto device = emit_nvptx(module, target, diag);
    ASSERT_TRUE(device) << diag.render();
    Emulated gpu(*device);
    Machine machine(module, device->program, ir::RegionKind::eval, batch);
    machine.set(inputs, state);
    gpu.run(module, machine, batch);
    EXPECT_EQ(gpu.emulator.reports().size(), 0U);
    for (const char* name : {"%d", "%e"}) EXPECT_EQ(machine.words(name), native.words(name)) << name;
  }
}

}  // namespace
}  // namespace gacc::codegen
