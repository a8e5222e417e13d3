// Calls of the kernels that find documents in a window.
#include <algorithm>

#include "ir/ops/heads.h"
#include "kernels/handwritten/calls.h"

namespace gacc::kernels {

namespace {

// A point for each of `columns` of a sample, which looks at `met` positions.
Specialisation by_samples(const ir::OpView& op, Purpose purpose, int64_t columns, int64_t met) {
  const ir::Shape shape = op.operand(0).shape;
  Specialisation made =
      point_items(op, purpose, extent_of({shape.front()}), columns, std::max(8 * met, kMaskedCost));
  made.body.shape = CompiledShape(DocumentsShape{.length = shape.back()});
  return made;
}

}  // namespace

Specialisation describe_documents(const ir::OpView& op, Purpose purpose) {
  const int64_t length = op.operand(0).shape.back();
  return by_samples(op, purpose, length, length);
}

Specialisation describe_document_spans(const ir::OpView& op, Purpose purpose) {
  return by_samples(op, purpose, ir::span_blocks(op.operand(0).shape.back()), ir::kSpanBlock);
}

}  // namespace gacc::kernels
