// Every field of an artifact's plan is compared with its IR, but for those that the IR does not say.
#include "compiler/compare_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "codegen/artifact_ir.h"
#include "codegen/device_code.h"
#include "codegen/plan_writer.h"
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include "passes/pipeline.h"

namespace gacc {
namespace {

using nlohmann::json;

constexpr const char* kModel = R"([model]
name = "m"
metrics = ["accuracy"]
[inputs.tokens]
shape = [3]
dtype = "i32"
[inputs.y]
dtype = "i32"
[inputs.x]
shape = [4]
normalize = { mean = 0.5, std = 2 }
[[layers]]
type = "embedding"
name = "wte"
vocab = 9
features = 4
[[layers]]
type = "flatten"
name = "flat"
[[layers]]
type = "concat"
inputs = ["flat", "x"]
axis = 0
[[layers]]
type = "linear"
name = "fc"
features = 160
activation = "relu"
[[layers]]
type = "batch_norm"
[[layers]]
type = "linear"
features = 5
[loss]
type = "cross_entropy"
target = "y"
[train]
micro_batch = 64
clip_norm = 0.5
[optimizer]
type = "adam"
[schedule]
type = "plateau"
[precision]
on_nonfinite = "skip"
)";

Artifact artifact_of(const std::string& text, std::string_view target = "sm_80") {
  Diag diag("m.toml", text);
  std::optional<ir::Module> module = compile_model(text, "m.toml", {}, diag);
  EXPECT_TRUE(module && !diag.failed()) << diag.render();
  passes::PipelineOptions options;
  options.options.target = target;
  EXPECT_TRUE(module && passes::run_pipeline(*module, options, diag)) << diag.render();
  const std::optional<codegen::DeviceCode> code = codegen::emit_nvptx(*module, target, diag);
  EXPECT_TRUE(code) << diag.render();
  Artifact artifact{write_plan(*module, {std::string(target), {"a", "b"}, {}}),
                    ir::print(ir::unscheduled(*module)), code->ptx};
  artifact.plan.programs = code->programs;
  artifact.plan.bytes.peak = artifact.plan.arena_bytes;
  return artifact;
}

// What gacc-exec says of an artifact `f` before it launches anything on a GPU.
Status compared(const Artifact& artifact) {
  ir::Module module;
  Status status = read_ir(artifact.ir, module);
  if (status) status = compare_plan(module, artifact, "f");
  return status ? compare_programs(module, artifact, "f") : status;
}

// The places of all numbers, words and flags, by their path without indices: "/buffers//offset".
void leaves(const json& value, const json::json_pointer& at, const std::string& kind,
            std::map<std::string, std::vector<json::json_pointer>>& found) {
  if (!value.is_structured()) found[kind].push_back(at);
  if (value.is_object())
    for (const auto& [key, entry] : value.items()) leaves(entry, at / key, kind + "/" + key, found);
  if (value.is_array())
    for (size_t i = 0; i < value.size(); ++i) leaves(value[i], at / i, kind + "/", found);
}

json other(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_float()) return value.get<double>() * 2 + 1;
  if (value.is_number()) return value.get<int64_t>() + 256;
  return value.get<std::string>() == "f32" ? "f16" : "f32";
}

TEST(ComparePlan, EveryFieldOfThePlanIsCompared) {
  Artifact artifact = artifact_of(kModel);
  ASSERT_EQ(compared(artifact).text(), "");
  const json good = to_json(artifact.plan);
  std::map<std::string, std::vector<json::json_pointer>> kinds;
  leaves(good, json::json_pointer(), "", kinds);
  EXPECT_GT(kinds.size(), 80u);
  std::set<std::string> free;
  for (const auto& [kind, places] : kinds) {
    for (const json::json_pointer& place : {places.front(), places.back()}) {
      json changed = good;
      changed[place] = other(good[place]);
      if (!from_json(changed, artifact.plan)) continue;
      const std::string text = compared(artifact).text();
      if (text.empty()) free.insert(kind);
      const std::string section = kind.substr(1, kind.find('/', 1) - 1);  // "buffers"
      EXPECT_TRUE(text.empty() || text.starts_with("f: plan: " + section)) << place << ": " << text;
    }
  }
  const std::set<std::string> expected = {"/bytes/activations",
                                          "/bytes/gradients",
                                          "/bytes/half_weights",
                                          "/bytes/inputs",
                                          "/bytes/lower_bound",
                                          "/bytes/optimizer",
                                          "/bytes/weights",
                                          "/bytes/workspace",
                                          "/passes/",
                                          "/programs//persistent/grid/extent"};
  EXPECT_EQ(free, expected);
}

// Of the launches the grids of merged ones alone: all blocks take turns at the same work.
TEST(ComparePlan, GridsOfMergedKernelsAreFree) {
  Artifact artifact = artifact_of(kModel);
  int free = 0, bound = 0;
  for (PlanProgram& program : artifact.plan.programs) {
    for (PlanLaunch& launch : program.launches) {
      if (launch.kernel.empty()) continue;
      const PlanArgument grid = launch.grid;
      ++launch.grid.extent;
      const bool fits = compared(artifact).ok();
      EXPECT_EQ(fits, launch.resident) << launch.kernel;
      ++(fits ? free : bound);
      launch.grid.extent = 0;
      EXPECT_FALSE(compared(artifact).ok()) << launch.kernel;
      launch.grid = grid;
    }
  }
  EXPECT_GT(free, 0);
  EXPECT_GT(bound, 0);
}

// A library's bias and workspace may be left out, and merged kernels for those that they are made of.
TEST(ComparePlan, WhatSavesTimeMayBeMissing) {
  Artifact artifact = artifact_of(kModel);
  int missing = 0;
  for (PlanProgram& program : artifact.plan.programs) {
    missing += program.persistent.has_value();
    program.persistent.reset();
    for (PlanLaunch& launch : program.launches) {
      missing += launch.bias.has_value() + launch.workspace.has_value();
      launch.bias.reset();
      launch.workspace.reset();
    }
  }
  EXPECT_GT(missing, 2);
  EXPECT_EQ(compared(artifact).text(), "");
  artifact.plan.programs[1].launches.pop_back();
  EXPECT_TRUE(compared(artifact).text().starts_with("f: plan: programs[1].launches of step has "));
}

// What a reader makes of the text of an IR is what the compiler had.
TEST(ComparePlan, TakesWhatTheCompilerWrites) {
  for (const char* launch : {"graph", "persistent"})
    for (const char* target : {"sm_75", "sm_90"}) {
      const std::string text =
          std::string(kModel) + "compute = \"f16\"\n[launch]\nmode = \"" + launch + "\"\n";
      EXPECT_EQ(compared(artifact_of(text, target)).text(), "") << launch << " " << target;
    }
}

TEST(ComparePlan, NamesWhatIsWrongWithTheRest) {
  const Artifact good = artifact_of(kModel);
  Artifact artifact = good;
  artifact.ir.resize(artifact.ir.size() / 2);
  EXPECT_TRUE(compared(artifact).text().starts_with("the artifact's IR is not sound:"));
  artifact = good;
  artifact.ptx = ".version 7.0\n.target sm_75\n";
  EXPECT_TRUE(
      compared(artifact).text().starts_with("f: plan: target is \"sm_80\"; the PTX is for \"sm_75\"; "));
  artifact.ptx = "";
  EXPECT_FALSE(compared(artifact).ok());
  // Plan and IR agree on a range that the table does not have.
  artifact = good;
  const std::string range = "inputs.tokens.range = 9";
  artifact.ir.replace(artifact.ir.find(range), range.size(), "inputs.tokens.range = 10");
  artifact.plan.inputs[0].range = 10;
  const std::string text = compared(artifact).text();
  EXPECT_NE(text.find("R17: input `%tokens` has a range of 10; `embedding` takes one of 1 to 9"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace gacc
