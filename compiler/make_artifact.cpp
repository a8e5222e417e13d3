// See make_artifact.h.
#include "compiler/make_artifact.h"

#include "codegen/device_code.h"
#include "ir/text.h"
#include "passes/pass.h"
#include "passes/plan_memory.h"
#include "runtime/artifact.h"

namespace gacc {

PlanFacts plan_facts(const ir::Module& module, const std::string& target) {
  PlanFacts facts;
  facts.target = target;
  for (const passes::Pass& pass : passes::all_passes()) facts.passes.emplace_back(pass.name);
  const passes::MemoryReport report = passes::memory_report(module);
  facts.bytes = {.weights = report.weights,
                 .half_weights = report.half_weights,
                 .gradients = report.gradients,
                 .optimizer = report.optimizer,
                 .activations = report.activations,
                 .workspace = report.workspace,
                 .inputs = report.inputs,
                 .peak = report.peak,
                 .lower_bound = report.lower_bound};
  return facts;
}

std::optional<Compiled> make_artifact(const ir::Module& module, const Plan& plan, const ModelRecord& record,
                                      Diag& diag) {
  std::optional<codegen::DeviceCode> code = codegen::emit_nvptx(module, module.target, diag);
  if (!code) return std::nullopt;
  Artifact artifact{plan, ir::print(ir::unscheduled(module)), std::move(code->ptx), record.text};
  artifact.plan.programs = std::move(code->programs);
  artifact.overrides = record.overrides;
  return Compiled{write_artifact(artifact), std::move(code->llvm_ir)};
}

}  // namespace gacc
