// See compare_plan.h.
#include "codegen/compare_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "codegen/artifact_plan.h"
#include "codegen/merge_plan.h"
#include "codegen/plan_writer.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace gacc {

namespace {

using nlohmann::json;

std::string text(const json& value) {
  constexpr size_t kMost = 60;
  std::string all = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return all.size() <= kMost ? all : all.substr(0, kMost) + "...";
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

// The launch of the plan that has this entry.
const PlanLaunch* find_launch(const Plan& plan, std::string_view kernel) {
  for (const PlanProgram& program : plan.programs) {
    if (program.persistent && program.persistent->kernel == kernel) return &*program.persistent;
    for (const PlanLaunch& launch : program.launches)
      if (launch.kernel == kernel) return &launch;
  }
  return nullptr;
}

// The programs that the module needs, with all that `plan` may leave out and does.
bool write_programs(const ir::Module& module, const Plan& plan, Plan& wanted, std::string& problem) {
  const int capability = codegen::capability(plan.target);
  std::optional<codegen::Program> program =
      codegen::make_program(module, codegen::Purpose::device, problem, capability);
  if (!program) return false;
  codegen::DeviceCode code;
  code.program = std::move(*program);
  if (!choose_kernels(module, capability, code, problem) || !add_programs(module, code, wanted, problem))
    return false;
  code.programs = std::move(wanted.programs);
  const codegen::Merge merge = [&](const auto& request, const auto& launches, std::string& why) {
    const PlanLaunch* found = find_launch(plan, request.name);
    std::optional<PlanLaunch> merged;
    if (found == nullptr) {
      why = fmt::format("there is no launch of {}", request.name);
      return merged;
    }
    merged = merged_launch(request, launches);
    merged->grid.extent = std::max<int64_t>(found->grid.extent, 1);
    return merged;
  };
  if (!codegen::merge_programs(module, code, merge, problem)) return false;
  wanted.programs = std::move(code.programs);
  for (size_t p = 0; p < std::min(plan.programs.size(), wanted.programs.size()); ++p) {
    const std::vector<PlanLaunch>& given = plan.programs[p].launches;
    std::vector<PlanLaunch>& launches = wanted.programs[p].launches;
    for (size_t i = 0; i < std::min(given.size(), launches.size()); ++i) {
      if (!given[i].bias) launches[i].bias.reset();
      if (!given[i].workspace) launches[i].workspace.reset();
    }
  }
  return true;
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

Status read_ir(std::string_view text, ir::Module& module) {
  Diag diag("artifact", std::string(text));
  std::optional<ir::Module> parsed = ir::parse(text, diag);
  if (!parsed || !ir::verify(*parsed, diag))
    return Status::error("the artifact's IR is not sound:\n" + diag.render());
  if (parsed->phase != ir::Phase::planned) return Status::error("the artifact's IR has no memory plan");
  module = std::move(*parsed);
  return {};
}

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
  Plan wanted;
  std::string found;
  wanted.target = artifact.plan.target;
  if (write_programs(module, artifact.plan, wanted, found))
    found = difference(to_json(artifact.plan)["programs"], to_json(wanted)["programs"], "programs", "");
  return found.empty() ? Status() : wrong(name, found);
}

}  // namespace gacc
