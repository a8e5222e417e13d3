// Documents in a window: which positions belong together, from a number for each. Numbers may come in any order,
// and one that comes again later goes on with the same document.
//
//   number    the given one; of a position that belongs to none (it is negative) one that no other has: -1 - t
//   position  how many positions before have the same number
//   reach     the first position with that number, and the one behind the last; of the run of neighbours with that
//             number the same: four planes
//
// Attention asks of each block of positions (heads.h) where it has to look. Spans have four planes, too:
//
//   first, end    no position of the block has its number outside of these
//   clear         between these two, every position has the number that all of the block have (else they are equal)
#include <algorithm>

#include "ir/ops/heads.h"

namespace gacc::ir {

namespace {

// Returns the number of positions; operand 0 is i32 [B, .., T] of `axes` axes.
int64_t expect_numbers(const OpView& op, size_t axes) {
  expect_dtype(op, 0, DType::i32);
  const Shape shape = op.operand(0).shape;
  if (shape.size() != axes || !has_batch(shape) || (axes == 3 && shape[1] != kSpanPlanes))
    refuse(op, Kind::shape_mismatch, {0}, "it must be {}", axes == 2 ? "[B,T]" : "[B,4,T]");
  return shape.back();
}

void documents_reference(EvalView& view) {
  const Tensor& given = view.operand(0);
  const int64_t length = given.shape[1];
  for (int64_t sample = 0; sample < given.shape[0]; ++sample) {
    const double* of = given.data.data() + sample * length;
    double* number = view.result(0).data.data() + sample * length;
    double* position = view.result(1).data.data() + sample * length;
    double* reach = view.result(2).data.data() + sample * kSpanPlanes * length;
    for (int64_t t = 0; t < length; ++t) {
      number[t] = of[t] < 0 ? static_cast<double>(-1 - t) : of[t];
      const auto same = [&](int64_t other) { return other == t || (of[t] >= 0 && of[other] == of[t]); };
      int64_t first = t, end = t + 1, low = t, high = t + 1, before = 0;
      for (int64_t other = 0; other < length; ++other) {
        if (!same(other)) continue;
        first = std::min(first, other), end = std::max(end, other + 1);
        before += other < t ? 1 : 0;
      }
      while (low > 0 && same(low - 1)) --low;
      while (high < length && same(high)) ++high;
      position[t] = static_cast<double>(before);
      const int64_t planes[] = {first, end, low, high};
      for (int64_t plane = 0; plane < kSpanPlanes; ++plane)
        reach[plane * length + t] = static_cast<double>(planes[plane]);
    }
  }
}

void spans_reference(EvalView& view) {
  const Tensor& reach = view.operand(0);
  const int64_t length = reach.shape[2], blocks = span_blocks(length);
  for (int64_t sample = 0; sample < reach.shape[0]; ++sample) {
    const double* of = reach.data.data() + sample * kSpanPlanes * length;
    double* spans = view.result().data.data() + sample * kSpanPlanes * blocks;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t begin = block * kSpanBlock, past = std::min(begin + kSpanBlock, length);
      const bool alike = of[3 * length + begin] >= static_cast<double>(past);
      spans[block] = *std::min_element(of + begin, of + past);
      spans[blocks + block] = *std::max_element(of + length + begin, of + length + past);
      spans[2 * blocks + block] = alike ? of[2 * length + begin] : static_cast<double>(begin);
      spans[3 * blocks + block] = alike ? of[3 * length + begin] : static_cast<double>(begin);
    }
  }
}

void lengths_reference(EvalView& view) {
  const std::vector<double>& numbers = view.operand(0).data;
  const int64_t length = view.operand(0).shape[1];
  for (int64_t i = 0; i < std::ssize(numbers); ++i) {
    const auto window = numbers.begin() + i / length * length;
    view.result().data[i] = static_cast<double>(std::count(window, window + length, numbers[i]));
  }
}

}  // namespace

extern const OpInfo op_documents{
    .name = "documents",
    .summary =
        "documents i32 [B,T], a number for each position, negative where it belongs to none; results: "
        "numbers [B,T] in which each of these has one of its own, positions [B,T] (how many before "
        "have the same number), and reach [B,4,T]: the first position with that number, the one behind "
        "the last, and the same of its run of neighbours",
    .results = 3,
    .infer = [](const OpView& op) -> Types {
      const int64_t length = expect_numbers(op, 2);
      const Type each{DType::i32, {kBatch, length}};
      return {each, each, {DType::i32, {kBatch, kSpanPlanes, length}}};
    },
    .reference = documents_reference,
    .precision = Precision::half,
    .recompute = Recompute::never,
};

extern const OpInfo op_documents_spans{
    .name = "documents.spans",
    .summary =
        "what each block of 64 positions can see, from reach i32 [B,4,T] of `documents`; [B,4,ceil(T / "
        "64)]: the first position with a number of the block and the one behind the last, and the "
        "bounds of where all have the one number of the block (equal: it has several)",
    .infer = [](const OpView& op) -> Types {
      return {{DType::i32, {kBatch, kSpanPlanes, span_blocks(expect_numbers(op, 3))}}};
    },
    .reference = spans_reference,
    .precision = Precision::half,
    .recompute = Recompute::never,
};

extern const OpInfo op_documents_lengths{
    .name = "documents.lengths",
    .summary = "how many positions have each one's number, from numbers i32 [B,T] of `documents`; [B,T]",
    .infer = [](const OpView& op) -> Types {
      expect_numbers(op, 2);
      return {op.operand(0)};
    },
    .reference = lengths_reference,
    .precision = Precision::half,
    .recompute = Recompute::never,
};

}  // namespace gacc::ir
