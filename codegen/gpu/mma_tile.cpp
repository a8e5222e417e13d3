#include "codegen/gpu/mma_tile.h"

#include <llvm/IR/Module.h>

namespace gacc::codegen {

void MmaTile::place(Value* thread, bool a_inner_last, bool b_inner_last) {
  llvm::GlobalVariable* shared = make_shared(b.getInt8Ty(), static_cast<uint64_t>(stages_ * buffer_bytes()));
  Value* base = b.CreatePtrToInt(shared, b.getInt32Ty());
  Value *warp = b.CreateLShr(thread, 5), *lane = b.CreateAnd(thread, word(31));
  if (tile_.slices > 1) {
    const int warps = tile_.warps_m * tile_.warps_n;
    slice_ = b.CreateUDiv(warp, word(warps));
    inside_ = b.CreateSub(thread, b.CreateMul(slice_, word(32 * warps)));
    warp = b.CreateSub(warp, b.CreateMul(slice_, word(warps)));
  }
  Value* down = b.CreateUDiv(warp, word(tile_.warps_n));
  warp_row_ = b.CreateMul(down, word(warp_m()));
  warp_column_ = b.CreateMul(b.CreateSub(warp, b.CreateMul(down, word(tile_.warps_n))), word(warp_n()));
  lane_row_ = b.CreateLShr(lane, 2);
  lane_column_ = b.CreateShl(b.CreateAnd(lane, word(3)), 1);
  a_ = {a_inner_last, (a_inner_last ? tile_.k : tile_.m) / kChunk, base};
  b_ = {b_inner_last, (b_inner_last ? tile_.k : tile_.n) / kChunk, add(base, a_bytes())};
  // The four matrices of an ldmatrix, one for the lanes 8 i .. 8 i + 7: of A the upper and lower half of 16
  // rows, then both again 8 further along the inner dimension; of B (8 columns each) first along the inner
  // dimension, then the next columns.
  Value *low = b.CreateAnd(b.CreateLShr(lane, 3), word(1)), *high = b.CreateLShr(lane, 4);
  place_fragments(a_, warp_row_, warp_m(), low, high, lane);
  place_fragments(b_, warp_column_, warp_n(), high, low, lane);
}

Value* MmaTile::chunk(const Layout& layout, Value* row, Value* chunk) {
  Value* place = b.CreateXor(chunk, swizzle(layout, row));
  return b.CreateAdd(layout.base,
                     b.CreateAdd(b.CreateMul(row, word(layout.row_bytes())), b.CreateShl(place, 4)));
}

// f(row): rows of 8 chunks and more differ in all of their 8 successors, rows of 4 in every second.
Value* MmaTile::swizzle(const Layout& layout, Value* row) {
  if (layout.chunks >= 8) return b.CreateAnd(row, word(7));
  return b.CreateAnd(b.CreateLShr(row, 1), word(3));
}

// Sets a lane's operands of ldmatrix: the row of the tile that it names. `along` (0 or 1) is its matrix's place along
// the operand's own dimension, `inner` along the inner one, in units of 8.
//   inner_last: an address for each step of 16 along the inner dimension; the fragments lie whole rows apart
//   else:       an address for each fragment; the steps lie whole rows apart
void MmaTile::place_fragments(Layout& layout, Value* first, int width, Value* along, Value* inner,
                              Value* lane) {
  Value* row = b.CreateAnd(lane, word(7));
  Value* swizzled = swizzle(layout, row);
  row = b.CreateAdd(row, b.CreateShl(layout.inner_last ? along : inner, 3));
  if (layout.inner_last) row = b.CreateAdd(row, first);
  Value* base = b.CreateAdd(layout.base, b.CreateMul(row, word(layout.row_bytes())));
  if (slice_ && layout.inner_last) inner = b.CreateAdd(inner, b.CreateMul(slice_, word(2 * steps())));
  if (slice_ && !layout.inner_last)
    base = b.CreateAdd(base, b.CreateMul(slice_, word(steps() * 16 * layout.row_bytes())));
  const int addresses = layout.inner_last ? steps() : width / 16;
  for (int i = 0; i < addresses; ++i) {
    Value* chunk = add(layout.inner_last ? inner : b.CreateAdd(along, b.CreateLShr(first, 3)), 2 * i);
    layout.from.push_back(b.CreateAdd(base, b.CreateShl(b.CreateXor(chunk, swizzled), 4)));
  }
}

Values MmaTile::products(Value* depth, const Staging& staging) {
  const int last = stages_ - 1;
  for (int stage = 0; stage < last; ++stage) {
    Value *k0 = word(stage * tile_.k), *buffer = word(stage * buffer_bytes());
    staging.send(k0, buffer);
    if (staging.fetch) staging.put(staging.fetch(k0), buffer);
    cores_.commit();
  }
  Values carried = {word(0), word(last * buffer_bytes())};  // the buffers of this tile and of the next sent
  carried.resize(2 + static_cast<size_t>(fragments_m() * warp_n() / 8 * 4), real(0));
  carried = t_.loop(word(0), depth, word(tile_.k), carried, [&](Value* k0, const Values& now) {
    cores_.wait(last - 1);
    barrier();
    Value* next = add(k0, last * tile_.k);
    t_.branch(b.CreateICmpULT(next, depth), [&] { staging.send(next, now[1]); });
    cores_.commit();
    Values fetched;
    if (staging.fetch) fetched = staging.fetch(next);
    Values sums(now.begin() + 2, now.end());
    for (int step = 0; step < steps(); ++step) multiply(step, now[0], sums);
    if (staging.fetch) staging.put(fetched, now[1]);
    Value* after = add(now[0], buffer_bytes());
    after = b.CreateSelect(b.CreateICmpEQ(after, word(stages_ * buffer_bytes())), word(0), after);
    Values out = {after, now[0]};
    out.insert(out.end(), sums.begin(), sums.end());
    return out;
  });
  const Values sums(carried.begin() + 2, carried.end());
  return slice_ ? add_slices(sums) : sums;
}

// The sums of all slices in shared memory: those of a fragment side by side, of a thread four. Slice s has the
// s-th part of each warp's columns from here on.
Values MmaTile::add_slices(const Values& sums) {
  const int across = warp_n() / 8, fragments = fragments_m() * across;
  const int of_fragment = tile_.threads() / tile_.slices * 16, of_slice = fragments * of_fragment;  // bytes
  const auto at = [&](Value* slice, Value* fragment) {
    Value* place = b.CreateAdd(b.CreateMul(slice, word(of_slice)), b.CreateMul(fragment, word(of_fragment)));
    return b.CreateAdd(a_.base, b.CreateAdd(place, b.CreateShl(inside_, 4)));
  };
  cores_.wait(0);  // copies of tiles that there are not
  barrier();
  for (int f = 0; f < fragments; ++f) {
    Value* four = side_by_side(&sums[4 * f], 4);
    cores_.put(at(slice_, word(f)), b.CreateBitCast(four, llvm::FixedVectorType::get(b.getInt32Ty(), 4)));
  }
  barrier();
  Value* first = b.CreateMul(slice_, word(fragments_n()));
  warp_column_ = b.CreateAdd(warp_column_, b.CreateShl(first, 3));
  Values all;
  for (int i = 0; i < fragments_m(); ++i) {
    for (int j = 0; j < fragments_n(); ++j) {
      Value* total = nullptr;
      for (int slice = 0; slice < tile_.slices; ++slice) {
        Value* from = b.CreateIntToPtr(at(word(slice), add(first, i * across + j)), b.getPtrTy(3));
        Value* part = b.CreateAlignedLoad(lanes(4), from, llvm::Align(16));
        total = total ? b.CreateFAdd(total, part) : part;
      }
      for (int e = 0; e < 4; ++e) all.push_back(lane(total, e));
    }
  }
  return all;
}

// Four 8 x 8 matrices: fragment i, 16 along the operand's own dimension, of a step of 16 along the inner one.
Values MmaTile::fragment(const Layout& layout, int i, int step, Value* buffer) {
  Value* from = layout.from[layout.inner_last ? step : i];
  from = add(b.CreateAdd(from, buffer), (layout.inner_last ? i : step) * 16 * layout.row_bytes());
  return cores_.load_matrices(from, !layout.inner_last);
}

void MmaTile::multiply(int step, Value* buffer, Values& sums) {
  std::vector<Values> left, right;
  for (int i = 0; i < fragments_m(); ++i) left.push_back(fragment(a_, i, step, buffer));
  const int across = warp_n() / 8;
  for (int j = 0; j < across / 2; ++j) right.push_back(fragment(b_, j, step, buffer));
  for (int i = 0; i < fragments_m(); ++i) {
    for (int j = 0; j < across; ++j) {
      const Values& x = left[i];
      const Values& y = right[j / 2];
      const size_t first = j % 2 == 0 ? 0 : 2;
      cores_.multiply(x, y[first], y[first + 1], &sums[4 * (i * across + j)]);
    }
  }
}

}  // namespace gacc::codegen
