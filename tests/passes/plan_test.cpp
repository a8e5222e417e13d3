// Plans are sound, the checker sees planted faults, and the report adds up.
#include "ir/kernel.h"

#include <algorithm>

#include "ir/liveness.h"
#include "passes/analysis/check_plan.h"
#include "passes/plan_memory.h"
#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;
using passes::check_plan;

std::string found(const Module& module, const std::string& words) {
  const std::string problem = check_plan(module);
  return problem.find(words) != std::string::npos ? "" : "expected `" + words + "`, found `" + problem + "`";
}

TEST(CheckPlan, AcceptsWhatThePlannerMakes) {
  for (const std::string& text : models()) EXPECT_EQ(check_plan(compiled(text, "all")), "");
}

TEST(CheckPlan, NamesTheFault) {
  const Module good = compiled(mlp(), "all");
  const auto expect = [&](const char* words, auto&& damage) {
    Module module = good;
    damage(module, [&](const char* name) -> Value& { return module.step[*module.step.find(name)]; });
    EXPECT_EQ(found(module, words), "");
  };
  expect("not a multiple of 256", [](Module&, auto value) { value("x").offset = *value("x").offset + 4; });
  expect("leaves the arena", [](Module& m, auto value) { value("x").offset = *m.arena_bytes; });
  expect("leaves the arena", [](Module&, auto value) { value("x").offset = -256; });
  expect("%fc1.mm has no place", [](Module&, auto value) { value("fc1.mm").offset.reset(); });
  expect("written over buffer @fc1.weight",
         [](Module& m, auto value) { value("fc1.mm").offset = m.buffers[0].offset; });
  expect("buffer @fc1.bias overlaps buffer @fc1.weight",
         [](Module& m, auto) { m.buffers[1].offset = m.buffers[0].offset; });
  expect("no arena size", [](Module& m, auto) { m.arena_bytes.reset(); });
  for (const auto& [to, from, words] :
       {std::array{"fc1.mm", "x", "%fc1.mm is written over %x, which the kernel reads"},
        {"y", "x", "%y and %x have the same bytes"},
        {"fc2.mm", "x", "%x is read"},  // again by the weight gradient of fc1
        {"target", "x", "reshape of"},
        {"ce", "counted", "written to the same bytes"}})
    expect(words, [to = to, from = from](Module&, auto value) { value(to).offset = value(from).offset; });
}

// Moving any value that owns bytes onto any other that is live with it is found, in-place pairs excepted.
TEST(CheckPlan, FindsEveryOverlapOfLiveValues) {
  int planted = 0;
  for (const std::string& text : models()) {
    const Module good = compiled(text, "all");
    for (const RegionKind kind : {RegionKind::step, RegionKind::update}) {
      const auto all = kernels(good, good.region(kind));
      const auto ranges = live_ranges(good, good.region(kind), all);
      for (const LiveRange& a : ranges) {
        for (const LiveRange& b : ranges) {
          if (a.value == b.value || a.first > b.last || b.first > a.last) continue;
          const bool touch_only =
              a.first == b.last || b.first == a.last;  // one may legally take the other's place
          Module module = good;
          Region& region = module.region(kind);
          if (region[a.value].offset == region[b.value].offset || touch_only) continue;
          region[a.value].offset = region[b.value].offset;
          EXPECT_NE(check_plan(module), "") << region[a.value].name << " onto " << region[b.value].name;
          ++planted;
        }
      }
    }
  }
  EXPECT_GT(planted, 50);
}

TEST(PlanMemory, TheReportAddsUp) {
  for (const std::string& text : models()) {
    const Module module = compiled(text, "all");
    const passes::MemoryReport r = passes::memory_report(module);
    EXPECT_EQ(r.peak, *module.arena_bytes);
    EXPECT_EQ(r.peak, r.weights + r.half_weights + r.gradients + r.optimizer + r.activations + r.workspace +
                          r.inputs + r.padding);
    EXPECT_GE(r.padding, 0);
    EXPECT_EQ(r.lower_bound, r.peak) << module.name << ": the portfolio reaches the bound on small models";
    EXPECT_GT(r.weights, 0);
    EXPECT_GT(r.inputs + r.activations + r.workspace, 0);
  }
  // At a larger micro-batch the step is fullest in the backward pass: inputs, what forward kept, gradients.
  std::string text = mlp();
  text.replace(text.find("micro_batch = 8"), 15, "micro_batch = 512");
  const passes::MemoryReport r = passes::memory_report(compiled(text, "all"));
  EXPECT_EQ(r.weights, 4 * (30 + 6 + 18 + 3));
  EXPECT_EQ(r.gradients, r.weights + 8);
  EXPECT_EQ(r.half_weights, 0);
  EXPECT_GE(r.inputs, 512 * 4 * 5);
  EXPECT_GT(r.activations, 0);
  EXPECT_GT(r.workspace, 0);
  EXPECT_LT(r.padding, 10000);
}

// The runtime reads a window's figures in one copy.
TEST(PlanMemory, ScalarsOfStateLieTogether) {
  for (const std::string& text : models()) {
    const Module module = compiled(text, "all");
    std::vector<int64_t> offsets;
    for (const Buffer& buffer : module.buffers)
      if (buffer.kind == BufferKind::state && buffer.type.shape.empty()) offsets.push_back(*buffer.offset);
    std::sort(offsets.begin(), offsets.end());
    ASSERT_FALSE(offsets.empty());
    EXPECT_EQ(offsets.back() - offsets.front(), kNumberAlignment * static_cast<int64_t>(offsets.size() - 1));
  }
}

TEST(PlanMemory, ChainsRunInPlace) {
  Module module = parse(
      "module @chain phase(recomputed) {\nset train.micro_batch = 64\naccum @s : f32[]\nstep(%x : f32[B,8]) "
      "{\n%a "
      "= tanh %x : f32[B,8] k(0)\n"
      "%b = tanh %a : f32[B,8] k(1)\n%c = tanh %b : f32[B,8] k(2)\ntotal_sum.acc @s, %c k(3)\n}\n}\n");
  run_passes(module, {"launch-mode", "plan-memory"});
  EXPECT_EQ(*module.arena_bytes, 256 + 64 * 8 * 4);
}

TEST(PlanMemory, RegionsShareTheTransientArea) {
  const Module module = compiled(mlp(), "all");
  const auto inputs_at = [&](const Region& region) {
    int64_t low = *module.arena_bytes;
    for (const Value& value : region.values) low = std::min(low, value.offset.value_or(low));
    return low;
  };
  EXPECT_EQ(inputs_at(module.step), inputs_at(module.eval));
  EXPECT_EQ(inputs_at(module.step), inputs_at(module.update));
}

}  // namespace
}  // namespace gacc::test
