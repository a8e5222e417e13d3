// Saves less for the gradient: a value that gradient kernels can make, in a few cheap ops, from what else they would
// read is not saved. Layer norm in half precision saves its half input and the row's mean and rstd in place of the
// normalised row in f32; a product's bias is added again in place of saving the sum beside the product:
//
//   before  forward  %mm = matmul ..    [%pre = add %mm, @bias; %y = gelu %pre]  stores %pre and %y
//           gradient [%d.pre = gelu.grad %pre, %d.y]                             loads %pre
//   after   forward  %mm = matmul ..    [%pre = add %mm, @bias; %y = gelu %pre]  stores %y
//           gradient [%pre.again = add %mm, @bias; %d.pre = gelu.grad %pre.again, %d.y]
//
// The ops and their operands are the same, so are the bits. Never more bytes live until the gradient than before.
#include <algorithm>
#include <optional>
#include <utility>

#include "ir/cost.h"
#include "ir/region_facts.h"
#include "passes/analysis/rewrite.h"
#include "passes/fuse.h"

namespace gacc::passes {

namespace {

using namespace ir;

constexpr size_t kMostOps = 4;  // that are made again for a value, of at most so many FLOPs an element each
constexpr int64_t kMostFlops = 1;

// The way to make a value again: ops of its kernel in program order, and the values that they read from memory.
struct Recipe {
  std::vector<size_t> ops{};
  std::vector<ValueId> leaves{};
};

class Saver {
 public:
  explicit Saver(Module& module)
      : module_(module),
        region_(module.step),
        batch_(module.micro_batch()),
        facts_(facts(module, module.step)),
        maker_(region_.values.size()),
        readers_(region_.values.size()),
        order_(facts_->kernels.size()) {
    for (size_t k = 0; k < facts_->kernels.size(); ++k)
      for (const KernelMember& member : facts_->kernels[k].members) {
        const Op& op = region_.ops[member.op];
        order_[k].push_back(member.op);
        for (const ValueId result : op.results) maker_[index(result)] = Made{k, member.op, member.per_row};
        op.each_operand([&](const Operand& operand) { read(operand, k); });
        for (const BufferId buffer : written(op)) written_.push_back(buffer);
      }
    for (const Yield& yield : region_.yields) read(yield.what, kYield);
  }

  void run() {
    for (size_t k = 0; k < facts_->kernels.size(); ++k) {
      if (in_gradient(k)) continue;
      for (const KernelMember& member : facts_->kernels[k].members) {
        const Op& op = region_.ops[member.op];
        if (op.results.size() == 1 && !member.per_row) consider(k, op.results.front());
      }
    }
    std::vector<Op> out;
    for (const std::vector<size_t>& ops : order_)
      for (const size_t i : ops) out.push_back(std::move(region_.ops[i]));
    region_.ops = std::move(out);
    compact(region_);
  }

 private:
  static constexpr size_t kYield = SIZE_MAX;
  struct Made {
    size_t kernel, op;
    bool per_row;
  };

  void read(const Operand& operand, size_t kernel) {
    const ValueId* value = as_value(operand);
    if (value == nullptr) return;
    std::vector<size_t>& all = readers_[index(*value)];
    if (all.empty() || all.back() != kernel) all.push_back(kernel);
  }
  // One op of the gradient makes a kernel one of the gradient's.
  bool in_gradient(size_t k) const {
    const std::vector<KernelMember>& members = facts_->kernels[k].members;
    return std::ranges::any_of(members, [&](const KernelMember& member) {
      return region_.ops[member.op].origin == Origin::gradient;
    });
  }
  bool takes_ops(size_t k) const {
    const KernelForm form = facts_->kernels[k].form;
    return form == KernelForm::pointwise || form == KernelForm::rowwise ||
           form == KernelForm::column_reduce || form == KernelForm::total_reduce;
  }
  int64_t bytes(ValueId value) const { return type_bytes(region_[value].type, batch_); }

  // The kernels outside that read what kernel k makes.
  std::vector<size_t> readers_outside(size_t k, ValueId value) const {
    std::vector<size_t> out;
    std::ranges::copy_if(readers_[index(value)], std::back_inserter(out), [&](size_t r) { return r != k; });
    return out;
  }
  bool gradient_alone(const std::vector<size_t>& readers) const {
    return std::ranges::all_of(readers,
                               [&](size_t r) { return r != kYield && takes_ops(r) && in_gradient(r); });
  }

  // Kernel k stores the value for more than the gradient.
  bool stored_anyway(size_t k, ValueId value) const {
    const std::vector<size_t> readers = readers_outside(k, value);
    return !readers.empty() && !gradient_alone(readers);
  }

  // Adds what makes the value in kernel k. An operand that k makes is made again as well, or k stores it: whichever
  // saves fewer bytes.
  bool find(size_t k, ValueId value, Recipe& recipe) const {
    const Made& made = *maker_[index(value)];
    const Op& op = region_.ops[made.op];
    if (contains(recipe.ops, made.op)) return true;
    if (op.info->lowering != Lowering::pointwise || op.info->writes != 0 || op.when || op.remat) return false;
    const OpView view{module_, region_, op};
    const int64_t elements = ir::elements(region_[value].type.shape, batch_);
    if (cost(view).flops > kMostFlops * elements || function_calls(view) > 0) return false;
    for (const Operand& operand : op.operands) {
      if (const std::optional<BufferId> buffer = facts_->root.buffer(operand)) {
        if (contains(written_, *buffer)) return false;
      } else if (const ValueId* read = as_value(operand)) {
        const std::optional<Made>& from = maker_[index(*read)];
        Recipe again = recipe, stored = recipe;
        const bool repeats =
            from && from->kernel == k && !from->per_row && !stored_anyway(k, *read) && find(k, *read, again);
        const bool stores = add_leaf(*read, stored);
        if (!repeats && !stores) return false;
        recipe = repeats && (!stores || more_bytes(again) <= more_bytes(stored)) ? again : stored;
      }
    }
    recipe.ops.push_back(made.op);
    return recipe.ops.size() <= kMostOps;
  }
  bool add_leaf(ValueId value, Recipe& recipe) const {
    if (!contains(recipe.leaves, value)) recipe.leaves.push_back(value);
    return as_value(facts_->root(value)) != nullptr &&
           *as_value(facts_->root(value)) == value;  // not a part of another value
  }

  // Tells whether the gradient reads the value anyway.
  bool saved(ValueId value) const {
    return std::ranges::any_of(readers_[index(value)],
                               [&](size_t r) { return r == kYield || in_gradient(r); });
  }

  // That live until the gradient for the recipe alone.
  int64_t more_bytes(const Recipe& recipe) const {
    int64_t more = 0;
    for (const ValueId leaf : recipe.leaves)
      if (!saved(leaf)) more += bytes(leaf);
    return more;
  }

  void consider(size_t k, ValueId value) {
    const std::vector<size_t> readers = readers_outside(k, value);
    if (readers.empty() || !gradient_alone(readers)) return;
    Recipe recipe;
    if (!find(k, value, recipe)) return;
    // A value stored in place of another one must be smaller.
    const bool stores = std::ranges::any_of(recipe.leaves, [&](ValueId leaf) {
      const std::optional<Made>& made = maker_[index(leaf)];
      return made && made->kernel == k && !made->per_row && readers_outside(k, leaf).empty();
    });
    if (more_bytes(recipe) > bytes(value) - (stores ? 1 : 0)) return;
    std::ranges::sort(recipe.ops);
    const size_t count = region_.ops.size();
    std::vector<std::pair<size_t, Op>> as_it_was;
    for (const size_t reader : readers)
      for (const size_t i : order_[reader]) as_it_was.emplace_back(i, region_.ops[i]);
    for (const size_t reader : readers) make_again(reader, value, recipe);
    if (std::ranges::all_of(readers, [&](size_t r) { return fits_kernel(module_, region_, order_[r]); })) {
      for (const ValueId leaf : recipe.leaves)
        for (const size_t reader : readers) read(leaf, reader);
      std::erase_if(readers_[index(value)], [&](size_t r) { return r != k; });
      return;
    }
    for (auto& [i, op] : as_it_was) region_.ops[i] = std::move(op);
    for (const size_t reader : readers) std::erase_if(order_[reader], [&](size_t i) { return i >= count; });
    region_.ops.resize(count);
  }

  // In the kernel `reader`, before its own ops. New ops stand behind the region's until the end.
  void make_again(size_t reader, ValueId value, const Recipe& recipe) {
    const std::vector<size_t> own = order_[reader];
    const Op& first = region_.ops[own.front()];
    const auto [kernel, segment] = std::pair(first.kernel, first.segment);
    Replacements replaced(region_);
    order_[reader].clear();
    for (const size_t i : recipe.ops) {
      Op op = region_.ops[i];
      replaced.apply(op);
      const Value made = region_[op.results.front()];
      const ValueId again = region_.add_value(made.name + ".again", made.type);
      replaced.set(op.results.front(), again);
      op.results = {again};
      op.kernel = kernel;
      op.segment = segment;
      op.origin = Origin::gradient;
      order_[reader].push_back(region_.ops.size());
      region_.ops.push_back(std::move(op));
    }
    for (const size_t i : own) {
      Op& op = region_.ops[i];
      op.each_operand([&](Operand& operand) {
        if (operand == Operand(value)) operand = replaced(value);
      });
      order_[reader].push_back(i);
    }
  }

  Module& module_;
  Region& region_;
  const int64_t batch_;
  const Facts facts_;                         // as they were
  std::vector<std::optional<Made>> maker_;    // by value; nothing for inputs
  std::vector<std::vector<size_t>> readers_;  // by value: kernels, and kYield
  std::vector<BufferId> written_;
  std::vector<std::vector<size_t>> order_;  // by kernel: its ops, in their new order
};

}  // namespace

bool save_less(Module& module, const Options&, Diag&) {
  Saver(module).run();
  return true;
}

}  // namespace gacc::passes
