// Fusion: groups ops into kernels, so that what one op makes and the next one reads never goes through
// memory.
//
//   1. Large sums are cut into parts (split_sums.cpp). Reshapes move up to what they are reshapes of: they
//      cost nothing, and a group cannot reach over one it depends on. Pointwise ops move down to their
//      first user, and what the loss's gradient starts from comes first of all.
//   2. Ops join groups greedily, in program order. Everything an op depends on (values, and buffers read or
//      written before) is in groups up to some index; from that group on, it joins the one that saves the
//      most memory traffic, where ir/kernel.h accepts it and the kernel stays small; else it opens a new
//      group.
//   3. The ops of a group are made neighbours, groups in order of creation, and numbered.
//
// An op joins a later group than its dependencies or the same one, and groups keep their order, so every use
// stays after its definition.
#include <algorithm>
#include <map>

#include "ir/kernel.h"
#include "kernels/specialisation.h"
#include "passes/analysis/rewrite.h"
#include "passes/fuse.h"

namespace gacc::passes {

namespace {

using namespace ir;

// Ops of one kernel: register pressure; and what it loads and stores in memory. Kernels of few elements have neither
// problem.
constexpr size_t kKernelOps = 24, kScalarKernelOps = 512;
constexpr size_t kKernelOperands = 12, kScalarKernelOperands = 192;
constexpr int64_t kSmallDomain = 4096;  // elements; unrelated ops over a smaller domain share a launch

bool writes(const Op& op, BufferId buffer) {
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (op.info->is_written(i) && op.operands[i] == Operand(buffer)) return true;
  return false;
}

void hoist_reshapes(Region& region) {
  std::vector<Op> out;
  for (Op& op : region.ops) {
    auto at = out.end();
    if (op.info->lowering == Lowering::alias) {
      at = std::find_if(out.rbegin(), out.rend(), [&](const Op& other) {
             return makes(other, op.operands.front());
           }).base();
      while (at != out.end() && at->info->lowering == Lowering::alias) ++at;  // in program order
    }
    out.insert(at, std::move(op));
  }
  region.ops = std::move(out);
}

// Moves pointwise ops down to their first user: a kernel that opens late can still hold what an early one
// could, and what comes in between cannot cut it off from its user. Not past a write to a buffer that the op
// reads.
void sink_pointwise(Region& region) {
  std::vector<Op>& ops = region.ops;
  const StorageRoots roots(region);
  for (size_t i = ops.size(); i-- > 0;) {
    if (ops[i].info->lowering != Lowering::pointwise || ops[i].info->writes != 0) continue;
    const auto stop = [&](const Op& other) {
      if (std::ranges::any_of(ops[i].results, [&](ValueId made) { return other.reads(made); })) return true;
      return std::ranges::any_of(ops[i].operands, [&](const Operand& operand) {
        const std::optional<BufferId> buffer = roots.buffer(operand);
        return buffer && writes(other, *buffer);
      });
    };
    const auto from = ops.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    const auto to = std::find_if(from, ops.end(), stop);
    if (to != ops.end()) std::rotate(from - 1, from, to);  // without a user it stays
  }
}

// Moves scalars of the gradient that are made of state alone to the front: the loss scale over the number of
// elements. A kernel of the forward pass can then make the loss's gradient, too.
void hoist_scalars(Region& region) {
  std::stable_partition(region.ops.begin(), region.ops.end(), [&](const Op& op) {
    return op.origin == Origin::gradient && op.info->lowering == Lowering::pointwise && !op.results.empty() &&
           region[op.results.front()].type.shape.empty() && !op.when &&
           std::ranges::none_of(op.operands,
                                [](const Operand& operand) { return as_value(operand) != nullptr; });
  });
}

struct Group {
  std::vector<size_t> ops;          // indices in program order
  std::vector<Operand> operands{};  // what they touch, without duplicates
  bool alone = false;               // gemm, alias, handwritten
  bool in_place = false;            // a member writes what another reads
};

class Fuser {
 public:
  Fuser(const Module& module, Region& region)
      : module_(module),
        region_(region),
        batch_(module.micro_batch()),
        roots_(region),
        domains_(region.ops.size()),
        maker_(region.values.size(), -1),
        group_of_(region.ops.size(), -1),
        users_(region.values.size()) {
    const auto use = [&](const Operand& operand, size_t user) {
      if (const ValueId* value = as_value(operand)) users_[index(*value)].push_back(user);
    };
    for (size_t i = 0; i < region.ops.size(); ++i)
      region.ops[i].each_operand([&](const Operand& operand) { use(operand, i); });
    for (const Yield& yield : region.yields) use(yield.what, kYield);
  }

  void run() {
    for (size_t i = 0; i < region_.ops.size(); ++i) place(i);
    std::vector<Op> ordered;
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (const size_t i : groups_[g].ops) {
        ordered.push_back(std::move(region_.ops[i]));
        ordered.back().kernel = static_cast<int32_t>(g);
      }
    }
    region_.ops = std::move(ordered);
  }

 private:
  // An effect that follows from buffers alone (a counter). Under a recompute policy it stays at the end: ops
  // that read what it writes may run again until then.
  bool comes_last(const Op& op) const {
    return op.info->writes != 0 && *module_.settings.recompute.policy != "none" &&
           region_.kind == RegionKind::step && std::ranges::none_of(op.operands, [](const Operand& operand) {
             return as_value(operand) != nullptr;
           });
  }

  void place(size_t index) {
    const Op& op = region_.ops[index];
    const bool alone = comes_last(op) || op.info->lowering == Lowering::gemm ||
                       op.info->lowering == Lowering::alias || op.info->lowering == Lowering::handwritten;
    if (!alone) domains_[index] = op_domain(module_, region_, op);
    const size_t first = first_possible(op);
    size_t best = groups_.size();
    int64_t best_gain = 0;
    for (size_t g = first; g < groups_.size() && !alone; ++g) {
      if (groups_[g].alone) continue;
      const int64_t gain = gain_of(index, groups_[g]);
      if (gain > 0 && gain >= best_gain && fits(index, groups_[g])) best = g, best_gain = gain;
    }
    if (best == groups_.size()) groups_.push_back({.ops = {}, .alone = alone});
    join(index, best);
  }

  // The first group with nothing this op depends on behind it: what makes its operands, and what reads the
  // buffers that it writes. Nobody reads a buffer after it was written (rule R6).
  size_t first_possible(const Op& op) const {
    int32_t after = 0;
    const auto made = [&](const Operand& operand) {
      if (const ValueId* value = as_value(operand)) after = std::max(after, maker_[index(*value)]);
    };
    for (size_t i = 0; i < op.operands.size(); ++i) {
      made(op.operands[i]);
      if (!op.info->is_written(i)) continue;
      if (const auto read = last_read_.find(*as_buffer(op.operands[i])); read != last_read_.end())
        after = std::max(after, read->second);
    }
    if (op.when) made(*op.when);
    return static_cast<size_t>(after);
  }

  const Shape& domain(size_t index) const { return domains_[index]; }

  bool made_in(const Operand& operand, const Group& group) const {
    const ValueId* value = as_value(operand);
    return value != nullptr && maker_[index(*value)] >= 0 && &groups_[maker_[index(*value)]] == &group;
  }

  // Bytes that need not be loaded if the op joins the group: what the group makes (and perhaps need not store
  // either), and what it loads anyway. Small unrelated ops gain the launch.
  int64_t gain_of(size_t index, const Group& group) const {
    const Op& op = region_.ops[index];
    const Shape& own = domain(index);
    int64_t gain = 0;
    for (const Operand& operand : op.operands) {
      if (as_number(operand) != nullptr) continue;
      const bool made = made_in(operand, group);
      if (!made && !touches(group, operand)) continue;
      const Type type = operand_type(module_, region_, operand);
      const int64_t bytes = type_bytes(type, batch_);
      if (made)
        gain += 2 * bytes;
      else if (type.shape == own)
        gain += bytes;
    }
    for (const ValueId result : op.results)
      if (meets(result, group)) gain += 2 * type_bytes(region_[result].type, batch_);
    if (gain > 0) return gain;
    // In the update, and where a lane is closed, launches of parameters run side by side anyway
    // (codegen/gpu/merged_kernel.h, host/engine.h), and a parameter's ops should stay together.
    const bool apart = natural_origin(region_.kind) == Origin::update || region_.kind == RegionKind::close;
    const int64_t small = apart ? 1 : kSmallDomain;
    return elements(own, batch_) <= small && own == domain(group.ops.front()) ? 1 : 0;
  }

  // Returns whether an op still to be placed takes the value and one that the group makes: in one group with both it
  // can join them, and neither need be stored.
  bool meets(ValueId value, const Group& group) const {
    const auto& users = users_[index(value)];
    return users.size() == 1 && users.front() != kYield && group_of_[users.front()] < 0 &&
           std::ranges::any_of(region_.ops[users.front()].operands, [&](const Operand& other) {
             return other != Operand(value) && made_in(other, group);
           });
  }

  static bool touches(const Group& group, const Operand& operand) {
    return contains(group.operands, operand);
  }

  bool fits(size_t index, const Group& group) const {
    const Op& op = region_.ops[index];
    const bool tiny = elements(domain(index), batch_) <= kTotalParts;
    if (group.ops.size() >= (tiny ? kScalarKernelOps : kKernelOps)) return false;
    if (memory_operands(op, group) > (tiny ? kScalarKernelOperands : kKernelOperands)) return false;
    if (!buffers_allowed(index, group) || better_elsewhere(op, group) || kept_wide(op, group) ||
        left_to_product(index, group))
      return false;
    std::vector<size_t> ops = group.ops;
    ops.push_back(index);
    return may_fuse(module_, region_, ops);
  }

  // An op over whole rows whose only users reduce along other axes has its place with them: in a rowwise
  // kernel it would be stored and loaded again, even if it shares operands with it.
  bool better_elsewhere(const Op& op, const Group& group) const {
    const auto is_row_reduce = [&](size_t i) {
      return region_.ops[i].info->lowering == Lowering::row_reduce;
    };
    if (op.results.size() != 1 || std::ranges::none_of(group.ops, is_row_reduce)) return false;
    const auto& users = users_[index(op.results.front())];
    return std::ranges::none_of(op.operands, [&](const Operand& o) { return made_in(o, group); }) &&
           std::ranges::all_of(users, [&](size_t user) {
             if (user == kYield) return false;
             const Lowering lowering = region_.ops[user].info->lowering;
             return lowering == Lowering::column_reduce || lowering == Lowering::total_reduce;
           });
  }

  // A half value that only the gradient reads as f32: made with the half value, the f32 one, twice as large,
  // would be kept until then.
  bool kept_wide(const Op& op, const Group& group) const {
    return op.info == &op_cast && op.origin == Origin::gradient &&
           region_.ops[group.ops.front()].origin == Origin::forward &&
           is_narrow(operand_type(module_, region_, op.operands.front()).dtype);
  }

  // A sum over few rows of what a product can make itself (pass epilogues) and other kernels read, too: an
  // activation's gradient. The product does that with its result in registers, and the sum runs beside the
  // next products. Of many rows the bytes would cost more than the launch: a library's product does no such
  // thing.
  bool left_to_product(size_t index, const Group& group) const {
    const Op& sum = region_.ops[index];
    if (sum.info->lowering != Lowering::column_reduce || rows(domain(index), batch_) >= kRowsToCut)
      return false;
    const ValueId* summed = as_value(reduced(sum));
    if (summed == nullptr || !is_read_elsewhere(*summed, group)) return false;
    int cost = 0;
    bool of_product = false;
    for (const size_t i : group.ops) {
      const Op& op = region_.ops[i];
      if (op.info->lowering != Lowering::pointwise) return false;
      cost += kernels::cost_of(record(OpView{module_, region_, op}));
      of_product =
          of_product || std::ranges::any_of(op.operands, [&](const Operand& operand) {
            return is_product(roots_(operand)) && operand_type(module_, region_, operand).shape == domain(i);
          });
    }
    return of_product && cost <= kernels::kMostEpilogueCost;
  }

  // By what is no sum over rows, behind the group.
  bool is_read_elsewhere(ValueId value, const Group& group) const {
    const auto& users = users_[index(value)];
    return std::ranges::any_of(users, [&](size_t user) {
      return user == kYield ||
             (region_.ops[user].info->lowering != Lowering::column_reduce && !contains(group.ops, user));
    });
  }

  bool is_product(const Operand& operand) const {
    const ValueId* value = as_value(operand);
    if (value == nullptr || maker_[index(*value)] < 0) return false;
    const Group& made = groups_[maker_[index(*value)]];
    return region_.ops[made.ops.front()].info->lowering == Lowering::gemm;
  }

  // Counts what the kernel would load or store, at most: buffers and values made elsewhere, and values used elsewhere.
  size_t memory_operands(const Op& op, const Group& group) const {
    std::vector<Operand> all = group.operands;
    add_operands(op, all);
    size_t count = 0;
    for (const Operand& operand : all) {
      const bool inside = made_in(operand, group) || makes(op, operand);
      if (!inside || used_outside(*as_value(operand), op, group)) ++count;
    }
    return count;
  }

  bool used_outside(ValueId value, const Op& joining, const Group& group) const {
    const auto& users = users_[index(value)];
    return std::ranges::any_of(users, [&](size_t user) {
      return user == kYield ||
             (&region_.ops[user] != &joining && (group_of_[user] < 0 || &groups_[group_of_[user]] != &group));
    });
  }

  // Tells whether the op writes a buffer that a member reads.
  bool writes_what_is_read(const Op& op, const Group& group) const {
    return std::ranges::any_of(group.operands, [&](const Operand& operand) {
      const std::optional<BufferId> buffer = roots_.buffer(operand);
      return buffer && writes(op, *buffer);
    });
  }

  // A buffer that one member reads and another writes: only where both touch the same element at the same
  // time, that is in a purely pointwise kernel over the buffer's shape.
  bool buffers_allowed(size_t index, const Group& group) const {
    const Op& op = region_.ops[index];
    if (!group.in_place && !writes_what_is_read(op, group)) return true;
    const Shape& own = domain(index);
    const auto written = [&](BufferId buffer) {
      return writes(op, buffer) ||
             std::ranges::any_of(group.ops, [&](size_t i) { return writes(region_.ops[i], buffer); });
    };
    const auto plain = [&](size_t i) {
      const Op& other = region_.ops[i];
      return other.info->lowering == Lowering::pointwise && domain(i) == own &&
             std::ranges::all_of(other.operands, [&](const Operand& operand) {
               const std::optional<BufferId> buffer = roots_.buffer(operand);
               return !buffer || !written(*buffer) || operand_type(module_, region_, operand).shape == own;
             });
    };
    return plain(index) && std::ranges::all_of(group.ops, plain);
  }

  static void add_operands(const Op& op, std::vector<Operand>& to) {
    const auto add = [&](const Operand& operand) {
      if (as_number(operand) == nullptr && !contains(to, operand)) to.push_back(operand);
    };
    op.each_operand(add);
    for (const ValueId result : op.results) add(result);
  }

  void join(size_t i, size_t group) {
    const Op& op = region_.ops[i];
    const auto number = static_cast<int32_t>(group);
    groups_[group].in_place = groups_[group].in_place || writes_what_is_read(op, groups_[group]);
    groups_[group].ops.push_back(i);
    group_of_[i] = number;
    add_operands(op, groups_[group].operands);
    for (const ValueId result : op.results) maker_[index(result)] = number;
    const auto read = [&](const Operand& operand) {
      const std::optional<BufferId> buffer = roots_.buffer(operand);
      if (!buffer) return;
      int32_t& last = last_read_.try_emplace(*buffer, number).first->second;
      last = std::max(last, number);
    };
    op.each_operand(read);
  }

  static constexpr size_t kYield = SIZE_MAX;

  const Module& module_;
  Region& region_;
  const int64_t batch_;
  const StorageRoots roots_;
  std::vector<Shape> domains_;  // by op; of those placed that may share a kernel
  std::vector<Group> groups_;
  std::vector<int32_t> maker_;              // the group that makes a value; -1 for inputs
  std::vector<int32_t> group_of_;           // by op; -1 for one not placed yet
  std::vector<std::vector<size_t>> users_;  // ops that use a value; kYield for a yield
  std::map<BufferId, int32_t> last_read_;   // the last group that does
};

}  // namespace

bool fits_kernel(const Module& module, const Region& region, const std::vector<size_t>& ops) {
  if (ops.size() > kKernelOps) return false;
  std::vector<Operand> made, operands;
  for (const size_t i : ops) {
    const Op& op = region.ops[i];
    for (const Operand& operand : op.operands)
      if (as_number(operand) == nullptr && !contains(made, operand) && !contains(operands, operand))
        operands.push_back(operand);
    for (const ValueId result : op.results) made.emplace_back(result);
  }
  return operands.size() < kKernelOperands && may_fuse(module, region, ops);
}

bool fuse(Module& module, const Options&, Diag& diag) {
  for (const RegionKind kind : all_regions) {
    Region& region = module.region(kind);
    split_sums(module, region, diag);
    for (const Op& op : region.ops) {
      if (op.info->lowering != Lowering::composite) continue;
      diag.error(Kind::unsupported, op.at, "`{}` has no lowering; run `expand` first", op.info->name);
    }
    if (diag.failed()) return false;
    hoist_reshapes(region);
    sink_pointwise(region);
    if (is_batched(kind)) hoist_scalars(region);
    Fuser(module, region).run();
  }
  return true;
}

}  // namespace gacc::passes
