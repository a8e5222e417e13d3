// Recompute: the same meaning to the bit, sound plans that are never over budget, budgets that never cost
// more when they grow.
#include "passes/recompute.h"
#include "passes/plan_memory.h"

#include "ir/verify/verify.h"
#include "passes/analysis/check_plan.h"
#include "passes/analysis/rematerialize.h"
#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;

// A random stack of linear layers, activations, branches and norms over [B, 16], in phase model. Layers carry
// segments in groups of three.
std::string random_model(uint32_t seed) {
  std::mt19937 random(seed);
  const int layers = 3 + static_cast<int>(random() % 8);
  std::string buffers, forward, last = "x";
  std::vector<std::string> outputs = {last};
  std::vector<const OpInfo*> activations = all_ops();
  std::erase_if(activations, [](const OpInfo* op) { return !op->activation; });
  for (int i = 0; i < layers; ++i) {
    const std::string name = fmt::format("l{}", i), seg = fmt::format(" seg({})", i / 3);
    const std::string input = random() % 4 == 0 ? outputs[random() % outputs.size()] : last;
    switch (random() % 4) {
      case 0:
        buffers += fmt::format("  param @{0}.weight : f32[16]\n  param @{0}.bias : f32[16]\n", name);
        forward += fmt::format(
            "    %{0}, %{0}.mean, %{0}.rstd = layer_norm %{1}, @{0}.weight, @{0}.bias : f32[B,16], f32[B,1], "
            "f32[B,1]{2}\n",
            name, input, seg);
        break;
      case 1:
        forward += fmt::format("    %{0} = add %{1}, %{2} : f32[B,16]{3}\n", name, last, input, seg);
        break;
      default:
        buffers += fmt::format("  param @{0}.weight : f32[16,16]\n  param @{0}.bias : f32[16]\n", name);
        forward +=
            fmt::format("    %{0}.mm = matmul %{1}, @{0}.weight : f32[B,16]{2} {{tb}}\n", name, input, seg);
        forward += fmt::format("    %{0}.pre = add %{0}.mm, @{0}.bias : f32[B,16]{1}\n", name, seg);
        forward += fmt::format("    %{0} = {1} %{0}.pre : f32[B,16]{2}\n", name,
                               activations[random() % activations.size()]->name, seg);
    }
    outputs.push_back(last = name);
  }
  buffers += "  param @out.weight : f32[16,16]\n";
  forward += fmt::format("    %out = matmul %{}, @out.weight : f32[B,16] {{tb}}\n", last);
  return fmt::format(R"(module @m{0} phase(model) {{
  set optimizer.type = "sgd"
  set train.micro_batch = 512
{1}  state @lr : f32[] given
  step(%x : f32[B,16], %y : f32[B,16]) {{
{2}    %error = squared_error %out, %y : f32[B,16]
    %loss = total_sum %error : f32[]
    %ones = ones_like %error : i32[B,16]
    %count = total_sum %ones : i32[]
    yield loss %loss, count %count
  }}
}}
)",
                     seed, buffers, forward);
}

State after_step(const Module& module) {
  State state = random_state(module, 5);
  evaluate(module, RegionKind::step, 9, random_inputs(module, RegionKind::step, 9, 3), state);
  return state;
}

// In double and in program order a clone must give the very same number.
void expect_sound(const Module& fused, Module module, const std::string& what) {
  Diag diag("recompute_test", "");
  module.phase = Phase::recomputed;
  EXPECT_TRUE(verify(module, diag)) << what << "\n" << diag.render() << print(module);
  const State expected = after_step(fused), actual = after_step(module);
  for (const auto& [name, tensor] : expected.buffers)
    EXPECT_EQ(tensor.data, actual.buffers.at(name).data) << what << ": @" << name;
  run_passes(module, {"launch-mode", "plan-memory"});
  Module scheduled = module;
  run_passes(scheduled, schedule_passes);
  EXPECT_EQ(passes::check_plan(scheduled), "") << what;
  // Without its clones the module is the old one, but for ops that were moved to their first reader.
  Module plain = passes::without_clones(module);
  EXPECT_TRUE(verify(plain, diag)) << what;
  EXPECT_EQ(plain.step.ops.size(), fused.step.ops.size()) << what;
}

TEST(Recompute, BudgetsAreKeptAndNothingChanges) {
  passes::Options options;
  options.plan_effort = 0;
  int plans = 0;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const Module fused = compiled(random_model(seed), "fuse");
    const passes::StepGraph step = passes::step_graph(fused, options.target);
    const int64_t base = passes::arena_of(fused), least = passes::least_arena(step);
    EXPECT_LE(least, base);
    passes::planner::Bounds bounds(step.graph);
    passes::StepPlanner planner(fused, step, bounds, options);
    for (const double part : {0.8, 0.5, 0.2}) {
      const int64_t budget = least + static_cast<int64_t>(part * static_cast<double>(base - least));
      const passes::StepPlan plan = planner.plan(budget);
      if (!plan.feasible) continue;
      ++plans;
      const std::string what = fmt::format("model {} in {} of {}", seed, budget, base);
      EXPECT_LE(plan.arena, budget) << what;
      EXPECT_EQ(passes::arena_of(plan.module, budget), plan.arena) << what;
      EXPECT_LE(plan.lower_bound, plan.seconds * (1 + 1e-12)) << what;
      expect_sound(fused, plan.module, what);
    }
    EXPECT_FALSE(planner.plan(least - 1).feasible);
    EXPECT_TRUE(planner.plan(least - 1).proven);
  }
  EXPECT_GT(plans, 18);
}

TEST(Recompute, SegmentsChangeNothing) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const Module fused = compiled(random_model(seed), "fuse");
    Module module = fused;
    module.settings.recompute.policy = "marked";
    run_passes(module, {"recompute"});
    const passes::RecomputeReport report = passes::recompute_report(module, "sm_80");
    EXPECT_GT(report.recomputed_ops, 0) << seed;
    EXPECT_GE(report.gap(), 0) << seed;
    module.settings.recompute.policy.clear();
    module.results = fused.results;
    expect_sound(fused, module, fmt::format("model {}", seed));
  }
}

// 100 budgets, from one byte too few to what no recompute takes: none is exceeded, none costs more than a
// smaller one.
void expect_monotone(uint32_t seed, const passes::Options& options) {
  constexpr int kBudgets = 100;
  const Module fused = compiled(random_model(seed), "fuse");
  const passes::StepGraph step = passes::step_graph(fused, options.target);
  const int64_t base = passes::arena_of(fused), least = passes::least_arena(step);
  passes::planner::Bounds bounds(step.graph);
  passes::StepPlanner planner(fused, step, bounds, options);
  double before = -1;
  int plans = 0;
  for (int i = 0; i < kBudgets; ++i) {
    const int64_t budget = least - 1 + (base - least + 1) * i / (kBudgets - 1);
    const std::string what = fmt::format("model {}, {} of {} bytes", seed, budget, base);
    const passes::StepPlan plan = planner.plan(budget);
    EXPECT_TRUE(plan.feasible || before < 0) << what << ": less was enough";
    if (!plan.feasible) continue;
    ++plans;
    EXPECT_LE(plan.arena, budget) << what;
    EXPECT_EQ(passes::arena_of(plan.module, budget), plan.arena) << what;
    EXPECT_LE(plan.lower_bound, plan.seconds * (1 + 1e-12)) << what;
    if (before >= 0) {
      EXPECT_LE(plan.seconds, before) << what;
    }
    if (i % 10 == 9) {  // what was searched for other budgets changes nothing
      passes::planner::Bounds own(step.graph);
      passes::StepPlanner fresh(fused, step, own, options);
      EXPECT_EQ(print(fresh.plan(budget).module), print(plan.module)) << what;
      EXPECT_LE(fresh.searched(), 20) << what;  // of 8,192 levels: one budget of work for a walk
    }
    before = plan.seconds;
  }
  EXPECT_EQ(before, step.seconds) << "model " << seed << ": the last budget needs no recompute";
  EXPECT_GT(plans, kBudgets / 4) << "model " << seed;
}

TEST(Recompute, ALargerBudgetNeverCostsMore) {
  for (uint32_t seed = 20; seed < 25; ++seed) expect_monotone(seed, {});
}

// A search of little effort may miss plans at levels above one that it has a plan for. (105, 110 and 118 have
// too few plans to say anything.)
TEST(Recompute, ALargerBudgetNeverCostsMoreByAHastySearch) {
  passes::Options options;
  options.plan_effort = 0;
  for (const uint32_t seed : {101, 102, 103, 104, 106, 107}) expect_monotone(seed, options);
}

TEST(Recompute, TheGraphOfAStepReadsBack) {
  const Module fused = compiled(random_model(1), "fuse");
  const passes::StepGraph step = passes::step_graph(fused, "sm_80");
  passes::planner::Graph graph;
  std::string problem;
  EXPECT_TRUE(passes::planner::parse_graph(passes::print_graph(step), graph, problem)) << problem;
  EXPECT_EQ(graph.operations.size() + 1, step.graph.operations.size());  // without the micro-batch
}

}  // namespace
}  // namespace gacc::test
