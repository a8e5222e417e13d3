#include "compiler/open_artifact.h"

#include "codegen/plan_launches.h"
#include "compiler/plan/plan_of.h"
#include "ir/text/text.h"
#include "ir/verify/verify.h"
#include "passes/analysis/check_plan.h"
#include "passes/schedule/launches.h"

namespace gacc {

namespace {

// Returns what the PTX's `.target` names.
std::string_view target_of(std::string_view ptx) {
  constexpr std::string_view kDirective = "\n.target ";
  const size_t at = ptx.find(kDirective);
  if (at == std::string_view::npos) return "";
  ptx.remove_prefix(at + kDirective.size());
  return ptx.substr(0, ptx.find_first_of(", \t\r\n"));
}

}  // namespace

Result<ir::Module> check_artifact(Artifact& artifact, const std::string& name) {
  const auto unsound = [&](std::string_view what) {
    return Status::error("{}: the artifact's IR is not sound: {}", name, what);
  };
  Diag diag("artifact", artifact.ir);
  std::optional<ir::Module> module = ir::parse(artifact.ir, diag);
  if (!module || !ir::verify(*module, diag)) return unsound("\n" + diag.render());
  if (module->phase != ir::Phase::scheduled) return unsound("it has no schedule");
  if (const std::string_view target = target_of(artifact.ptx); module->target != target)
    return unsound(fmt::format("it is for {}, the PTX for {}", module->target, target));
  std::string problem;
  const std::optional<kernels::ModuleKernels> program =
      kernels::make_program(*module, kernels::Purpose::device, problem, kernels::GpuTarget(module->target));
  if (!program) return unsound(problem);
  problem = passes::check_schedule(*module, *program);
  if (!problem.empty()) return unsound(problem);
  problem = passes::check_plan(*module);
  if (!problem.empty()) return unsound("R15: " + problem);
  artifact.plan = plan_of(*module);
  artifact.plan.programs = plan_programs(*module, *program);
  return std::move(*module);
}

Result<Artifact> open_artifact(const std::string& path) {
  Artifact artifact = GACC_TRY(load_artifact(path));
  GACC_TRY(check_artifact(artifact, path).status());
  return artifact;
}

}  // namespace gacc
