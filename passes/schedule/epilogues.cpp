// Pass `epilogues`: pointwise kernels that the built-in products do themselves, while an element of the
// result is still in a register (add a bias, relu, gelu, a residual). One launch, one barrier of a persistent
// step and one way of the result through memory less; the bits are those of the two kernels. A library cannot
// do that, but may add a bias.
#include <algorithm>

#include "ir/dependence.h"
#include "ir/product.h"
#include "kernels/select.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

// A kernel of more scalar operations for an element stays one: a product's thread has up to 64 elements, each
// with a copy of the code.
constexpr int kMostEpilogueCost = 100;

class Finder {
 public:
  Finder(const ir::Module& module, ir::Region& region, const kernels::Program& program)
      : module_(module),
        region_(region),
        program_(program),
        calls_(program.calls(region.kind)),
        kernels_(ir::kernels(module, region)),
        dependence_(module, region, kernels_),
        root_(region) {}

  void run() {
    const std::vector<ir::Call*> lines = ir::calls(*region_.schedule);
    for (ir::Call* line : lines) {
      auto* product = std::get_if<ir::ProductCall>(&line->what);
      if (product == nullptr) continue;
      const std::optional<size_t> kernel = find(index_of(line->kernel), *product);
      if (!kernel) continue;
      // Whoever was found first has it.
      ir::Call& done = **std::find_if(lines.begin(), lines.end(), [&](const ir::Call* other) {
        return other->kernel == calls_[*kernel].number;
      });
      if (!done.level) {
        product->then.reset();
        continue;
      }
      done.level.reset();
      add_bias(*product, *kernel);
    }
  }

 private:
  size_t index_of(int32_t number) const {
    return static_cast<size_t>(
        std::find_if(calls_.begin(), calls_.end(),
                     [&](const kernels::Call& call) { return call.number == number; }) -
        calls_.begin());
  }
  bool reads(size_t kernel, const ir::Operand& value) const {
    const std::vector<ir::Operand>& reads = kernels_[kernel].reads;
    return kernels_[kernel].form != ir::KernelForm::alias &&
           std::any_of(reads.begin(), reads.end(),
                       [&](const ir::Operand& operand) { return root_(operand) == value; });
  }

  // The kernel that the product does: the first that reads the result. Sets product.then.
  std::optional<size_t> find(size_t from, ir::ProductCall& product) const {
    const ir::ValueId* result = ir::as_value(product.c);
    if (result == nullptr) return std::nullopt;  // it adds to a buffer
    size_t readers = 0, first = 0;
    for (size_t i = from + 1; i < kernels_.size(); ++i) {
      if (!reads(i, product.c)) continue;
      if (readers++ == 0) first = i;
    }
    if (readers == 0) return std::nullopt;
    const bool yielded = std::any_of(region_.yields.begin(), region_.yields.end(),
                                     [&](const ir::Yield& yield) { return root_(yield.what) == product.c; });
    const std::optional<int32_t> slot = slot_of(calls_[first], *result);
    if (!slot || !dependence_.may_move(first, from)) return std::nullopt;
    product.then = ir::Then{calls_[first].number, *slot, readers > 1 || yielded};
    return first;
  }

  // The one slot that is `result` [.., n], for a kernel that computes from it element by element.
  std::optional<int32_t> slot_of(const kernels::Call& call, const ir::ValueId& result) const {
    if (call.kernel.form != ir::KernelForm::pointwise || call.kernel.inner != 0) return std::nullopt;
    const kernels::Body& body = program_.functions[static_cast<size_t>(call.function)];
    if (body.cost > kMostEpilogueCost) return std::nullopt;
    const ir::Shape& shape = region_[result].type.shape;
    const bool same_rows = !shape.empty() && call.extents[1] == ir::Extent{shape.back(), false};
    if (!body.flat && !same_rows) return std::nullopt;
    std::optional<int32_t> slot;
    for (size_t i = 0; i < call.operands.size(); ++i) {
      if (root_(call.operands[i]) != ir::Operand(result)) continue;
      if (slot || body.slots[i].access != ir::Access::full) return std::nullopt;
      slot = static_cast<int32_t>(i);
    }
    return slot;
  }

  void add_bias(ir::ProductCall& product, size_t kernel) const {
    if (product.then->keeps || kernels_[kernel].members.size() != 1) return;
    if (ir::operand_type(module_, region_, product.a).dtype != ir::DType::f32) return;
    const ir::Op& op = region_.ops[kernels_[kernel].members.front().op];
    if (const std::optional<ir::BufferId> vector = ir::bias_of(module_, region_, op, root_, product.c))
      product.bias = ir::Bias{*vector, calls_[kernel].number};
  }

  const ir::Module& module_;
  ir::Region& region_;
  const kernels::Program& program_;
  const std::vector<kernels::Call>& calls_;
  const std::vector<ir::Kernel> kernels_;
  const ir::Dependence dependence_;
  const ir::StorageRoots root_;
};

}  // namespace

bool epilogues(ir::Module& module, const Options&, Diag& diag) {
  std::string problem;
  const std::optional<kernels::Program> program =
      kernels::make_program(module, kernels::Purpose::device, problem, kernels::capability(module.target));
  if (!program) {
    diag.error(Kind::invalid_ir, {}, "{}", problem);
    return false;
  }
  for (const ir::RegionKind kind : ir::all_regions)
    if (module.region(kind).schedule) Finder(module, module.region(kind), *program).run();
  return true;
}

}  // namespace gacc::passes
