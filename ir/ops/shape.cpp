// Shapes: the same bytes seen with other extents.
#include "ir/ops/common.h"

namespace gacc::ir {

extern const OpInfo op_reshape{
    .name = "reshape",
    .summary =
        "the same elements in row-major order under another shape; -1 stands for the batch extent B; no "
        "gradient flows through `detached`",
    .copies = true,
    .attrs = {{"shape", std::vector<int64_t>{}}, {"detached", false}},
    .infer = [](const OpView& op) -> Types {
      const Shape& shape = op.integers("shape");
      const Type from = op.operand(0);
      // With B = 1 the counts are the products of the known extents; both sides have B or neither has.
      if (!fits(shape, op.module.micro_batch()) || has_batch(shape) != has_batch(from.shape) ||
          elements(shape, 1) != elements(from.shape, 1))
        refuse(op, Kind::shape_mismatch, {0}, "it has another number of elements than {}", shape_text(shape));
      return {{from.dtype, shape}};
    },
    // d_x = dy under x's shape
    .gradient =
        [](GradBuilder& g) {
          if (g.view().flag("detached")) return;
          g.add(0,
                g.b.make("reshape", g.d_name(0), {*g.d_result()}, {{"shape", g.b.type(g.operand(0)).shape}}));
        },
    .lowering = Lowering::alias,
    .reference = [](EvalView& view) { view.result().data = view.operand(0).data; },
    .cost = [](const OpView&) { return Cost{}; },
};

}  // namespace gacc::ir
