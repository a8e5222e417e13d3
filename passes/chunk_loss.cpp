// Large vocabularies: the head, its loss and the gradient of both run in parts of the sequence, so that the
// logits of a whole micro-batch never exist at once.
//
//   %head = matmul %x, @w {tb} : f32[B,T,V]       %x.0 = slice %x : f32[B,T/n,C]
//   ... the loss by row, %d.head ...        →     %head.0 = matmul %x.0, @w {tb} : f32[B,T/n,V]
//   %d.x = matmul %d.head, @w                     ... the loss by row, %d.head.0 ...
//   matmul.acc @w.grad, %d.head, %x {ta}          %d.x.0 = matmul %d.head.0, @w
//                                                 matmul.acc @w.grad, %d.head.0, %x.0 {ta}
//                                                 ... parts 1 to n - 1 ...
//                                                 %d.x = concat %d.x.0, ..
//
// What the backward pass starts from is known before the loss is (loss_scale.cpp), so that a part need not
// wait for the others. Parts are of positions, not of samples: how many of those there are is known at the
// launch. Sums over rows, the weight's gradient, are rounded in another order. Shapes and `memory.budget` decide,
// and nothing that recompute chooses: it must not change a bit.
//
//   1. The logits are what the sum of the loss comes from: the first shape wider than one value a row.
//   2. Every op that reads or makes a value of that shape is cut, and so is what stands between such ops. All
//      of them must work row by row, or sum over rows. What they give by row goes on in the parts as far as
//      it has one value a row.
//   3. Parts are as many as memory wants (choose_parts), or `loss.chunks`, which then holds their number.
//   4. The parts are written where the last value that they read is made; what reads their results follows.
#include <algorithm>
#include <map>
#include <utility>

#include "ir/builder.h"
#include "ir/kernel.h"
#include "passes/analysis/by_row.h"
#include "passes/analysis/rewrite.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

// Logits of at most this many times the elements of the head's input are left whole: what is copied would not
// pay.
constexpr int64_t kLeastLogitsPerInput = 4;
// A part's logits of 1 / kShareOfMemory of all else that is in memory then: more parts could not save much, and
// each part reads the weight and adds to its gradient once more.
constexpr int64_t kShareOfMemory = 32;
// With a memory.budget also of at most 1 / kShareOfRoom of what it has beside the buffers. More would soon be what
// bounds the peak; less spares recompute little, and the weight is read more often.
constexpr int64_t kShareOfRoom = 8;
constexpr int64_t kLeastRowsOfPart = 64;  // at the full micro-batch
constexpr int64_t kMostParts = 16;

// The loss of one region and what has to be cut with it.
class Loss {
 public:
  Loss(const Module& module, const Region& region, std::string_view sum)
      : module_(module), region_(region), maker_(region.values.size(), kNone) {
    for (size_t i = 0; i < region.ops.size(); ++i)
      for (const ValueId result : region.ops[i].results) maker_[index(result)] = i;
    find_logits(sum);
  }

  // Finds what is to be cut; false when it is nothing, or something of it cannot be.
  bool find() {
    if (logits_.size() < 3 || logits_.front() != kBatch || logits_[1] < 2) return false;
    find_members();
    for (size_t i = 0; i < region_.ops.size(); ++i) {
      const Op& op = region_.ops[i];
      if (!member_[i]) continue;
      if (!may_cut(op)) return false;
      if (op.info->lowering == Lowering::gemm && makes_logits(op)) head_ = i;
      for (const Operand& operand : op.operands)
        if (const size_t by = maker(operand); by != kNone && !member_[by]) ready_ = std::max(ready_, by + 1);
    }
    return head_ != kNone;
  }

  int64_t choose_parts() const {
    const int64_t batch = module_.micro_batch();
    const OpView head{module_, region_, region_.ops[head_]};
    if (elements(logits_, batch) <= kLeastLogitsPerInput * elements(head.operand(0).shape, batch)) return 1;
    const int64_t bytes = type_bytes(head.result(), batch), buffers = buffer_bytes();
    int64_t share = (buffers + living_bytes()) / kShareOfMemory;
    if (const auto& budget = module_.settings.memory.budget; budget.given())
      share = std::min(share, std::max<int64_t>(0, *budget - buffers) / kShareOfRoom);
    int64_t parts = 1;
    while (bytes / parts > share && 2 * parts <= std::min(kMostParts, positions()) &&
           rows(logits_, batch) / (2 * parts) >= kLeastRowsOfPart)
      parts *= 2;
    return parts;
  }

  int64_t positions() const { return logits_[1]; }
  bool is_cut(size_t op) const { return member_[op]; }
  // Tells whether what is cut makes the operand.
  bool makes(const Operand& operand) const {
    const size_t by = maker(operand);
    return by != kNone && member_[by];
  }
  // Tells whether it needs a result of what is cut.
  bool follows(size_t op) const { return follows_[op]; }
  // Returns the number of ops before this one, which make all that the parts read.
  size_t ready() const { return ready_; }
  // Tells whether a value of this shape has the logits' rows, and so is cut with them.
  bool has_rows(const Shape& shape) const { return passes::has_rows(shape, positions()); }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  size_t maker(const Operand& operand) const {
    const ValueId* value = as_value(operand);
    return value != nullptr ? maker_[index(*value)] : kNone;
  }

  bool makes_logits(const Op& op) const {
    return std::ranges::any_of(op.results,
                               [&](ValueId value) { return region_[value].type.shape == logits_; });
  }

  bool reads_logits(const Op& op) const {
    return std::ranges::any_of(op.operands, [&](const Operand& operand) {
      return as_value(operand) != nullptr && operand_type(module_, region_, operand).shape == logits_;
    });
  }

  // Backwards from what is summed, over what has one value a row.
  void find_logits(std::string_view sum) {
    const Op* adds = adds_to(region_, module_.find_buffer(sum));
    if (adds == nullptr) return;
    std::vector<bool> wanted(region_.values.size(), false);
    const auto want = [&](const Op& op) {
      for (const Operand& operand : op.operands) {
        const ValueId* value = as_value(operand);
        if (value == nullptr) continue;
        wanted[index(*value)] = true;
        const Shape& shape = region_[*value].type.shape;
        if (shape.size() > 1 && shape.back() > 1) logits_ = shape;
      }
    };
    want(*adds);
    for (size_t i = region_.ops.size(); i-- > 0 && logits_.empty();) {
      const Op& op = region_.ops[i];
      if (std::ranges::any_of(op.results, [&](ValueId v) { return wanted[index(v)]; })) want(op);
    }
  }

  void find_members() {
    const std::vector<Op>& ops = region_.ops;
    member_.assign(ops.size(), false);
    follows_.assign(ops.size(), false);
    std::vector<bool> after(region_.values.size(), false), before(region_.values.size(), false);
    for (size_t i = 0; i < ops.size(); ++i) {
      member_[i] = makes_logits(ops[i]) || reads_logits(ops[i]);
      follows_[i] = member_[i] || std::ranges::any_of(ops[i].operands, [&](const Operand& o) {
                      return as_value(o) != nullptr && after[index(*as_value(o))];
                    });
      for (const ValueId result : ops[i].results) after[index(result)] = follows_[i];
    }
    for (size_t i = ops.size(); i-- > 0;) {
      const bool leads = member_[i] || std::ranges::any_of(ops[i].results, [&](ValueId value) {
                           return before[index(value)];
                         });
      if (!leads) continue;
      member_[i] = follows_[i];
      for (const Operand& operand : ops[i].operands)
        if (const ValueId* value = as_value(operand)) before[index(*value)] = true;
    }
    for (size_t i = 0; i < ops.size(); ++i) member_[i] = member_[i] || is_one_a_row(ops[i]);
  }

  // One number a row that follows from others of the same row: where it is cut too, it alone has to be put
  // together again.
  bool is_one_a_row(const Op& op) const {
    const auto cut = [&](const Operand& operand) { return makes(operand); };
    const auto fits = [&](const Operand& operand) {
      const size_t by = maker(operand);
      return by == kNone || member_[by] || !follows_[by];
    };
    return op.info->lowering == Lowering::pointwise && may_cut(op) &&
           region_[op.results.front()].type.shape.back() == 1 && std::ranges::any_of(op.operands, cut) &&
           std::ranges::all_of(op.operands, fits);
  }

  bool may_cut(const Op& op) const { return works_by_row({module_, region_, op}, positions()); }

  // Returns the bytes of values that are made before the parts and read by others after them.
  int64_t living_bytes() const {
    const StorageRoots roots(region_);
    std::vector<bool> lives(region_.values.size(), false);
    for (size_t i = ready_; i < region_.ops.size(); ++i) {
      for (const Operand& operand : region_.ops[i].operands) {
        const ValueId* value = as_value(roots(operand));
        if (member_[i] || value == nullptr) continue;
        const size_t by = maker_[index(*value)];
        lives[index(*value)] = by == kNone || (by < ready_ && !follows_[by]);
      }
    }
    int64_t bytes = 0;
    for (size_t i = 0; i < lives.size(); ++i)
      bytes += lives[i] ? type_bytes(region_.values[i].type, module_.micro_batch()) : 0;
    return bytes;
  }

  // As one rank has them that shares nothing: the number of ranks must not change a bit.
  int64_t buffer_bytes() const {
    const std::vector<Type> stored = stored_types(module_);
    int64_t bytes = 0;
    for (size_t i = 0; i < stored.size(); ++i)
      if (const Buffer& buffer = module_.buffers[i]; role_info(buffer.role).combine != RankCombine::per_rank)
        bytes += type_bytes(full_length_type(module_, buffer).value_or(stored[i]), 1);
    return bytes;
  }

  const Module& module_;
  const Region& region_;
  std::vector<size_t> maker_;  // by value: the op; kNone for an input
  Shape logits_{};
  size_t head_ = kNone;  // the product that makes the logits
  size_t ready_ = 0;
  std::vector<bool> member_, follows_;  // by op
};

// Writes the parts in place of what is cut.
class Parts {
 public:
  Parts(Module& module, Region& region, const Loss& loss, Diag& diag)
      : module_(module), region_(region), loss_(loss), diag_(diag), old_(std::exchange(region.ops, {})) {}

  // Parts of `size` positions, the last one perhaps shorter.
  void run(int64_t size) {
    for (size_t i = 0; i < loss_.ready(); ++i)
      if (!loss_.follows(i)) region_.ops.push_back(old_[i]);
    for (from_ = 0; from_ < loss_.positions(); from_ += size) {
      size_ = std::min(size, loss_.positions() - from_);
      add_slices();
      for (size_t i = 0; i < old_.size(); ++i)
        if (loss_.is_cut(i)) add_part(i);
      ++number_;
    }
    Replacements replaced(region_);
    for (size_t i = 0; i < old_.size(); ++i)
      if (loss_.is_cut(i)) join(i, replaced);
    for (size_t i = 0; i < old_.size(); ++i)
      if (!loss_.is_cut(i) && (i >= loss_.ready() || loss_.follows(i))) region_.ops.push_back(old_[i]);
    for (Op& op : region_.ops) replaced.apply(op);
    replaced.apply(region_.yields);
    compact(region_);
  }

 private:
  Builder builder(const Op& op) { return Builder(module_, region_, diag_).like(op); }

  std::string part_name(const std::string& of) const { return fmt::format("{}.{}", of, number_); }

  // Puts what others made first, so that nothing stands between ops that can share a kernel. It belongs to no segment:
  // the part's backward pass follows at once, and recomputing it gains nothing.
  void add_slices() {
    slices_.clear();
    for (size_t i = 0; i < old_.size(); ++i) {
      if (!loss_.is_cut(i)) continue;
      Builder build = builder(old_[i]);
      build.segment = -1;
      for (const Operand& operand : old_[i].operands) {
        const ValueId* value = as_value(operand);
        if (value == nullptr || !loss_.has_rows(region_[*value].type.shape) || loss_.makes(*value)) continue;
        if (const auto [slice, fresh] = slices_.try_emplace(*value); fresh)
          slice->second = build.make("slice", part_name(region_[*value].name), {operand},
                                     {{"from", from_}, {"size", size_}});
      }
    }
  }

  Operand part_of(const Operand& operand) const {
    const ValueId* value = as_value(operand);
    if (value == nullptr) return operand;
    if (const auto made = parts_.find(*value); made != parts_.end()) return made->second.back();
    const auto slice = slices_.find(*value);
    return slice != slices_.end() ? slice->second : operand;
  }

  void add_part(size_t i) {
    const Op& op = old_[i];
    Builder build = builder(op);
    const bool sums = op.info->lowering == Lowering::column_reduce;
    std::vector<Operand> operands;
    for (const Operand& operand : op.operands) operands.push_back(part_of(operand));
    if (sums) {
      const Operand summed = operands.back();
      sums_[i].push_back(build.make("column_sum", part_name(name_of(module_, region_, op)), {summed}));
      return;
    }
    Attrs attrs = op.attrs;
    if (const auto shape = attrs.find("shape"); shape != attrs.end())
      std::get<std::vector<int64_t>>(shape->second)[1] = size_;
    std::vector<std::string> names;
    for (const ValueId result : op.results) names.push_back(part_name(region_[result].name));
    const auto made = build.make_n(op.info->name, std::move(names), std::move(operands), std::move(attrs));
    for (size_t r = 0; r < made.size(); ++r) parts_[op.results[r]].push_back(made[r]);
  }

  bool is_read(ValueId value) const {
    for (size_t i = 0; i < old_.size(); ++i) {
      const std::vector<Operand>& operands = old_[i].operands;
      if (!loss_.is_cut(i) && contains(operands, Operand(value))) return true;
    }
    return std::ranges::any_of(region_.yields,
                               [&](const Yield& yield) { return yield.what == Operand(value); });
  }

  // The whole of what others read: rows one after the other, and sums added up.
  void join(size_t i, Replacements& replaced) {
    const Op& op = old_[i];
    Builder build = builder(op);
    if (const auto sums = sums_.find(i); sums != sums_.end()) {
      Operand total = sums->second.front();
      for (size_t part = 1; part < sums->second.size(); ++part)
        total = build.make("add", name_of(module_, region_, op) + ".sum", {total, sums->second[part]});
      if (op.results.empty())
        build.effect("add.acc", {op.operands.front(), total});
      else
        replaced.set(op.results.front(), total);
      return;
    }
    for (const ValueId result : op.results) {
      if (!is_read(result)) continue;
      std::string name = std::exchange(region_[result].name, "replaced");
      replaced.set(result, build.make("concat", std::move(name), parts_[result]));
    }
  }

  Module& module_;
  Region& region_;
  const Loss& loss_;
  Diag& diag_;
  std::vector<Op> old_;
  int64_t number_ = 0, from_ = 0, size_ = 0;       // of the part that is being written
  std::map<ValueId, Operand> slices_;              // in this part, of what others made
  std::map<ValueId, std::vector<Operand>> parts_;  // of what is cut
  std::map<size_t, std::vector<Operand>> sums_;    // by op
};

struct Cut {
  int64_t parts = 1, size = 0;  // positions of all but the last
};

Cut cut_of(const Module& module, Loss& loss) {
  const int64_t asked = *module.settings.loss.chunks;
  // A part has positions of all samples: its sums would not be in the samples' order.
  if (asked == 1 || keeps_bits(module.settings) || !loss.find()) return {};
  const int64_t parts = asked > 0 ? std::min(asked, loss.positions()) : loss.choose_parts();
  const int64_t size = ceil_divide(loss.positions(), parts);
  return {ceil_divide(loss.positions(), size), size};
}

}  // namespace

int64_t loss_chunks(const Module& half) {
  Loss loss(half, half.step, "loss.sum");
  return cut_of(half, loss).parts;
}

bool chunk_loss(Module& module, const Options&, Diag& diag) {
  Loss loss(module, module.step, "loss.sum");
  const int64_t asked = *module.settings.loss.chunks;
  const auto [parts, size] = cut_of(module, loss);
  if (asked > 0 || parts > 1) module.settings.loss.chunks = parts;
  if (parts == 1) return true;
  Parts(module, module.step, loss, diag).run(size);
  if (Loss evaluated(module, module.eval, "eval.loss"); evaluated.find())
    Parts(module, module.eval, evaluated, diag).run(size);
  return !diag.failed();
}

}  // namespace gacc::passes
