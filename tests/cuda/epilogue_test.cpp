// Built-in products that do the pointwise kernel behind them, against both as launches of their own, in the
// emulator: the same bits in every buffer, and no report.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cuda/emulated_steps.h"

namespace gacc::test {
namespace {

using Epilogues = EmulatedSteps;

// `body`: the layers in front of a linear layer of 7 classes, of which `targets` are predicted.
std::string model(const std::string& shape, const std::string& body, const std::string& more = "",
                  const std::string& targets = "") {
  return classifier(shape, body + linear(7), "type = \"adam\"", kTwoLaunches + more, targets);
}

const std::string kGraph = "[launch]\nmode = \"graph\"\n";

// The built-in kernels with an epilogue of a program.
std::vector<std::string> epilogues(const Artifact& artifact, std::string_view name) {
  std::vector<std::string> kernels;
  for (const PlanLaunch& launch : program(artifact, name).launches)
    if (!launch.builtin.arguments.empty()) kernels.push_back(launch.builtin.kernel);
  return kernels;
}

struct Case {
  std::string what, shape, body;
  std::vector<std::string> in_step;  // how the names of products with an epilogue end, without the number
};

// Rows that can be moved in runs of four and others, a result that is needed elsewhere, operands of every
// access, and functions over the elements alone. The last product's kernel is the loss, row by row.
const Case kCases[] = {
    {"bias and activation",
     "20",
     linear(24, "activation = \"relu\"") + linear(33, "activation = \"gelu\""),
     {"_add_relu", "_add_gelu", "_gelu_grad", "_relu_grad"}},
    {"activation alone", "20", linear(24, "bias = false\nactivation = \"tanh\""), {"_tanh", "_tanh_grad"}},
    {"kept for the gradient",
     "20",
     linear(24, "bias = false\nactivation = \"silu\""),
     {"_c_silu", "_silu_grad"}},
    {"residual",
     "5, 12",
     layer("residual") + "[[layers.layers]]\ntype = \"linear\"\nfeatures = 12\n" + layer("flatten"),
     {"_add_add"}},
    {"a row of its own for every position",
     "5, 12",
     linear(6) + layer("position_embedding") + layer("flatten"),
     {"_add_add"}},
};

TEST_F(Epilogues, HaveTheBitsOfTheirLaunches) {
  options_.gemm = GemmChoice::builtin;
  for (const Case& one : kCases) {
    for (const std::string dtype : {"f32", "f16", "bf16"}) {
      const std::string text =
          model(one.shape, one.body, kGraph + "[precision]\ncompute = \"" + dtype + "\"\nloss_scale = 64\n");
      const ir::Module module = compiled(text);
      const std::string target = dtype == "bf16" ? "sm_75" : "sm_80";  // there by multiply-adds
      const Artifact apart = artifact_of(module, false, target), merged = artifact_of(module, true, target);
      EXPECT_TRUE(epilogues(apart, "step").empty());
      const std::vector<std::string> found = epilogues(merged, "step");
      const bool as_expected = std::equal(found.begin(), found.end(), one.in_step.begin(), one.in_step.end(),
                                          [](const std::string& name, const std::string& end) {
                                            return name.substr(0, name.rfind('_')).ends_with(end);
                                          });
      EXPECT_TRUE(as_expected) << one.what << " " << dtype << ": " << testing::PrintToString(found);
      EXPECT_TRUE(run(apart) == run(merged)) << one.what << " " << dtype;
    }
  }
}

// A product's kernel stays a launch of its own where it costs too much for each element (dropout's numbers),
// is no function of the elements (layer_norm), or adds to a buffer (every gradient of a weight).
TEST_F(Epilogues, AreNotForEveryKernel) {
  for (const std::string& after : {layer("dropout", "p = 0.5"), layer("layer_norm")}) {
    const Artifact merged = artifact_of(compiled(model("20", linear(24) + after, kGraph)), true);
    EXPECT_TRUE(epilogues(merged, "step").empty()) << after;
  }
}

// In a persistent step the kernel is no phase of its own.
TEST_F(Epilogues, ArePartOfAPersistentStep) {
  const std::string body = linear(24, "activation = \"relu\"") + linear(33, "activation = \"gelu\"");
  const ir::Module module = compiled(model("20", body, "[launch]\nmode = \"persistent\"\n"));
  const Artifact merged = artifact_of(module, true);
  ASSERT_TRUE(program(merged, "step").persistent);
  EXPECT_TRUE(run(artifact_of(module, false)) == run(merged));
}

// The largest tiles, forward only: what a product is for takes long in the emulator.
TEST_F(Epilogues, OfLargeTiles) {
  for (const std::string dtype : {"f32", "f16"}) {
    const ir::Module module = compiled(model("160, 8", linear(1280, "activation = \"gelu\""),
                                             kGraph + "[precision]\ncompute = \"" + dtype + "\"\n", "160"));
    const Artifact merged = artifact_of(module, true);
    const std::vector<std::string> found = epilogues(merged, "eval");
    ASSERT_EQ(found.size(), 1U);
    EXPECT_NE(found[0].find("_128x128_add_gelu"), std::string::npos) << found[0];
    EXPECT_TRUE(evaluate(artifact_of(module, false)) == evaluate(merged)) << dtype;
  }
}

}  // namespace
}  // namespace gacc::test
