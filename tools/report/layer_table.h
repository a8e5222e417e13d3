// Which layer of the model file an op belongs to, from the names that the compiler derived from the layer's
// (docs/ir.md): %fc1.mm, %d.fc1 and @fc1.weight.grad all belong to fc1.
#pragma once
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ir/module.h"

namespace gacc::report {

class LayerNames {
 public:
  LayerNames(const ir::Module& module, const ir::Region& region);
  std::string of(const ir::Op& op) const;

 private:
  const ir::Module& module_;
  const ir::Region& region_;
  std::set<std::string> layers_;                              // those with parameters
  std::set<std::tuple<int32_t, int32_t, std::string>> made_;  // place in the model file and value
  std::set<std::string> forward_;                             // values of the forward pass
  std::set<std::pair<int32_t, int32_t>> loss_;                // places
};

// Whether recompute made the op: it repeats an op of the forward pass.
bool is_recomputed(const ir::Op& op);

// At most `most` groups of neighbouring layers, by cutting names to their first parts and, where that is not
// enough, by joining runs. `names` in order of first appearance; the result has one group for each of them.
std::vector<std::string> group_layers(const std::vector<std::string>& names, size_t most);

}  // namespace gacc::report
