#include "passes/analysis/rematerialize.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "passes/analysis/rewrite.h"

namespace gacc::passes {

namespace {

using namespace ir;

class Writer {
 public:
  Writer(Module& module, const StepGraph& step) : region_(module.step), step_(step), old_(module.step.ops) {
    for (size_t i = 0; i < region_.values.size(); ++i) {
      current_.push_back(ValueId{static_cast<int32_t>(i)});
      names_.insert(region_.values[i].name);
    }
    alias_.assign(region_.values.size(), -1);
    root_.resize(region_.values.size());
    for (size_t i = 0; i < old_.size(); ++i) {
      if (old_[i].info->lowering == Lowering::alias)
        alias_[index(old_[i].results.front())] = static_cast<int>(i);
      segments_ = std::max(segments_, old_[i].segment + 1);
    }
    live_.assign(step.graph.tensors.size(), false);
    done_.assign(step.graph.operations.size(), false);
  }

  void run(const std::vector<planner::Step>& schedule) {
    bool again = false;  // the last step ran something again
    for (const planner::Step& s : schedule) {
      const int k = step_.kernel_of[s.operation];
      if (k >= 0 && !done_[s.operation]) {
        while (next_ <= static_cast<size_t>(k)) original(next_++);  // aliases on the way
        again = false;
      } else if (k >= 0) {
        if (!again) ++segments_;
        again = true;
        clone(s.operation);
      }
      done_[s.operation] = true;
      for (const int x : step_.graph.operation(s.operation).outputs) live_[x] = true;
      for (const int x : s.drops) live_[x] = false;
    }
    while (next_ < step_.kernels().size()) original(next_++);
    for (Yield& yield : region_.yields) yield.what = now(yield.what);
    region_.ops = std::move(ops_);
    sweep();
    compact(region_);
  }

 private:
  void original(size_t k) {
    std::vector<Op> made;  // `now` may put reshapes, kernels of their own, before them
    for (const KernelMember& member : step_.kernels()[k].members) {
      Op op = old_[member.op];
      op.each_operand([&](Operand& operand) { operand = now(operand); });
      if (op.info->lowering == Lowering::alias) root_[index(op.results.front())] = op.operands.front();
      made.push_back(std::move(op));
    }
    add_kernel(std::move(made));
  }

  void add_kernel(std::vector<Op> members) {
    for (Op& op : members) {
      op.kernel = kernels_;
      ops_.push_back(std::move(op));
    }
    ++kernels_;
  }

  // The newest clone of an operand; a reshape of a clone is made where it is first wanted.
  Operand now(const Operand& operand) {
    const ValueId* value = as_value(operand);
    if (value == nullptr) return operand;
    const int at = alias_[index(*value)];
    if (at < 0) return current_[index(*value)];
    const Op& from = old_[at];
    const Operand below = now(from.operands.front());
    if (root_[index(*value)] && *root_[index(*value)] != below) {
      root_[index(*value)] = below;
      Op op = repeat(from);
      op.operands.front() = below;
      op.kernel = kernels_++;
      current_[index(*value)] = op.results.front();
      ops_.push_back(std::move(op));
    }
    return current_[index(*value)];
  }

  Op repeat(const Op& from) {
    Op op = from;
    op.remat = from.results.front();
    if (op.segment < 0) op.segment = segments_ - 1;
    for (ValueId& result : op.results) {
      const Value value = region_[result];
      result = add_value(value.name + ".r", value.type);
    }
    return op;
  }

  // As Region::add_value, which looks at all values for each name that it tries.
  ValueId add_value(const std::string& wanted, const Type& type) {
    int& last = suffixes_[wanted];
    std::string name = wanted;
    while (!names_.insert(name).second) name = fmt::format("{}.{}", wanted, last = std::max(2, last + 1));
    region_.values.push_back({std::move(name), type});
    return {static_cast<int32_t>(region_.values.size() - 1)};
  }

  void clone(int o) {
    const planner::Operation& operation = step_.graph.operation(o);
    std::vector<Op> made;
    std::map<ValueId, ValueId> inside;
    const auto lives = [&](ValueId value) {
      const int x = step_.tensor_of[index(value)];
      return x >= 0 && live_[x];
    };
    for (const size_t i : step_.parts[o]) {
      Op op = old_[i];
      if (std::ranges::all_of(op.results, lives)) continue;
      for (Operand& operand : op.operands) {
        const ValueId* value = as_value(operand);
        const auto own = value != nullptr && !lives(*value) ? inside.find(*value) : inside.end();
        operand = own != inside.end() ? Operand(own->second) : now(operand);
      }
      const std::vector<Operand> operands = std::move(op.operands);
      op = repeat(old_[i]);
      op.operands = operands;
      for (size_t r = 0; r < op.results.size(); ++r) inside[old_[i].results[r]] = op.results[r];
      made.push_back(std::move(op));
    }
    add_kernel(std::move(made));
    for (const int x : operation.outputs) {  // what still lives is not made again
      const ValueId value = step_.value_of[x];
      if (!live_[x]) current_[index(value)] = inside.at(value);
    }
  }

  // Clones that nobody reads go, and so do originals that were made and dropped before anybody read them: the
  // first clone is the original then. So recompute also moves ops to where they are wanted.
  void sweep() {
    std::vector<bool> gone(region_.values.size(), false);
    for (const Op& op : take_dead(region_))
      for (const ValueId result : op.results) gone[index(result)] = true;
    std::map<ValueId, std::vector<ValueId>> instead;  // by first result of what is gone: of its first clone
    for (Op& op : region_.ops) {
      if (!op.remat || !gone[index(*op.remat)]) continue;
      const auto [at, first] = instead.emplace(*op.remat, op.results);
      op.remat = at->second.front();
      if (!first) continue;
      const ValueId gone_result = at->first;
      const Op& original = *std::ranges::find_if(old_, [&](const Op& other) {
        return !other.results.empty() && other.results.front() == gone_result;
      });
      op.remat.reset();
      op.segment = original.segment;
      for (size_t i = 0; i < op.results.size(); ++i)
        std::swap(region_[op.results[i]].name, region_[original.results[i]].name);
    }
  }

  Region& region_;
  const StepGraph& step_;
  const std::vector<Op> old_;
  std::vector<Op> ops_;
  std::vector<ValueId> current_;              // by value of the original
  std::vector<int> alias_;                    // by value: the op, where it is a reshape
  std::vector<std::optional<Operand>> root_;  // by value that is a reshape: what of, now
  std::unordered_set<std::string> names_;
  std::map<std::string, int> suffixes_;  // by name: the last that was tried
  std::vector<bool> done_;               // by operation
  std::vector<bool> live_;               // by tensor
  size_t next_ = 0;                      // kernel
  int32_t kernels_ = 0, segments_ = 0;
};

}  // namespace

void renumber_kernels(Region& region) {
  int32_t number = -1, last = -1;
  for (size_t i = 0; i < region.ops.size(); ++i) {
    Op& op = region.ops[i];
    if (i == 0 || op.kernel != last) ++number;
    last = op.kernel;
    op.kernel = number;
  }
}

Module rematerialized(Module module, const StepGraph& step, const std::vector<planner::Step>& schedule) {
  Writer(module, step).run(schedule);
  renumber_kernels(module.step);
  return module;
}

Module without_clones(const Module& module) {
  Module out = module;
  Region& region = out.step;
  std::vector<std::vector<ValueId>> results(region.values.size());  // by first result
  rewrite(region, [&](const Op& op, Replacements& originals) {
    if (!op.results.empty()) results[index(op.results.front())] = op.results;
    for (size_t i = 0; op.remat && i < op.results.size(); ++i)
      originals.set(op.results[i], results[index(*op.remat)].at(i));
    return !op.remat;
  });
  renumber_kernels(region);
  out.phase = Phase::fused;
  out.arena_bytes.reset();
  for (Buffer& buffer : out.buffers) buffer.offset.reset();
  for (const RegionKind kind : all_regions)
    for (Value& value : out.region(kind).values) value.offset.reset();
  return out;
}

}  // namespace gacc::passes
