// See merge_plan.h.
#include "codegen/merge_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "codegen/launches.h"
#include "codegen/nvptx.h"
#include "ir/cost.h"

namespace gacc::codegen {

std::vector<int> launch_levels(const ir::Module& module, const ir::Region& region,
                               const std::vector<Call>& calls, const std::vector<Epilogue>& epilogues) {
  std::vector<Touched> all;
  for (const Call& call : calls) all.push_back(touched(module, region, call.kernel));
  const auto is_launch = [&](size_t i) { return calls[i].kernel.form != ir::KernelForm::alias; };
  std::vector<int> level(calls.size(), 0);  // of each call
  for (const Epilogue& epilogue : epilogues) {
    const Touched& kernel = all[epilogue.kernel];
    Touched& product = all[epilogue.product];
    product.reads.insert(product.reads.end(), kernel.reads.begin(), kernel.reads.end());
    product.writes.insert(product.writes.end(), kernel.writes.begin(), kernel.writes.end());
    level[epilogue.kernel] = kInItsProduct;
  }
  std::vector<int> levels;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!is_launch(i)) continue;
    for (size_t e = 0; e < i && level[i] != kInItsProduct; ++e)
      if (is_launch(e) && level[e] >= level[i] && conflict(all[e], all[i])) level[i] = level[e] + 1;
    levels.push_back(level[i]);
  }
  return levels;
}

LaunchMode launch_mode(const ir::Module& module) {
  const std::string mode = module.setting("launch.mode", "auto");
  if (mode == "graph") return {};
  if (mode == "persistent") return {.persistent = true, .required = true, .update = true};
  const ir::Cost cost = ir::cost(module, module.step);
  int64_t bytes = 0, kernels = 0;
  for (const ir::Kernel& kernel : ir::kernels(module, module.step)) {
    if (kernel.form == ir::KernelForm::alias) continue;
    ++kernels;
    for (const auto* operands : {&kernel.reads, &kernel.writes}) {
      for (const ir::Operand& operand : *operands)
        bytes += ir::type_bytes(ir::operand_type(module, module.step, operand), module.micro_batch());
    }
  }
  const bool small =
      bytes <= kSmallStepBytes && cost.flops <= kSmallStepFlops && kernels <= kSmallStepKernels;
  const auto updates = static_cast<int64_t>(ir::kernels(module, module.update).size());
  return {.persistent = small, .update = updates <= kSmallUpdateKernels};
}

PlanLaunch merged_launch(const MergeRequest& request, const std::vector<PlanLaunch>& launches) {
  constexpr int64_t kThreads = 256;  // of the block, at least
  PlanLaunch merged;
  merged.kernel = request.name;
  merged.arguments = {{PlanArgument::Kind::address, 0}, {PlanArgument::Kind::extent, 0, 1, true}};
  merged.block = kThreads;
  merged.resident = true;
  merged.cooperative = request.phases.size() > 1;
  std::set<int64_t> touches;
  for (const std::vector<size_t>& phase : request.phases) {
    for (const size_t i : phase) {
      const PlanLaunch& launch = launches[i];
      const bool product = launch.kernel.empty();
      merged.block = std::max(merged.block, product ? launch.builtin.block : launch.block);
      for (const PlanArgument& argument : product ? builtin_arguments(launch) : launch.arguments)
        if (argument.kind == PlanArgument::Kind::address) touches.insert(argument.offset);
    }
  }
  merged.touches.assign(touches.begin(), touches.end());
  return merged;
}

namespace {

// "mul_adam_fill_14" -> "mul_adam_fill"
std::string without_number(const std::string& entry) { return entry.substr(0, entry.rfind('_')); }

// A whole program as one kernel, in phases. `levels`: its launch_levels, at least one.
MergeRequest one_kernel(const ir::Module& module, const PlanProgram& program,
                        const std::vector<int>& levels) {
  MergeRequest request{program.name + "_persistent", {}, module.micro_batch()};
  for (size_t i = 0; i < levels.size(); ++i) {
    if (levels[i] == kInItsProduct) continue;
    const auto level = static_cast<size_t>(levels[i]);
    if (request.phases.size() <= level) request.phases.resize(level + 1);
    request.phases[level].push_back(i);
  }
  return request;
}

void merge_update(const ir::Module& module, DeviceCode& code, const Merge& merge) {
  PlanProgram& update = code.programs[static_cast<size_t>(ir::RegionKind::update)];
  std::vector<PlanLaunch>& launches = update.launches;
  const std::vector<int> levels =
      launch_levels(module, module.update, code.program.calls(ir::RegionKind::update));
  const int count = levels.empty() ? 0 : *std::max_element(levels.begin(), levels.end()) + 1;
  std::string reason;  // why some cannot be merged: then they stay as they are
  if (count > 1 && launch_mode(module).update)
    update.persistent = merge(one_kernel(module, update, levels), launches, reason);
  std::vector<PlanLaunch> merged;
  for (int level = 0; level < count; ++level) {
    MergeRequest request{"", {{}}, module.micro_batch()};
    for (size_t i = 0; i < launches.size(); ++i) {
      if (levels[i] == level) request.phases[0].push_back(i);
    }
    const std::vector<size_t>& together = request.phases[0];
    const PlanLaunch& first = launches[together.front()];
    request.name = fmt::format("update_{}_{}", level, without_number(first.kernel));
    const bool kernels =
        std::none_of(together.begin(), together.end(), [&](size_t i) { return launches[i].kernel.empty(); });
    std::optional<PlanLaunch> one;
    if (together.size() > 1 && kernels) one = merge(request, launches, reason);
    if (one) {
      merged.push_back(std::move(*one));
    } else {
      for (const size_t i : together) merged.push_back(launches[i]);
    }
  }
  launches = std::move(merged);
}

// The whole of `step` as one kernel, where launch.mode wants it.
bool make_persistent(const ir::Module& module, DeviceCode& code, const Merge& merge, std::string& problem) {
  const LaunchMode mode = launch_mode(module);
  PlanProgram& step = code.programs[static_cast<size_t>(ir::RegionKind::step)];
  if (!mode.persistent || step.launches.empty()) return true;
  const std::vector<int> levels = launch_levels(module, module.step, code.program.calls(ir::RegionKind::step),
                                                code.epilogues[static_cast<size_t>(ir::RegionKind::step)]);
  step.persistent = merge(one_kernel(module, step, levels), step.launches, problem);
  step.persistent_required = mode.required;
  return step.persistent || !mode.required;
}

}  // namespace

bool merge_programs(const ir::Module& module, DeviceCode& code, const Merge& merge, std::string& problem) {
  merge_update(module, code, merge);
  return make_persistent(module, code, merge, problem);
}

}  // namespace gacc::codegen
