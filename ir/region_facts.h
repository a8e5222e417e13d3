// Facts that follow from the ops of a region, made once between changes.
//
//   const Facts facts = ir::facts(module, region);
//   for (const Kernel& kernel : facts->kernels) ...
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/kernel.h"

namespace gacc::ir {

// The readers of a value, which owns its storage, behind the kernel that makes it: the first kernel, and whether
// there are others or the region yields it. Reshapes are no readers.
struct Readers {
  std::optional<size_t> first{};
  bool others = false;
};

struct RegionFacts {
  RegionFacts(const Module& module, const Region& region, uint64_t stamp);
  uint64_t stamp;               // of all that the facts follow from
  std::string problem{};        // the first group of ops that is no kernel; then there are no kernels
  std::vector<Kernel> kernels;  // ir::kernels
  KernelNumbers numbers;        // of the kernels
  StorageRoots root;            // of the values

  // Finds the readers of `value` behind kernel `from`, which makes it.
  Readers readers(const Region& region, size_t from, const Operand& value) const;
};

// Returns the facts of the region as it is now. The region keeps the last ones and gives them again while a stamp of
// its ops, values and yields is the same, so a pass that changes a region need not say so. Facts that somebody
// holds stay as they are. Two threads may not ask about one region at a time.
using Facts = std::shared_ptr<const RegionFacts>;
Facts facts(const Module& module, const Region& region);

}  // namespace gacc::ir
