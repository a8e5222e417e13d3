// See conv_operands.h.
#include "codegen/gpu/conv_operands.h"

namespace gacc::codegen {

ConvOperands::ConvOperands(Target& target)
    : BlockCode(target),
      kind_(conv_kind(target.body.special)),
      s_(ConvShape::of(target.body)),
      product_(ConvProduct::of(s_, kind_)),
      tile_(implicit_tile(s_.product)),
      mask_type_(s_.window.kernel[0] + s_.window.kernel[1] <= 30 ? b.getInt32Ty() : b.getInt64Ty()) {}

void ConvOperands::begin_product(Value* number) {
  samples_ = t_.extents[1];
  m_ = word(product_.rows);
  Value* rest = number;
  const auto next = [&](int64_t count) {
    Value* at = b.CreateURem(rest, t_.index(count));
    rest = b.CreateUDiv(rest, t_.index(count));
    return at;
  };
  if (kind_ == ConvKind::weight) {
    column0_ = b.CreateMul(narrow(next(kernels::ceil_divide(product_.others, tile_.n))), word(tile_.n));
    row0_ = b.CreateMul(narrow(next(down())), word(tile_.m));
    group_ = next(s_.groups);
    // The part's samples; of a micro-batch that is not full there may be fewer, or none.
    Value* first = times(rest, s_.part);
    first = b.CreateSelect(b.CreateICmpULT(first, samples_), first, samples_);
    Value* left = b.CreateSub(samples_, first);
    Value* count = b.CreateSelect(b.CreateICmpULT(left, t_.index(s_.part)), left, t_.index(s_.part));
    n_ = word(product_.others);
    k_ = b.CreateMul(narrow(count), word(product_.pixels));
    part_ = rest;
  } else {
    // Blocks that share pixels stand side by side.
    row0_ = b.CreateMul(narrow(next(down())), word(tile_.m));
    group_ = next(s_.groups);
    column0_ = b.CreateMul(narrow(rest), word(tile_.n));
    n_ = b.CreateMul(narrow(samples_), word(product_.pixels));
    k_ = word(product_.others);
  }
}

bool ConvOperands::misses(int axis) const {
  const WindowShape& w = s_.window;
  if (kind_ == ConvKind::images)
    return w.kernel[axis] != 1 || w.stride[axis] != 1 || w.before[axis] != 0 || w.from[axis] > w.to[axis];
  return w.before[axis] != 0 ||
         (w.to[axis] - 1) * w.stride[axis] + (w.kernel[axis] - 1) * w.dilation[axis] >= w.from[axis];
}

// Pixel `number`, below `limit`, of the samples from first_sample on (null: from 0). Of forward and weight a
// place, whose window begins stride * place - before in the images; of images an element, which tap k meets in
// place (element + before - k * dilation) / stride, if that is whole.
ConvPart ConvOperands::pixel(Value* number, Value* limit, Value* first_sample) {
  const WindowShape& w = s_.window;
  const bool back = kind_ == ConvKind::images;
  const auto& walked = back ? w.from : w.to;  // what pixels are counted in, and what they are looked up in
  const auto& other = back ? w.to : w.from;
  const int64_t channels = s_.groups * (back ? s_.out : s_.in), own = back ? s_.out : s_.in;
  Value* sample = index(udiv(number, product_.pixels));
  if (first_sample != nullptr) sample = b.CreateAdd(sample, first_sample);
  Value* at = urem(number, product_.pixels);
  Value* const places[2] = {udiv(at, walked[1]), urem(at, walked[1])};
  Value* bits = b.CreateZExt(b.CreateICmpULT(number, limit), mask_type_);
  Value* first[2];
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t stride = w.stride[axis];
    Value* from = back ? add(places[axis], w.before[axis])
                       : b.CreateSub(b.CreateMul(places[axis], word(stride)), word(w.before[axis]));
    first[axis] = back ? udiv(from, stride) : from;
    if (!misses(axis)) continue;
    Value* remainder = back ? urem(from, stride) : nullptr;
    for (int64_t k = 0; k < w.kernel[axis]; ++k) {
      const int64_t step = k * w.dilation[axis];
      Value* meets = back ? b.CreateSub(first[axis], word(step / stride)) : add(from, step);
      Value* inside =
          b.CreateICmpULT(meets, word(other[axis]));  // unsigned: those before the first are large
      if (back && stride > 1) inside = b.CreateAnd(inside, b.CreateICmpEQ(remainder, word(step % stride)));
      bits = b.CreateOr(
          bits, b.CreateShl(b.CreateZExt(inside, mask_type_), mask(bit_of(axis) + static_cast<uint64_t>(k))));
    }
  }
  Value* offset = times(b.CreateAdd(times(sample, channels), times(group_, own)), other[0] * other[1]);
  return {plus(offset, b.CreateAdd(b.CreateMul(first[0], word(other[1])), first[1])), bits};
}

// (channel, row, column of the kernel) in the images, or for their gradient in the places.
ConvPart ConvOperands::tap(Value* number) {
  const WindowShape& w = s_.window;
  const bool back = kind_ == ConvKind::images;
  const auto& other = back ? w.to : w.from;
  Value *channel = udiv(number, s_.taps()), *at = urem(number, s_.taps());
  Value* const steps[2] = {udiv(at, w.kernel[1]), urem(at, w.kernel[1])};
  Value* wants = mask(kThere);
  Value* meets[2];
  for (int axis = 0; axis < 2; ++axis) {
    meets[axis] = b.CreateMul(steps[axis], word(w.dilation[axis]));
    if (back) meets[axis] = b.CreateNeg(udiv(meets[axis], w.stride[axis]));
    if (!misses(axis)) continue;
    Value* bit = b.CreateAdd(b.CreateZExt(steps[axis], mask_type_), mask(bit_of(axis)));
    wants = b.CreateOr(wants, b.CreateShl(mask(1), bit));
  }
  const bool whole = product_.others % (kind_ == ConvKind::weight ? tile_.n : tile_.k) == 0;
  if (!whole) wants = b.CreateSelect(b.CreateICmpULT(number, word(product_.others)), wants, mask(kNever));
  Value* offset = times(index(channel), other[0] * other[1]);
  return {plus(offset, b.CreateAdd(b.CreateMul(meets[0], word(other[1])), meets[1])), wants};
}

ConvPart ConvOperands::dense(Value* offset, Value* inside, bool wants) {
  if (inside == nullptr) return {offset, word(kThere)};
  return {offset, b.CreateSelect(inside, word(kThere), word(wants ? kNever : 0))};
}

ConvOperand ConvOperands::left() {
  ConvOperand operand{.slot = kind_ == ConvKind::weight ? size_t{0} : size_t{1},
                      .run = product_.a_run,
                      .inner_last = product_.a_inner_last};
  const int64_t taps = s_.taps();
  const auto row_of = [this](int64_t channels, int64_t elements) {
    return [=, this](Value* row) {
      Value* channel = b.CreateAdd(times(group_, channels), index(row));
      return dense(times(channel, elements),
                   product_.rows % tile_.m == 0 ? nullptr : b.CreateICmpULT(row, m_), false);
    };
  };
  const auto below_depth = [this](Value* k) {
    const bool whole = kind_ != ConvKind::weight && product_.others % tile_.k == 0;
    return whole ? nullptr : b.CreateICmpULT(k, k_);
  };
  switch (kind_) {
    case ConvKind::forward:
      operand.outer = row_of(s_.out, s_.in * taps);
      operand.inner = [=, this](Value* k) { return dense(index(k), below_depth(k), true); };
      break;
    case ConvKind::images:  // weight[group * out + o, row, tap]
      operand.outer = row_of(s_.out * s_.in, taps);
      operand.inner = [=, this](Value* k) {
        Value* channel = times(index(udiv(k, taps)), s_.in * taps);
        return dense(b.CreateAdd(channel, index(urem(k, taps))), below_depth(k), true);
      };
      break;
    case ConvKind::weight:
      operand.outer = row_of(s_.out, product_.pixels);
      operand.inner = [=, this](Value* k) {
        Value* sample = b.CreateAdd(times(part_, s_.part), index(udiv(k, product_.pixels)));
        Value* first = times(sample, s_.groups * s_.out * product_.pixels);
        return dense(b.CreateAdd(first, index(urem(k, product_.pixels))), below_depth(k), true);
      };
  }
  return operand;
}

ConvOperand ConvOperands::right() {
  const bool weight = kind_ == ConvKind::weight;
  ConvOperand operand{.slot = weight ? size_t{1} : size_t{0},
                      .run = product_.b_run,
                      .inner_last = product_.b_inner_last,
                      .outer_wants = weight};
  const auto taps = [this](Value* number) { return tap(number); };
  const auto pixels = [this, weight](Value* number) {
    return pixel(number, weight ? k_ : n_, weight ? times(part_, s_.part) : nullptr);
  };
  operand.outer = weight ? std::function<ConvPart(Value*)>(taps) : pixels;
  operand.inner = weight ? std::function<ConvPart(Value*)>(pixels) : taps;
  return operand;
}

Value* ConvOperands::c_row(Value* row) {
  Value* group = group_;
  if (kind_ == ConvKind::weight) group = b.CreateAdd(times(part_, s_.groups), group_);
  return times(b.CreateAdd(times(group, product_.rows), index(row)), c_run());
}

Value* ConvOperands::c_column(Value* column) {
  if (kind_ == ConvKind::weight) return index(column);
  Value* sample = times(index(udiv(column, product_.pixels)), s_.groups * product_.rows * product_.pixels);
  return b.CreateAdd(sample, index(urem(column, product_.pixels)));
}

void ConvOperands::store(Value* row_offset, Value* column_offset, Value* value, int count) {
  constexpr size_t kResult = 2;
  const ir::DType dtype = t_.body.slots[kResult].dtype;
  if (ir::is_half(dtype)) value = t_.half.narrow(value, dtype);
  b.CreateAlignedStore(value, element(kResult, b.CreateAdd(row_offset, column_offset)),
                       aligned_to(count * static_cast<int>(ir::dtype_bytes(dtype))));
}

}  // namespace gacc::codegen
