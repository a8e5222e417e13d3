// Clones in kernels that were there before: what they make is loaded, stored or launched less often.
#include <algorithm>

#include "passes/plan_memory.h"
#include "passes/rematerialize.h"
#include "passes/rewrite.h"

namespace gacc::passes {

namespace {

using namespace ir;

constexpr size_t kWindow = 8;  // kernels that share_reads looks ahead

// First op of every kernel, and the end.
std::vector<size_t> starts_of(const Region& region) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < region.ops.size(); ++i) {
    if (i == 0 || region.ops[i].kernel != region.ops[i - 1].kernel) starts.push_back(i);
  }
  starts.push_back(region.ops.size());
  return starts;
}

bool reads_from(const Region& region, size_t begin, size_t middle, size_t end) {
  for (size_t i = middle; i < end; ++i) {
    for (const Operand& operand : region.ops[i].operands) {
      const ValueId* value = as_value(operand);
      for (size_t j = begin; value != nullptr && j < middle; ++j) {
        const auto& results = region.ops[j].results;
        if (std::find(results.begin(), results.end(), *value) != results.end()) return true;
      }
    }
  }
  return false;
}

// Whether the ops of [begin, end) may be one kernel of a size that `fuse` would make.
bool fits(const Module& module, const Region& region, size_t begin, size_t end, const Options& options) {
  if (end - begin > options.kernel_ops) return false;
  std::vector<size_t> ops;
  std::vector<Operand> made, operands;
  for (size_t i = begin; i < end; ++i) {
    ops.push_back(i);
    const Op& op = region.ops[i];
    for (const Operand& operand : op.operands) {
      if (as_number(operand) == nullptr && std::find(made.begin(), made.end(), operand) == made.end() &&
          std::find(operands.begin(), operands.end(), operand) == operands.end())
        operands.push_back(operand);
    }
    for (const ValueId result : op.results) made.emplace_back(result);
  }
  return operands.size() < options.kernel_operands && may_fuse(module, region, ops);
}

using KernelOps = std::vector<Op>;

std::vector<KernelOps> by_kernel(const Region& region) {
  std::vector<KernelOps> out;
  for (const Op& op : region.ops) {
    if (out.empty() || out.back().back().kernel != op.kernel) out.emplace_back();
    out.back().push_back(op);
  }
  return out;
}

bool all_clones(const KernelOps& kernel) {
  return std::all_of(kernel.begin(), kernel.end(), [](const Op& op) { return op.remat.has_value(); });
}

template <typename Predicate>
bool any_operand(const KernelOps& kernel, const Predicate& predicate) {
  return std::any_of(kernel.begin(), kernel.end(), [&](const Op& op) {
    return std::any_of(op.operands.begin(), op.operands.end(), predicate) || (op.when && predicate(*op.when));
  });
}

bool makes(const KernelOps& kernel, const Operand& operand) {
  const ValueId* value = as_value(operand);
  return value != nullptr && std::any_of(kernel.begin(), kernel.end(), [&](const Op& op) {
           return std::find(op.results.begin(), op.results.end(), *value) != op.results.end();
         });
}

bool reads(const KernelOps& kernel, const KernelOps& maker) {
  return any_operand(kernel, [&](const Operand& operand) { return makes(maker, operand); });
}

// Whether both read a value that neither makes.
bool share_a_value(const KernelOps& a, const KernelOps& b) {
  return any_operand(a, [&](const Operand& operand) {
    return as_value(operand) != nullptr && !makes(a, operand) &&
           any_operand(b, [&](const Operand& other) { return other == operand; });
  });
}

bool has_results(const KernelOps& kernel) {
  return std::any_of(kernel.begin(), kernel.end(), [](const Op& op) { return !op.results.empty(); });
}

bool touches(const Region& region, const KernelOps& kernel, BufferId buffer) {
  return any_operand(kernel, [&](const Operand& operand) { return root_buffer(region, operand) == buffer; });
}

// Whether one writes a buffer that the other touches.
bool conflict(const Region& region, const KernelOps& a, const KernelOps& b) {
  const auto writes_into = [&](const KernelOps& from, const KernelOps& other) {
    return std::any_of(from.begin(), from.end(), [&](const Op& op) {
      for (size_t i = 0; i < op.operands.size(); ++i) {
        const std::optional<BufferId> buffer =
            writes_operand(op, i) ? root_buffer(region, op.operands[i]) : std::nullopt;
        if (buffer && touches(region, other, *buffer)) return true;
      }
      return false;
    });
  };
  return writes_into(a, b) || writes_into(b, a);
}

// By value: the first result of the op that made it, or of the op that one repeats.
std::vector<ValueId> origins(const Region& region) {
  std::vector<ValueId> out(region.values.size());
  for (const Op& op : region.ops) {
    for (const ValueId result : op.results)
      out[static_cast<size_t>(result.index)] = op.remat.value_or(op.results.front());
  }
  return out;
}

// Whether `kernel` repeats an op whose results `late` reads or repeats as well: each reads the newest clone
// before it (rule R16), so `late` cannot move behind it.
bool replaces(const KernelOps& kernel, const KernelOps& late, const std::vector<ValueId>& origin) {
  return std::any_of(kernel.begin(), kernel.end(), [&](const Op& op) {
    const auto same = [&](const Operand& operand) {
      const ValueId* value = as_value(operand);
      return value != nullptr && origin[static_cast<size_t>(value->index)] == *op.remat;
    };
    return op.remat &&
           (any_operand(late, same) ||
            std::any_of(late.begin(), late.end(), [&](const Op& other) { return other.remat == op.remat; }));
  });
}

struct Order {
  std::vector<KernelOps> kernels;
  size_t joined = 0;
};

// Kernel `clone` joined to kernel `to` further down; those between that read the clone move behind, which
// only those with effects alone can.
std::optional<Order> join(const Region& region, const std::vector<KernelOps>& kernels, size_t clone,
                          size_t to, const std::vector<ValueId>& origin) {
  const auto at = [&](size_t k) { return kernels.begin() + static_cast<std::ptrdiff_t>(k); };
  Order out{{kernels.begin(), at(clone)}};
  std::vector<KernelOps> behind;
  for (size_t k = clone + 1; k <= to; ++k) {
    const bool moves = k < to && reads(kernels[k], kernels[clone]);
    const auto conflicts = [&](const KernelOps& moved) {
      return conflict(region, moved, kernels[k]) || replaces(kernels[k], moved, origin);
    };
    if (moves && has_results(kernels[k])) return std::nullopt;
    if (!moves && (replaces(kernels[k], kernels[clone], origin) ||
                   std::any_of(behind.begin(), behind.end(), conflicts)))
      return std::nullopt;
    if (k < to) (moves ? behind : out.kernels).push_back(kernels[k]);
  }
  out.joined = out.kernels.size();
  out.kernels.push_back(kernels[clone]);
  out.kernels.back().insert(out.kernels.back().end(), kernels[to].begin(), kernels[to].end());
  out.kernels.insert(out.kernels.end(), behind.begin(), behind.end());
  out.kernels.insert(out.kernels.end(), at(to + 1), kernels.end());
  return out;
}

void write_kernels(Region& region, const std::vector<KernelOps>& kernels) {
  region.ops.clear();
  for (size_t k = 0; k < kernels.size(); ++k) {
    for (const Op& op : kernels[k]) {
      region.ops.push_back(op);
      region.ops.back().kernel = static_cast<int32_t>(k);
    }
  }
}

bool joined_fits(const Module& module, const Order& order, const Options& options) {
  size_t begin = 0;
  for (size_t k = 0; k < order.joined; ++k) begin += order.kernels[k].size();
  return fits(module, module.step, begin, begin + order.kernels[order.joined].size(), options);
}

}  // namespace

void fuse_clones(Module& module, const Options& options) {
  Region& region = module.step;
  std::vector<size_t> starts = starts_of(region);
  for (size_t k = starts.size() - 1; k-- > 1;) {
    // Kernel k takes in those before it as long as that works.
    while (k > 0) {
      const size_t begin = starts[k - 1], middle = starts[k], end = starts[k + 1];
      const bool clones = std::all_of(region.ops.begin() + static_cast<std::ptrdiff_t>(begin),
                                      region.ops.begin() + static_cast<std::ptrdiff_t>(middle),
                                      [](const Op& op) { return op.remat.has_value(); });
      if (!clones || !reads_from(region, begin, middle, end) || !fits(module, region, begin, end, options))
        break;
      for (size_t i = begin; i < end; ++i) region.ops[i].kernel = region.ops[begin].kernel;
      starts.erase(starts.begin() + static_cast<std::ptrdiff_t>(k));
      --k;
    }
  }
  renumber_kernels(region);
}

void share_reads(Module& module, const Options& options) {
  std::vector<KernelOps> kernels = by_kernel(module.step);
  const std::vector<ValueId> origin = origins(module.step);
  int64_t bytes = transient_bytes(module, module.step);
  for (size_t clone = 0; clone < kernels.size(); ++clone) {
    if (!all_clones(kernels[clone])) continue;
    for (size_t to = clone + 1; to < std::min(kernels.size(), clone + 1 + kWindow); ++to) {
      if (!share_a_value(kernels[clone], kernels[to]) && !reads(kernels[to], kernels[clone])) continue;
      std::optional<Order> order = join(module.step, kernels, clone, to, origin);
      if (!order) continue;
      Module trial = module;
      write_kernels(trial.step, order->kernels);
      if (!joined_fits(trial, *order, options)) continue;
      const int64_t now = transient_bytes(trial, trial.step);
      if (now > bytes) continue;
      bytes = now;
      module = std::move(trial);
      kernels = std::move(order->kernels);
      --clone;  // what took its place
      break;
    }
  }
}

}  // namespace gacc::passes
