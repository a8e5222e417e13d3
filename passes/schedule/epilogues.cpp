// Pass `epilogues`: pointwise kernels that the built-in products do themselves, while an element of the
// result is still in a register (add a bias, relu, gelu, a residual). One launch, one barrier of a persistent
// step and one way of the result through memory less; the bits are those of the two kernels. A library cannot
// do that, but may add a bias.
#include <algorithm>

#include "ir/dependence.h"
#include "ir/product.h"
#include "kernels/specialisation.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

class Finder {
 public:
  Finder(const ir::Module& module, ir::Region& region)
      : module_(module),
        region_(region),
        facts_(ir::facts(module, region)),
        dependence_(module, region, facts_->kernels) {}

  void run() {
    const std::vector<ir::CallSite*> lines = ir::calls(*region_.schedule);
    for (ir::CallSite* line : lines) {
      auto* product = std::get_if<ir::ProductCall>(&line->what);
      if (product == nullptr) continue;
      product->then = find(facts_->numbers[line->kernel], product->c);
      if (!product->then) continue;
      ir::CallSite& done = **std::ranges::find_if(
          lines, [&](const ir::CallSite* other) { return other->kernel == product->then->kernel; });
      if (!done.level) {  // another product does it
        product->then.reset();
        continue;
      }
      done.level.reset();
      add_bias(*product);
    }
  }

 private:
  // The kernel that the product number `from` of C does: the first that reads C.
  std::optional<ir::Then> find(size_t from, const ir::Operand& c) const {
    const ir::ValueId* result = ir::as_value(c);
    if (result == nullptr) return std::nullopt;  // it adds to a buffer
    const ir::Readers readers = facts_->readers(region_, from, c);
    if (!readers.first) return std::nullopt;
    const ir::Kernel& kernel = facts_->kernels[*readers.first];
    const std::optional<int32_t> slot = slot_of(kernel, *result);
    if (!slot || !dependence_.may_move(*readers.first, from)) return std::nullopt;
    return ir::Then{kernel.number, *slot, readers.others};
  }

  // The one slot that is `result` [.., n], for a kernel that computes from it element by element.
  std::optional<int32_t> slot_of(const ir::Kernel& kernel, const ir::ValueId& result) const {
    if (kernel.form != ir::KernelForm::pointwise || kernel.inner != 0) return std::nullopt;
    const auto [call, body, constants] =
        kernels::specialise(module_, region_, kernel, kernels::Purpose::device);
    if (body.cost > kernels::kMostEpilogueCost) return std::nullopt;
    if (region_[result].type.pitch != 0) return std::nullopt;
    const ir::Shape& shape = region_[result].type.shape;
    const bool same_rows = !shape.empty() && call.extents[1] == ir::Extent{shape.back(), false};
    if (!body.flat && !same_rows) return std::nullopt;
    std::optional<int32_t> slot;
    for (size_t i = 0; i < call.operands.size(); ++i) {
      if (facts_->root(call.operands[i]) != ir::Operand(result)) continue;
      if (slot || body.slots[i].access != ir::Access::element) return std::nullopt;
      slot = static_cast<int32_t>(i);
    }
    return slot;
  }

  void add_bias(ir::ProductCall& product) const {
    const ir::Kernel& kernel = facts_->kernels[facts_->numbers[product.then->kernel]];
    if (product.then->keeps || kernel.members.size() != 1) return;
    if (ir::operand_type(module_, region_, product.a).dtype != ir::DType::f32) return;
    const ir::Op& op = region_.ops[kernel.members.front().op];
    if (const std::optional<ir::BufferId> vector = ir::bias_of(module_, region_, op, facts_->root, product.c))
      product.bias = ir::Bias{*vector, kernel.number};
  }

  const ir::Module& module_;
  ir::Region& region_;
  const ir::Facts facts_;
  const ir::Dependence dependence_;
};

}  // namespace

bool epilogues(ir::Module& module, const Options&, Diag&) {
  for (const ir::RegionKind kind : ir::all_regions)
    if (module.region(kind).schedule) Finder(module, module.region(kind)).run();
  return true;
}

}  // namespace gacc::passes
