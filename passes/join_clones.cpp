// Clones in kernels that were there before: what they make is loaded, stored or launched less often.
#include <algorithm>
#include <array>
#include <span>

#include "ir/region_facts.h"
#include "passes/analysis/rematerialize.h"
#include "passes/analysis/rewrite.h"
#include "passes/fuse.h"
#include "passes/plan_memory.h"

namespace gacc::passes {

namespace {

using namespace ir;

constexpr size_t kKernelsLookedAhead = 8;  // kernels that join_clones looks ahead

// First op of every kernel, and the end.
std::vector<size_t> starts_of(const Region& region) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < region.ops.size(); ++i)
    if (i == 0 || region.ops[i].kernel != region.ops[i - 1].kernel) starts.push_back(i);
  starts.push_back(region.ops.size());
  return starts;
}

using KernelOps = std::span<const Op>;

// The kernels of a region, in place: kernel k is its ops from starts[k] to starts[k + 1].
class Kernels {
 public:
  explicit Kernels(const Region& region) : region_(region), starts_(starts_of(region)) {}
  size_t count() const { return starts_.size() - 1; }
  size_t start(size_t k) const { return starts_[k]; }
  size_t end(size_t k) const { return starts_[k + 1]; }
  KernelOps operator[](size_t k) const { return KernelOps(region_.ops).subspan(start(k), end(k) - start(k)); }
  void renew() { starts_ = starts_of(region_); }

 private:
  const Region& region_;
  std::vector<size_t> starts_;
};

bool all_clones(const KernelOps& kernel) {
  return std::ranges::all_of(kernel, [](const Op& op) { return op.remat.has_value(); });
}

template <typename Predicate>
bool any_operand(const KernelOps& kernel, const Predicate& predicate) {
  return std::ranges::any_of(kernel, [&](const Op& op) {
    return std::ranges::any_of(op.operands, predicate) || (op.when && predicate(*op.when));
  });
}

bool makes(const KernelOps& kernel, const Operand& operand) {
  return std::ranges::any_of(kernel, [&](const Op& op) { return ir::makes(op, operand); });
}

bool reads(const KernelOps& kernel, const KernelOps& maker) {
  return any_operand(kernel, [&](const Operand& operand) { return makes(maker, operand); });
}

// Tells whether both read a value that neither makes.
bool share_a_value(const KernelOps& a, const KernelOps& b) {
  return any_operand(a, [&](const Operand& operand) {
    return as_value(operand) != nullptr && !makes(a, operand) &&
           any_operand(b, [&](const Operand& other) { return other == operand; });
  });
}

bool has_results(const KernelOps& kernel) {
  return std::ranges::any_of(kernel, [](const Op& op) { return !op.results.empty(); });
}

bool touches(const StorageRoots& roots, const KernelOps& kernel, BufferId buffer) {
  return any_operand(kernel, [&](const Operand& operand) { return roots.buffer(operand) == buffer; });
}

// Tells whether one writes a buffer that the other touches.
bool conflict(const StorageRoots& roots, const KernelOps& a, const KernelOps& b) {
  const auto writes_into = [&](const KernelOps& from, const KernelOps& other) {
    return std::ranges::any_of(from, [&](const Op& op) {
      return std::ranges::any_of(written(op), [&](BufferId buffer) { return touches(roots, other, buffer); });
    });
  };
  return writes_into(a, b) || writes_into(b, a);
}

// By value: the first result of the op that made it, or of the op that one repeats.
std::vector<ValueId> origins(const Region& region) {
  std::vector<ValueId> out(region.values.size());
  for (const Op& op : region.ops)
    for (const ValueId result : op.results) out[index(result)] = op.remat.value_or(op.results.front());
  return out;
}

// Returns whether `kernel` repeats an op whose results `late` reads or repeats as well: each reads the newest clone
// before it (rule R16), so `late` cannot move behind it.
bool replaces(const KernelOps& kernel, const KernelOps& late, const std::vector<ValueId>& origin) {
  return std::ranges::any_of(kernel, [&](const Op& op) {
    const auto same = [&](const Operand& operand) {
      const ValueId* value = as_value(operand);
      return value != nullptr && origin[index(*value)] == *op.remat;
    };
    return op.remat && (any_operand(late, same) ||
                        std::ranges::any_of(late, [&](const Op& other) { return other.remat == op.remat; }));
  });
}

// Kernel `clone` joined to kernel `to` further down: the kernels from the one to the other in their new
// order, the two side by side. Those between that read the clone move behind, which only those with effects
// alone can.
std::optional<std::vector<size_t>> join(const StorageRoots& roots, const Kernels& kernels, size_t clone,
                                        size_t to, const std::vector<ValueId>& origin) {
  std::vector<size_t> order, behind;
  for (size_t k = clone + 1; k <= to; ++k) {
    const bool moves = k < to && reads(kernels[k], kernels[clone]);
    const auto conflicts = [&](size_t moved) {
      return conflict(roots, kernels[moved], kernels[k]) || replaces(kernels[k], kernels[moved], origin);
    };
    if (moves && has_results(kernels[k])) return std::nullopt;
    if (!moves && (replaces(kernels[k], kernels[clone], origin) || std::ranges::any_of(behind, conflicts)))
      return std::nullopt;
    if (k < to) (moves ? behind : order).push_back(k);
  }
  order.insert(order.end(), {clone, to});
  order.insert(order.end(), behind.begin(), behind.end());
  return order;
}

std::vector<size_t> ops_of(const Kernels& kernels, std::span<const size_t> which) {
  std::vector<size_t> ops;
  for (const size_t k : which)
    for (size_t i = kernels.start(k); i < kernels.end(k); ++i) ops.push_back(i);
  return ops;
}

// A stretch of the region's ops in another order: position i of it is taken by the op `from[i]`.
class Reordered {
 public:
  Reordered(std::vector<Op>& ops, std::vector<size_t> from) : ops_(ops), from_(std::move(from)) {
    first_ = *std::ranges::min_element(from_);
    std::vector<Op> moved;
    for (const size_t i : from_) moved.push_back(std::move(ops_[i]));
    std::move(moved.begin(), moved.end(), ops_.begin() + static_cast<std::ptrdiff_t>(first_));
  }
  void undo() {
    std::vector<Op> moved(from_.size());
    for (size_t i = 0; i < from_.size(); ++i) moved[from_[i] - first_] = std::move(ops_[first_ + i]);
    std::move(moved.begin(), moved.end(), ops_.begin() + static_cast<std::ptrdiff_t>(first_));
  }

 private:
  std::vector<Op>& ops_;
  std::vector<size_t> from_;
  size_t first_ = 0;
};

// Joins are tried many at once, since it takes long to say what memory they need; a batch that needs more than before
// is undone, and half of it tried.
constexpr size_t kMostClonesAtOnce = 256;

class Joiner {
 public:
  explicit Joiner(Module& module)
      : module_(module),
        region_(module.step),
        kernels_(region_),
        origin_(origins(region_)),
        before_(facts(module, region_)),
        bytes_(transient_bytes(module, region_)) {}

  void run() {
    size_t batch = 1;
    for (size_t at = 0; at < kernels_.count();) {
      const std::vector<Op> ops = region_.ops;
      joined_ = false;
      size_t next = at;
      for (size_t clones = 0; clones < batch && next < kernels_.count();) {
        if (!all_clones(kernels_[next])) {
          ++next;
          continue;
        }
        ++clones;
        if (!join_clone(next, false)) ++next;
      }
      if (!joined_ || keeps()) {
        at = next;
        batch = std::min(2 * batch, kMostClonesAtOnce);
        continue;
      }
      region_.ops = ops;
      kernels_.renew();
      if (batch > 1) {
        batch /= 2;
        continue;
      }
      while (at < kernels_.count() && !all_clones(kernels_[at])) ++at;
      if (at < kernels_.count() && !join_clone(at, true)) ++at;
    }
    renumber_kernels(region_);
  }

 private:
  // Tells whether the step needs no more bytes than before; then that is what it needs.
  bool keeps() {
    const int64_t now = transient_bytes(module_, region_);
    if (now > bytes_) return false;
    bytes_ = now;
    return true;
  }

  // Joins a clone to a kernel further down; to one where that takes no more bytes, if `look`. Then another kernel has
  // taken its place.
  bool join_clone(size_t clone, bool look) {
    for (size_t to = clone + 1; to < std::min(kernels_.count(), clone + 1 + kKernelsLookedAhead); ++to) {
      if (!share_a_value(kernels_[clone], kernels_[to]) && !reads(kernels_[to], kernels_[clone])) continue;
      const std::optional<std::vector<size_t>> order = join(before_->root, kernels_, clone, to, origin_);
      if (!order || !fits_kernel(module_, region_, ops_of(kernels_, std::array{clone, to}))) continue;
      const auto number = [&](int32_t kernel) {
        for (size_t i = kernels_.start(clone); i < kernels_.end(clone); ++i) region_.ops[i].kernel = kernel;
      };
      const int32_t own = kernels_[clone].front().kernel;
      number(kernels_[to].front().kernel);
      Reordered trial(region_.ops, ops_of(kernels_, *order));
      if (!look || keeps()) {
        kernels_.renew();
        joined_ = true;
        return true;
      }
      trial.undo();
      number(own);
    }
    return false;
  }

  Module& module_;
  Region& region_;
  Kernels kernels_;
  std::vector<ValueId> origin_;
  Facts before_;  // joining moves ops, and no value's bytes
  int64_t bytes_;
  bool joined_ = false;
};

}  // namespace

void join_clones(Module& module) { Joiner(module).run(); }

}  // namespace gacc::passes
