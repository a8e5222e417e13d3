// Calls of permute, concat, slice, dequantize, the embedding ops and products of many matrices.
#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/gemm.h"
#include "kernels/handwritten/calls.h"

namespace gacc::kernels {

namespace {

constexpr int64_t kMostBytes = 16;  // that a thread of the device moves at once
constexpr int64_t kPiece = 2048;    // elements of a row that one task of concat moves, about
// Scalar operations for an element: a copy with its indices, and one whose address is of its own.
constexpr int kCopyCost = 4, kGatherCost = 16;
constexpr int kBlockCost = 8;  // of an element in a block, with its scale
// The gradient of an embedding on the host. Columns of a task: about four vectors of the widest CPU, and with fewer
// than one of them there is one task. Operations for a token: its number, its row, the sum and its way back.
constexpr int64_t kTaskColumns = 64, kLeastTaskColumns = 16, kTokenOperations = 4;
constexpr int kLoopCost = 40;  // so much is not unrolled: the loops inside are to be kept small
// The same on a GPU: ranges of rows, each a warp, at most; every range reads the numbers of all tokens.
constexpr int64_t kMostTokenRanges = 256;

// The geometry of an op that cuts or joins along one axis: `before` rows of what follows.
struct Cut {
  Extent rows;
  int64_t after;  // elements of one step along the axis
};

Cut cut_at(const ir::OpView& op, const ir::Shape& shape) {
  const size_t axis = (ir::has_batch(shape) ? 1 : 0) + static_cast<size_t>(op.integer("axis"));
  const auto middle = shape.begin() + static_cast<std::ptrdiff_t>(axis);
  return {extent_of(ir::Shape(shape.begin(), middle)), ir::elements(ir::Shape(middle + 1, shape.end()), 1)};
}

// Returns how many neighbouring elements a thread moves, where all that it moves begins at multiples of `begins`.
int64_t vector_of(const ir::OpView& op, Purpose purpose, int64_t begins) {
  if (purpose == Purpose::host) return 1;
  const int64_t most = kMostBytes / ir::dtype_bytes(op.result().dtype);
  return std::gcd(most, begins);
}

// A thread for each `vector` of a call by points.
Specialisation by_vectors(Specialisation made, int64_t vector) {
  made.body.vector = static_cast<int>(vector);
  made.call.items.factor /= vector;
  return made;
}

}  // namespace

Specialisation describe_permute(const ir::OpView& op, Purpose purpose) {
  const ir::Shape from = op.operand(0).shape, to = op.result().shape;
  const auto& axes = op.integers("axes");
  const size_t first = ir::has_batch(from) ? 1 : 0;
  std::vector<int64_t> steps(from.size(), 1);
  for (size_t i = from.size(); i-- > 1;) steps[i - 1] = steps[i] * from[i];
  // Axes of one element are left out, and two that lie side by side before and after are one. The batch
  // leads.
  std::vector<PermuteShape::Axis> nest;
  if (first == 1) nest.push_back({1, steps[0]});
  for (size_t i = 0; i < axes.size(); ++i) {
    const PermuteShape::Axis axis{to[first + i], steps[first + static_cast<size_t>(axes[i])]};
    if (axis.extent == 1) continue;
    const bool joins = !nest.empty() && nest.back().step == axis.step * axis.extent;
    if (joins) {
      nest.back().extent *= axis.extent;
      nest.back().step = axis.step;
    } else {
      nest.push_back(axis);
    }
  }
  while (nest.size() < 2) nest.push_back({1, 1});
  const int64_t columns = nest.back().extent;
  const Extent all = extent_of(to);
  int64_t begins = nest.back().step == 1 ? std::gcd(columns, nest.front().step) : 1;
  for (size_t i = 1; i + 1 < nest.size(); ++i) begins = std::gcd(begins, nest[i].step);
  Specialisation made = by_vectors(point_items(op, purpose, {all.factor / columns, all.times_batch}, columns,
                                               nest.back().step == 1 ? kCopyCost : kGatherCost),
                                   vector_of(op, purpose, begins));
  made.body.shape = CompiledShape(PermuteShape{nest.front().step, {nest.begin() + 1, nest.end()}});
  return made;
}

// A point is an element of the result.
Specialisation describe_batch_product(const ir::OpView& op, Purpose purpose) {
  const ir::Shape a = op.operand(0).shape, y = op.result().shape;
  const int64_t m = y[y.size() - 2], n = y.back(), ta = op.flag("ta") ? 1 : 0, tb = op.flag("tb") ? 1 : 0;
  const int64_t k = a[a.size() - (ta == 1 ? 2 : 1)];
  Extent rows = extent_of(y);
  rows.factor /= n;
  Specialisation made = point_items(op, purpose, rows, n, kCopyCost * k);
  made.body.cost = kLoopCost;
  made.body.shape = CompiledShape(BatchProductShape{m, n, k, ta, tb});
  return made;
}

// Long rows are cut into pieces, for there may be few: along its first axis a sample is one row.
Specialisation describe_concat(const ir::OpView& op, Purpose purpose) {
  const Cut cut = cut_at(op, op.result().shape);
  std::vector<int64_t> lengths;
  int64_t longest = 0, pieces = 0;
  for (size_t i = 0; i < op.op.operands.size(); ++i) {
    const int64_t length = ir::elements(op.operand(i).shape, 1) / cut.rows.factor;
    lengths.push_back(length);
    longest = std::max(longest, length);
    pieces = std::gcd(pieces, length);
  }
  pieces = std::min<int64_t>(pieces & -pieces,
                             std::bit_floor(std::max<uint64_t>(static_cast<uint64_t>(longest) / kPiece, 1)));
  int64_t begins = 0;
  for (const int64_t length : lengths) begins = std::gcd(begins, length / pieces);
  const int64_t vector = vector_of(op, purpose, begins);
  const int64_t warps = ceil_divide(longest / pieces, vector * kWarp);
  const int64_t threads = std::clamp(warps * kWarp, kWarp, kBlockThreads);
  const Extent parts{cut.rows.factor * pieces, cut.rows.times_batch};
  Specialisation made = block_items(op, parts, kCopyCost * cut.after * longest / pieces, threads);
  made.body.shape = CompiledShape(ConcatShape{pieces, std::move(lengths)});
  made.body.vector = static_cast<int>(vector);
  made.body.cost = kCopyCost;
  return made;
}

Specialisation describe_slice(const ir::OpView& op, Purpose purpose) {
  const Cut cut = cut_at(op, op.operand(0).shape);
  const int64_t from = ir::elements(op.operand(0).shape, 1) / cut.rows.factor,
                begin = op.integer("from") * cut.after, columns = op.integer("size") * cut.after;
  Specialisation made = by_vectors(point_items(op, purpose, cut.rows, columns, kCopyCost),
                                   vector_of(op, purpose, std::gcd(columns, std::gcd(from, begin))));
  made.body.shape = CompiledShape(SliceShape{from, begin});
  return made;
}

Specialisation describe_dequantize(const ir::OpView& op, Purpose purpose) {
  const ir::Shape shape = op.result().shape;
  const int64_t columns = shape.back();
  return by_vectors(point_items(op, purpose, {ir::elements(shape, 1) / columns, false}, columns, kBlockCost),
                    vector_of(op, purpose, columns));
}

Specialisation describe_embedding(const ir::OpView& op, Purpose purpose) {
  const int64_t columns = op.result().shape.back();
  return by_vectors(point_items(op, purpose, extent_of(op.operand(0).shape), columns, kCopyCost),
                    vector_of(op, purpose, columns));
}

// extents: {rows, columns} or {blocks}, then the tokens.
Specialisation describe_embedding_gradient(const ir::OpView& op, Purpose purpose) {
  const bool fresh = !op.op.results.empty();
  const size_t tokens = fresh ? 0 : 1;
  const Extent count = extent_of(op.operand(tokens).shape);
  const int64_t columns = op.operand(tokens + 1).shape.back(), rows = op.integer("rows");
  EmbeddingGradientShape shape{
      .columns = columns, .cleared = fresh ? rows : 0, .padding = op.integer("padding")};
  Specialisation made;
  if (purpose == Purpose::host) {
    // The same number of columns for each task.
    int64_t width = largest_divisor(columns, kTaskColumns);
    if (width < kLeastTaskColumns) width = columns;
    const int64_t work = kTokenOperations * count.at(op.module.micro_batch()) + (fresh ? rows : 0);
    made = point_items(op, purpose, {columns / width, false}, width, work);
    made.body.cost = kLoopCost;
    shape.by_columns = 1;
  } else {
    // The tokens' numbers are read as often as there are ranges. Tokens that are frequent have neighbouring numbers, so
    // a warp has rows far apart.
    const auto most =
        static_cast<uint64_t>(std::min({rows, count.at(op.module.micro_batch()), kMostTokenRanges}));
    const auto ranges = static_cast<int64_t>(std::bit_floor(most));
    const int64_t lanes = columns % 4 == 0 ? 4 : 1;
    const int64_t blocks = ranges * ceil_divide(columns, kWarp * lanes);
    made = block_items(op, {blocks, false}, columns, kWarp);
    made.body.shared = EmbeddingList::kBytes;
    shape.lanes = lanes;
    shape.ranges = ranges;
    shape.rows = rows;
  }
  made.body.shape = CompiledShape(shape);
  made.call.extents.push_back(count);
  return made;
}

}  // namespace gacc::kernels
