#include "tests/kernels/rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/region_facts.h"
#include "ir/schedule/schedule.h"

namespace gacc {

namespace {

using kernels::LaunchCost;
using kernels::Machine;
using kernels::Terms;
using kernels::Work;

constexpr double kLarge = 1e6;         // bytes that a launch must move for C1, C3's loads, C4, C11 ...
constexpr double kLong = 1e-6;         // ... and seconds at the rate of a copy for rules about time
constexpr double kSerialLoads = 4096;  // of one thread
constexpr double kWide = 0.9;          // of the bytes, in accesses of 16
constexpr double kLargeProduct = 1e9;  // FLOPs
constexpr double kGrowth = 2.5;        // at twice the samples

class Rules {
 public:
  Rules(const ScheduledModel& model, const Machine& machine)
      : module_(model.module),
        program_(model.program),
        machine_(machine),
        costs_(kernels::region_cost(module_, module_.step, program_, machine)) {}

  std::vector<Break> run(const ScheduledModel& doubled) {
    const auto calls = ir::calls(*module_.step.schedule);
    size_t call = 0;
    for (const LaunchCost& launch : costs_.launches) {
      launch_ = &launch;
      for (const Work& work : launch.works) {
        if (work.product) {
          product(work);
        } else {
          kernel(work, *calls[call]);
        }
        ++call;
      }
      if (launch.works.size() > 1) blocks(launch.bytes, launch.blocks);
    }
    growth(doubled);
    persistent();
    elementwise();
    return std::move(found_);
  }

 private:
  void add(std::string rule, std::string why) {
    found_.push_back({std::move(rule), stem(launch_->name), launch_->name + ": " + std::move(why)});
  }

  void blocks(double moved, int64_t blocks) {
    if (moved >= kLarge && 2 * blocks < machine_.sms)
      add("C1", fmt::format("{} blocks for {} SMs", blocks, machine_.sms));
  }

  void kernel(const Work& work, const ir::CallSite& call) {
    if (work.moved < kLarge) return;
    const Terms t = kernels::terms(machine_, work);
    blocks(work.moved, work.blocks);
    if (work.serial_loads > kSerialLoads)
      add("C3", fmt::format("a thread has {:.0f} loads, one after the other", work.serial_loads));
    wide(work, call);
    if (work.attention || work.moved / machine_.copy < kLong) return;  // attention's tiles come by cp.async
    // Bytes on the way that saturate the memory; data in the cache are nearer.
    const double in_l2 = work.in_l2();
    const double wait = in_l2 * machine_.l2_wait + (1 - in_l2) * machine_.memory_wait,
                 need = machine_.copy * wait;
    const auto slots = static_cast<double>(machine_.sms * kernels::resident_blocks(machine_, work));
    const double flight =
        std::min(static_cast<double>(work.blocks), slots) * static_cast<double>(work.threads) * work.flight;
    const double computing = std::max({t.issue, t.multiply, t.function});
    if (2 * flight < need && computing < t.memory)
      add("C2", fmt::format("{:.0f} kB on the way, {:.0f} saturate the memory", flight / 1e3, need / 1e3));
    if (t.chain > 2 * std::max({t.memory, t.l2, computing}))
      add("C3", fmt::format("{:.1f} us in the longest chain, {:.1f} for the bytes", 1e6 * t.chain,
                            1e6 * std::max(t.memory, t.l2)));
    const double moving = work.moved / machine_.copy;
    if (static_cast<double>(work.blocks) > 0.3 * machine_.clock * moving)
      add("C5", fmt::format("{} blocks for {:.1f} us of bytes", work.blocks, 1e6 * moving));
    const double issuing =
        work.instructions / 32 / (Machine::kIssued * static_cast<double>(machine_.sms) * machine_.clock);
    if (issuing > 2 * moving)
      add("C6", fmt::format("{:.1f} instructions a byte", work.instructions / work.moved));
  }

  // Rows of a kernel of formulas that begin at multiples of 16 bytes.
  void wide(const Work& work, const ir::CallSite& call) {
    const kernels::BodyCall& from = program_.call(ir::RegionKind::step, call.kernel);
    const kernels::Body& body = program_.functions[static_cast<size_t>(from.function)];
    if (body.form == ir::KernelForm::handwritten || from.extents[1].factor % 8 != 0) return;
    const double share = (work.loads.bytes.back() + work.stores.bytes.back()) / work.transferred();
    if (share < kWide) add("C4", fmt::format("{:.0f} % of its bytes move in accesses of 16", 100 * share));
  }

  void product(const Work& work) {
    const kernels::ProductWork& p = *work.product;
    const double flops =
        2.0 * static_cast<double>(p.count * p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    if (flops < kLargeProduct) return;
    if (p.tensor_cores && p.leading < 16)
      add("C7", fmt::format("a leading dimension is a multiple of {} bytes only", p.leading));
    if (2 * work.blocks < machine_.sms)
      add("C8", fmt::format("{} tiles for {} SMs", work.blocks, machine_.sms));
  }

  void growth(const ScheduledModel& doubled) {
    const kernels::RegionCost twice =
        kernels::region_cost(doubled.module, doubled.module.step, doubled.program, machine_);
    if (twice.launches.size() != costs_.launches.size()) return;  // cut into more parts
    for (size_t i = 0; i < costs_.launches.size(); ++i) {
      launch_ = &costs_.launches[i];
      if (twice.launches[i].works.size() != launch_->works.size()) continue;  // other kernels are merged
      for (size_t part = 0; part < launch_->works.size(); ++part)
        growth(launch_->works[part], twice.launches[i].works[part]);
    }
  }

  void growth(const Work& one, const Work& two) {
    if (one.moved < kLarge || one.product || one.attention) return;
    const double bytes = two.transferred() / one.transferred(),
                 instructions = one.instructions > 0 ? two.instructions / one.instructions : 0;
    if (std::max(bytes, instructions) > kGrowth)
      add("C9", fmt::format("{:.1f} times the bytes, {:.1f} times the instructions at twice the samples",
                            bytes, instructions));
  }

  void persistent() {
    if (!costs_.persistent) return;
    const auto levels = static_cast<double>(ir::by_level(*module_.step.schedule).size());
    static const LaunchCost step{.name = "step_persistent"};
    launch_ = &step;
    if (levels * machine_.barrier > 0.5 * costs_.seconds)
      add("C10", fmt::format("{} barriers in {:.1f} us", levels, 1e6 * costs_.seconds));
    if (levels > static_cast<double>(costs_.launches.size())) add("C10", "more phases than launches");
  }

  // A large value that an elementwise kernel writes for one other kernel, which could compute it. What the
  // forward pass keeps for the backward pass is kept on purpose.
  void elementwise() {
    const ir::Region& region = module_.step;
    const ir::Facts facts = ir::facts(module_, region);
    const std::vector<ir::Kernel>& kernels = facts->kernels;
    const size_t backward = loss_kernel(kernels);
    const auto formulas = [](const ir::Kernel& kernel) {
      return kernel.form == ir::KernelForm::pointwise || kernel.form == ir::KernelForm::rowwise ||
             kernel.form == ir::KernelForm::column_reduce || kernel.form == ir::KernelForm::total_reduce;
    };
    for (size_t k = 0; k < kernels.size(); ++k) {
      if (kernels[k].form != ir::KernelForm::pointwise) continue;
      for (const ir::Operand& written : kernels[k].writes) {
        if (ir::as_value(written) == nullptr) continue;
        const auto bytes = static_cast<double>(
            ir::type_bytes(ir::operand_type(module_, region, written), module_.micro_batch()));
        const ir::Readers readers = facts->readers(region, k, written);
        if (bytes < kLarge || !readers.first || readers.others || !formulas(kernels[*readers.first]))
          continue;
        if (k < backward && backward < *readers.first) continue;
        const kernels::BodyCall& call = program_.call(region.kind, kernels[k].number);
        const LaunchCost one{.name = program_.functions[static_cast<size_t>(call.function)].name};
        launch_ = &one;
        add("C11", fmt::format("writes {:.1f} MB for one kernel", bytes / 1e6));
      }
    }
  }

  // Where the loss is complete: what is written before it and read behind it is kept for the backward pass.
  size_t loss_kernel(const std::vector<ir::Kernel>& kernels) const {
    const std::optional<ir::BufferId> loss = module_.find_buffer("loss.sum");
    if (!loss) return 0;
    const auto writes = [&](const ir::Kernel& kernel) {
      return std::find(kernel.writes.begin(), kernel.writes.end(), ir::Operand(*loss)) != kernel.writes.end();
    };
    return static_cast<size_t>(std::find_if(kernels.begin(), kernels.end(), writes) - kernels.begin());
  }

  const ir::Module& module_;
  const kernels::ModuleKernels& program_;
  const Machine& machine_;
  kernels::RegionCost costs_;
  const LaunchCost* launch_ = nullptr;
  std::vector<Break> found_;
};

}  // namespace

std::vector<Break> broken_rules(const ScheduledModel& model, const ScheduledModel& doubled,
                                const Machine& machine) {
  return Rules(model, machine).run(doubled);
}

}  // namespace gacc
