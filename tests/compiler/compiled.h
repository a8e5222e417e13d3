// Model files, and what they are compiled to: scheduled IR.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "frontend/frontend.h"
#include "passes/pipeline.h"

namespace gacc::test {

// Returns a model file: the input x of `shape`, `layers`, and the cross-entropy with y, classes of the shape
// `targets`. `optimizer` is TOML, and `train`, behind which other tables may stand.
inline std::string classifier(const std::string& shape, const std::string& layers,
                              const std::string& optimizer, const std::string& train,
                              const std::string& targets = "", int classes = 7) {
  return fmt::format(R"([model]
name = "m"
seed = 3
[inputs.x]
shape = [{}]
[inputs.y]
shape = [{}]
dtype = "i32"
range = {}
{}
[loss]
type = "cross_entropy"
target = "y"
[optimizer]
{}
[train]
{}
)",
                     shape, targets, classes, layers, optimizer, train);
}
// Returns TOML of a layer.
inline std::string layer(const std::string& type, const std::string& keys = "") {
  return "[[layers]]\ntype = \"" + type + "\"\n" + keys + "\n";
}
inline std::string linear(int features, const std::string& keys = "") {
  return layer("linear", fmt::format("features = {}\n{}", features, keys));
}

inline ir::Module compiled(const std::string& text, const std::vector<Override>& sets = {},
                           const std::string& target = "sm_80") {
  Diag diag("m.toml", text);
  std::optional<ir::Module> module = compile_model(text, "m.toml", sets, diag);
  EXPECT_TRUE(module && !diag.failed()) << diag.render();
  if (!module) return {};
  passes::PipelineOptions pipeline;
  pipeline.options.target = target;
  const passes::PipelineResult result = passes::run_pipeline(*module, pipeline, diag);
  EXPECT_TRUE(result) << diag.render() << result.internal_error;
  return std::move(*module);
}

}  // namespace gacc::test
