// Pass `launch-mode`: whether the step, and the update, run launch by launch or as one cooperative kernel.
// `launch.mode` asks for one of them. Left to the compiler ("auto"), a step is one kernel where it is small,
// so that it would spend its time waiting for launches and not with arithmetic, and an update where it has few
// kernels. Both must be able to: each kernel has to fit a block that all of them share.
#include "passes/launch_mode.h"

#include <vector>

#include "ir/cost.h"
#include "ir/host_state.h"
#include "ir/region_facts.h"
#include "ir/text/size_text.h"
#include "kernels/machine.h"
#include "kernels/select.h"
#include "kernels/specialisation.h"
#include "passes/pass.h"
#include "passes/schedule/launches.h"

namespace gacc::passes {

namespace {

// A small step moves at most so many bytes, which the second-level cache of a data-centre GPU holds, computes at
// most so much, and has at most so many kernels: of more the one kernel's code grows too large to be worth it.
constexpr int64_t kSmallStepBytes = int64_t{40} << 20, kSmallStepFlops = 500'000'000, kSmallStepKernels = 96;
// The update has many kernels, and small ones. Of more, ptxas spills registers (gpt2_124m in f16 has 347 and did).
constexpr int64_t kSmallUpdateKernels = 300;

// A decision for one region, and its reason.
struct Choice {
  std::string_view mode = kGraphMode;
  std::string because;
};

// Returns "" where the region is a small step, else which limit it exceeds. `text` says how large it is.
std::string too_large_step(const ir::Module& module, std::string& text) {
  int64_t bytes = 0, kernels = 0;
  for (const ir::Kernel& kernel : ir::facts(module, module.step)->kernels) {
    if (kernel.form == ir::KernelForm::alias) continue;
    ++kernels;
    kernel.each_operand([&](const ir::Operand& operand) {
      bytes += ir::type_bytes(ir::operand_type(module, module.step, operand), module.micro_batch());
    });
  }
  const int64_t flops = ir::cost(module, module.step).flops;
  text = fmt::format("{} kernels move {} and compute {} FLOP", kernels, ir::size_text(bytes), flops);
  if (bytes > kSmallStepBytes)
    return fmt::format("{}: it moves more than {}", text, ir::size_text(kSmallStepBytes));
  if (flops > kSmallStepFlops) return fmt::format("{}: it computes more than {} FLOP", text, kSmallStepFlops);
  if (kernels > kSmallStepKernels)
    return fmt::format("{}: it has more than {} kernels", text, kSmallStepKernels);
  return "";
}

std::string too_large_update(const ir::Module& module, std::string& text) {
  const auto kernels = static_cast<int64_t>(ir::facts(module, module.update)->kernels.size());
  text = ir::counted(kernels, "kernel");
  return kernels <= kSmallUpdateKernels ? "" : fmt::format("{}, more than {}", text, kSmallUpdateKernels);
}

// The block that all kernels of a region share, or why there is none.
struct OneKernel {
  int64_t threads = 0;
  std::string why_not{};
};

OneKernel as_one(const ir::Module& module, const ir::Region& region, const Options& options) try {
  const kernels::GpuTarget gpu(options.target);
  const kernels::Specialiser specialiser(module, region, kernels::Purpose::device, gpu);
  std::vector<ir::CallSite> calls;
  for (const ir::Kernel& kernel : ir::facts(module, region)->kernels) {
    if (kernel.form == ir::KernelForm::alias) continue;
    kernels::Specialisation made = specialiser.make(kernel);
    made.body.name = fmt::format("`{}`", region.ops[kernel.members.front().op].info->name);
    calls.push_back(kernels::select_kernel(module, region, made.call, &made.body, gpu));
  }
  ir::Calls all;
  for (const ir::CallSite& call : calls) all.push_back(&call);
  return {ir::merged_block({all}), cannot_share(all, module.micro_batch())};
} catch (const kernels::Unfit& unfit) {
  return {0, unfit.what()};
}

}  // namespace

bool launch_mode(ir::Module& module, const Options& options, Diag& diag) {
  const std::string asked = *module.settings.launch.mode;
  const auto choose = [&](const ir::Region& region, auto too_large) -> Choice {
    if (region.ops.empty()) return {kGraphMode, "it is empty"};
    if (ir::passes_state(region)) return {kGraphMode, "state passes through it from the host"};
    if (ir::fetches(region)) return {kGraphMode, "it fetches weights from the host"};
    if (asked == kGraphMode) return {kGraphMode, "launch.mode asks for it"};
    const bool required = asked == kPersistentMode && region.kind == ir::RegionKind::step;
    std::string because = "launch.mode asks for it";
    if (asked != kPersistentMode)
      if (std::string why = too_large(module, because); !why.empty()) return {kGraphMode, why};
    const auto [threads, why_not] = as_one(module, region, options);
    if (!why_not.empty()) {
      if (required) diag.error(Kind::unsupported, {}, "`launch.mode = \"persistent\"`: {}", why_not);
      return {kGraphMode, why_not};
    }
    if (threads <= kMostSharedThreads) return {kPersistentMode, because};
    const std::string wide =
        fmt::format("blocks of {} threads, with {} registers for each", threads,
                    kernels::Machine::kRegisters / threads);  // a block's threads share a multiprocessor's
    if (!required) return {kGraphMode, fmt::format("one kernel would have {}", wide)};
    diag.warn(Kind::unsupported, {},
              "`launch.mode = \"persistent\"`: the one kernel has {}: what needs more is spilled to memory",
              wide);
    return {kPersistentMode, because};
  };
  const Choice step = choose(module.step, too_large_step), update = choose(module.update, too_large_update);
  module.results.launch_step = std::string(step.mode);
  module.results.launch_update = std::string(update.mode);
  module.results.launch_because = ir::Texts{"step: " + step.because, "update: " + update.because};
  return !diag.failed();
}

}  // namespace gacc::passes
