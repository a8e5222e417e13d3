// Whatever a pass does, two windows of ragged micro-batches and an evaluation leave the same bytes (in
// double).
#include "passes/plan_memory.h"
#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;

// Runs two windows (3 + 8 samples, then 1) and an evaluation; gives all buffers.
State trained(const Module& module) {
  State state = random_state(module, 7);
  for (const int64_t batch : {3, 8})
    evaluate(module, RegionKind::step, batch, random_inputs(module, RegionKind::step, batch, 11, true),
             state);
  evaluate(module, RegionKind::update, 1, {}, state);
  evaluate(module, RegionKind::step, 1, random_inputs(module, RegionKind::step, 1, 12), state);
  evaluate(module, RegionKind::update, 1, {}, state);
  evaluate(module, RegionKind::step, 2, random_inputs(module, RegionKind::step, 2, 13),
           state);  // an open window
  if (!module.eval.ops.empty())
    evaluate(module, RegionKind::eval, 5, random_inputs(module, RegionKind::eval, 5, 14, true), state);
  return state;
}

void expect_same(const State& expected, const State& actual, const std::string& what) {
  ASSERT_EQ(expected.buffers.size(), actual.buffers.size());
  for (const auto& [name, tensor] : expected.buffers) {
    EXPECT_LT(largest_difference(tensor, actual.buffers.at(name)), 1e-12)
        << what << ": @" << name;  // sums reordered in double
  }
}

TEST(Meaning, EveryPassKeepsIt) {
  for (const std::string& text : models()) {
    const State expected = trained(compiled(text, "accumulate"));
    EXPECT_GT(expected.buffers.at("updates").data[0], 1) << "the windows must have made updates";
    for (const passes::Pass& pass : passes::all_passes()) {
      if (pass.needs && *pass.needs < Phase::accumulated) continue;
      const Module module = compiled(text, std::string(pass.name));
      expect_same(expected, trained(module), fmt::format("{} after {}", module.name, pass.name));
    }
  }
}

TEST(Meaning, CleanUpsKeepItInEveryPhase) {
  for (const std::string& text : models()) {
    const State expected = trained(compiled(text, "accumulate"));
    Module module = parse(text);
    run_passes(module, {"expand", "cse", "fold",
                        "dce"});  // fold before autodiff, expand before it: the gradient of the parts
    run_passes(module, {"autodiff", "cse", "fold", "dce", "accumulate", "dce", "cse", "fold", "loss-scale",
                        "half-casts", "expand", "fuse", "recompute", "plan-memory"});
    const State actual = trained(module);
    for (const auto& [name, tensor] : expected.buffers) {
      EXPECT_LT(largest_difference(tensor, actual.buffers.at(name)), 1e-9) << module.name << ": @" << name;
    }
  }
}

TEST(Meaning, CompilingTwiceGivesTheSameText) {
  for (const std::string& text : models())
    EXPECT_EQ(print(compiled(text, "all")), print(compiled(text, "all")));
}

TEST(Meaning, APlannedModuleReadsBack) {
  for (const std::string& text : models()) {
    const std::string planned = print(compiled(text, "all"));
    EXPECT_EQ(print(parse(planned)), planned);
  }
}

TEST(Meaning, NoPassLeavesValuesWithoutAnOp) {
  for (const passes::Pass& pass : passes::all_passes()) {
    const Module module = compiled(mlp(), std::string(pass.name));
    for (const RegionKind kind : all_regions) {
      size_t made = module.region(kind).inputs.size();
      for (const Op& op : module.region(kind).ops) made += op.results.size();
      EXPECT_EQ(module.region(kind).values.size(), made) << pass.name << ", " << region_text(kind);
    }
  }
}

// Random straight-line modules: pointwise ops, row and column reductions and reshapes over [B,4], in any
// order.
std::string random_module(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::vector<std::string> full = {"%x"}, row, column = {"@w"};
  std::string body;
  for (int i = 0; i < 25; ++i) {
    const std::string a = full[below(full.size())], b = full[below(full.size())],
                      name = fmt::format("%v{}", i);
    switch (below(8)) {
      case 0:
        body += fmt::format("{} = add {}, {} : f32[B,4]\n", name, a, b), full.push_back(name);
        break;
      case 1:
        body += fmt::format("{} = sub {}, {} : f32[B,4]\n", name, a, b), full.push_back(name);
        break;
      case 2:
        body += fmt::format("{} = tanh {} : f32[B,4]\n", name, a), full.push_back(name);
        break;
      case 3:
        body += fmt::format("{} = row_max {} : f32[B,1]\n", name, a), row.push_back(name);
        break;
      case 4:
        body += fmt::format("{} = mul {}, {} : f32[B,4]\n", name, a, column[below(column.size())]),
            full.push_back(name);
        break;
      case 5:
        body += fmt::format(
            "{0}.f = reshape {1} : f32[B,2,2] {{shape = [-1, 2, 2]}}\n{0}.t = tanh {0}.f : f32[B,2,2]\n{0} = "
            "reshape {0}.t : f32[B,4] {{shape = [-1, 4]}}\n",
            name, a),
            full.push_back(name);
        break;
      case 6:
        if (row.empty()) break;
        body += fmt::format("{} = sub {}, {} : f32[B,4]\n", name, a, row[below(row.size())]),
            full.push_back(name);
        break;
      case 7:
        body += fmt::format("{} = matmul {}, @m : f32[B,4]\n", name, a), full.push_back(name);
        break;
    }
  }
  for (size_t i = full.size(); i-- > 0 && i + 3 > full.size();)
    body += fmt::format("column_sum.acc @out{}, {}\n", full.size() - i, full[i]);
  body += fmt::format("%sum = total_sum {} : f32[]\ntotal_sum.acc @total, {}\n%unused = tanh %sum : f32[]\n",
                      full.back(), full[full.size() / 2]);
  return fmt::format(
      "module @random phase(accumulated) {{\nset train.micro_batch = 6\nparam @w : f32[4]\nparam @m : "
      "f32[4,4]\n"
      "accum @out1 : f32[4]\naccum @out2 : f32[4]\naccum @total : f32[]\nstep(%x : f32[B,4]) {{\n{}}}\n}}\n",
      body);
}

TEST(Meaning, RandomModulesSurvive) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const std::string text = random_module(seed);
    const Module before = parse(text);
    Module after = before;
    run_passes(after, {"loss-scale", "half-casts", "expand", "fold", "cse", "dce", "fuse", "recompute",
                       "plan-memory"});
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n" << text;
    State expected = random_state(before, seed), actual = expected;
    for (const int64_t batch : {6, 1}) {
      const Tensors inputs = random_inputs(before, RegionKind::step, batch, seed);
      evaluate(before, RegionKind::step, batch, inputs, expected);
      evaluate(after, RegionKind::step, batch, inputs, actual);
    }
    expect_same(expected, actual, fmt::format("seed {}", seed));
    const passes::MemoryReport report = passes::memory_report(after);
    EXPECT_LE(report.lower_bound, report.peak) << "seed " << seed;
    EXPECT_LE(report.peak, report.lower_bound * 5 / 4) << "seed " << seed << ": a plan far from the bound";
  }
}

TEST(Meaning, LargeSumsAreSplitAndStayTheSame) {
  const std::string text =
      "module @big phase(half) {\nset train.micro_batch = 96\nparam @w : f32[300,50]\naccum @sum : "
      "f32[]\naccum @n : i32[]\naccum @s : f32[]\n"
      "step(%x : f32[B,100]) {\n%t = tanh %x : f32[B,100]\ntotal_sum.acc @sum, %t\n%one = ones_like %x : "
      "i32[B,100]\ntotal_sum.acc @n, %one\n"
      "%q = square @w : f32[300,50]\n%all = total_sum %q : f32[]\nadd.acc @s, %all\n}\n}\n";
  const Module before = parse(text);
  Module after = before;
  run_passes(after, {"fuse", "recompute", "plan-memory"});
  EXPECT_NE(print(after).find("parts = 3"), std::string::npos)
      << print(after);  // 15,000 elements at 4,096 a part
  for (const int64_t batch : {96, 95, 40, 1}) {
    State expected = random_state(before, 3), actual = expected;
    const Tensors inputs = random_inputs(before, RegionKind::step, batch, 4);
    evaluate(before, RegionKind::step, batch, inputs, expected);
    evaluate(after, RegionKind::step, batch, inputs, actual);
    expect_same(expected, actual, fmt::format("batch {}", batch));
    EXPECT_EQ(actual.buffers.at("n").data[0], static_cast<double>(batch * 100));
  }
}

}  // namespace
}  // namespace gacc::test
