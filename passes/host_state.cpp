// Pass `host-state`: with memory.host, moments and then f32 masters lie in the host's memory, the largest first, as
// many as it takes for the step to fit memory.budget. In `update` they come through the arena piece by piece:
//
//     host.in  @w.m.slot.3, @w.m.part.3      a piece comes in, for each state of the parameter,
//     adam @w.part.3, @w.m.slot.3, ...       is updated there
//     host.out @w.m.part.3, @w.m.slot.3      and goes back
//
// 1. What the update reads of a parameter's state, and what follows from it alone (norms and the ratio of LAMB), is
//    one group of kernels. A group of one pointwise kernel is cut into pieces; another is one piece.
// 2. Pieces stand in a pipeline: while one is updated, the next two come in and the one before goes out, so that at
//    most kAhead + 1 are in the arena. They lie where the step has its activations.
// 3. All of that has the condition %go of the update and nothing else in between: it can be left out as a whole. What
//    those kernels do under other conditions (gradients become zero) comes behind it; so does what writes a buffer
//    that they read.
// 4. `init` makes a master in the place of its gradient, which is cleared afterwards. Moments on the host are cleared
//    by the runtime.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "ir/builder.h"
#include "ir/host_state.h"
#include "ir/region_facts.h"
#include "ir/row_pitch.h"
#include "passes/analysis/rewrite.h"
#include "passes/pass.h"
#include "passes/plan_memory.h"
#include "passes/recompute.h"

namespace gacc::passes {

namespace {

using namespace ir;

constexpr size_t kAhead = 2;  // pieces that come in before the one that is updated is done
constexpr int64_t kMostPiece = int64_t{8} << 20;  // elements of a piece ...
constexpr int64_t kLeastPiece = 1024;             // ... whose bytes are so whole lines of the arena
constexpr int64_t kMostPieces = 4096;             // of an update, about

// The kernels of the update around one parameter's state (or several parameters', where a kernel takes them at once).
struct StateGroup {
  std::vector<size_t> kernels{};  // of the update's facts
  std::vector<BufferId> state{};  // that may lie on the host, by first use
  bool pointwise = false;         // can be cut
  int64_t elements = 0;           // of what is cut
};

class HostState {
 public:
  explicit HostState(Module& module) : module_(module), facts_(facts(module, module.update)) {
    find_candidates();
    find_groups();
    order();
  }

  // Moments, then masters, the largest first.
  const std::vector<BufferId>& candidates() const { return candidates_; }

  // Bytes of the slots that are in the arena at once, where `hosted` lies on the host.
  int64_t slot_bytes(const std::set<BufferId>& hosted, int64_t piece) const {
    std::vector<int64_t> bytes;  // by piece of the pipeline
    for (const StateGroup& group : groups_) {
      int64_t all = 0;
      int64_t states = 0;
      for (const BufferId buffer : group.state) {
        if (!hosted.contains(buffer)) continue;
        all += aligned(room_bytes(module_[buffer]));
        ++states;
      }
      if (states == 0) continue;
      if (!is_cut(group, piece)) {
        bytes.push_back(all);
        continue;
      }
      const int64_t pieces = ceil_divide(group.elements, piece);
      const int64_t each = states * piece * dtype_bytes(DType::f32);
      bytes.insert(bytes.end(), static_cast<size_t>(std::min<int64_t>(pieces, kAhead + 1)), each);
    }
    int64_t most = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      int64_t here = 0;
      for (size_t j = i; j < std::min(bytes.size(), i + kAhead + 1); ++j) here += bytes[j];
      most = std::max(most, here);
    }
    return most;
  }

  int64_t least_piece(const std::set<BufferId>& hosted) const {
    int64_t all = 0;
    for (const StateGroup& group : groups_)
      if (is_hosted(group, hosted)) all += group.elements;
    int64_t piece = kLeastPiece;
    while (piece < kMostPiece && all / piece > kMostPieces) piece *= 2;
    return piece;
  }

  // Puts them there.
  void build(const std::set<BufferId>& hosted, int64_t piece) {
    for (const BufferId buffer : hosted) module_[buffer].host = true;
    change_init(hosted);
    change_update(hosted, piece);
  }

 private:
  static bool is_hosted(const StateGroup& group, const std::set<BufferId>& hosted) {
    return std::ranges::any_of(group.state, [&](BufferId buffer) { return hosted.contains(buffer); });
  }
  static bool is_cut(const StateGroup& group, int64_t piece) {
    return group.pointwise && group.elements > piece;
  }

  // Moments, and the f32 numbers of parameters that nothing else reads.
  void find_candidates() {
    std::vector<bool> elsewhere(module_.buffers.size());
    for (const RegionKind kind : all_regions) {
      for (const Op& op : module_.region(kind).ops)
        op.each_operand([&](const Operand& operand) {
          const BufferId* buffer = as_buffer(operand);
          if (buffer == nullptr || kind == RegionKind::update) return;
          const bool moment = module_[*buffer].role == BufferRole::moment;
          const bool starts =
              kind == RegionKind::init && (moment ? op.info == &op_fill : op.info->half_of != nullptr);
          if (!starts) elsewhere[index(*buffer)] = true;
        });
    }
    for (const bool masters : {false, true}) {
      const size_t first = candidates_.size();
      for (const BufferId id : module_.buffer_ids()) {
        const Buffer& buffer = module_[id];
        const bool master =
            buffer.role == BufferRole::master ||
            (buffer.role == BufferRole::weight && module_.find_belonging(id, BufferRole::half) &&
             module_.find_belonging(id, BufferRole::gradient) && storage_of(module_, id) == id);
        if (masters ? !master : buffer.role != BufferRole::moment) continue;
        if (!elsewhere[index(id)] && buffer.type.dtype == DType::f32 && !buffer.type.shape.empty())
          candidates_.push_back(id);
      }
      std::stable_sort(
          candidates_.begin() + static_cast<ptrdiff_t>(first), candidates_.end(),
          [&](BufferId a, BufferId b) { return room_bytes(module_[a]) > room_bytes(module_[b]); });
    }
  }

  const Op& op_of(const KernelMember& member) const { return module_.update.ops[member.op]; }

  // Kernels that read or write candidates, and all that use what these make, are in one group where they share a
  // candidate or a value. One that cannot be left out with its copies keeps its state in the arena.
  void find_groups() {
    const std::vector<Kernel>& kernels = facts_->kernels;
    std::vector<size_t> leader(kernels.size());
    std::iota(leader.begin(), leader.end(), size_t{0});
    const auto find = [&](size_t k) {
      while (leader[k] != k) k = leader[k];
      return k;
    };
    const auto join = [&](size_t a, size_t b) {
      leader[std::max(find(a), find(b))] = std::min(find(a), find(b));
    };
    std::vector<bool> inside(kernels.size());
    std::map<Operand, size_t> first;  // of a candidate, of its owner, or of a value: a kernel of its group
    for (size_t k = 0; k < kernels.size(); ++k) {
      std::vector<Operand> shared;
      kernels[k].each_operand([&](const Operand& operand) {
        const BufferId* buffer = as_buffer(operand);
        if (buffer != nullptr && contains(candidates_, *buffer)) {
          shared.push_back(operand);
          shared.emplace_back(module_[*buffer].of.value_or(*buffer));
        }
        if (as_value(operand) != nullptr && first.contains(operand)) shared.push_back(operand);
      });
      if (shared.empty()) continue;
      inside[k] = true;
      for (const Operand& operand : shared) join(first.try_emplace(operand, k).first->second, k);
      for (const Operand& write : kernels[k].writes)
        if (as_value(write) != nullptr) first.try_emplace(write, k);
    }
    std::map<size_t, StateGroup> groups;
    for (size_t k = 0; k < kernels.size(); ++k)
      if (inside[k]) groups[find(k)].kernels.push_back(k);
    for (auto& entry : groups) {
      StateGroup& group = entry.second;
      for (const size_t member : group.kernels)
        kernels[member].each_operand([&](const Operand& operand) {
          const BufferId* buffer = as_buffer(operand);
          if (buffer != nullptr && contains(candidates_, *buffer) && !contains(group.state, *buffer))
            group.state.push_back(*buffer);
        });
      if (is_separable(group)) {
        measure(group);
        groups_.push_back(std::move(group));
      } else {
        keep_in_arena(group);
      }
    }
  }

  // True where what is done under the flag can be left out, and the rest done later.
  bool is_separable(const StateGroup& group) {
    for (const size_t k : group.kernels)
      for (const KernelMember& member : facts_->kernels[k].members) {
        const Op& op = op_of(member);
        const bool updates = std::ranges::any_of(group.state, [&](BufferId b) {
          return contains(op.operands, Operand(b)) && op.info->writes != 0;
        });
        if (!updates) continue;
        if (!op.when || as_value(*op.when) == nullptr) return false;
        if (!flag_) flag_ = op.when;
        if (op.when != flag_) return false;
      }
    for (const size_t k : group.kernels)
      for (const KernelMember& member : facts_->kernels[k].members) {
        const Op& op = op_of(member);
        if (op.info->writes == 0 && flag_ && contains(op.results, *as_value(*flag_))) return false;
        if (op.info->writes != 0 && op.when != flag_ && op.info != &op_fill) return false;
      }
    return flag_.has_value();
  }

  void measure(StateGroup& group) const {
    if (group.kernels.size() != 1) return;
    const Kernel& kernel = facts_->kernels[group.kernels.front()];
    group.elements = elements(kernel.domain, 1);
    group.pointwise = kernel.form == KernelForm::pointwise && kernel.inner == 0;
    for (const KernelMember& member : kernel.members) {
      const Op& op = op_of(member);
      const auto fits = [&](const Shape& shape) {
        return elements(shape, 1) == 1 || elements(shape, 1) == group.elements;
      };
      op.each_operand([&](const Operand& operand) {
        const Shape& shape = operand_type(module_, module_.update, operand).shape;
        // A value of another kernel is not cut.
        const bool whole = as_value(operand) != nullptr && contains(kernel.reads, operand);
        group.pointwise = group.pointwise && (whole ? elements(shape, 1) == 1 : fits(shape));
      });
    }
  }

  // Finds the kernels that come after the pieces: those that write what a group reads, and all that follow them. A
  // group behind one of them keeps its state in the arena.
  void order() {
    std::set<Operand> made;
    do {
      late_.clear();
      made.clear();
      find_late(made);
    } while (std::erase_if(groups_, [&](const StateGroup& group) {
               const bool follows =
                   std::ranges::any_of(group.kernels, [&](size_t k) { return reads(k, made); });
               if (follows) keep_in_arena(group);
               return follows;
             }) > 0);
  }

  void keep_in_arena(const StateGroup& group) {
    std::erase_if(candidates_, [&](BufferId buffer) { return contains(group.state, buffer); });
  }

  bool reads(size_t kernel, const std::set<Operand>& made) const {
    return std::ranges::any_of(facts_->kernels[kernel].reads,
                               [&](const Operand& read) { return made.contains(read); });
  }

  // Also gives the values that they make.
  void find_late(std::set<Operand>& made) {
    std::set<size_t> grouped;
    std::set<BufferId> used;
    const auto use = [&](const Kernel& kernel) {
      kernel.each_operand([&](const Operand& operand) {
        if (const BufferId* buffer = as_buffer(operand)) used.insert(storage_of(module_, *buffer));
      });
    };
    for (const StateGroup& group : groups_)
      for (const size_t k : group.kernels) {
        grouped.insert(k);
        use(facts_->kernels[k]);
      }
    for (size_t k = 0; k < facts_->kernels.size(); ++k) {
      if (grouped.contains(k)) continue;
      const Kernel& kernel = facts_->kernels[k];
      bool late = reads(k, made);
      for (const Operand& operand : kernel.writes)
        if (const BufferId* buffer = as_buffer(operand))
          late = late || used.contains(storage_of(module_, *buffer));
      if (!late) continue;
      late_.insert(k);
      for (const Operand& write : kernel.writes)
        if (as_value(write) != nullptr) made.insert(write);
      use(kernel);
    }
  }

  void change_init(const std::set<BufferId>& hosted) {
    Region& init = module_.init;
    std::vector<std::pair<BufferId, BufferId>>
        masters;  // with what stands for it, in the place of its gradient
    for (const BufferId buffer : hosted) {
      if (module_[buffer].role != BufferRole::weight) continue;
      const BufferId gradient = *module_.find_belonging(buffer, BufferRole::gradient);
      masters.emplace_back(buffer,
                           module_.belonging(gradient, BufferRole::part, ".start", module_[buffer].type));
    }
    std::erase_if(init.ops, [&](const Op& op) {
      const BufferId* buffer = op.info == &op_fill ? as_buffer(op.operands.front()) : nullptr;
      return buffer != nullptr &&
             (hosted.contains(*buffer) || std::ranges::any_of(masters, [&](const auto& each) {
                return module_[each.second].of == *buffer;
              }));
    });
    int32_t kernel = 0;
    for (const Op& op : init.ops) kernel = std::max(kernel, op.kernel + 1);
    const auto add = [&](const OpInfo& info, std::vector<Operand> operands) {
      init.ops.push_back(
          {.info = &info, .operands = std::move(operands), .kernel = kernel++, .origin = Origin::init});
    };
    for (const auto& [master, start] : masters) {
      for (Op& op : init.ops) std::ranges::replace(op.operands, Operand(master), Operand(start));
      add(op_host_out, {master, start});
    }
    for (const auto& [master, start] : masters) add(op_fill, {*module_[start].of});
  }

  // A piece of a group: its copies in, its kernels, its copies out.
  struct Piece {
    std::vector<std::pair<BufferId, BufferId>> slots{};  // with where they come from
    std::vector<Op> ops{};
  };

  void change_update(const std::set<BufferId>& hosted, int64_t piece) {
    Region& update = module_.update;
    const std::vector<Op> old = std::move(update.ops);
    update.ops.clear();
    std::vector<Piece> pieces;
    std::vector<std::vector<Op>> early, late;  // by kernel
    const auto ops_of = [&](size_t k) {
      std::vector<Op> ops;
      for (const KernelMember& member : facts_->kernels[k].members) ops.push_back(old[member.op]);
      return ops;
    };
    std::vector<const StateGroup*> group_of(facts_->kernels.size());
    for (const StateGroup& group : groups_)
      if (is_hosted(group, hosted))
        for (const size_t k : group.kernels) group_of[k] = &group;
    for (size_t k = 0; k < facts_->kernels.size(); ++k) {
      const StateGroup* group = group_of[k];
      if (group == nullptr) {
        (late_.contains(k) ? late : early).push_back(ops_of(k));
        continue;
      }
      if (k != group->kernels.front()) continue;
      std::vector<Op> ops, fills;
      for (const size_t each : group->kernels)
        for (Op& op : ops_of(each))
          (op.info->writes == 0 || op.when == flag_ ? ops : fills).push_back(std::move(op));
      if (!fills.empty()) late.push_back(std::move(fills));
      cut(*group, hosted, ops, is_cut(*group, piece) ? piece : 0, pieces);
    }
    int32_t kernel = 0;
    const auto add_kernel = [&](std::vector<Op> ops) {
      std::map<int32_t, int32_t> numbers;
      for (Op& op : ops) {
        op.kernel =
            numbers.try_emplace(op.kernel, kernel + static_cast<int32_t>(numbers.size())).first->second;
        update.ops.push_back(std::move(op));
      }
      kernel += static_cast<int32_t>(numbers.size());
    };
    const auto add_copies = [&](const Piece& of, const OpInfo& info) {
      for (const auto& [slot, home] : of.slots)
        update.ops.push_back({.info = &info,
                              .operands = &info == &op_host_in ? std::vector<Operand>{slot, home}
                                                               : std::vector<Operand>{home, slot},
                              .when = flag_,
                              .kernel = kernel++,
                              .origin = Origin::update});
    };
    for (std::vector<Op>& ops : early) add_kernel(std::move(ops));
    size_t in = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      for (; in < std::min(pieces.size(), i + kAhead + 1); ++in) add_copies(pieces[in], op_host_in);
      add_kernel(std::move(pieces[i].ops));
      add_copies(pieces[i], op_host_out);
    }
    for (std::vector<Op>& ops : late) add_kernel(std::move(ops));
    compact(update);
  }

  // The group's ops for `piece` elements each; 0: for all of them at once.
  void cut(const StateGroup& group, const std::set<BufferId>& hosted, const std::vector<Op>& ops,
           int64_t piece, std::vector<Piece>& pieces) {
    Region& update = module_.update;
    const int64_t step = piece == 0 ? 1 : piece, end = piece == 0 ? 1 : group.elements;
    for (int64_t from = 0, number = 0; from < end; from += step, ++number) {
      Piece& out = pieces.emplace_back();
      const int64_t size = std::min(step, end - from);
      std::map<BufferId, BufferId> stand_in;
      std::map<ValueId, ValueId> copies;
      const auto part_of = [&](BufferId whole, BufferRole role, const char* suffix) {
        Buffer part{
            .name = module_[whole].name + suffix, .role = role, .of = whole, .type = module_[whole].type};
        if (piece != 0) {
          part.name += fmt::format(".{}", number);
          part.type = {part.type.dtype, {size}};
          if (role == BufferRole::part) part.from = from;
        }
        return module_.add_buffer(std::move(part));
      };
      for (const BufferId buffer : group.state) {
        if (!hosted.contains(buffer)) continue;
        const BufferId slot = part_of(buffer, BufferRole::slot, ".slot");
        out.slots.emplace_back(slot, piece == 0 ? buffer : part_of(buffer, BufferRole::part, ".part"));
        stand_in[buffer] = slot;
      }
      for (Op op : ops) {
        op.each_operand([&](Operand& operand) {
          if (const BufferId* buffer = as_buffer(operand)) {
            const BufferId whole = *buffer;
            const bool full = piece != 0 && elements(module_[whole].type.shape, 1) == group.elements;
            if (full && !stand_in.contains(whole))
              stand_in[whole] = part_of(whole, BufferRole::part, ".part");
            if (const auto other = stand_in.find(whole); other != stand_in.end()) operand = other->second;
          } else if (const ValueId* value = as_value(operand)) {
            if (const auto other = copies.find(*value); other != copies.end()) operand = other->second;
          }
        });
        for (ValueId& result : op.results) {
          if (piece == 0) continue;
          const Value old = update[result];
          const bool full = elements(old.type.shape, 1) == group.elements;
          const ValueId fresh = update.add_value(fmt::format("{}.part.{}", old.name, number),
                                                 full ? Type{old.type.dtype, {size}} : old.type);
          copies[result] = fresh;
          result = fresh;
        }
        out.ops.push_back(std::move(op));
      }
    }
  }

  Module& module_;
  const Facts facts_;  // of the update as it was
  std::vector<BufferId> candidates_;
  std::vector<StateGroup> groups_;
  std::set<size_t> late_;        // kernels
  std::optional<Operand> flag_;  // that all of the state's updates have
};

// The size that pieces may have where a budget has more than the step needs: tiny copies are slow.
constexpr int64_t kRoomForPieces = int64_t{16} << 20;

// The module as the step's recompute makes it, where that does not follow from the budget.
Module recomputed(const Module& module, const Options& options) {
  const std::string& policy = *module.settings.recompute.policy;
  Module copy = module;
  Diag none("", "");
  if (policy != "none" && policy != "budget" && !recompute(copy, options, none)) copy = module;
  return copy;
}

}  // namespace

bool host_state(Module& module, const Options& options, Diag&) {
  const int64_t most = *module.settings.memory.host;
  if (most == 0 || module.update.ops.empty()) return true;
  if (!module.settings.memory.budget.given()) return true;  // nothing has to lie there
  const int64_t budget = *module.settings.memory.budget;
  const Module without = recomputed(module, options);
  int64_t area = 0;  // that the regions share, at least
  for (const RegionKind kind : training_regions)
    area = std::max(area, transient_bytes(without, without.region(kind)));
  Module before = module;  // as `state` sees it
  const HostState state(before);
  std::vector<BufferId> chosen;  // as many as the host may have, and what lies there of them
  int64_t possible = 0, taken = 0;
  for (const BufferId buffer : state.candidates()) {
    const int64_t bytes = aligned(room_bytes(module[buffer]));
    possible += bytes;
    if (taken + bytes > most) continue;
    taken += bytes;
    chosen.push_back(buffer);
  }
  module.results.host_possible = possible;
  struct Choice {
    std::set<BufferId> hosted{};
    int64_t piece = 0, bytes = 0;  // bytes of all buffers and the area
  };
  const int64_t beside = transient_bytes(before, before.update);
  const auto with = [&](size_t count) {
    Choice choice;
    Module marked = before;
    choice.hosted = {chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(count)};
    for (const BufferId buffer : choice.hosted) marked[buffer].host = true;
    const int64_t buffers = buffer_bytes(marked);
    const int64_t room = std::clamp<int64_t>(budget - buffers, 0, std::max(area, kRoomForPieces));
    const int64_t least = state.least_piece(choice.hosted);
    choice.piece = kMostPiece;
    while (choice.piece > least && state.slot_bytes(choice.hosted, choice.piece) + beside > room)
      choice.piece /= 2;
    choice.bytes = buffers + std::max(area, state.slot_bytes(choice.hosted, choice.piece) + beside);
    return choice;
  };
  size_t fewest = 0, enough = chosen.size();
  while (fewest < enough) {
    const size_t middle = fewest + (enough - fewest) / 2;
    if (with(middle).bytes <= budget)
      enough = middle;
    else
      fewest = middle + 1;
  }
  // Values may lie a little worse than the bound has it.
  for (;; ++enough) {
    const Choice choice = with(enough);
    if (!choice.hosted.empty()) HostState(module).build(choice.hosted, choice.piece);
    if (enough == chosen.size()) return true;
    const int64_t room = budget - buffer_bytes(module);
    if (std::ranges::all_of(training_regions, [&](RegionKind kind) {
          const Module& of = kind == RegionKind::step ? without : module;
          return placed_bytes(of, of.region(kind), std::max(area, room)) <= room;
        }))
      return true;
    module = before;
  }
}

}  // namespace gacc::passes
