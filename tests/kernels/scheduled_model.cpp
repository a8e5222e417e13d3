#include "tests/kernels/scheduled_model.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "kernels/gemm.h"
#include "passes/pipeline.h"

namespace gacc {

ScheduledModel schedule_model(const std::string& path, const std::vector<Override>& overrides,
                              const std::string& target) {
  std::ifstream file(GACC_SOURCE "/" + path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  Diag diag(path, text.str());
  std::optional<ir::Module> module = compile_model(text.str(), path, overrides, diag);
  EXPECT_TRUE(module && !diag.failed()) << diag.render();
  if (!module) return {};
  passes::PipelineOptions pipeline;
  pipeline.options.target = target;
  EXPECT_TRUE(passes::run_pipeline(*module, pipeline, diag)) << diag.render();
  std::string problem;
  std::optional<kernels::ModuleKernels> program =
      kernels::make_program(*module, kernels::Purpose::device, problem, kernels::GpuTarget(target));
  EXPECT_TRUE(program) << problem;
  if (!program) return {};
  return {std::move(*module), std::move(*program)};
}

std::string stem(const std::string& name) {
  if (name.starts_with("product ")) return "product";
  const size_t end = name.find_last_not_of("0123456789");
  return end != std::string::npos && name[end] == '_' ? name.substr(0, end) : name;
}

}  // namespace gacc
