// Pass `pitch`: logits of a vocabulary that is no multiple of 8, and their gradient, get rows that begin at
// multiples of 64 elements. So the products that read or write them have aligned rows, and the kernels of the
// loss move 16 bytes at a time.
//
// Values of one region with the same last extent have a pitch together or not at all, because how a kernel
// walks along a row, and so the bits of its sums, follows from it. A kernel with an operand that repeats
// along the rows (a bias) would read that one beyond its end: then there is none.
#include <algorithm>
#include <map>
#include <set>

#include "ir/region_facts.h"
#include "ir/row_pitch.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

void set_pitches(const ir::Module& module, ir::Region& region) {
  std::map<int64_t, std::set<int32_t>> values;        // in memory, by last extent
  std::set<int64_t> gain, lose;                       // last extents
  const ir::Facts facts = ir::facts(module, region);  // as they are without a pitch
  for (const ir::Kernel& kernel : facts->kernels) {
    kernel.each_operand([&](const ir::Operand& operand) {
      const ir::Shape shape = ir::operand_type(module, region, operand).shape;
      if (shape.empty() || ir::wanted_pitch(shape.back()) == 0) return;
      const ir::ValueId* value = ir::as_value(operand);
      if (value != nullptr && shape.size() > 1) {
        values[shape.back()].insert(value->index);
        if (kernel.form == ir::KernelForm::gemm) gain.insert(shape.back());
      }
      const bool own = kernel.form == ir::KernelForm::gemm || kernel.form == ir::KernelForm::handwritten;
      if (!own && ir::access(shape, kernel.domain) == ir::Access::suffix) lose.insert(shape.back());
    });
  }
  for (const auto& [columns, list] : values) {
    const bool all = std::ranges::all_of(
        list, [&](int32_t index) { return ir::may_have_pitch(region, facts->kernels, ir::ValueId{index}); });
    if (!all || !gain.contains(columns) || lose.contains(columns)) continue;
    for (const int32_t index : list) region[ir::ValueId{index}].type.pitch = ir::wanted_pitch(columns);
  }
}

}  // namespace

bool pitch(ir::Module& module, const Options&, Diag&) {
  for (ir::Region* region : {&module.step, &module.eval}) set_pitches(module, *region);
  return true;
}

}  // namespace gacc::passes
