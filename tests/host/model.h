// A small planned module for the tests of this folder, from a model file's text.
#pragma once
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "frontend/frontend.h"
#include "passes/pipeline.h"

namespace gacc {

inline std::string small_model(const std::string& loss = "cross_entropy") {
  return R"([model]
name = "small"
seed = 3
)" + std::string(loss == "cross_entropy" ? "metrics = [\"accuracy\"]\n" : "") +
         R"([inputs.x]
shape = [20]
)" + (loss == "cross_entropy" ? "[inputs.y]\ndtype = \"i32\"\nrange = 7\n" : "[inputs.y]\nshape = [7]\n") +
         R"([[layers]]
type = "linear"
name = "fc1"
features = 24
activation = "gelu"
[[layers]]
type = "layer_norm"
name = "ln"
[[layers]]
type = "linear"
name = "fc2"
features = 7
[loss]
type = ")" +
         loss + R"("
target = "y"
[train]
micro_batch = 6
accumulate = 3
[optimizer]
type = "adam"
lr = 1e-2
)";
}

inline std::optional<ir::Module> planned(const std::string& text) {
  Diag diag("small.toml", text);
  std::optional<ir::Module> module = compile_model(text, "small.toml", {}, diag);
  EXPECT_TRUE(module) << diag.render();
  if (!module) return module;
  const passes::PipelineResult result = passes::run_pipeline(*module, {}, diag);
  EXPECT_TRUE(result.ok) << result.internal_error << diag.render();
  if (!result.ok) module.reset();
  return module;
}

}  // namespace gacc
