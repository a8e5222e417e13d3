// Half precision in kernels: every op and the fused groups over f16 and bf16 against the reference, rounding
// of every bit pattern and every tie, and that what is fused changes no bit; on the host and as the GPU's kernels.
#include <gtest/gtest.h>

#include "tests/codegen/attention_cases.h"
#include "tests/codegen/check.h"
#include "tests/codegen/groups.h"

namespace gacc::codegen {
namespace {

using ir::DType;
using ir::Module;
using ir::RegionKind;

class HalfOp : public testing::TestWithParam<const ir::OpInfo*> {};
INSTANTIATE_TEST_SUITE_P(Ops, HalfOp, testing::ValuesIn(ir::all_ops()),
                         [](const auto& info) { return ir::test_name(info.param->name); });

TEST_P(HalfOp, AgreesWithReference) {
  const ir::Lowering lowering = GetParam()->lowering;
  // Composites are written in the others; products have tests of their own (gemm/).
  if (lowering == ir::Lowering::composite || lowering == ir::Lowering::gemm || lowering == ir::Lowering::copy)
    return;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    int checked = 0;
    for (ir::Example& example : ir::examples(*GetParam())) {
      SCOPED_TRACE(example.text);
      const std::optional<Module> module = to_half(example.module, dtype);
      if (!module) continue;
      check_eval(*module, {1, 4}, tolerance(dtype), On::both, /*positive=*/true);
      ++checked;
    }
    // What is a kernel of its own takes halves; others may be of integers or accumulators alone.
    EXPECT_TRUE(checked > 0 || lowering != ir::Lowering::handwritten) << ir::dtype_text(dtype);
  }
}

TEST(HalfAttention, AtTheEdges) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const auto& [length, heads, channels] :
         {std::array<int64_t, 3>{1, 2, 3}, {3, 1, 1}, {5, 2, 8}, {33, 1, 3}, {66, 2, 4}}) {
      SCOPED_TRACE(fmt::format("{}: T = {}, {} heads of {}", ir::dtype_text(dtype), length, heads, channels));
      const auto module =
          to_half(attention_module({length, heads, channels, true, length % 2 != 0}, 2), dtype);
      ASSERT_TRUE(module);
      check_eval(*module, {1, 2}, 4 * tolerance(dtype), On::both, /*positive=*/true);
      if (HasFailure()) return;
    }
    const auto grouped = to_half(attention_module({33, 6, 4, true, true, 2}, 2), dtype);
    ASSERT_TRUE(grouped);
    check_eval(*grouped, {1, 2}, 4 * tolerance(dtype), On::both, /*positive=*/true);
  }
}

class HalfGroup : public testing::TestWithParam<Group> {};
INSTANTIATE_TEST_SUITE_P(Groups, HalfGroup, testing::ValuesIn(kGroups),
                         [](const auto& info) { return info.param.name; });

TEST_P(HalfGroup, AtTheEdges) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const char* columns : {"1", "7", "16", "24", "63", "264"}) {
      SCOPED_TRACE(std::string("C = ") + columns);
      const auto module = to_half(group_module(GetParam().text, columns, "5"), dtype);
      if (module) check_eval(*module, {1, 33}, 4 * tolerance(dtype), On::both, /*positive=*/true);
      if (HasFailure()) return;
    }
  }
}

// Rows whose vectors all, or some, stay in a thread's registers from stage to stage: as f32, and of 16,400 columns as
// halves, with a rest for the loop. Those of 16,401 have no vectors.
TEST(HalfRows, StayInRegisters) {
  for (const char* columns : {"768", "8192", "16400", "16401", "33000"}) {
    SCOPED_TRACE(std::string("C = ") + columns);
    const auto* softmax = std::ranges::find(kGroups, std::string_view("softmax"), &Group::name);
    const auto module = to_half(group_module(softmax->text, columns, "1"), DType::f16);
    ASSERT_TRUE(module);
    check_eval(*module, {2}, 4 * tolerance(DType::f16), On::both, /*positive=*/true);
  }
}

// A result is rounded where it is made, whether it goes to memory or stays in a register.
TEST_P(HalfGroup, FusingChangesNoBit) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto fused = to_half(group_module(GetParam().text, "24", "5"), dtype);
    if (!fused) continue;
    Module apart = *fused;
    group_ops(apart, apart.eval, [] { return true; });
    std::mt19937 random(5);
    const Data data = random_data(*fused, 9, random);
    const Host one(*fused), many(apart);
    Machine first(*fused, one.program, RegionKind::eval, 9), second(apart, many.program, RegionKind::eval, 9);
    first.set(data.inputs, data.state), second.set(data.inputs, data.state);
    one.run(first, 9), many.run(second, 9);
    for (const ir::Yield& yield : fused->eval.yields) {
      const std::string name = ir::operand_text(*fused, fused->eval, yield.what);
      ASSERT_FALSE(first.words(name).empty()) << name;
      EXPECT_EQ(first.words(name), second.words(name)) << name;
    }
  }
}

// y = -x from one type to another: a conversion.
Module conversion(DType from, DType to) {
  Module module = ir::parse_module(R"(set train.micro_batch = 8192
    eval(%x : f32[B,24]) {
      %y = neg %x : f32[B,24]
    })");
  group_ops(module, module.eval);
  module.eval[*module.eval.find("x")].type.dtype = from;
  module.eval[*module.eval.find("y")].type.dtype = to;
  return module;
}

// Every number of the type, the middles between neighbours, and what lies next to them; then what is too
// large.
std::vector<double> hard_numbers(DType dtype) {
  std::vector<double> numbers;
  const uint16_t infinite = half_bits(std::numeric_limits<double>::infinity(), dtype);
  for (uint16_t bits = 0; bits < infinite; ++bits) {
    const double x = half_value(bits, dtype);
    const double next = bits + 1 < infinite ? half_value(static_cast<uint16_t>(bits + 1), dtype)
                                            : 2 * x - half_value(static_cast<uint16_t>(bits - 1), dtype);
    const auto middle = static_cast<float>((x + next) / 2);
    numbers.push_back(x);
    for (const float y : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e38f)})
      numbers.push_back((bits & 1) == 0 ? y : -y);
  }
  numbers.insert(numbers.end(), {-0.0, 65519.99, 65536, 1e30, -3.4e38, INFINITY, -INFINITY, NAN, 1e-40});
  return numbers;
}

template <class Run>
void check_conversion(DType from, DType to, const std::vector<double>& numbers, const Module& module,
                      const ModuleKernels& program, const Run& run) {
  const auto batch = static_cast<int64_t>((numbers.size() + 23) / 24);
  ir::Tensor x{{batch, 24}, numbers}, y = x;
  x.data.resize(static_cast<size_t>(batch * 24), 1.0), y.data.resize(x.data.size());
  for (size_t i = 0; i < y.data.size(); ++i) {
    if (is_narrow(from)) x.data[i] = nearest_half(x.data[i], from);
    x.data[i] = static_cast<float>(x.data[i]);
    y.data[i] = is_narrow(to) ? nearest_half(-x.data[i], to) : -x.data[i];
  }
  Machine machine(module, program, RegionKind::eval, batch);
  machine.set({{"x", x}}, {});
  run(machine, batch);
  machine.expect_equal({{"x", x}, {"y", y}}, {}, 0);
}

TEST(HalfConversion, EveryNumberAndEveryTie) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const std::vector<double> all = hard_numbers(dtype);
    for (const auto& [from, to] : {std::pair{DType::f32, dtype}, {dtype, DType::f32}, {dtype, dtype}}) {
      SCOPED_TRACE(testing::Message() << ir::dtype_text(from) << " to " << ir::dtype_text(to));
      const Module module = conversion(from, to);
      const Host host(module);
      check_conversion(from, to, all, module, host.program, [&](Machine& m, int64_t n) { host.run(m, n); });
      // Emulated threads take their time: every 29th number, with conversions one by one and by pairs.
      std::vector<double> some(all.end() - 9, all.end());
      for (size_t i = 0; i < all.size(); i += 29) some.push_back(all[i]);
      for (const char* target : {"sm_75", "sm_80"}) {
        Device device(module, target);
        check_conversion(from, to, some, module, device.program(),
                         [&](Machine& m, int64_t n) { device.run(m, n); });
      }
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace gacc::codegen
