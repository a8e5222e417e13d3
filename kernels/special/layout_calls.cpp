// How permute, concat, slice and the embedding ops are called. See layout.cpp and embedding.cpp for what the
// parameters mean.
#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/special/calls.h"

namespace gacc::kernels {

namespace {

constexpr int64_t kMostBytes = 16;  // that a thread of the device moves at once
constexpr int64_t kPiece = 2048;    // elements of a row that one task of concat moves, about

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

// How many neighbouring elements a thread moves, where all that it moves begins at multiples of `begins`.
int64_t vector_of(const ir::OpView& op, Purpose purpose, int64_t begins) {
  if (purpose == Purpose::host) return 1;
  const int64_t most = kMostBytes / ir::dtype_bytes(op.result().dtype);
  return std::gcd(most, begins);
}

// A thread for each `vector` of a call by points.
Instance by_vectors(Instance made, int64_t vector) {
  made.body.vector = static_cast<int>(vector);
  made.call.items.factor /= vector;
  return made;
}

}  // namespace

// Parameters: the step of the first axis, then (extent, step) of each other one; the last is the columns.
Instance describe_permute(const ir::OpView& op, Purpose purpose) {
  const ir::Shape from = op.operand(0).shape, to = op.result().shape;
  const auto& axes = op.integers("axes");
  const size_t first = ir::has_batch(from) ? 1 : 0;
  struct Axis {
    int64_t extent, step;
  };
  std::vector<int64_t> steps(from.size(), 1);
  for (size_t i = from.size(); i-- > 1;) steps[i - 1] = steps[i] * from[i];
  // Axes of one element are left out, and two that lie side by side before and after are one. The batch
  // leads.
  std::vector<Axis> nest;
  if (first == 1) nest.push_back({1, steps[0]});
  for (size_t i = 0; i < axes.size(); ++i) {
    const Axis axis{to[first + i], steps[first + static_cast<size_t>(axes[i])]};
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
  Instance made = by_vectors(point_items(op, purpose, {all.factor / columns, all.times_batch}, columns,
                                         nest.back().step == 1 ? 4 : 16),
                             vector_of(op, purpose, begins));
  std::vector<int64_t>& parameters = made.body.parameters = {nest.front().step};
  for (size_t i = 1; i < nest.size(); ++i)
    parameters.insert(parameters.end(), {nest[i].extent, nest[i].step});
  return made;
}

// Parameters: into how many pieces a row is cut, and how long each operand's rows are. Long rows are cut, for
// there may be few: along its first axis a sample is one row.
Instance describe_concat(const ir::OpView& op, Purpose purpose) {
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
  const int64_t threads = std::clamp<int64_t>((longest / pieces / vector + 31) / 32 * 32, 32, 256);
  const Extent parts{cut.rows.factor * pieces, cut.rows.times_batch};
  Instance made = block_items(op, parts, 4 * cut.after * longest / pieces, threads);
  made.body.parameters = std::move(lengths);
  made.body.parameters.insert(made.body.parameters.begin(), pieces);
  made.body.vector = static_cast<int>(vector);
  made.body.cost = 4;
  return made;
}

// Parameters: the length of the operand's rows, and where in them the result's begin.
Instance describe_slice(const ir::OpView& op, Purpose purpose) {
  const Cut cut = cut_at(op, op.operand(0).shape);
  const int64_t from = ir::elements(op.operand(0).shape, 1) / cut.rows.factor,
                begin = op.integer("from") * cut.after, columns = op.integer("size") * cut.after;
  Instance made = by_vectors(point_items(op, purpose, cut.rows, columns, 4),
                             vector_of(op, purpose, std::gcd(columns, std::gcd(from, begin))));
  made.body.parameters = {from, begin};
  return made;
}

Instance describe_embedding(const ir::OpView& op, Purpose purpose) {
  const int64_t columns = op.result().shape.back();
  return by_vectors(point_items(op, purpose, extent_of(op.operand(0).shape), columns, 4),
                    vector_of(op, purpose, columns));
}

// Parameters: the columns of the table, its rows where the sums are fresh (else 0), whether a task owns
// columns (else rows). Host: of those how many. Device: how many columns a lane has, how many rows a warp,
// and the rows of the table. extents: {rows, columns} or {blocks}, then the tokens.
Instance describe_embedding_gradient(const ir::OpView& op, Purpose purpose) {
  const bool fresh = !op.op.results.empty();
  const size_t tokens = fresh ? 0 : 1;
  const Extent count = extent_of(op.operand(tokens).shape);
  const int64_t columns = op.operand(tokens + 1).shape.back(), rows = op.integer("rows");
  Instance made;
  if (purpose == Purpose::host) {
    // About 64 columns a task, and the same number for each.
    int64_t width = largest_divisor(columns, 64);
    if (width < 16) width = columns;
    const int64_t work = 4 * count.at(op.module.micro_batch()) + (fresh ? rows : 0);
    made = point_items(op, purpose, {columns / width, false}, width,
                       static_cast<int>(std::min<int64_t>(work, 1 << 20)));
    made.body.cost = 40;  // the loops inside are what is to be kept small
    made.body.parameters = {columns, fresh ? rows : 0, 1, width};
  } else {
    // As many rows a warp as leave so many ranges: the tokens' numbers are read that many times at most.
    constexpr int64_t kMostTokenRanges = 256;
    const int64_t ranges = std::min({rows, count.at(op.module.micro_batch()), kMostTokenRanges});
    const int64_t span = (rows + ranges - 1) / ranges, lanes = columns % 4 == 0 ? 4 : 1;
    const int64_t blocks = (rows + span - 1) / span * ((columns + 32 * lanes - 1) / (32 * lanes));
    made = block_items(op, {blocks, false}, columns, 32);
    made.body.shared = 2 * EmbeddingList::kEntries * 4;
    made.body.parameters = {columns, fresh ? rows : 0, 0, lanes, span, rows};
  }
  made.call.extents.push_back(count);
  return made;
}

}  // namespace gacc::kernels
