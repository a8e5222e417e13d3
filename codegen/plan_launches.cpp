#include "codegen/plan_launches.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "ir/dependence.h"
#include "ir/host_state.h"
#include "ir/liveness.h"
#include "ir/product.h"
#include "ir/region_facts.h"
#include "kernels/select.h"

namespace gacc {

namespace {

// Constants lifted out of a body travel among the extents as their 32 bits; the plan carries no negative
// extents.
PlanArgument argument(const ir::Extent& extent) {
  PlanArgument result{PlanArgument::Kind::extent};
  result.extent = extent.factor < 0 ? extent.factor & 0xffffffff : extent.factor;
  result.times_batch = extent.times_batch;
  return result;
}

class Writer {
 public:
  Writer(const ir::Module& module, const ir::Region& region, const kernels::ModuleKernels& program)
      : module_(module),
        region_(region),
        program_(program),
        gpu_(module.target),
        schedule_(*region.schedule),
        facts_(ir::facts(module, region)) {
    for (const ir::CallSite* call : ir::calls(schedule_)) by_kernel_[call->kernel] = call;
  }

  PlanProgram program() const {
    PlanProgram program{std::string(ir::region_text(region_.kind)), {}};
    std::map<int32_t, int64_t> line;        // of a kernel's own launch
    std::map<std::string, int64_t> phases;  // of a merged kernel: its launches so far
    for (const ir::Launch& launch : schedule_.launches) {
      for (const ir::CallSite* call : ir::calls(launch))
        line[call->kernel] = static_cast<int64_t>(program.launches.size());
      PlanLaunch& written = program.launches.emplace_back();
      if (const ir::CallSite* call = std::get_if<ir::CallSite>(&launch)) {
        written = own(*call);
      } else {
        const ir::Merged& merged = std::get<ir::Merged>(launch);
        written = several(merged.function, merged.block, merged.blocks, {ir::parts(merged)});
        written.arguments.push_back({PlanArgument::Kind::extent, 0, phases[merged.function]++, false});
      }
      written.stream = ir::branch(launch).stream;
      for (const int32_t kernel : ir::branch(launch).after) written.after.push_back(line.at(kernel));
    }
    for (const ir::CallSite* call : ir::calls(schedule_)) {
      const ir::ProductCall* product = ir::as_product(*call);
      if (product == nullptr) continue;
      PlanLaunch& launch = program.launches[line.at(call->kernel)];
      if (product->then) launch.builtin.does = line.at(product->then->kernel);
      if (product->bias)
        launch.bias = PlanBias{*module_[product->bias->vector].offset, line.at(product->bias->kernel)};
    }
    if (!line.empty()) program.values = values(line);
    if (const auto section = ir::section_of_launches(region_))
      program.section =
          PlanSection{ir::arena_offset(module_, region_, section->flag).value(),
                      static_cast<int64_t>(section->first), static_cast<int64_t>(section->last)};
    if (schedule_.persistent) {
      const ir::Persistent& persistent = *schedule_.persistent;
      program.persistent =
          several(persistent.function, persistent.block, persistent.blocks, ir::by_level(schedule_));
      program.persistent_required = persistent.required;
      std::map<int32_t, int64_t> level;
      for (const ir::CallSite* call : ir::calls(schedule_)) {
        if (!call->level) continue;
        level[call->kernel] = *call->level;
        const ir::ProductCall* product = ir::as_product(*call);
        if (product != nullptr && product->then) level[product->then->kernel] = *call->level;
      }
      program.persistent_values = values(level);
    }
    touch(program);
    return program;
  }

  std::vector<PlanTask> phase(const std::vector<const ir::CallSite*>& calls, int64_t block) const {
    std::vector<PlanTask> tasks;
    for (const ir::CallSite* call : calls) tasks.push_back(task(*call, block));
    return tasks;
  }

 private:
  // The values that have a place in the arena, and when they live. `times`: when each kernel runs.
  std::vector<PlanValue> values(const std::map<int32_t, int64_t>& times) const {
    std::vector<int> each;  // -1: a reshape
    std::vector<ir::Kernel> kernels;
    for (const kernels::BodyCall& call : program_.calls(region_.kind)) {
      const auto time = times.find(call.kernel.number);
      each.push_back(time == times.end() ? -1 : static_cast<int>(time->second));
      kernels.push_back(call.kernel);
    }
    std::vector<PlanValue> values;
    size_t number = 0;
    for (const ir::LiveRange& range : ir::live_ranges(module_, region_, kernels, each)) {
      const bool input = number++ < region_.inputs.size();
      const std::optional<int64_t> offset = region_[range.value].offset;
      if (!offset || range.bytes <= 0) continue;
      const PlanValue value{*offset, range.bytes, input ? -1 : range.first,
                            range.last + (stays(range.value) ? 1 : 0)};
      // A result in place of another value keeps some of its bytes: of rows the zeros between them, which a library
      // reads (ir::rounded_extents), of a cache the earlier positions.
      const bool updates = std::ranges::any_of(region_.ops, [&](const ir::Op& op) {
        return op.info->in_place && op.results.front() == range.value;
      });
      const auto before = region_[range.value].type.pitch == 0 && !updates
                              ? values.end()
                              : std::ranges::find_if(values, [&](const PlanValue& other) {
                                  return other.offset == value.offset && other.bytes == value.bytes &&
                                         other.last == value.first;
                                });
      if (before == values.end())
        values.push_back(value);
      else
        before->last = value.last;
    }
    for (const ir::SlotRange& slot : ir::slot_ranges(module_, kernels, each))
      values.push_back({*module_[slot.buffer].offset, slot.bytes, slot.first, slot.last});
    return values;
  }

  // Notes the buffers that the program works with.
  void touch(PlanProgram& program) const {
    std::set<ir::BufferId> writes, reads;
    for (const kernels::BodyCall& call : program_.calls(region_.kind)) {
      for (const ir::Operand& operand : call.kernel.writes)
        if (const ir::BufferId* buffer = ir::as_buffer(operand)) writes.insert(*buffer);
      for (const ir::Operand& operand : call.kernel.reads)
        if (const ir::BufferId* buffer = ir::as_buffer(operand)) reads.insert(*buffer);
    }
    for (std::set<ir::BufferId>* set : {&writes, &reads}) {
      std::set<ir::BufferId> known;  // to the runtime: no parts, but what they are of, and no slots
      for (const ir::BufferId buffer : *set)
        if (module_[buffer].role != ir::BufferRole::slot)
          known.insert(module_[buffer].role == ir::BufferRole::part ? ir::storage_of(module_, buffer)
                                                                    : buffer);
      *set = std::move(known);
    }
    const auto by_offset = [&](const std::set<ir::BufferId>& set, std::vector<int64_t>& to) {
      for (const ir::BufferId buffer : set) to.push_back(buffer.index);
      std::ranges::sort(to, {}, [&](int64_t i) { return module_.buffers[i].offset; });
    };
    by_offset(writes, program.writes);
    for (const ir::BufferId buffer : writes) reads.erase(buffer);
    by_offset(reads, program.reads);
  }

  // Returns true if a later run reads it.
  bool stays(ir::ValueId value) const {
    const bool measured = region_.kind == ir::RegionKind::predict && !module_.measure.ops.empty();
    return std::ranges::any_of(region_.yields, [&](const ir::Yield& yield) {
      return (yield.role == ir::YieldRole::rows || measured) &&
             facts_->root(yield.what) == ir::Operand(value);
    });
  }

  PlanArgument address(const ir::Operand& operand) const {
    return {PlanArgument::Kind::address, ir::arena_offset(module_, region_, operand).value()};
  }

  PlanLaunch own(const ir::CallSite& call) const {
    PlanLaunch launch;
    if (const ir::ProductCall* product = ir::as_product(call)) {
      write_product(call, *product, launch);
      return launch;
    }
    if (const ir::CopyCall* copy = ir::as_copy(call)) {
      launch.copy = PlanCopy{address(copy->to).offset, address(copy->from).offset, copy->bytes};
      return launch;
    }
    const ir::KernelCall& kernel = *ir::as_kernel(call);
    launch.kernel = kernel.function;
    for (const ir::Operand& operand : kernel.operands) launch.arguments.push_back(address(operand));
    for (const ir::Extent& extent : kernel.extents) launch.arguments.push_back(argument(extent));
    launch.block = kernel.block;
    launch.grid = argument(kernel.items);
    launch.per_block = kernel.per_block;
    return launch;
  }

  void write_product(const ir::CallSite& call, const ir::ProductCall& product, PlanLaunch& launch) const {
    const kernels::GemmKernel kernel = kernels::built_in(module_, region_, call, program_, gpu_);
    launch.a = address(product.a).offset;
    launch.b = address(product.b).offset;
    launch.c = address(product.c).offset;
    launch.m = argument(product.m), launch.n = argument(product.n), launch.k = argument(product.k);
    if (product.pitch) {
      const auto& [a, b, c] = *product.pitch;
      launch.pitch = {argument(a), argument(b), argument(c)};
    }
    const ir::Kernel& multiply = facts_->kernels[facts_->numbers[call.kernel]];
    const ir::Rounded rounded =
        ir::rounded_extents(module_, region_, *facts_, region_.ops[multiply.members.front().op]);
    launch.rounded = {rounded.m, rounded.n, rounded.k};
    launch.transpose_a = kernel.transpose_a;
    launch.transpose_b = kernel.transpose_b;
    launch.accumulate = kernel.accumulate;
    launch.type = static_cast<DType>(kernel.type);  // one list
    launch.result = static_cast<DType>(kernel.result);
    launch.builtin = {kernel.name(), product.block, product.tile_m, product.tile_n};
    if (product.workspace)
      launch.workspace = PlanWorkspace{product.workspace->offset, product.workspace->size};
    if (!product.then) return;
    // As the entry takes them (codegen/gpu/product.h): addresses of the kernel and of the product, and so their
    // extents.
    const std::vector<PlanArgument> first = own(*by_kernel_.at(product.then->kernel)).arguments;
    const std::vector<PlanArgument> second = builtin_arguments(launch);
    for (const PlanArgument::Kind kind : {PlanArgument::Kind::address, PlanArgument::Kind::extent})
      for (const auto* arguments : {&first, &second})
        std::copy_if(arguments->begin(), arguments->end(), std::back_inserter(launch.builtin.arguments),
                     [&](const PlanArgument& argument) { return argument.kind == kind; });
  }

  PlanLaunch several(const std::string& function, int64_t block, int64_t blocks,
                     const std::vector<std::vector<const ir::CallSite*>>& levels) const {
    PlanLaunch launch;
    launch.kernel = function;
    launch.arguments = {{PlanArgument::Kind::address, 0}, {PlanArgument::Kind::extent, 0, 1, true}};
    launch.block = block;
    launch.grid.extent = blocks;
    launch.resident = true;
    launch.cooperative = levels.size() > 1;
    std::set<int64_t> touches;
    for (const std::vector<const ir::CallSite*>& level : levels)
      for (const ir::CallSite* call : level)
        for (const PlanArgument& argument : task(*call, block).arguments)
          if (argument.kind == PlanArgument::Kind::address) touches.insert(argument.offset);
    launch.touches.assign(touches.begin(), touches.end());
    return launch;
  }

  PlanTask task(const ir::CallSite& call, int64_t block) const {
    const PlanLaunch launch = own(call);
    const auto count = [](const PlanArgument& a, int64_t by) {
      return PlanTask::Count{a.extent, by, a.times_batch};
    };
    PlanTask task;
    if (ir::as_kernel(call) != nullptr) {
      task = {launch.kernel, launch.arguments, count(launch.grid, launch.per_block), {}};
    } else {
      task = {launch.builtin.kernel, builtin_arguments(launch), count(launch.m, launch.builtin.tile_m),
              count(launch.n, launch.builtin.tile_n)};
    }
    task.threads = ir::threads(call);
    task.places = ir::places(call, block);
    task.shared = ir::shared_bytes(call);
    return task;
  }

  const ir::Module& module_;
  const ir::Region& region_;
  const kernels::ModuleKernels& program_;
  const kernels::GpuTarget gpu_;
  const ir::Schedule& schedule_;
  const ir::Facts facts_;
  std::map<int32_t, const ir::CallSite*> by_kernel_;
};

}  // namespace

std::vector<PlanProgram> plan_programs(const ir::Module& module, const kernels::ModuleKernels& program) {
  std::vector<PlanProgram> programs;
  for (const ir::RegionKind kind : ir::all_regions) {
    const ir::Region& region = module.region(kind);
    // One lane, predictions as a whole, ranks that share no state.
    if (kind >= ir::RegionKind::close && !region.schedule) continue;
    programs.push_back(region.schedule ? Writer(module, region, program).program()
                                       : PlanProgram{std::string(ir::region_text(kind)), {}});
  }
  return programs;
}

std::vector<PlanMerged> plan_merged(const ir::Module& module, const kernels::ModuleKernels& program) {
  std::vector<PlanMerged> all;
  for (const ir::Region* region :
       {&module.update, &module.step, &module.close, &module.norms, &module.ratios, &module.clear}) {
    if (!region->schedule) continue;
    const Writer writer(module, *region, program);
    if (const auto& persistent = region->schedule->persistent) {
      PlanMerged& merged = all.emplace_back(PlanMerged{persistent->function, persistent->block, true, {}});
      for (const std::vector<const ir::CallSite*>& level : ir::by_level(*region->schedule))
        merged.phases.push_back(writer.phase(level, persistent->block));
    }
    const size_t own = all.size();  // where the region's launches begin
    for (const ir::Launch& launch : region->schedule->launches) {
      const ir::Merged* merged = std::get_if<ir::Merged>(&launch);
      if (merged == nullptr) continue;
      auto found = std::find_if(all.begin() + static_cast<std::ptrdiff_t>(own), all.end(),
                                [&](const PlanMerged& one) { return one.name == merged->function; });
      if (found == all.end())
        found = all.insert(found, PlanMerged{merged->function, merged->block, false, {}});
      found->phases.push_back(writer.phase(ir::parts(*merged), merged->block));
    }
  }
  return all;
}

}  // namespace gacc
