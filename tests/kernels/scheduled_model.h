// A model file, compiled to a schedule for a GPU, with what code generation makes of it.
#pragma once
#include <string>
#include <vector>

#include "frontend/frontend.h"
#include "ir/module.h"
#include "kernels/program.h"

namespace gacc {

struct ScheduledModel {
  ir::Module module;
  kernels::ModuleKernels program;
};

// Of a file in the source tree, "examples/gpt2_124m.toml". Failures are test failures.
ScheduledModel schedule_model(const std::string& path, const std::vector<Override>& overrides,
                              const std::string& target);

// "gelu_tanh" of "gelu_tanh_43": names end in a number that changes with the model.
std::string stem(const std::string& name);

}  // namespace gacc
