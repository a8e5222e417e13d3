#include "passes/analysis/step_graph.h"

#include <algorithm>
#include <set>

#include "ir/host_state.h"
#include "kernels/launch_work.h"
#include "passes/analysis/rewrite.h"
#include "passes/plan_memory.h"

namespace gacc::passes {

namespace {

using namespace ir;

class Translator {
 public:
  Translator(const Module& module, std::string_view target) : module_(module), region_(module.step) {
    out_.facts = facts(module, region_);
    out_.fixed_bytes = buffer_bytes(module_);
    for (const RegionKind kind : training_regions) {
      if (kind == RegionKind::step) continue;
      const int64_t bytes = transient_bytes(module_, module_.region(kind));
      if (bytes <= out_.other_bytes) continue;
      out_.other_bytes = bytes;
      out_.other = kind;
    }
    out_.arena_bytes = out_.fixed_bytes + std::max(out_.other_bytes, transient_bytes(module_, region_));
    estimator_.emplace(module_, region_, target, out_.arena_bytes);
  }

  StepGraph run() {
    out_.forward = forward_ops();
    if (fetches(region_)) find_uncovered();
    // Effects at the very end come after everything that may run again.
    const std::vector<Kernel>& kernels = out_.kernels();
    size_t last = kernels.size();
    while (last > 0 &&
           std::ranges::all_of(kernels[last - 1].reads,
                               [](const Operand& read) { return as_buffer(read) != nullptr; }) &&
           std::ranges::all_of(kernels[last - 1].writes,
                               [](const Operand& write) { return as_buffer(write) != nullptr; }))
      --last;
    for (size_t k = 0; k < last; ++k) {
      for (const Operand& write : kernels[k].writes)
        if (const BufferId* buffer = as_buffer(write)) written_.insert(*buffer);
    }
    out_.tensor_of.assign(region_.values.size(), -1);
    micro_batch();
    for (size_t k = 0; k < kernels.size(); ++k)
      if (kernels[k].form != KernelForm::alias) operation(k);
    end();
    return std::move(out_);
  }

 private:
  const Operand& root(const Operand& operand) const { return out_.facts->root(operand); }

  // The ops that something other than a gradient's accumulator depends on.
  std::vector<bool> forward_ops() const {
    std::vector<bool> wanted(region_.values.size(), false), forward(region_.ops.size(), false);
    for (size_t i = region_.ops.size(); i-- > 0;) {
      const Op& op = region_.ops[i];
      bool yes = std::ranges::any_of(op.results, [&](ValueId v) { return wanted[index(v)]; });
      for (const BufferId buffer : written(op)) {
        const BufferRole role = module_[buffer].role;
        yes = yes || !(role == BufferRole::gradient || role == BufferRole::further_use ||
                       role == BufferRole::squares);
      }
      if (!yes) continue;
      forward[i] = true;
      op.each_operand([&](const Operand& operand) {
        if (const ValueId* value = as_value(operand)) wanted[index(*value)] = true;
      });
    }
    return forward;
  }

  // The part of the copies' time that kernels do not cover.
  void find_uncovered() {
    double copies = 0, kernels = 0;
    for (const Kernel& kernel : out_.kernels()) {
      (kernel.form == KernelForm::copy ? copies : kernels) += estimator_->seconds(kernel);
      if (kernel.form != KernelForm::copy) continue;
      const Type& type = operand_type(module_, region_, kernel.writes.front());
      out_.ahead_bytes =
          std::max(out_.ahead_bytes, static_cast<int64_t>(kFetchedAhead) * aligned(type_bytes(type, 1)));
    }
    uncovered_ = copies > 0 ? std::clamp(1 - kernels / (2 * copies), kLeastUncovered, 1.0) : 1;
  }

  int tensor(ValueId value, int producer) {
    planner::Tensor x;
    x.id = static_cast<int64_t>(out_.graph.tensors.size());
    x.producer = producer;
    x.storage = static_cast<int>(x.id);
    x.bytes = aligned(type_bytes(region_[value].type, module_.micro_batch()));
    out_.tensor_of[index(value)] = x.storage;
    out_.value_of.push_back(value);
    out_.graph.tensors.push_back(std::move(x));
    return out_.graph.tensors.back().storage;
  }

  void micro_batch() {
    planner::Operation op;
    op.name = "inputs";
    op.once = true;
    for (const ValueId input : region_.inputs) op.outputs.push_back(tensor(input, 0));
    add(std::move(op), -1, {});
  }

  void add(planner::Operation op, int kernel, std::vector<size_t> parts) {
    out_.graph.operations.push_back(std::move(op));
    out_.kernel_of.push_back(kernel);
    out_.parts.push_back(std::move(parts));
  }

  // One operation for a kernel, or two: what it makes from other kernels' values, and what follows from those
  // results alone (a norm of a sum, an activation of a biased product). The second part runs with the first
  // for nothing, and again by itself, from the first part's results.
  void operation(size_t k) {
    const Kernel& kernel = out_.kernels()[k];
    const double seconds = estimator_->seconds(kernel) * (kernel.form == KernelForm::copy ? uncovered_ : 1);
    out_.seconds += seconds;
    std::vector<ValueId> first, second;
    for (const Operand& write : kernel.writes) {
      const ValueId* value = as_value(write);
      if (value == nullptr) continue;
      const bool follows = !first.empty() && kernel.form != KernelForm::handwritten &&
                           !reads_others(slice(kernel, {*value}, first), first);
      std::vector<ValueId>& part = follows ? second : first;
      part.push_back(*value);
    }
    part(k, seconds, first, {}, kernel);
    if (!second.empty()) part(k, 0, second, first, kernel);
  }

  // Tells whether the ops read a value that neither they nor `known` are.
  bool reads_others(const std::vector<size_t>& ops, const std::vector<ValueId>& known) const {
    std::set<int32_t> made;
    for (const ValueId value : known) made.insert(value.index);
    for (const size_t i : ops) {
      for (const Operand& operand : region_.ops[i].operands) {
        const ValueId* value = as_value(operand);
        const Operand owner = root(operand);
        if (value != nullptr && as_value(owner) != nullptr && !made.contains(value->index)) return true;
      }
      for (const ValueId value : region_.ops[i].results) made.insert(value.index);
    }
    return false;
  }

  // The part of a kernel that makes `results`: the first, or what follows from the results `known`.
  void part(size_t k, double seconds, const std::vector<ValueId>& results, const std::vector<ValueId>& known,
            const Kernel& kernel) {
    const int number = static_cast<int>(out_.graph.operations.size());
    planner::Operation op;
    op.cost = seconds;
    std::vector<size_t> ops = slice(kernel, results, known);
    const auto read = [&](const Operand& operand) {
      const Operand owner = root(operand);
      const ValueId* value = as_value(owner);
      if (value == nullptr || out_.tensor_of[index(*value)] < 0) return;
      const int x = out_.tensor_of[index(*value)];
      if (contains(op.inputs, x)) return;
      op.inputs.push_back(x);
      out_.graph.tensors[x].uses.push_back(number);
    };
    if (known.empty())
      std::ranges::for_each(kernel.reads, read);
    else
      for (const size_t i : ops) std::ranges::for_each(region_.ops[i].operands, read);
    for (const ValueId value : results) op.outputs.push_back(tensor(value, number));
    if (known.empty()) in_place(kernel, op, results);
    op.name = name_of(kernel, results);
    const auto forward = [&](size_t i) { return out_.forward[i]; };
    op.backward = known.empty() ? std::ranges::none_of(kernel.members,
                                                       [&](const KernelMember& m) { return forward(m.op); })
                                : std::ranges::none_of(ops, forward);
    op.once = std::ranges::any_of(ops, [&](size_t i) { return runs_once(region_.ops[i]); });
    if (!results.empty() && (!known.empty() || ops.size() != kernel.members.size()))
      if (const std::optional<Kernel> part = kernel_of(module_, region_, ops, results))
        op.again = estimator_->seconds(*part);
    add(std::move(op), static_cast<int>(k), std::move(ops));
  }

  // Effects, and what reads a buffer that the step writes.
  bool runs_once(const Op& op) const {
    if (op.info->recompute == Recompute::never || op.info->writes != 0 || op.when) return true;
    return std::ranges::any_of(op.operands, [&](const Operand& operand) {
      const Operand owner = root(operand);
      const BufferId* buffer = as_buffer(owner);
      return buffer != nullptr && written_.contains(*buffer);
    });
  }

  std::string name_of(const Kernel& kernel, const std::vector<ValueId>& results) const {
    std::string name = "kernel";
    if (!results.empty())
      name = region_[results.front()].name;
    else if (!kernel.writes.empty())
      name = passes::name_of(module_, region_, kernel.writes.front());
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return c <= ' '; }, '_');
    return name;
  }

  // Results that may take the bytes of an operand that dies in the kernel (as plan-memory pairs them).
  void in_place(const Kernel& kernel, planner::Operation& op, const std::vector<ValueId>& results) {
    for (const int x : op.inputs) {
      const ValueId from = out_.value_of[x];
      for (const ValueId to : results) {
        if (type_bytes(region_[from].type, module_.micro_batch()) !=
            type_bytes(region_[to].type, module_.micro_batch()))
          continue;
        const bool allowed = std::ranges::all_of(kernel.reads, [&](const Operand& read) {
          return root(read) != Operand(from) || may_reuse(region_, kernel, *as_value(read), to);
        });
        if (allowed) op.in_place.emplace_back(x, out_.tensor_of[index(to)]);
      }
    }
  }

  // The members of the kernel that `results` depend on, ascending; not those behind the results `known`.
  std::vector<size_t> slice(const Kernel& kernel, const std::vector<ValueId>& results,
                            const std::vector<ValueId>& known) const {
    std::set<int32_t> wanted;
    for (const ValueId value : results) wanted.insert(value.index);
    std::vector<size_t> ops;
    for (size_t m = kernel.members.size(); m-- > 0;) {
      const Op& op = region_.ops[kernel.members[m].op];
      if (std::ranges::none_of(op.results, [&](ValueId value) { return wanted.contains(value.index); }))
        continue;
      ops.push_back(kernel.members[m].op);
      for (const Operand& operand : op.operands) {
        const ValueId* value = as_value(operand);
        if (value != nullptr && !contains(known, *value)) wanted.insert(value->index);
      }
    }
    std::ranges::reverse(ops);
    return ops;
  }

  void end() {
    planner::Operation op;
    op.name = "end";
    for (const Yield& yield : region_.yields) {
      const Operand owner = root(yield.what);
      const ValueId* value = as_value(owner);
      if (value == nullptr || out_.tensor_of[index(*value)] < 0) continue;
      const int x = out_.tensor_of[index(*value)];
      planner::Tensor& wanted = out_.graph.tensors[x];
      if (wanted.wanted) continue;
      wanted.wanted = true;
      op.inputs.push_back(x);
      wanted.uses.push_back(static_cast<int>(out_.graph.operations.size()));
    }
    add(std::move(op), -1, {});
  }

  const Module& module_;
  const Region& region_;
  StepGraph out_;
  std::optional<kernels::KernelEstimator> estimator_;
  std::set<BufferId> written_;
  // Even a copy that is covered takes something, so that nothing is fetched without need.
  static constexpr double kLeastUncovered = 1.0 / 64;
  double uncovered_ = 1;
};

}  // namespace

StepGraph step_graph(const Module& module, std::string_view target) {
  return Translator(module, target).run();
}

std::string print_graph(const StepGraph& step) {
  const planner::Graph& graph = step.graph;
  std::string text;
  for (int o = 1; o < graph.end(); ++o) {  // tensors of operation 0 are made by nothing
    const planner::Operation& op = graph.operation(o);
    text += fmt::format("OP {:.6g} {} {} {}", op.again_cost() * 1e6, op.backward ? 1 : 0, op.name,
                        op.inputs.size());
    for (const int x : op.inputs) text += fmt::format(" {}", x);
    text += fmt::format(" {}", op.outputs.size());
    for (const int x : op.outputs) text += fmt::format(" {} {} -1", x, graph.tensor(x).bytes);
    text += '\n';
  }
  for (size_t x = 0; x < graph.tensors.size(); ++x)
    if (graph.tensors[x].wanted) text += fmt::format("GET {} 1\n", x);
  return text;
}

}  // namespace gacc::passes
