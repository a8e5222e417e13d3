// Pass `host-weights`: with memory.host, weights that the step only reads lie in the host's memory: frozen ones, and
// the half copies of trained ones. As few bytes go there as it takes for the step to fit memory.budget. What reads
// one reads a value that `host.fetch` makes of it:
//
//     %w.in = host.fetch @w
//     %y = matmul %x, %w.in
//
// A fetched weight is a value like any other: recompute drops it behind the forward pass and fetches it again in the
// backward pass, plan-memory gives it its place, a little before it is wanted, and the pass `streams` has the copies
// beside the kernels.
//
// 1. May lie there: frozen matrices that init alone writes, and that the update does not read. And half copies of
//    matrices whose state is on the host: their pieces come in, are updated and go out with those of the state.
// 2. Those go first whose kernels take longest for each byte. Of equals every other one goes, then every other one of
//    the rest: so copies are spread over the step.
// 3. How many: the fewest with which the step fits without recompute. A half of them, a quarter and none are weighed,
//    too, with recompute for the rest: what the step then takes at least decides.
// 4. `init` makes one in a slot, and copies it out.
#include "passes/host_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "ir/host_state.h"
#include "ir/region_facts.h"
#include "ir/row_pitch.h"
#include "kernels/launch_work.h"
#include "passes/analysis/rewrite.h"
#include "passes/pass.h"
#include "passes/plan_memory.h"
#include "passes/recompute.h"

namespace gacc::passes {

namespace {

using namespace ir;

constexpr int64_t kLeastBytes = 4096;  // of a weight that is worth a copy
constexpr int kFar = 16;  // kernels between two readers, from which on the weight is fetched twice

using Buffers = std::set<BufferId>;

// Numbers the kernels of a region again, one behind the other. They stand together.
class KernelsInOrder {
 public:
  explicit KernelsInOrder(Region& region) : region_(region), old_(std::exchange(region.ops, {})) {}

  // Calls f(the ops of a kernel, its place) for each kernel in turn; f adds them, and others.
  template <class F>
  void each(F&& f) {
    size_t place = 0;
    for (size_t i = 0; i < old_.size(); ++place) {
      std::vector<Op> kernel;
      for (const int32_t number = old_[i].kernel; i < old_.size() && old_[i].kernel == number; ++i)
        kernel.push_back(std::move(old_[i]));
      f(kernel, static_cast<int>(place));
    }
  }
  void add(std::vector<Op> kernel) {
    for (Op& op : kernel) {
      op.kernel = next_;
      region_.ops.push_back(std::move(op));
    }
    ++next_;
  }

 private:
  Region& region_;
  std::vector<Op> old_;
  int32_t next_ = 0;
};

// `again`: the backward pass fetches for itself, too. Else it reads what the forward pass has fetched last, and
// recompute decides whether that is kept.
void fetch_in(const Module& module, Region& region, const Buffers& hosted, bool again) {
  struct Visit {
    ValueId value{};
    int last = 0;
  };
  std::map<BufferId, Visit> visits;
  KernelsInOrder kernels(region);
  kernels.each([&](std::vector<Op>& kernel, int place) {
    for (Op& op : kernel) {
      for (Operand& operand : op.operands) {
        const BufferId* id = as_buffer(operand);
        if (id == nullptr || !hosted.contains(*id)) continue;
        const auto [visit, fresh] = visits.try_emplace(*id);
        const bool far = place - visit->second.last > kFar && (again || op.origin == Origin::forward);
        if (fresh || far) {
          const Buffer& buffer = module[*id];
          visit->second.value = region.add_value(buffer.name + ".in", buffer.type);
          kernels.add({{.info = &op_host_fetch,
                        .operands = {*id},
                        .results = {visit->second.value},
                        .origin = op.origin,
                        .at = op.at}});
        }
        visit->second.last = place;
        operand = visit->second.value;
      }
    }
    kernels.add(std::move(kernel));
  });
}

// Returns true if the operand is a piece of state that the update has in the arena.
bool is_slot(const Module& module, const Operand& operand) {
  const BufferId* id = as_buffer(operand);
  return id != nullptr && module[*id].role == BufferRole::slot;
}

// The update writes half copies that lie on the host in slots. Such a slot comes in with one of the state that the same
// op updates, and goes out behind its kernel.
void update_in(Module& module, const Buffers& hosted) {
  struct Piece {
    BufferId slot{}, home{};
  };
  std::map<Operand, std::vector<Piece>> beside;   // by a slot of the state
  std::map<int32_t, std::vector<Piece>> made_by;  // by kernel
  std::map<BufferId, int> count;
  for (Op& op : module.update.ops) {
    if (is_copy(op)) continue;
    for (Operand& operand : op.operands) {
      const BufferId* id = as_buffer(operand);
      if (id == nullptr || !hosted.contains(storage_of(module, *id))) continue;
      const BufferId home = *id, whole = storage_of(module, home);
      const Operand state =
          *std::ranges::find_if(op.operands, [&](const Operand& other) { return is_slot(module, other); });
      const BufferId slot =
          module.add_buffer({.name = fmt::format("{}.slot.{}", module[whole].name, count[whole]++),
                             .role = BufferRole::slot,
                             .of = whole,
                             .type = module[home].type});
      operand = slot;
      beside[state].push_back({slot, home});
      made_by[op.kernel].push_back({slot, home});
    }
  }
  if (made_by.empty()) return;
  const Operand flag = section_of_ops(module.update)->flag;
  KernelsInOrder kernels(module.update);
  const auto copy = [&](const OpInfo& info, BufferId to, BufferId from) {
    kernels.add({{.info = &info, .operands = {to, from}, .when = flag, .origin = Origin::update}});
  };
  kernels.each([&](std::vector<Op>& kernel, int) {
    const Op& op = kernel.front();
    std::vector<Piece> in, out = made_by[op.kernel];
    if (op.info == &op_host_in) in = beside[op.operands.front()];
    kernels.add(std::move(kernel));
    for (const Piece& piece : in) copy(op_host_in, piece.slot, piece.home);
    for (const Piece& piece : out) copy(op_host_out, piece.home, piece.slot);
  });
}

void start_in(Module& module, const Buffers& hosted) {
  std::map<BufferId, BufferId> slots;
  KernelsInOrder kernels(module.init);
  kernels.each([&](std::vector<Op>& kernel, int) {
    std::vector<BufferId> made;
    for (Op& op : kernel) {
      for (Operand& operand : op.operands) {
        const BufferId* id = as_buffer(operand);
        if (id == nullptr || !hosted.contains(*id)) continue;
        const BufferId home = *id;
        const auto [slot, fresh] = slots.try_emplace(home);
        if (fresh) {
          slot->second = module.add_buffer({.name = module[home].name + ".slot",
                                            .role = BufferRole::slot,
                                            .of = home,
                                            .type = module[home].type});
          made.push_back(home);
        }
        operand = slot->second;
      }
    }
    kernels.add(std::move(kernel));
    for (const BufferId home : made)
      kernels.add({{.info = &op_host_out, .operands = {home, slots.at(home)}, .origin = Origin::init}});
  });
}

// Puts them there. `apart`: each part of the step that reads one has it for itself, as recompute would have it.
Module with_host(Module module, const Buffers& hosted, bool apart) {
  if (hosted.empty()) return module;
  for (const BufferId id : hosted) module[id].host = true;
  start_in(module, hosted);
  update_in(module, hosted);
  for (const RegionKind kind : all_regions) {
    if (kind == RegionKind::init || kind == RegionKind::update) continue;
    fetch_in(module, module.region(kind), hosted, kind != RegionKind::step || apart);
  }
  return module;
}

class Candidates {
 public:
  explicit Candidates(const Module& module) : module_(module), state_(section_of_ops(module.update)) {
    const std::vector<bool> bound = bound_buffers();
    for (const BufferId id : module.buffer_ids()) {
      const Buffer& buffer = module[id];
      if (is_fetched(buffer) && !buffer.host && !bound[index(id)] && buffer.type.shape.size() >= 2 &&
          room_bytes(buffer) >= kLeastBytes)
        all_.push_back(id);
    }
  }
  const std::vector<BufferId>& all() const { return all_; }

  // Returns them in the order in which they go to the host.
  const std::vector<BufferId>& ordered(std::string_view target) {
    order(target);
    return all_;
  }

 private:
  // Buffers that something else does than reading them, starting them, or making a half copy beside its state.
  std::vector<bool> bound_buffers() const {
    std::vector<bool> bound(module_.buffers.size());
    std::vector<int> started(module_.buffers.size());
    const auto bind = [&](BufferId id) { bound[index(id)] = true; };
    for (const BufferId id : module_.buffer_ids()) {
      const Buffer& buffer = module_[id];
      if (buffer.role == BufferRole::part) continue;  // whose uses count below
      if (storage_of(module_, id) != id) bind(id), bind(storage_of(module_, id));
      if (buffer.of && buffer.role != BufferRole::slot) bind(*buffer.of);
    }
    for (const RegionKind kind : all_regions) {
      const Region& region = module_.region(kind);
      for (size_t at = 0; at < region.ops.size(); ++at) {
        const Op& op = region.ops[at];
        const bool beside_state = kind == RegionKind::update && state_ && state_->first < at &&
                                  at < state_->last && op.when == state_->flag;
        for (size_t i = 0; i < op.operands.size(); ++i) {
          const BufferId* id = as_buffer(op.operands[i]);
          if (id == nullptr) continue;
          const BufferId home = storage_of(module_, *id);
          const bool writes = op.info->is_written(i) && !op.info->is_read(i);
          const bool starts = kind == RegionKind::init && writes && ++started[index(home)] == 1;
          const bool reads = kind != RegionKind::init && kind != RegionKind::update &&
                             !op.info->is_written(i) && op.info->lowering != Lowering::copy;
          const bool makes =
              beside_state && writes && module_[home].role == BufferRole::half &&
              std::ranges::any_of(op.operands, [&](const Operand& other) { return is_slot(module_, other); });
          if (!starts && !reads && !makes) bind(home);
        }
        if (const BufferId* id = op.when ? as_buffer(*op.when) : nullptr) bind(*id);
      }
      for (const Yield& yield : region.yields)
        if (const BufferId* id = as_buffer(yield.what)) bind(*id);
    }
    for (const BufferId id : module_.buffer_ids())
      if (started[index(id)] != 1) bind(id);
    return bound;
  }

  void order(std::string_view target) {
    const kernels::KernelEstimator estimator(module_, module_.step, target, buffer_bytes(module_));
    std::map<BufferId, double> seconds;
    for (const Kernel& kernel : facts(module_, module_.step)->kernels) {
      const double each = estimator.seconds(kernel);
      for (const Operand& operand : kernel.reads)
        if (const BufferId* id = as_buffer(operand); id != nullptr && contains(all_, *id))
          seconds[*id] += each;
    }
    // Covered a half as well or better counts as equal.
    const auto cover = [&](BufferId id) {
      return static_cast<int>(
          std::floor(std::log2(seconds[id] / static_cast<double>(room_bytes(module_[id])) + 1e-30)));
    };
    std::map<BufferId, std::pair<int, uint32_t>> rank;
    std::map<int, uint32_t> count;
    for (const BufferId id : all_) {
      const int of = -cover(id);
      uint32_t bits = count[of]++, spread = 0;  // the number's bits the other way round
      for (int i = 0; i < 32; ++i, bits >>= 1U) spread = spread << 1U | (bits & 1U);
      rank[id] = {of, spread};
    }
    std::ranges::stable_sort(all_, {}, [&](BufferId id) { return rank.at(id); });
  }

  const Module& module_;
  const std::optional<StateSection> state_;  // of the update
  std::vector<BufferId> all_;
};

// Bytes of the arena without recompute, with what is fetched ahead.
int64_t bytes_without_recompute(const Module& module, const Buffers& hosted) {
  const Module apart = with_host(module, hosted, true);
  int64_t area = 0, ahead = 0;
  for (const RegionKind kind : training_regions)
    area = std::max(area, transient_bytes(apart, apart.region(kind)));
  for (const BufferId id : hosted) ahead = std::max(ahead, aligned(room_bytes(module[id])));
  return buffer_bytes(apart) + area + 2 * ahead;
}

// The least that the step takes with recompute within the budget; nothing where no plan exists.
std::optional<double> least_seconds(const Module& module, const Options& options, int64_t budget) {
  const StepGraph step = step_graph(module, options.target);
  if (least_arena(step) > budget) return std::nullopt;
  if (step.arena_bytes <= budget) return step.seconds;
  planner::Bounds bounds(step.graph);
  return std::max(step.seconds, planner::lower_bound(bounds, budget - step.fixed_bytes));
}

}  // namespace

int64_t possible_weights(const Module& fused) {
  if (*fused.settings.recompute.policy != "budget") return 0;
  int64_t bytes = 0;
  for (const Buffer& buffer : fused.buffers)
    if (buffer.host && is_fetched(buffer)) bytes += aligned(room_bytes(buffer));
  const Candidates more(fused);
  for (const BufferId id : more.all()) bytes += aligned(room_bytes(fused[id]));
  return bytes;
}

bool host_weights(Module& module, const Options& options, Diag&) {
  const int64_t most = *module.settings.memory.host;
  if (most == 0 || !module.settings.memory.budget.given() || module.step.ops.empty()) return true;
  if (*module.settings.recompute.policy != "budget") return true;  // nothing would drop what was fetched
  const int64_t budget = *module.settings.memory.budget;
  Candidates candidates(module);
  std::vector<BufferId> chosen;  // as many as the host may have
  int64_t taken = host_bytes(module);
  for (const BufferId id : candidates.ordered(options.target)) {
    const int64_t bytes = aligned(room_bytes(module[id]));
    if (taken + bytes > most) continue;
    taken += bytes;
    chosen.push_back(id);
  }
  const auto first = [&](size_t count) {
    return Buffers(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(count));
  };
  size_t fewest = 0, enough = chosen.size();
  while (fewest < enough) {
    const size_t middle = fewest + (enough - fewest) / 2;
    if (bytes_without_recompute(module, first(middle)) <= budget)
      enough = middle;
    else
      fewest = middle + 1;
  }
  // Fewer may be faster, with recompute.
  std::optional<double> best;
  Module found = with_host(module, first(enough), false);
  std::set<size_t> counts = {enough};
  if (options.plan_effort > 0) counts.insert({enough / 2, enough / 4, 0});
  for (auto count = counts.rbegin(); count != counts.rend() && counts.size() > 1; ++count) {
    Module module_with = with_host(module, first(*count), false);
    const std::optional<double> seconds = least_seconds(module_with, options, budget);
    if (!seconds || (best && *seconds > *best)) continue;
    best = seconds;
    found = std::move(module_with);
  }
  module = std::move(found);
  return true;
}

}  // namespace gacc::passes
