// The pass manager: phases, printing, stopping, timing, unknown names.
#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;
using passes::PipelineOptions;
using passes::run_pipeline;

TEST(Pipeline, PassesAreInPhaseOrder) {
  Phase phase = Phase::model;
  for (const passes::Pass& pass : passes::all_passes()) {
    if (pass.needs) {
      EXPECT_EQ(*pass.needs, phase) << pass.name;
    }
    if (pass.gives) phase = *pass.gives;
    EXPECT_EQ(passes::find_pass(pass.name), &pass);
    EXPECT_FALSE(pass.summary.empty());
  }
  EXPECT_EQ(phase, Phase::scheduled);
  EXPECT_EQ(passes::find_pass("nothing"), nullptr);
}

TEST(Pipeline, AWrongPhaseIsSaid) {
  const auto report = [](const std::string& text, const std::vector<std::string>& names) {
    Module module = parse(text);
    Diag diag;
    const auto result = run_pipeline(module, {.passes = names}, diag);
    EXPECT_FALSE(result);
    EXPECT_EQ(result.internal_error, "");
    return diag.render();
  };
  EXPECT_NE(report(mlp(), {"fuse"})
                .find("pass `fuse` needs a module in phase `half`, this one is in phase `model`"),
            std::string::npos);
  EXPECT_NE(report(print(compiled(mlp(), "fuse")), {"cse"})
                .find("pass `cse` runs before `fuse`, this module is in phase `fused`"),
            std::string::npos);
}

TEST(Pipeline, StopsWhereAsked) {
  const auto phase_after = [](const std::string& stop) {
    Module module = parse(mlp());
    Diag diag;
    EXPECT_TRUE(run_pipeline(module, {.stop_after = stop}, diag));
    return module.phase;
  };
  EXPECT_EQ(phase_after("accumulate"), Phase::accumulated);
  EXPECT_EQ(phase_after("model"), Phase::model);
  EXPECT_EQ(phase_after("plan-memory"), Phase::planned);
  EXPECT_EQ(phase_after(""), Phase::scheduled);
}

TEST(Pipeline, PrintsAfterPassesAndTimes) {
  Module module = parse(mlp());
  Diag diag;
  std::vector<std::string> texts;
  PipelineOptions options{.print_after = {"loss-scale", "dce"},
                          .time_passes = true,
                          .sink = [&](std::string_view text) { texts.emplace_back(text); }};
  ASSERT_TRUE(run_pipeline(module, options, diag));
  ASSERT_EQ(texts.size(), 3U);
  EXPECT_EQ(texts[0].rfind("// ----- after loss-scale: phase scaled, ", 0), 0U) << texts[0];
  EXPECT_EQ(texts[1].rfind("// ----- after dce: phase half, ", 0), 0U) << texts[1];
  EXPECT_NE(texts[0].find("module @mlp"), std::string::npos);
  EXPECT_NE(texts[2].find("plan-memory"), std::string::npos);
  EXPECT_NE(texts[2].find("total"), std::string::npos);

  Module again = compiled(mlp(), "dce");
  texts.clear();
  ASSERT_TRUE(
      run_pipeline(again, {.passes = {"dce", "cse"}, .print_after = {"all"}, .sink = options.sink}, diag));
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_NE(texts[0].find("(+0) (unchanged)\n"), std::string::npos) << texts[0];
  EXPECT_EQ(texts[0].find("module"), std::string::npos);
}

TEST(Pipeline, UnknownNamesAreSaidWithTheNearest) {
  EXPECT_EQ(
      passes::unknown_pass({.passes = {"fold", "dce"}, .print_after = {"all", "fuse"}, .stop_after = "cse"}),
      "");
  EXPECT_EQ(passes::unknown_pass({.passes = {"fuze"}}).rfind("there is no pass `fuze`", 0), 0U);
  EXPECT_NE(passes::unknown_pass({.passes = {"fuze"}}).find("fuse"), std::string::npos);
  EXPECT_NE(passes::unknown_pass({.print_after = {"nil"}}), "");
  EXPECT_NE(passes::unknown_pass({.stop_after = "nil"}), "");
  EXPECT_EQ(passes::unknown_pass({.stop_after = "model"}), "");
}

TEST(Pipeline, AModelThatTrainsNothingIsAnError) {
  Module module = parse(
      "module @m phase(model) {\nparam @w : f32[2] frozen\nstep(%x : f32[B,2]) {\n%y = mul %x, @w : "
      "f32[B,2]\n%loss = total_sum %y : f32[]\n"
      "%ones = ones_like %y : i32[B,2]\n%count = total_sum %ones : i32[]\nyield loss %loss, count "
      "%count\n}\n}\n");
  Diag diag;
  EXPECT_FALSE(run_pipeline(module, {}, diag));
  ASSERT_EQ(diag.reports().size(), 1U);
  EXPECT_EQ(diag.reports()[0].kind, Kind::no_gradient);
}

TEST(Pipeline, MarkdownAndTextNameEveryPass) {
  for (const passes::Pass& pass : passes::all_passes()) {
    EXPECT_NE(passes::passes_text().find(pass.name), std::string::npos);
    EXPECT_NE(passes::passes_markdown().find(fmt::format("| `{}` |", pass.name)), std::string::npos);
  }
}

}  // namespace
}  // namespace gacc::test
