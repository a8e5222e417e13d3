// The operands of a convolution as matrices that nobody writes down (ConvProduct has their shapes).
//
// An element's place in memory is a sum: offset(row) + offset(column), since a pixel of a window lies as far from
// the window's first one whatever the window. Where the window reaches over the edge of the image is a matter of
// bits: a pixel *has* a bit for each row and each column of the kernel that meets the image there, a tap *wants*
// that of its own row and column. So an element costs an addition and a comparison, and the divisions that tell
// pixels and taps apart are made once for a row and once for a column of a tile.
#pragma once
#include "codegen/gpu/block_code.h"
#include "kernels/gemm.h"
#include "kernels/handwritten/calls.h"

namespace gacc::codegen {

// A row or a column of an operand.
struct ConvPart {
  Value* offset = nullptr;  // index type, elements
  Value* bits = nullptr;    // that it has, or wants
};

// One operand of a block's product: C's rows (of A), or columns (of B), are its outer dimension.
struct ConvOperand {
  size_t slot = 0;
  int64_t run = 1;  // see ConvProduct
  bool inner_last = false, outer_wants = false;
  std::function<ConvPart(Value*index)> outer{}, inner{};
};

class ConvOperands : protected BlockCode {
 protected:
  explicit ConvOperands(Target& target)
      : BlockCode(target),
        kind_(conv_kind(*target.body.op)),
        s_(target.body.shape.as<ConvShape>()),
        product_(ConvProduct::of(s_, kind_)),
        tile_(implicit_tile(s_.product)),
        mask_type_(s_.window.kernel[0] + s_.window.kernel[1] <= 30 ? b.getInt32Ty() : b.getInt64Ty()) {}

  // Calls begin(thread), then compute() for every tile that the block has.
  void each_tile(const std::function<void(Value* thread)>& begin, const std::function<void()>& compute) {
    t_.parts([&](Value* block) {
      begin(special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x));
      const auto product = [&](Value* tile) {
        begin_product(tile);
        compute();
      };
      if (kind_ == ConvKind::weight) return product(block);
      const auto pieces = [&](Value* all, int64_t size) {
        return b.CreateUDiv(b.CreateAdd(all, t_.index(size - 1)), t_.index(size));
      };
      Value* blocks = pieces(t_.extents[0], s_.per_block);
      Value* columns = b.CreateMul(t_.extents[1], t_.index(product_.pixels));
      Value* tiles = b.CreateMul(pieces(columns, tile_.n), t_.index(s_.groups * down()));
      t_.each(block, tiles, blocks, [&](Value* tile) {
        product(tile);
        barrier();  // before shared memory is that of another tile
      });
    });
  }

  // For the product that a tile number t belongs to: what the block computes, from row0_ and column0_ on.
  void begin_product(Value* number) {
    samples_ = t_.extents[1];
    m_ = word(product_.rows);
    Value* rest = number;
    const auto next = [&](int64_t count) {
      Value* at = b.CreateURem(rest, t_.index(count));
      rest = b.CreateUDiv(rest, t_.index(count));
      return at;
    };
    if (kind_ == ConvKind::weight) {
      column0_ = b.CreateMul(t_.word(next(ceil_divide(product_.others, tile_.n))), word(tile_.n));
      row0_ = b.CreateMul(t_.word(next(down())), word(tile_.m));
      group_ = next(s_.groups);
      // The part's samples; of a micro-batch that is not full there may be fewer, or none.
      Value* first = times(rest, s_.part);
      first = min(first, samples_);
      Value* count = min(b.CreateSub(samples_, first), t_.index(s_.part));
      n_ = word(product_.others);
      k_ = b.CreateMul(t_.word(count), word(product_.pixels));
      part_ = rest;
    } else {
      // Blocks that share pixels stand side by side.
      row0_ = b.CreateMul(t_.word(next(down())), word(tile_.m));
      group_ = next(s_.groups);
      column0_ = b.CreateMul(t_.word(rest), word(tile_.n));
      n_ = b.CreateMul(t_.word(samples_), word(product_.pixels));
      k_ = word(product_.others);
    }
  }

  // A, and B.
  ConvOperand left() {
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

  ConvOperand right() {
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

  // Behind the last tile of the inner dimension the first one is read again, and not used.
  Value* existing(Value* k0) { return b.CreateSelect(b.CreateICmpULT(k0, k_), k0, word(0)); }
  // Returns the condition that an operand's element exists, and its address (anything where it does not).
  Value* exists(const ConvOperand& operand, const ConvPart& outer, const ConvPart& inner) {
    Value* both = b.CreateAnd(outer.bits, inner.bits);
    return b.CreateICmpEQ(both, operand.outer_wants ? outer.bits : inner.bits);
  }
  Value* address(const ConvOperand& operand, const ConvPart& outer, const ConvPart& inner) {
    return element(operand.slot, b.CreateAdd(outer.offset, inner.offset));
  }
  Value* element(size_t slot, Value* index) {
    const int64_t bytes = ir::dtype_bytes(t_.body.slots[slot].dtype);
    return b.CreateGEP(b.getInt8Ty(), t_.operands[slot],
                       b.CreateMul(wide(index), b.getInt64(static_cast<uint64_t>(bytes))));
  }

  // Tiles that stand below one another in a group.
  int64_t down() const { return ceil_divide(product_.rows, tile_.m); }
  // C: an element's place is the sum of its row's and its column's; `run` neighbours of a row lie side by side.
  Value* c_row(Value* row) {
    Value* group = group_;
    if (kind_ == ConvKind::weight) group = b.CreateAdd(times(part_, s_.groups), group_);
    return times(b.CreateAdd(times(group, product_.rows), index(row)), c_run());
  }
  Value* c_column(Value* column) {
    if (kind_ == ConvKind::weight) return index(column);
    Value* sample = times(index(udiv(column, product_.pixels)), s_.groups * product_.rows * product_.pixels);
    return b.CreateAdd(sample, index(urem(column, product_.pixels)));
  }
  int64_t c_run() const { return kind_ == ConvKind::weight ? product_.others : product_.pixels; }
  // The thread's sums: neighbours at once where C's rows allow it.
  template <class Tile>
  void store_sums(Tile& tile, const Values& sums) {
    const int run = tile.run(), count = c_run() % run == 0 ? run : 1;
    Values columns, offsets;
    for (int g = 0; g < tile.runs(); ++g) {
      for (int i = 0; i < run; i += count) {
        columns.push_back(tile.column(column0_, g, i));
        offsets.push_back(c_column(columns.back()));
      }
    }
    for (int r = 0; r < tile.rows(); ++r) {
      Value* row = tile.row(row0_, r);
      Value *row_exists = b.CreateICmpULT(row, m_), *row_offset = c_row(row);
      for (size_t c = 0; c < columns.size(); ++c) {
        Value* exists = b.CreateAnd(row_exists, b.CreateICmpULT(columns[c], n_));
        const int element = static_cast<int>(c) * count;
        Value* const* first = &sums[tile.sum(r, element / run, element % run)];
        t_.branch(exists, [&] { store(row_offset, offsets[c], side_by_side(first, count), count); });
      }
    }
  }
  void store(Value* row_offset, Value* column_offset, Value* value, int count) {
    constexpr size_t kResult = 2;
    const ir::DType dtype = t_.body.slots[kResult].dtype;
    if (ir::is_narrow(dtype)) value = t_.half.narrow(value, dtype);
    b.CreateAlignedStore(value, element(kResult, b.CreateAdd(row_offset, column_offset)),
                         aligned_to(count * static_cast<int>(ir::dtype_bytes(dtype))));
  }

  const ConvKind kind_;
  const ConvShape s_;
  const ConvProduct product_;
  const GemmTile& tile_;
  Value *m_ = nullptr, *n_ = nullptr, *k_ = nullptr;  // i32: of the block's product
  Value *row0_ = nullptr, *column0_ = nullptr;        // i32: the first ones of its tile

 private:
  static constexpr uint64_t kThere = 1, kNever = 2;  // bits: in the operand at all; that nothing has

  Value* index(Value* word) { return b.CreateZExtOrTrunc(word, t_.index_type); }
  Value* times(Value* index, int64_t factor) { return b.CreateMul(index, t_.index(factor)); }
  Value* plus(Value* index, Value* word) {
    return b.CreateAdd(index, b.CreateSExtOrTrunc(word, t_.index_type));
  }
  Value* udiv(Value* x, int64_t by) { return by == 1 ? x : b.CreateUDiv(x, word(by)); }
  Value* urem(Value* x, int64_t by) { return by == 1 ? word(0) : b.CreateURem(x, word(by)); }
  Value* mask(uint64_t bits) { return llvm::ConstantInt::get(mask_type_, bits); }
  uint64_t bit_of(int axis) const { return axis == 0 ? 2 : 2 + static_cast<uint64_t>(s_.window.kernel[0]); }

  // Returns true if taps of an axis may miss the image.
  bool misses(int axis) const {
    const WindowShape& w = s_.window;
    if (kind_ == ConvKind::images)
      return w.kernel[axis] != 1 || w.stride[axis] != 1 || w.before[axis] != 0 || w.from[axis] > w.to[axis];
    return w.before[axis] != 0 ||
           (w.to[axis] - 1) * w.stride[axis] + (w.kernel[axis] - 1) * w.dilation[axis] >= w.from[axis];
  }

  // Pixel `number`, below `limit`, of the samples from first_sample on (null: from 0). Of forward and weight a
  // place, whose window begins stride * place - before in the images; of images an element, which tap k meets in
  // place (element + before - k * dilation) / stride, if that is whole.
  ConvPart pixel(Value* number, Value* limit, Value* first_sample) {
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
        bits = b.CreateOr(bits, b.CreateShl(b.CreateZExt(inside, mask_type_),
                                            mask(bit_of(axis) + static_cast<uint64_t>(k))));
      }
    }
    Value* offset = times(b.CreateAdd(times(sample, channels), times(group_, own)), other[0] * other[1]);
    return {plus(offset, b.CreateAdd(b.CreateMul(first[0], word(other[1])), first[1])), bits};
  }

  // (channel, row, column of the kernel) in the images, or for their gradient in the places.
  ConvPart tap(Value* number) {
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

  // `inside`: i1, or null for always.
  ConvPart dense(Value* offset, Value* inside, bool wants) {
    if (inside == nullptr) return {offset, word(kThere)};
    return {offset, b.CreateSelect(inside, word(kThere), word(wants ? kNever : 0))};
  }

  llvm::Type* const mask_type_;
  Value *group_ = nullptr, *samples_ = nullptr, *part_ = nullptr;  // index type
};

}  // namespace gacc::codegen
