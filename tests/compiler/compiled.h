// Model files compiled to their scheduled IR.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "frontend/frontend.h"
#include "passes/pipeline.h"

namespace gacc::test {

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
