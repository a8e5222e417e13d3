// Kernels of the host and of the GPU (check.h): every op of the table, fused groups and attention at the edges of
// vectors, warps and tiles.
#include <gtest/gtest.h>

#include "tests/codegen/attention_cases.h"
#include "tests/codegen/check.h"
#include "tests/codegen/groups.h"

namespace gacc::codegen {
namespace {

using ir::Module;

class KernelsOfOp : public testing::TestWithParam<const ir::OpInfo*> {};
INSTANTIATE_TEST_SUITE_P(Ops, KernelsOfOp, testing::ValuesIn(ir::all_ops()),
                         [](const auto& info) { return ir::test_name(info.param->name); });

TEST_P(KernelsOfOp, AgreeWithReference) {
  const ir::Lowering lowering = GetParam()->lowering;
  // `expand` writes composites in the others; copies have no code; the GPU's products have tests of their own (gemm/).
  if (lowering == ir::Lowering::composite || lowering == ir::Lowering::copy) return;
  const On on = lowering == ir::Lowering::gemm ? On::host : On::both;
  int checked = 0;
  for (ir::Example& example : ir::examples(*GetParam())) {
    if (ir::has_half(example)) continue;  // half_test.cpp
    ++checked;
    SCOPED_TRACE(example.text);
    const double tolerance = tolerance_of(example.module, 1e-5);
    check_eval(example.module, {1, 3, 4}, tolerance, on, /*positive=*/true);
    check_eval(example.module, {4}, tolerance, on);
  }
  EXPECT_TRUE(checked > 0 || GetParam()->half_of != nullptr) << "no example in f32";
}

class KernelsOfGroup : public testing::TestWithParam<Group> {};
INSTANTIATE_TEST_SUITE_P(Groups, KernelsOfGroup, testing::ValuesIn(kGroups),
                         [](const auto& info) { return info.param.name; });

TEST_P(KernelsOfGroup, AtTheEdges) {
  for (const char* columns : {"1", "2", "7", "16", "17", "32", "63", "64", "65", "130", "256", "1030"}) {
    for (const char* rows : {"1", "5"}) {
      SCOPED_TRACE(std::string("C = ") + columns + ", T = " + rows);
      const Module module = group_module(GetParam().text, columns, rows);
      check_eval(module, {1, 33}, 3e-5);
      if (HasFailure()) return;
    }
  }
}

// Both ways through the channels: in fours, and one by one.
TEST(Device, AttentionAtTheEdges) {
  for (const bool causal : {false, true}) {
    for (const auto& [length, heads, channels] :
         {std::array<int64_t, 3>{1, 2, 3}, {3, 1, 1}, {4, 1, 4}, {5, 2, 8}, {33, 1, 3}, {66, 2, 4}}) {
      SCOPED_TRACE(fmt::format("T = {}, {} heads of {}, causal {}", length, heads, channels, causal));
      check_eval(attention_module({length, heads, channels, causal, length % 2 != 0}, 2), {1, 2}, 2e-5);
      if (HasFailure()) return;
    }
  }
  // Positions that are teams of threads: of 4, with chunks left over; of 2, which meet four rows; of 16.
  check_eval(attention_module({37, 1, 40, true, true}, 1), {1}, 2e-5);
  check_eval(attention_module({10, 1, 18, false, false}, 1), {1}, 2e-5);
  check_eval(attention_module({6, 1, 130, true, true}, 2), {2}, 2e-5);
  // Heads of keys that several heads of queries share.
  check_eval(attention_module({33, 3, 4, true, true, 1}, 2), {1, 2}, 2e-5);
  check_eval(attention_module({9, 4, 20, false, false, 2}, 1), {1}, 2e-5);
  // Scores of another scale, and capped.
  AttentionCase c{33, 3, 4, true, true, 1};
  c.scale = 2, c.softcap = 0.75;
  check_eval(attention_module(c, 2), {1, 2}, 3e-5);
  c = {37, 1, 40, true, false};
  c.softcap = 1;
  check_eval(attention_module(c, 1), {1}, 3e-5);
  // More channels than are written out.
  check_eval(attention_module({3, 1, 515, true, false}, 1), {1}, 2e-5);
}

// Lanes that are teams of threads, ragged chunks, heads that share keys, and more channels than are written out. Keys
// are short and the state is forgotten, so that nothing grows from position to position; beta is 1, so that what is
// lacking is what is written.
TEST(Device, DeltaRuleAtTheEdges) {
  struct Case {
    int64_t length, heads, key_heads, keys, values, chunk;
  };
  for (const Case& c : {Case{70, 2, 1, 40, 24, 64}, Case{5, 3, 3, 4, 33, 2}, Case{6, 1, 1, 130, 3, 4},
                        Case{1, 2, 2, 18, 1, 64}, Case{3, 2, 2, 3, 515, 64}}) {
    SCOPED_TRACE(fmt::format("T = {}, {} heads of {} x {}", c.length, c.heads, c.keys, c.values));
    const std::string each = fmt::format("f32[B,{},{}]", c.length, c.heads),
                      shared = fmt::format("f32[B,{},{}]", c.length, c.key_heads * c.keys),
                      keys = fmt::format("f32[B,{},{}]", c.length, c.heads * c.keys),
                      values = fmt::format("f32[B,{},{}]", c.length, c.heads * c.values),
                      attributes = fmt::format("{{chunk = {}, heads = {}, key_heads = {}}}", c.chunk, c.heads,
                                               c.key_heads);
    const int64_t chunks = ceil_divide(c.length, c.chunk);
    const std::string text = fmt::format(
        "eval(%q0 : {shared}, %k0 : {shared}, %v0 : {values}, %d0 : {each}, %b0 : {each}, %g0 : {values}) "
        "{{\n"
        "  %q = mul %q0, {scale} : {shared}\n"
        "  %k = mul %k0, {scale} : {shared}\n"
        "  %v = mul %v0, {small} : {values}\n"
        "  %g = mul %g0, {small} : {values}\n"
        "  %d = neg %d0 : {each}\n"
        "  %b1 = mul %b0, 0.0 : {each}\n"
        "  %b = add %b1, 1.0 : {each}\n"
        "  %x, %r = delta_rule %q, %k, %v, %d, %b : {values}, {values} {attributes}\n"
        "  %w = delta_rule.grad.written %q, %k, %d, %b, %g : {values} {attributes}\n"
        "  %dq, %before, %ended, %states = delta_rule.grad.queries %q, %k, %d, %r, %w, %g, %b "
        ": {keys}, {keys}, {keys}, {states} {attributes}\n"
        "  %dk, %terms, %p = delta_rule.grad.keys %q, %k, %d, %r, %w, %g, %b, %before, %ended, %states "
        ": {keys}, {keys}, {products} {attributes}\n"
        "}}",
        fmt::arg("shared", shared), fmt::arg("values", values), fmt::arg("each", each),
        fmt::arg("keys", keys), fmt::arg("attributes", attributes),
        fmt::arg("scale", 1 / std::sqrt(static_cast<double>(c.keys))),
        fmt::arg("small", 1 / std::sqrt(static_cast<double>(c.values))),
        fmt::arg("states", fmt::format("f32[B,{},{},{}]", chunks, c.heads * c.keys, c.values)),
        fmt::arg("products", fmt::format("f32[B,{},{},{}]", chunks, c.heads, c.keys)));
    Module module = ir::parse_module(text);
    module.settings.train.micro_batch = int64_t{2};
    check_eval(module, {1, 2}, 1e-6, On::both, /*positive=*/true);
    if (HasFailure()) return;
  }
}

// Large numbers, in each quadrant and by their gradients; a power of two keeps the argument exact.
TEST(Device, Waves) {
  const Module module = group_module(R"(eval(%x : f32[B,C], %y : f32[B,C]) {
       %a = mul %x, 4096.0 : f32[B,C]
       %s = sin %a : f32[B,C]
       %c = cos %a : f32[B,C]
       %d = sin.grad %a, %y : f32[B,C]
       %e = cos.grad %a, %y : f32[B,C]
       yield metric s %s, metric c %c, metric d %d, metric e %e
     })",
                                     "130", "1");
  check_eval(module, {33}, 1e-6);
}

// Kernels whose full micro-batch has more than 2^31 elements index with 64 bits.
TEST(Device, WideIndices) {
  for (const auto& [name, text] : kGroups) {
    SCOPED_TRACE(name);
    Module module = group_module(text, "64", "5");
    module.settings.train.micro_batch = int64_t{1} << 27;
    std::string problem;
    const auto program = make_program(module, Purpose::device, problem);
    ASSERT_TRUE(program) << problem;
    EXPECT_TRUE(std::any_of(program->functions.begin(), program->functions.end(),
                            [](const Body& b) { return b.wide_index; }) ||
                name == std::string("norm"));  // which has no B
    check_eval(module, {3}, 3e-5);
  }
}

// So do those with fewer elements but as many threads.
TEST(Device, ManyTeams) {
  Module module = attention_module({1, 1, 1, false, false}, 1 << 26);
  std::string problem;
  const auto program = make_program(module, Purpose::device, problem);
  ASSERT_TRUE(program) << problem;
  for (const Body& body : program->functions) {
    if (body.op == &ir::op_attention_grad) {
      EXPECT_TRUE(body.wide_index);
    }
  }
  check_eval(module, {2}, 2e-5);
}

}  // namespace
}  // namespace gacc::codegen
