// See epilogues.h.
#include "codegen/epilogues.h"

#include <algorithm>
#include <optional>

#include "codegen/launches.h"

namespace gacc::codegen {

namespace {

class Finder {
 public:
  Finder(const ir::Module& module, const ir::Region& region, const Program& program,
         const std::vector<Call>& calls)
      : module_(module), region_(region), program_(program), calls_(calls), root_(region) {
    touched_.reserve(calls.size());
    for (const Call& call : calls) touched_.push_back(touched(module, region, call.kernel));
  }

  std::vector<Epilogue> find() {
    std::vector<Epilogue> found;
    std::vector<bool> taken(calls_.size(), false);
    for (size_t i = 0; i < calls_.size(); ++i) {
      const std::optional<Epilogue> one = epilogue_of(i);
      if (!one || taken[one->kernel]) continue;
      taken[one->kernel] = true;
      found.push_back(*one);
    }
    return found;
  }

 private:
  const ir::Op& op_of(const Call& call) const { return region_.ops[call.kernel.members.front().op]; }

  std::optional<Epilogue> epilogue_of(size_t product) const {
    if (calls_[product].kernel.form != ir::KernelForm::gemm) return std::nullopt;
    const ir::Op& op = op_of(calls_[product]);
    if (op.results.empty()) return std::nullopt;  // it adds to a buffer
    const ir::Operand result = op.results[0];
    Epilogue epilogue{.product = product};
    int readers = 0;
    for (size_t i = product + 1; i < calls_.size(); ++i) {
      if (calls_[i].kernel.form == ir::KernelForm::alias || !reads(calls_[i], result)) continue;
      if (readers++ == 0) epilogue.kernel = i;
    }
    if (readers == 0) return std::nullopt;
    const bool yielded = std::any_of(region_.yields.begin(), region_.yields.end(),
                                     [&](const ir::Yield& yield) { return root_(yield.what) == result; });
    const Call& kernel = calls_[epilogue.kernel];
    const std::optional<int32_t> slot = slot_of(kernel, result);
    if (!slot || !may_run_early(epilogue)) return std::nullopt;
    epilogue.part = {kernel.function, program_.functions[static_cast<size_t>(kernel.function)].name, *slot,
                     readers > 1 || yielded};
    return epilogue;
  }

  bool reads(const Call& call, const ir::Operand& value) const {
    return std::any_of(call.kernel.reads.begin(), call.kernel.reads.end(),
                       [&](const ir::Operand& operand) { return root_(operand) == value; });
  }

  // The one slot that is `result` [.., n], for a kernel that computes from it element by element.
  std::optional<int32_t> slot_of(const Call& call, const ir::Operand& result) const {
    if (call.kernel.form != ir::KernelForm::pointwise || call.kernel.inner != 0) return std::nullopt;
    const Body& body = program_.functions[static_cast<size_t>(call.function)];
    if (body.cost > kMostEpilogueCost) return std::nullopt;
    const ir::Shape& shape = ir::operand_type(module_, region_, result).shape;
    const bool same_rows = !shape.empty() && call.extents[1] == Extent{shape.back(), false};
    if (!body.flat && !same_rows) return std::nullopt;
    std::optional<int32_t> slot;
    for (size_t i = 0; i < call.operands.size(); ++i) {
      if (root_(call.operands[i]) != result) continue;
      if (slot || body.slots[i].access != ir::Access::full) return std::nullopt;
      slot = static_cast<int32_t>(i);
    }
    return slot;
  }

  bool may_run_early(const Epilogue& epilogue) const {
    const Touched& early = touched_[epilogue.kernel];
    if (overlap(early.writes, touched_[epilogue.product].reads)) return false;
    for (size_t i = epilogue.product + 1; i < epilogue.kernel; ++i) {
      if (calls_[i].kernel.form != ir::KernelForm::alias && conflict(touched_[i], early)) return false;
    }
    return true;
  }

  const ir::Module& module_;
  const ir::Region& region_;
  const Program& program_;
  const std::vector<Call>& calls_;
  const ir::StorageRoots root_;
  std::vector<Touched> touched_;
};

}  // namespace

std::vector<Epilogue> find_epilogues(const ir::Module& module, const ir::Region& region,
                                     const Program& program, const std::vector<Call>& calls) {
  return Finder(module, region, program, calls).find();
}

std::optional<GemmKernel> choose_product(const ir::Module& module, const ir::Region& region,
                                         const std::vector<Call>& calls, size_t product,
                                         const std::vector<Epilogue>& epilogues, int capability,
                                         std::string& problem) {
  std::optional<GemmKernel> kernel = choose_gemm(module, region, calls[product].kernel, capability, problem);
  if (!kernel) return std::nullopt;
  for (const Epilogue& epilogue : epilogues)
    if (epilogue.product == product) kernel->epilogue = epilogue.part;
  return kernel;
}

}  // namespace gacc::codegen
