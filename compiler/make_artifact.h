// From a scheduled module to the text of an artifact.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "codegen/plan_writer.h"
#include "ir/diag.h"

namespace gacc {

// What the plan says that the module does not: target, passes and bytes by category.
PlanFacts plan_facts(const ir::Module& module, const std::string& target);

// The model file that an artifact carries, for --verify to compile variants from; may be empty.
struct ModelRecord {
  std::string text{};
  std::vector<std::string> overrides{};  // "train.micro_batch=8"
};

struct Compiled {
  std::string artifact, llvm_ir;
};
// Machine code for the schedules of `module`, with its plan. Nothing and a diagnostic when code generation
// fails, which is a bug.
std::optional<Compiled> make_artifact(const ir::Module& module, const Plan& plan, const ModelRecord& record,
                                      Diag& diag);

}  // namespace gacc
