// memory.shard = "optimizer": each of exactly R ranks has a slice of the optimizer's state, and makes its
// part of the update. A tensor is cut into runs of rows where its norm is cut into parts (split_sums.cpp): a
// slice has ceil(parts / R) of them, rank r's begins at row r * S, and what lies behind the tensor's end is
// zeros. What has too few parts stays whole, and every rank updates it.
//
// All ranks run the same programs, so a slice always lies at the same place: @X.slice is the first rows of
// @X, in the same bytes. Between two programs the runtime moves what ranks exchange
// (runtime/session/sharded_update.cpp):
//
//   gradients    the sum over ranks of this rank's rows comes to the front of @w.grad
//   parameters   what the step reads, @w.h or @w, is whole on every rank; this rank's rows come to its front
//                before the update, and all rows to their places after it
//   masters      where the step reads @w.h alone, @w is whole in `init` only, in the place of @w.grad; this
//                rank's rows of it are kept in @w.master
//
// A norm is a sum over all parts, so the update is cut there: `norms` makes this rank's parts of all sums
// that need no other sum, `ratios` those that do (lamb's |r|, where the norm clips it), and `update` adds the
// parts of all ranks, as split_sums does. `clear` sets the gradients to zero, of which `update` knows the
// slices alone.
#include <algorithm>
#include <map>
#include <utility>

#include "ir/builder.h"
#include "ir/kernel.h"
#include "passes/analysis/rewrite.h"
#include "passes/fuse.h"

namespace gacc::passes {

using namespace ir;

namespace {

constexpr RegionKind kSums[] = {RegionKind::norms, RegionKind::ratios};
constexpr BufferRole kParts[] = {BufferRole::norm_parts, BufferRole::ratio_parts};

struct Cut {
  Shape slice{};                  // [rows, columns]
  int64_t parts = 0, shared = 0;  // of the tensor, of a slice
};

class Sharder {
 public:
  Sharder(Module& module, int64_t ranks, Diag& diag)
      : module_(module), ranks_(ranks), diag_(diag), update_(module.update) {}

  bool run() {
    for (const BufferId id : module_.buffer_ids())
      if (module_[id].role == BufferRole::gradient) cut(id);
    cut_moments();
    move_fills();
    if (!diag_.failed()) use_slices();
    if (!diag_.failed()) cut_sums();
    remove_dead(update_);
    compact(update_);
    return !diag_.failed();
  }

 private:
  // Nothing where a slice would be no smaller than the tensor.
  std::optional<Cut> cut_of(const Shape& shape) const {
    const int64_t all = rows(shape, 1), columns = ir::columns(shape);
    Cut cut;
    cut.parts = total_parts(shape);
    if (cut.parts < 2) return std::nullopt;
    const int64_t rows_per_part = ceil_divide(all, cut.parts);
    // At least two, for a sum in one part is another kind of sum.
    cut.shared = std::max<int64_t>(2, ceil_divide(cut.parts, ranks_));
    cut.slice = {cut.shared * rows_per_part, columns};
    // A GPU's sums take elements by vectors where their number allows it: in both or in none.
    constexpr int64_t kVector = 4;
    const bool alike = all * columns % kVector == 0 || rows_per_part * columns % kVector != 0;
    if (cut.slice[0] >= all || !alike) return std::nullopt;
    return cut;
  }

  bool is_read_whole(BufferId parameter) const {
    for (const RegionKind kind : all_regions)
      for (const Op& op : is_batched(kind) ? module_.region(kind).ops : std::vector<Op>())
        if (contains(op.operands, Operand(parameter))) return true;
    return false;
  }

  void cut(BufferId gradient) {
    const BufferId parameter = *module_[gradient].of;
    const std::optional<Cut> cut = cut_of(module_[parameter].type.shape);
    if (!cut) return;
    cuts_[parameter] = *cut;
    const auto half = module_.find_belonging(parameter, BufferRole::half);
    const auto squares = module_.find_belonging(parameter, BufferRole::squares);
    for (const std::optional<BufferId>& whole : {std::optional(gradient), squares, half})
      if (whole) slice(*whole, parameter);
    for (const BufferId id : module_.buffer_ids())
      if (module_[id].role == BufferRole::further_use && module_[id].of == parameter) slice(id, parameter);
    if (half && !is_read_whole(parameter))
      slices_[parameter] = {
          module_.belonging(parameter, BufferRole::master, {}, Type{DType::f32, cut->slice}), parameter};
    else
      slice(parameter, parameter);
  }

  void slice(BufferId whole, BufferId parameter) {
    const Type type{module_[whole].type.dtype, cuts_.at(parameter).slice};
    slices_[whole] = {module_.belonging(whole, BufferRole::slice, {}, type), parameter};
  }

  void cut_moments() {
    for (const BufferId id : module_.buffer_ids()) {
      Buffer& moment = module_[id];
      if (moment.role != BufferRole::moment || !cuts_.contains(*moment.of)) continue;
      if (moment.type.shape != module_[*moment.of].type.shape) {
        diag_.error(Kind::unsupported, moment.at,
                    "`memory.shard` cannot cut `@{}`, which has another shape than `@{}`", moment.name,
                    module_[*moment.of].name);
        return;
      }
      slices_[id] = {id, *moment.of};
      moment.type.shape = cuts_.at(*moment.of).slice;
    }
  }

  // Moves the fills of shared state to `clear`, which also runs after `init`.
  void move_fills() {
    Builder clear(module_, module_.clear, diag_);
    for (Region* region : {&module_.init, &update_}) {
      std::erase_if(region->ops, [&](const Op& op) {
        const BufferId* buffer = op.info == &op_fill ? as_buffer(op.operands.front()) : nullptr;
        if (buffer == nullptr || module_[*buffer].kind != BufferKind::accum) return false;
        return slices_.contains(*buffer);
      });
    }
    for (const auto& [whole, slice] : slices_)
      if (module_[whole].kind == BufferKind::accum) clear.effect("fill", {whole});
  }

  // `update` names slices, and its values have their shapes.
  void use_slices() {
    level_.assign(update_.values.size(), 0);
    of_.assign(update_.values.size(), std::nullopt);
    for (Op& op : update_.ops) {
      std::optional<BufferId> of;
      int level = 0;
      for (Operand& operand : op.operands) {
        if (const BufferId* buffer = as_buffer(operand)) {
          const auto slice = slices_.find(*buffer);
          if (slice == slices_.end()) continue;
          of = slice->second.second;
          operand = slice->second.first;
        } else if (const ValueId* value = as_value(operand)) {
          level = std::max(level, level_[index(*value)]);
          if (of_[index(*value)]) of = of_[index(*value)];
        }
      }
      const auto types = infer_types({module_, update_, op}, diag_);
      if (!types) return;
      const bool sum = of && op.info->lowering == Lowering::total_reduce;
      if (of && !sum && op.info->lowering != Lowering::pointwise)
        diag_.error(Kind::unsupported, op.at, "`memory.shard` cannot cut `{}`", op.info->name);
      for (size_t i = 0; i < op.results.size(); ++i) {
        const size_t result = index(op.results[i]);
        update_[op.results[i]].type = (*types)[i];
        level_[result] = level + (sum ? 1 : 0);
        if (!sum && (*types)[i].shape.size() == 2) of_[result] = of;
      }
    }
  }

  // Every sum over a slice becomes one of all ranks' parts, which an earlier program makes.
  void cut_sums() {
    std::vector<std::pair<size_t, BufferId>> sums;  // by op: its parts
    for (size_t i = 0; i < update_.ops.size(); ++i) {
      const Op& op = update_.ops[i];
      if (op.info->lowering != Lowering::total_reduce) continue;
      const auto of = owner(op.operands.front());
      if (!of) continue;
      const auto level = static_cast<size_t>(level_[index(op.results.front())] - 1);
      if (level >= std::size(kSums)) {
        diag_.error(Kind::unsupported, op.at,
                    "`memory.shard` cannot cut this update: norms that need norms need others");
        return;
      }
      const Type all{DType::f32, {cuts_.at(*of).parts}};
      const std::string name = update_[op.results.front()].name;
      const BufferId parts =
          module_.need_buffer({.name = name + ".parts", .role = kParts[level], .of = *of, .type = all});
      slice_of_[parts] =
          module_.belonging(parts, BufferRole::slice, {}, Type{DType::f32, {cuts_.at(*of).shared}});
      sums.emplace_back(i, parts);
    }
    for (const auto& [i, parts] : sums) made_[update_.ops[i].results.front()] = parts;
    for (const auto& [i, parts] : sums) {
      const size_t level = module_[parts].role == kParts[0] ? 0 : 1;
      const Op op = update_.ops[i];
      Copy& copy = copies_[level];
      Region& region = module_.region(kSums[level]);
      Builder build = Builder(module_, region, diag_).like(op);
      const std::string name = update_[op.results.front()].name;
      const ValueId mine =
          build.make("total_sum", name + ".mine", {copied(region, copy, op.operands.front())},
                     {{"parts", cuts_.at(*owner(op.operands.front())).shared}});
      build.effect("store", {slice_of_.at(parts), mine});
    }
    for (const auto& [i, parts] : sums) update_.ops[i].operands.front() = parts;
  }

  using Copy = std::map<ValueId, ValueId>;

  // A value of `update` in another region, with all that it is made of.
  Operand copied(Region& region, Copy& copy, const Operand& operand) {
    const ValueId* value = as_value(operand);
    if (value == nullptr) return operand;
    if (const auto there = copy.find(*value); there != copy.end()) return there->second;
    const Op& op = update_.ops[maker_of(update_, operand)];
    std::vector<Operand> operands;
    if (const auto parts = made_.find(*value); parts != made_.end())
      operands = {parts->second};
    else
      for (const Operand& each : op.operands) operands.push_back(copied(region, copy, each));
    Builder build = Builder(module_, region, diag_).like(op);
    std::vector<std::string> names;
    for (const ValueId result : op.results) names.push_back(update_[result].name);
    const std::vector<ValueId> made = build.make_n(op.info->name, names, operands, op.attrs);
    for (size_t i = 0; i < made.size(); ++i) copy[op.results[i]] = made[i];
    return copy.at(*value);
  }

  // The parameter of which it is a slice.
  std::optional<BufferId> owner(const Operand& operand) const {
    if (const ValueId* value = as_value(operand)) return of_[index(*value)];
    const BufferId* buffer = as_buffer(operand);
    for (const auto& [whole, slice] : slices_)
      if (buffer != nullptr && slice.first == *buffer) return slice.second;
    return std::nullopt;
  }

  Module& module_;
  const int64_t ranks_;
  Diag& diag_;
  Region& update_;
  std::map<BufferId, Cut> cuts_;                              // by parameter
  std::map<BufferId, std::pair<BufferId, BufferId>> slices_;  // of what is cut: the slice, and the parameter
  std::vector<int> level_;                   // by value: how many sums follow each other to make it
  std::vector<std::optional<BufferId>> of_;  // by value: of which parameter it is a slice
  std::map<ValueId, BufferId> made_;         // the parts of a sum
  std::map<BufferId, BufferId> slice_of_;    // of parts
  Copy copies_[std::size(kSums)];
};

}  // namespace

bool shard(Module& module, const Options&, Diag& diag) {
  const int64_t ranks = sharing_ranks(module.settings);
  return ranks < 2 || Sharder(module, ranks, diag).run();
}

}  // namespace gacc::passes
