// See compare_plan.h.
#include "compiler/compare_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "codegen/artifact_ir.h"
#include "codegen/plan_launches.h"
#include "codegen/plan_writer.h"
#include "kernels/gemm.h"
#include "passes/analysis/check_plan.h"
#include "passes/schedule/schedule.h"

namespace gacc {

namespace {

using nlohmann::json;

std::string text(const json& value) {
  constexpr size_t kMostCharacters = 60;
  const std::string all = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return all.size() <= kMostCharacters ? all : all.substr(0, kMostCharacters) + "...";
}

// The first place in which `plan` differs from what the `ir` says; "" when they are equal. `at`: the path of
// both, "buffers[3].offset"; `of`: the name of the innermost entry of a list around it, " of fc1.weight".
std::string difference(const json& plan, const json& ir, const std::string& at, std::string of) {
  if (plan == ir) return "";
  if (plan.is_object() && ir.is_object()) {
    for (const char* key : {"name", "kernel"})
      if (ir.contains(key)) of = fmt::format(" of {}", ir[key].get<std::string>());
    const std::string dot = at.empty() ? "" : at + ".";
    for (const auto& [key, value] : ir.items()) {
      if (!plan.contains(key))
        return fmt::format("{}{}{} is missing; the IR says {}", dot, key, of, text(value));
      if (std::string found = difference(plan[key], value, dot + key, of); !found.empty()) return found;
    }
    for (const auto& [key, value] : plan.items())
      if (!ir.contains(key))
        return fmt::format("{}{}{} is {}; the IR says nothing of it", dot, key, of, text(value));
  }
  if (plan.is_array() && ir.is_array()) {
    if (plan.size() != ir.size())
      return fmt::format("{}{} has {} entries; the IR says {}", at, of, plan.size(), ir.size());
    for (size_t i = 0; i < ir.size(); ++i)
      if (std::string found = difference(plan[i], ir[i], fmt::format("{}[{}]", at, i), of); !found.empty())
        return found;
  }
  return fmt::format("{}{} is {}; the IR says {}", at, of, text(plan), text(ir));
}

// Leaves out of a schedule what the plan leaves out and may: launches that are several, and what only a
// library does. The grid of a kernel that does several may be any.
void adopt(const PlanProgram& program, ir::Schedule& schedule) {
  std::vector<ir::Launch> launches;
  for (ir::Launch& launch : schedule.launches) {
    if (ir::Merged* merged = std::get_if<ir::Merged>(&launch)) {
      const size_t line = launches.size();
      if (line >= program.launches.size() || program.launches[line].kernel != merged->function) {
        ir::Branch branch = merged->branch;
        for (ir::Call& part : merged->parts) {
          part.branch = std::exchange(branch, {branch.stream, {}});
          launches.emplace_back(std::move(part));
        }
        continue;
      }
      merged->blocks = std::max<int64_t>(program.launches[line].grid.extent, 1);
    }
    launches.push_back(std::move(launch));
  }
  schedule.launches = std::move(launches);
  if (std::optional<ir::Persistent>& persistent = schedule.persistent) {
    const bool found = program.persistent && program.persistent->kernel == persistent->function;
    if (found) persistent->blocks = std::max<int64_t>(program.persistent->grid.extent, 1);
    if (!found && !persistent->required) persistent.reset();
  }
  for (size_t i = 0; i < std::min(program.launches.size(), schedule.launches.size()); ++i) {
    ir::Call* call = std::get_if<ir::Call>(&schedule.launches[i]);
    ir::ProductCall* product = call != nullptr ? std::get_if<ir::ProductCall>(&call->what) : nullptr;
    if (product == nullptr) continue;
    if (!program.launches[i].bias) product->bias.reset();
    if (!program.launches[i].workspace) product->workspace.reset();
  }
}

// The programs that the module needs, with all that `plan` may leave out and does.
Result<Plan> write_programs(ir::Module module, const Plan& plan) {
  Diag diag;
  std::string problem;
  const std::optional<kernels::Program> program =
      kernels::make_program(module, kernels::Purpose::device, problem, kernels::GpuTarget(plan.target));
  if (!program) return Status::error(problem);
  if (!passes::schedule(module, plan.target, diag)) return Status::error(diag.render());
  for (const ir::RegionKind kind : ir::all_regions) {
    std::optional<ir::Schedule>& schedule = module.region(kind).schedule;
    const auto of_kind = std::ranges::find(plan.programs, ir::region_text(kind), &PlanProgram::name);
    if (schedule && of_kind != plan.programs.end()) adopt(*of_kind, *schedule);
  }
  Plan wanted;
  wanted.programs = plan_programs(module, *program);
  return wanted;
}

// What the PTX's `.target` names: the GPU that its kernels were chosen for.
std::string_view target_of(std::string_view ptx) {
  constexpr std::string_view kDirective = "\n.target ";
  const size_t at = ptx.find(kDirective);
  if (at == std::string_view::npos) return "";
  ptx.remove_prefix(at + kDirective.size());
  return ptx.substr(0, ptx.find_first_of(", \t\r\n"));
}

Status wrong(std::string_view name, std::string_view what) {
  return Status::error(
      "{}: plan: {}; the artifact was altered, or is of another version of gacc: compile the model again",
      name, what);
}

}  // namespace

Status compare_plan(const ir::Module& module, const Artifact& artifact, std::string_view name) {
  const Plan& plan = artifact.plan;
  if (const std::string_view target = target_of(artifact.ptx); plan.target != target)
    return wrong(name, fmt::format("target is {}; the PTX is for {}", text(plan.target), text(target)));
  Plan wanted = write_plan(module, {plan.target, plan.passes, plan.bytes});
  wanted.bytes.peak = wanted.arena_bytes;
  json given = to_json(plan), right = to_json(wanted);
  for (json* each : {&given, &right}) each->erase("programs");
  const std::string found = difference(given, right, "", "");
  return found.empty() ? Status() : wrong(name, found);
}

Status compare_programs(const ir::Module& module, const Artifact& artifact, std::string_view name) {
  const Result<Plan> wanted = write_programs(module, artifact.plan);
  if (!wanted) return wrong(name, wanted.status().text());
  const std::string found =
      difference(to_json(artifact.plan)["programs"], to_json(*wanted)["programs"], "programs", "");
  return found.empty() ? Status() : wrong(name, found);
}

Result<ir::Module> check_artifact(const Artifact& artifact, const std::string& name) {
  ir::Module module;
  if (const Status status = read_ir(artifact.ir, module); !status)
    return Status::error("{}: {}", name, status.text());
  if (const std::string problem = passes::check_plan(module); !problem.empty())
    return Status::error("{}: the artifact's IR has a wrong memory plan: {}", name, problem);
  GACC_TRY(compare_plan(module, artifact, name));
  return module;
}

}  // namespace gacc
