#include "codegen/gpu/ffma_tile.h"

#include <llvm/IR/Module.h>

#include <algorithm>

namespace gacc::codegen {

void FfmaTile::place(Value* thread, bool a_inner_last, bool b_inner_last, bool a_whole, bool b_whole) {
  // A warp has 4 x 8 threads: its reads of shared memory are two short rows.
  const int warps_across = tile_.n / (tile_.micro_n * tile_.groups) / 8;
  Value* inside = thread;
  if (tile_.slices > 1) {
    const int threads = tile_.threads() / tile_.slices;
    slice_ = b.CreateUDiv(thread, word(threads));
    inside = inside_ = b.CreateSub(thread, b.CreateMul(slice_, word(threads)));
  }
  Value *warp = b.CreateLShr(inside, 5), *lane = b.CreateAnd(inside, word(31));
  Value *warp_down = b.CreateUDiv(warp, word(warps_across)),
        *warp_across = b.CreateURem(warp, word(warps_across));
  row_ =
      b.CreateMul(b.CreateAdd(b.CreateMul(warp_down, word(4)), b.CreateLShr(lane, 3)), word(tile_.micro_m));
  column_ = b.CreateMul(b.CreateAdd(b.CreateMul(warp_across, word(8)), b.CreateAnd(lane, word(7))),
                        word(tile_.micro_n));
  if (slice_) {
    Value* down = b.CreateUDiv(slice_, word(tile_.micro_n));
    own_row_ = b.CreateAdd(row_, down);
    own_column_ = b.CreateAdd(column_, b.CreateSub(slice_, b.CreateMul(down, word(tile_.micro_n))));
  }
  a_ = staging(thread, a_inner_last, a_whole, tile_.m);
  b_ = staging(thread, b_inner_last, b_whole, tile_.n);
  shared_ = make_shared(b.getFloatTy(), 2 * static_cast<uint64_t>(buffer_words()));
}

// `width`: the tile's extent along the operand.
FfmaTile::Staging FfmaTile::staging(Value* thread, bool inner_last, bool whole, int width) {
  const int threads = tile_.threads();
  Staging staging{.inner_last = inner_last, .whole = whole};
  staging.moves = width * tile_.k / kVector / threads;
  staging.row = width + GemmTile::kPad;
  if (inner_last) {
    // Up to four neighbouring threads share a row. Then come the tile's rows, then its next columns.
    const int shared_by = std::min(4, tile_.k / kVector), at_once = threads / shared_by;
    Value* rest = b.CreateUDiv(thread, word(shared_by));
    staging.outer = b.CreateURem(rest, word(width));
    staging.inner = b.CreateAdd(b.CreateMul(b.CreateURem(thread, word(shared_by)), word(kVector)),
                                b.CreateMul(b.CreateUDiv(rest, word(width)), word(kVector * shared_by)));
    if (at_once < width)
      staging.outer_step = at_once;
    else
      staging.inner_step = at_once / width * shared_by * kVector;
  } else {
    const int shared_by = width / kVector;
    staging.outer = b.CreateMul(b.CreateURem(thread, word(shared_by)), word(kVector));
    staging.inner = b.CreateUDiv(thread, word(shared_by));
    staging.inner_step = threads / shared_by;
  }
  return staging;
}

// Into shared memory from word `at` on.
void FfmaTile::deposit(const Staging& staging, Value* at, const std::function<Value*(int v)>& vector) {
  Value* begin =
      shared(b.CreateAdd(b.CreateAdd(at, staging.outer), b.CreateMul(staging.inner, word(staging.row))));
  for (int v = 0; v < staging.moves; ++v) {
    Value* to = beyond(begin, v * (staging.outer_step + staging.inner_step * staging.row));
    Value* elements = vector(v);
    if (!staging.inner_last) {
      b.CreateAlignedStore(elements, to, llvm::Align(16));
      continue;
    }
    for (int j = 0; j < kVector; ++j)
      b.CreateAlignedStore(lane(elements, j), beyond(to, j * staging.row), llvm::Align(4));
  }
}

// The loop runs once more than there are tiles: the first time nothing is there to multiply, the last time
// nothing is left to fetch.
Values FfmaTile::products(Value* all, const Fetch& fetch, const Exists& exists, const Values& first) {
  Values carried = {word(buffer_words()), word(0)};  // the buffers of this tile and of the next
  carried.insert(carried.end(), first.begin(), first.end());
  carried.resize(2 + static_cast<size_t>(sums()), real(0));
  Value* end = b.CreateAdd(all, word(tile_.k));
  carried = t_.loop(word(0), end, word(tile_.k), carried, [&](Value* next, const Values& now) {
    Value* left = b.CreateSelect(b.CreateICmpULT(next, all), b.CreateSub(all, next), word(0));
    const Values fetched = fetch(next, left);
    Value* here = min(b.CreateAdd(b.CreateSub(all, next), word(tile_.k)), word(tile_.k));
    Value* depth = b.CreateSelect(b.CreateICmpEQ(next, word(0)), word(0), here);
    const Values sums = multiply(now[0], depth, Values(now.begin() + 2, now.end()));
    const auto vector = [&](const Staging& staging, int first, int v) {
      Value* elements = fetched[first + v];
      if (ir::is_narrow(type_)) elements = t_.half.widen(elements, type_);
      Value* zeros = llvm::Constant::getNullValue(lanes(kVector));
      if (staging.whole) return b.CreateSelect(exists(staging, v, 0, left, fetched), elements, zeros);
      for (int j = 0; j < kVector; ++j) {
        Value* element =
            b.CreateSelect(exists(staging, v, j, left, fetched), lane(elements, j), lane(zeros, j));
        elements = b.CreateInsertElement(elements, element, static_cast<uint64_t>(j));
      }
      return elements;
    };
    deposit(a_, now[1], [&](int v) { return vector(a_, 0, v); });
    deposit(b_, b.CreateAdd(now[1], word(tile_.k * a_.row)), [&](int v) { return vector(b_, a_.moves, v); });
    barrier();
    Values after = {now[1], now[0]};
    after.insert(after.end(), sums.begin(), sums.end());
    return after;
  });
  const Values sums(carried.begin() + 2, carried.end());
  return slice_ ? add_slices(sums) : sums;
}

// A slice for each of a thread's elements.
Values FfmaTile::add_slices(const Values& sums) {
  const int elements = this->sums(), threads = tile_.threads() / tile_.slices;
  const auto at = [&](Value* slice) {
    return b.CreateMul(b.CreateAdd(b.CreateMul(slice, word(threads)), inside_), word(elements));
  };
  b.CreateAlignedStore(side_by_side(sums.data(), elements), shared(at(slice_)), llvm::Align(16));
  barrier();
  Value* total = nullptr;
  for (int slice = 0; slice < tile_.slices; ++slice) {
    Value* part =
        b.CreateAlignedLoad(b.getFloatTy(), shared(b.CreateAdd(at(word(slice)), slice_)), llvm::Align(4));
    total = total ? b.CreateFAdd(total, part) : part;
  }
  return {total};
}

// Adds the products of the first `depth` of the tile in `buffer`, in order; rounded up, the rest is zero. Of those
// a slice has its part.
Values FfmaTile::multiply(Value* buffer, Value* depth, const Values& sums) {
  const int step = std::max(2, 64 / this->sums());
  Value* first = word(0);
  if (slice_) {
    const int part = tile_.k / tile_.slices;
    first = b.CreateMul(slice_, word(part));
    depth = min(depth, add(first, part));
  }
  return t_.loop(first, depth, word(step), sums, [&](Value* at, Values now) {
    Value* from_a = shared(b.CreateAdd(b.CreateAdd(buffer, row_), b.CreateMul(at, word(a_.row))));
    Value* from_b = shared(b.CreateAdd(b.CreateAdd(buffer, b.CreateAdd(column_, word(tile_.k * a_.row))),
                                       b.CreateMul(at, word(b_.row))));
    for (int i = 0; i < step; ++i) {
      const Values left = fragment(from_a, i * a_.row, tile_.micro_m, tile_.m);
      const Values right = fragment(from_b, i * b_.row, tile_.micro_n, tile_.n);
      size_t element = 0;
      for (Value* x : left) {
        for (Value* y : right) {
          now[element] = t_.math.fma(x, y, now[element]);
          ++element;
        }
      }
    }
    return now;
  });
}

// The thread's elements of one row in shared memory: `groups` runs of `width`, spread over `extent`.
Values FfmaTile::fragment(Value* from, int row, int width, int extent) {
  Values elements;
  for (int g = 0; g < tile_.groups; ++g) {
    const int at = row + g * (extent / tile_.groups);
    Value* vector =
        b.CreateAlignedLoad(lanes(width), beyond(from, at), llvm::Align(static_cast<uint64_t>(width) * 4));
    for (int i = 0; i < width; ++i) elements.push_back(lane(vector, i));
  }
  return elements;
}

}  // namespace gacc::codegen
