#include "kernels/launch_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>

#include "ir/cost.h"
#include "ir/host_state.h"
#include "ir/product.h"
#include "ir/region_facts.h"
#include "ir/schedule/launch_order.h"
#include "kernels/gemm.h"
#include "kernels/select.h"
#include "kernels/specialisation.h"

namespace gacc::kernels {

namespace {

using ir::Access;
using ir::KernelForm;
using ir::Lowering;

// Instructions, counted in the PTX of shakespeare_gpt for sm_80: of kernels `add_acc` and `mul_row_sum`.
constexpr double kAccess = 2;     // a load or store: the sum that is its address, and itself
constexpr double kThread = 12;    // a thread beside its accesses: parameters, index, the test against the end
constexpr double kIteration = 4;  // a turn of a loop: the index of its elements, the step, the test, the jump
constexpr double kExchange = 10;  // a reduction over a warp: five exchanges, each with an operation
constexpr double kRow = 20;       // a row, in each thread: its address, first column, lanes onto one sum
// Iterations of a loop that ptxas unrolls, and loads together. A store in the loop keeps the next loads behind it.
// Vectors of a row that is kept in registers have no loop: their loads come together, or four at a time before stores.
constexpr double kUnrolled = 4;

// The work of a body at every element of one of its stages.
struct Stage {
  std::set<int32_t> slots;  // that it loads there
  std::set<int32_t> stored;
  std::set<int32_t> computed;  // members
  int reductions = 0;
  double instructions = 0, functions = 0;  // of an element
};

// The work of a kernel of formulas and reductions.
class FormulaWork {
 public:
  FormulaWork(const Machine& machine, const Body& body, const ir::KernelCall& call,
              const std::vector<double>& bytes, int64_t batch, Work& work)
      : machine_(machine), body_(body), call_(call), bytes_(bytes), batch_(batch), work_(work) {}

  void run() {
    elements_ = call_.extents[0].at(batch_) * call_.extents[1].at(batch_);
    // Threads with work: of a grid that is larger than its items the rest ends at once.
    threads_ = static_cast<double>(call_.items.at(batch_) * call_.block) / call_.per_block;
    const double iterations = std::max(1.0, divided_up(elements_, threads_ * body_.vector));
    held_ = std::min<double>(body_.held, iterations);
    work_.registers += body_.held_registers;
    std::set<int32_t> before;
    const int stages = body_.form == KernelForm::rowwise ? body_.stages : 1;
    for (int number = 0; number < stages; ++number) add(stage(number), iterations, before);
    // Results stored once a row, a column or a part, and loaded to be added to.
    for (size_t i = 0; i < body_.slots.size(); ++i) {
      const Slot& slot = body_.slots[i];
      if (slot.written && !stored_.contains(static_cast<int32_t>(i)))
        work_.stores.add(width(slot), bytes_[i]);
      if (slot.read && !before.contains(static_cast<int32_t>(i))) work_.loads.add(width(slot), bytes_[i]);
    }
    work_.instructions += kThread * threads_;
  }

 private:
  Stage stage(int number) const {
    Stage stage;
    stage.slots = body_.slots_of_stage(number);
    for (size_t m = 0; m < body_.members.size(); ++m) {
      const Member& member = body_.members[m];
      if (member.per_row || body_.stage_of(member) != number) continue;
      if (member.kind != Lowering::pointwise) {
        ++stage.reductions;
        ++stage.instructions;
        need(member.inputs[0], stage);
        continue;
      }
      for (const int32_t slot : member.stores) {
        if (slot < 0) continue;
        need_member(static_cast<int32_t>(m), stage);
        stage.stored.insert(slot);
      }
    }
    return stage;
  }
  void need(const Source& source, Stage& stage) const {
    if (source.from == Source::From::member) need_member(source.index, stage);
  }
  void need_member(int32_t index, Stage& stage) const {
    const Member& member = body_.members[index];
    if (member.kind != Lowering::pointwise || member.per_row || !stage.computed.insert(index).second) return;
    for (size_t n = 0; n < member.program.nodes.size(); ++n) {
      const ScalarCost& cost = scalar_cost(member.program.nodes[n].op);
      const size_t how = member.approximates(n) ? 1 : 0;
      stage.instructions += cost.instructions[how];
      stage.functions += cost.functions[how];
    }
    for (const Source& input : member.inputs) need(input, stage);
  }

  bool along(const Slot& slot) const {
    return slot.access == Access::element || slot.access == Access::suffix;
  }
  int64_t width(const Slot& slot) const {
    const int64_t one = ir::dtype_bytes(slot.dtype);
    return along(slot) ? std::min<int64_t>(16, body_.vector * one) : one;
  }

  // A stage goes over all elements, in `iterations` of its threads. Of a row in registers it loads only what no stage
  // before has loaded, or what is not held.
  void add(const Stage& stage, double iterations, std::set<int32_t>& before) {
    const double others = iterations - held_;
    double loaded = 0, accesses = 0, again = 0, conversions = 0;  // of an iteration of a thread
    bool loads_held = false;
    for (const int32_t i : stage.slots) {
      const Slot& slot = body_.slots[i];
      const int64_t one = ir::dtype_bytes(slot.dtype);
      const double here = along(slot) ? body_.vector * one : one;
      if (along(slot)) {
        loaded += here;
        conversions += ir::is_narrow(slot.dtype) ? 1 : 0;
      }
      const bool fresh = before.insert(i).second;
      const double share = fresh || !along(slot) ? 1 : others / iterations;
      // A row's own value is loaded before the loop over its elements.
      if (along(slot) || body_.form != KernelForm::rowwise) accesses += share * std::ceil(here / 16);
      loads_held = loads_held || (fresh && along(slot) && held_ > 0);
      const double moved = fresh ? bytes_[i] : slot.access == Access::element ? share * bytes_[i] : 0;
      work_.loads.add(width(slot), moved);
      if (!fresh) again += moved;
    }
    double stores = 0;
    for (const int32_t i : stage.stored) {
      const Slot& slot = body_.slots[i];
      stored_.insert(i);
      work_.stores.add(width(slot), bytes_[i]);
      stores += std::ceil(body_.vector * ir::dtype_bytes(slot.dtype) / 16.0);
      conversions += ir::is_narrow(slot.dtype) ? 1 : 0;
    }
    if (fits_cache(again)) work_.cached += again;
    const bool loop = body_.form != KernelForm::pointwise;
    const double each = stage.instructions + conversions;
    const double element = each + (kAccess * (accesses + stores) + (loop ? kIteration : 0)) / body_.vector;
    work_.instructions += element * elements_;
    work_.functions += stage.functions * elements_;
    const bool exchanged = body_.form == KernelForm::rowwise || body_.form == KernelForm::total_reduce;
    if (exchanged) work_.instructions += (kExchange * stage.reductions + kRow) * threads_;
    // Column sums read several rows before they store anything.
    const bool ahead = stage.stored.empty() || body_.form == KernelForm::column_reduce;
    const double together = loop && ahead ? std::min(kUnrolled, iterations) : 1;
    double waits = accesses > 0 ? divided_up(others, together) : 0;
    const double held_together = !loads_held ? 0 : ahead ? held_ : std::min(kUnrolled, held_);
    if (loads_held) waits += divided_up(held_, held_together);
    const double at_once = std::max(others > 0 ? together : 0, held_together);
    if (loaded * at_once > best_) {
      best_ = work_.flight = loaded * at_once;
      work_.chain = each * (body_.form == KernelForm::column_reduce ? together : 1) + kIteration;
    }
    work_.rounds += waits;
    if (loop) work_.serial_loads += iterations * accesses;
  }

  // Returns true if all that blocks at the same time read again is still in the second-level cache.
  bool fits_cache(double again) const {
    const double slots = machine_.sms * resident_blocks(machine_, work_);
    return again * std::min(1.0, slots / work_.blocks) <= machine_.l2_bytes;
  }

  const Machine& machine_;
  const Body& body_;
  const ir::KernelCall& call_;
  const std::vector<double>& bytes_;  // of each slot
  const int64_t batch_;
  Work& work_;
  std::set<int32_t> stored_;
  double elements_ = 0, threads_ = 0, best_ = 0;
  double held_ = 0;  // of a thread's iterations, those whose vectors it keeps
};

ProductWork product_work(const ir::Module& module, const ir::Region& region, const ir::Kernel& product,
                         const ir::CallSite& call, const GpuTarget& gpu) {
  const int64_t batch = module.micro_batch();
  const ir::ProductCall& from = *ir::as_product(call);
  const GemmKernel kernel = choose_gemm(module, region, product, gpu);
  ProductWork p;
  p.m = from.m.at(batch), p.n = from.n.at(batch), p.k = from.k.at(batch);
  p.type_bytes = ir::dtype_bytes(kernel.type);
  const int64_t c = ir::dtype_bytes(kernel.result);
  p.c_bytes = kernel.accumulate ? 2 * c : c;
  p.tensor_cores = kernel.tile->mma();
  const int64_t a_row = from.pitch ? (*from.pitch)[0].at(batch) : kernel.transpose_a ? p.m : p.k;
  const int64_t b_row = from.pitch ? (*from.pitch)[1].at(batch) : kernel.transpose_b ? p.k : p.n;
  const int64_t c_row = from.pitch ? (*from.pitch)[2].at(batch) : p.n;
  const int64_t common = std::gcd(p.type_bytes * std::gcd(a_row, b_row), c_row * c);
  p.leading = std::max<int64_t>(std::gcd(16, common), 2);
  p.tile_m = from.tile_m, p.tile_n = from.tile_n, p.slices = from.slices;
  return p;
}

int64_t flops_of(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel) {
  int64_t flops = 0;
  for (const ir::KernelMember& member : kernel.members)
    flops += ir::cost(ir::OpView{module, region, region.ops[member.op]}).flops;
  return flops;
}

// Work of one launch at the full micro-batch. `from` is the kernel's call, and `body` what that calls, null for a
// product. Of training in an arena of no more bytes than the second-level cache has, all lies there.
Work work_of(const Machine& machine, const ir::Module& module, const ir::Region& region, const BodyCall& from,
             const Body* body, const ir::CallSite& call, const GpuTarget& gpu, int64_t arena) {
  const int64_t batch = module.micro_batch();
  Work work;
  work.blocks = ir::blocks(call, batch);
  work.threads = ir::threads(call);
  work.shared = ir::shared_bytes(call);
  const auto bytes_of = [&](const ir::Operand& operand) {
    return static_cast<double>(ir::type_bytes(ir::operand_type(module, region, operand), batch));
  };
  from.kernel.each_operand([&](const ir::Operand& operand) { work.moved += bytes_of(operand); });
  if (ir::as_product(call) != nullptr) {
    work.product = product_work(module, region, from.kernel, call, gpu);
    return work;
  }
  // A body that asks for so many blocks leaves a thread at most so many registers.
  if (body->resident > 0 && body->held == 0)
    work.registers = Machine::kRegisters / (body->resident * work.threads);
  if (body->form == KernelForm::handwritten) {
    handwritten_work({module, region, region.ops[from.kernel.members.front().op]}, *body, work);
  } else {
    const ir::KernelCall& kernel = *ir::as_kernel(call);
    std::vector<double> bytes;
    std::ranges::transform(kernel.operands, std::back_inserter(bytes), bytes_of);
    FormulaWork(machine, *body, kernel, bytes, batch, work).run();
  }
  if (arena <= machine.l2_bytes) work.cached = work.transferred();
  return work;
}

double copy_seconds(int64_t bytes, double link) { return static_cast<double>(bytes) / link; }

class RegionCosts {
 public:
  RegionCosts(const ir::Module& module, const ir::Region& region, const ModuleKernels& program,
              const Machine& machine, double link)
      : module_(module),
        region_(region),
        program_(program),
        machine_(machine),
        link_(link),
        batch_(module.micro_batch()) {
    cost_.persistent = region.schedule->persistent.has_value();
    for (const auto& level : ir::by_level(*region.schedule)) calls_of_level_.push_back(level.size());
    for (const ir::CallSite* call : ir::calls(*region.schedule)) {
      const ir::ProductCall* product = ir::as_product(*call);
      if (product == nullptr) continue;
      if (product->then) done_by_own_.insert(product->then->kernel);
      if (product->bias) done_by_library_.insert(product->bias->kernel);
    }
  }

  RegionCost run() {
    for (const ir::Launch& launch : region_.schedule->launches) add(launch);
    if (cost_.persistent) {
      // Calls of a level run side by side; a barrier ends it.
      for (const double level : levels_) cost_.seconds += level;
      cost_.seconds += machine_.barrier * levels_.size() + machine_.gap;
    } else if (copies_) {
      cost_.seconds = on_streams(true);
      cost_.uncovered = std::max(0.0, cost_.seconds - on_streams(false));
    } else if (cost_.two_streams) {
      cost_.seconds = on_streams(true);
    } else {
      for (const LaunchCost& launch : cost_.launches) cost_.seconds += launch.seconds;
    }
    for (const LaunchCost& launch : cost_.launches) cost_.floor += launch.floor;
    return std::move(cost_);
  }

 private:
  void add(const ir::Launch& launch) {
    LaunchCost cost;
    longest_ = -1;
    cost.stream = ir::branch(launch).stream;
    if (const ir::CopyCall* copy = ir::as_copy(*ir::calls(launch).front())) {
      copies_ = true;
      const ir::BufferId* to = ir::as_buffer(copy->to);
      const bool in = to == nullptr || !ir::is_on_host(module_, *to);
      cost.name = fmt::format("copy {} {}", in ? "in" : "out", copy->bytes);
      cost.bytes = static_cast<double>(copy->bytes);
      cost.seconds = cost.floor = cost.own = copy_seconds(copy->bytes, link_);
      cost_.launches.push_back(std::move(cost));
      return;
    }
    cost_.two_streams = cost_.two_streams || cost.stream != 0;
    if (const ir::CallSite* call = std::get_if<ir::CallSite>(&launch)) {
      const ir::ProductCall* product = ir::as_product(*call);
      cost.name = product == nullptr ? ir::as_kernel(*call)->function
                                     : fmt::format("product {}x{}x{}", product->m.at(batch_),
                                                   product->n.at(batch_), product->k.at(batch_));
      cost.blocks = ir::blocks(*call, batch_);
      cost.threads = ir::threads(*call);
      add_call(*call, cost);
    } else {
      const ir::Merged& merged = std::get<ir::Merged>(launch);
      cost.name = merged.function;
      cost.blocks = merged.blocks;
      cost.threads = merged.block;
      for (const ir::CallSite& part : merged.parts) add_call(part, cost);
      const bool alike =
          std::ranges::all_of(cost.works, [](const Work& work) { return !work.product && !work.attention; });
      if (alike) cost.seconds = cost.own = side_by_side_seconds(machine_, cost.works);
    }
    // Between launches lies a gap, between levels of one kernel a barrier, which its calls share.
    const double between =
        cost_.persistent ? machine_.barrier * part_of_level(ir::calls(launch)) : machine_.gap;
    if (cost.seconds > 0) {
      if (cost.seconds < between) cost.bound = Bound::launch;
      cost.seconds += between;
    }
    if (cost.own > 0) cost.own += machine_.gap;
    cost_.launches.push_back(std::move(cost));
  }

  // Without copies they take no time.
  double on_streams(bool copies) const {
    const ir::LaunchOrder order(*region_.schedule);
    std::vector<Streamed> all;
    for (size_t i = 0; i < cost_.launches.size(); ++i) {
      const LaunchCost& cost = cost_.launches[i];
      const ir::Launch& launch = region_.schedule->launches[i];
      const bool copy = ir::as_copy(*ir::calls(launch).front()) != nullptr;
      const double gap = cost.seconds > 0 && !copy ? machine_.gap : 0;
      Streamed& out = all.emplace_back(Streamed{gap, cost.seconds - gap, cost.use, cost.stream});
      if (copy && !copies) out.seconds = 0;
      for (const int32_t other : ir::branch(launch).after)
        out.after.push_back(order.launch_of(other).value());
    }
    return streams_seconds(all);
  }

  // Returns the share of a level's calls that are these.
  double part_of_level(const ir::Calls& calls) const {
    const std::optional<int32_t>& level = calls.front()->level;
    return level ? static_cast<double>(calls.size()) / calls_of_level_[*level] : 0;
  }

  void add_call(const ir::CallSite& call, LaunchCost& cost) {
    const BodyCall& from = program_.call(region_.kind, call.kernel);
    const Body* body = from.function < 0 ? nullptr : &program_.functions[from.function];
    const Work work = work_of(machine_, module_, region_, from, body, call, GpuTarget(module_.target),
                              module_.arena_bytes.value_or(0));
    const Estimate library = estimate(machine_, work, Engine::library),
                   own = estimate(machine_, work, Engine::own);
    const Estimate& chosen = cost_.persistent ? own : library;
    const std::set<int32_t>& done = cost_.persistent ? done_by_own_ : done_by_library_;
    if (chosen.seconds > longest_) cost.bound = chosen.bound;
    longest_ = std::max(longest_, chosen.seconds);
    if (!done.contains(call.kernel)) {
      cost.seconds += chosen.seconds;
      cost.floor += chosen.floor;
      cost.use += chosen.use;
      if (cost_.persistent && call.level) {
        const auto level = static_cast<size_t>(*call.level);
        if (levels_.size() <= level) levels_.resize(level + 1);
        levels_[level] = std::max(levels_[level], chosen.seconds);
      }
    }
    if (!done_by_own_.contains(call.kernel)) cost.own += own.seconds;
    cost.bytes += work.moved;
    cost.flops += flops_of(module_, region_, from.kernel);
    cost.works.push_back(work);
  }

  const ir::Module& module_;
  const ir::Region& region_;
  const ModuleKernels& program_;
  const Machine& machine_;
  double link_;
  int64_t batch_;
  bool copies_ = false;
  std::set<int32_t> done_by_own_, done_by_library_;  // kernels that the product before them does
  std::vector<size_t> calls_of_level_;
  std::vector<double> levels_;  // seconds of the longest call
  double longest_ = 0;          // seconds of a call of the launch at hand
  RegionCost cost_;
};

}  // namespace

RegionCost region_cost(const ir::Module& module, const ir::Region& region, const ModuleKernels& program,
                       const Machine& machine, double link) {
  return RegionCosts(module, region, program, machine, link).run();
}

KernelEstimator::KernelEstimator(const ir::Module& module, const ir::Region& region, std::string_view target,
                                 int64_t arena)
    : module_(module),
      region_(region),
      machine_(machine(target)),
      gpu_(target),
      arena_(arena),
      specialiser_(module, region, Purpose::device, gpu_) {}

double KernelEstimator::seconds(const ir::Kernel& kernel) const try {
  if (kernel.form == KernelForm::alias) return 0;
  if (kernel.form == KernelForm::copy) {
    // As many bytes of state come in as go out, both ways at once; weights only come in.
    const ir::Operand& to = kernel.writes.front();
    const double seconds = copy_seconds(ir::type_bytes(ir::operand_type(module_, region_, to), 1), kHostLink);
    return ir::as_value(to) != nullptr ? seconds : seconds / 2;
  }
  const Specialisation made = specialiser_.make(kernel);
  const ir::CallSite call = select_kernel(module_, region_, made.call, &made.body, gpu_);
  const Work work = work_of(machine_, module_, region_, made.call, &made.body, call, gpu_, arena_);
  return estimate(machine_, work, Engine::library).seconds + machine_.gap;
} catch (const Unfit&) {
  return 0;  // `select` refuses it, and says why
}

double KernelEstimator::seconds() const {
  double sum = 0;
  for (const ir::Kernel& kernel : ir::facts(module_, region_)->kernels) sum += seconds(kernel);
  return sum;
}

}  // namespace gacc::kernels
