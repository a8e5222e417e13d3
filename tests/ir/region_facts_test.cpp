// Facts of regions: they are those of the region as it is, whatever changes it.
#include "ir/region_facts.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "ir/text/text.h"

namespace gacc::ir {
namespace {

Module example() {
  const std::string text = R"(module @m phase(fused) {
  set train.micro_batch = 4
  param @b : f32[8]
  accum @s : f32[] total sum
  step(%x : f32[B,8]) {
    %a = add %x, @b : f32[B,8] k(0)
    %flat = reshape %a : f32[B,8,1] k(1) {shape = [-1, 8, 1]}
    %c = relu %a : f32[B,8] k(2)
    total_sum.acc @s, %c k(3)
  }
}
)";
  Diag diag("m.gir", text);
  std::optional<Module> module = parse(text, diag);
  EXPECT_TRUE(module) << diag.render();
  return std::move(*module);
}

std::string text_of(const RegionFacts& facts) {
  std::string text = facts.problem;
  for (const Kernel& kernel : facts.kernels) {
    text += fmt::format("{} {} {}:", kernel.number, static_cast<int>(kernel.form), shape_text(kernel.domain));
    for (const KernelMember& member : kernel.members) text += fmt::format(" {}", member.op);
    text += fmt::format(", {} read, {} written\n", kernel.reads.size(), kernel.writes.size());
  }
  return text;
}

TEST(Facts, AreMadeOnceWhileNothingChanges) {
  const Module module = example();
  const Facts first = facts(module, module.step);
  EXPECT_EQ(first, facts(module, module.step));
  const Module copy = module;
  EXPECT_EQ(first, facts(copy, copy.step));
}

TEST(Facts, FollowEveryChangeOfARegion) {
  const std::vector<std::pair<const char*, std::function<void(Module&)>>> changes = {
      {"a kernel number", [](Module& m) { std::swap(m.step.ops[1].kernel, m.step.ops[2].kernel); }},
      {"an operand", [](Module& m) { m.step.ops[2].operands[0] = m.step.inputs[0]; }},
      {"an operation", [](Module& m) { m.step.ops.pop_back(); }},
      {"the order", [](Module& m) { std::swap(m.step.ops[1], m.step.ops[2]); }},
      {"a yield", [](Module& m) { m.step.yields.push_back({.role = YieldRole::loss, .what = ValueId{1}}); }},
      {"a shape",
       [](Module& m) {
         m.step.values[3].type.shape = {kBatch, 4};
       }},
      {"the type of a buffer", [](Module& m) { m.buffers[0].type.shape = {1}; }},
      {"a condition", [](Module& m) { m.step.ops[3].when = m.step.inputs[0]; }},
  };
  for (const auto& [what, change] : changes) {
    Module module = example();
    const Facts before = facts(module, module.step);
    change(module);
    const Facts after = facts(module, module.step);
    EXPECT_NE(before, after) << what;
    EXPECT_EQ(text_of(*after), text_of(RegionFacts(module, module.step, 0))) << what;
  }
}

TEST(Facts, OfTheOldRegionStayWithWhoHoldsThem) {
  Module module = example();
  const Facts before = facts(module, module.step);
  const std::string text = text_of(*before);
  module.step.ops.clear();
  EXPECT_TRUE(facts(module, module.step)->kernels.empty());
  EXPECT_EQ(text_of(*before), text);
}

TEST(Facts, NameTheGroupThatIsNoKernel) {
  Module module = example();
  for (Op& op : module.step.ops) op.kernel = 0;
  EXPECT_EQ(facts(module, module.step)->problem, "kernel 0 of step: `reshape` stands alone in its kernel");
}

}  // namespace
}  // namespace gacc::ir
