// Built-in matrix products of half types by tensor cores: mma.sync with f32 sums.
//
//   the first stages - 1 tiles of A and B are sent on their way
//   for every tile of the inner dimension:
//     wait for it; barrier
//     send the tile stages - 1 further on into the buffer that was used up last
//     ldmatrix and mma of this tile
//
// From sm_80 on tiles travel by cp.async, 16 bytes at a time; before, and where rows do not begin at
// multiples of 16 bytes, through registers. In shared memory a tile lies as it does in memory: an operand
// whose inner dimension is not the contiguous one is turned by ldmatrix.trans. Its 16-byte chunks are
// swizzled, chunk c of row r standing at c ^ f(r), so that neither the copies nor ldmatrix meet a bank twice.
//
// Nothing is read out of bounds and no thread leaves early: coordinates past the edge of C are moved back
// onto it (the products are computed and not stored); past the end of the inner dimension both operands are
// zero.
#include "codegen/gpu/product_base.h"
#include "codegen/nvptx/tensor_cores.h"

namespace gacc::codegen {

namespace {

constexpr int kChunk = 8;  // elements of 16 bytes

class MmaEmitter : GemmBase {
 public:
  MmaEmitter(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu, const Body* then)
      : GemmBase(module, kernel, gpu, then),
        modern_(gpu.async_copies),
        stages_(kernel.stages(gpu)),
        cores_(b, kernel.type, modern_) {}

  llvm::Function* emit() {
    begin();
    place();
    const Values sums = products();
    begin_epilogue();
    for (int i = 0; i < fragments_m(); ++i) store_rows(i, sums);
    target_->end();
    return target_->function;
  }

 private:
  // One operand's way into shared memory and out of it.
  struct Operand {
    bool inner_last = false;                 // the inner dimension is the contiguous one
    int chunks = 0, moves = 0;               // of 16 bytes: in a row of the tile, and a thread's of a tile
    int rows_apart = 0;                      // from one of a thread's chunks to the next
    Value* aligned = nullptr;                // i1, same for all threads: rows begin at multiples of 16 bytes
    Value* stride = nullptr;                 // i64: bytes from one row in memory to the next
    Value *row = nullptr, *chunk = nullptr;  // the thread's first chunk in the tile
    std::vector<Value*> begin{};  // inner_last: where each chunk's row begins; else, where the column does
    Value* beside[kChunk] = {};   // else: bytes to elements 1, 2, ..., or 0 past the edge
    Value* room = nullptr;        // else: how many of a chunk's elements stand before the edge
    Value* to = nullptr;          // shared address of the first chunk in the first buffer
    std::vector<Value*> from{};   // shared addresses for ldmatrix, see place_fragments
    int row_bytes() const { return chunks * 16; }
  };

  int warp_m() const { return tile_.m / tile_.warps_m; }
  int warp_n() const { return tile_.n / tile_.warps_n; }
  int fragments_m() const { return warp_m() / 16; }
  int fragments_n() const { return warp_n() / 8; }
  int a_bytes() const { return tile_.m * tile_.k * 2; }
  int buffer_bytes() const { return a_bytes() + tile_.n * tile_.k * 2; }
  int stages() const { return stages_; }

  Value* add(Value* x, int64_t constant) { return constant == 0 ? x : b.CreateAdd(x, word(constant)); }

  void place() {
    llvm::GlobalVariable* shared =
        make_shared(b.getInt8Ty(), static_cast<uint64_t>(stages() * buffer_bytes()));
    Value* base = b.CreatePtrToInt(shared, b.getInt32Ty());
    Value *warp = b.CreateLShr(thread_, 5), *lane = b.CreateAnd(thread_, word(31));
    Value* down = b.CreateUDiv(warp, word(tile_.warps_n));
    warp_row_ = b.CreateMul(down, word(warp_m()));
    warp_column_ = b.CreateMul(b.CreateSub(warp, b.CreateMul(down, word(tile_.warps_n))), word(warp_n()));
    lane_row_ = b.CreateLShr(lane, 2);
    lane_column_ = b.CreateShl(b.CreateAnd(lane, word(3)), 1);
    a_ = operand(a_address_, a_row_, m_, row0_, !kernel_.transpose_a, tile_.m, base);
    b_ = operand(b_address_, b_row_, n_, column0_, kernel_.transpose_b, tile_.n, add(base, a_bytes()));
    // The four matrices of an ldmatrix, one for the lanes 8 i .. 8 i + 7: of A the upper and lower half of 16
    // rows, then both again 8 further along the inner dimension; of B (8 columns each) first along the inner
    // dimension, then the next columns.
    Value *low = b.CreateAnd(b.CreateLShr(lane, 3), word(1)), *high = b.CreateLShr(lane, 4);
    place_fragments(a_, add(base, 0), warp_row_, warp_m(), low, high, lane);
    place_fragments(b_, add(base, a_bytes()), warp_column_, warp_n(), high, low, lane);
  }

  // `pitch` elements lie between its rows, `extent` is C's along the operand, `origin` the block's first place
  // there, `width` the tile's extent.
  Operand operand(Value* base, Value* pitch, Value* extent, Value* origin, bool inner_last, int width,
                  Value* shared) {
    Operand o;
    o.inner_last = inner_last;
    o.chunks = (inner_last ? tile_.k : width) / kChunk;
    o.moves = width * tile_.k / kChunk / threads_;
    o.rows_apart = threads_ / o.chunks;
    o.stride = wide(in_bytes(pitch));
    o.aligned = multiple_of(16, base, o.stride);
    o.row = b.CreateUDiv(thread_, word(o.chunks));
    o.chunk = b.CreateURem(thread_, word(o.chunks));
    // Whole multiples of 8 rows further on the swizzle is the same one.
    Value* place = b.CreateXor(o.chunk, swizzle(o, o.row));
    o.to = b.CreateAdd(shared, b.CreateAdd(b.CreateMul(o.row, word(o.row_bytes())), b.CreateShl(place, 4)));
    Value* last = b.CreateSub(extent, word(1));
    if (inner_last) {
      for (int v = 0; v < o.moves; ++v) {
        Value* row = min(add(b.CreateAdd(origin, o.row), v * o.rows_apart), last);
        o.begin.push_back(offset(base, b.CreateMul(wide(row), o.stride)));
      }
    } else {
      Value* column = b.CreateAdd(origin, b.CreateShl(o.chunk, 3));
      column = min(column, b.CreateSelect(o.aligned, last_run(extent, kChunk), last));
      o.begin.push_back(offset(base, wide(in_bytes(column))));
      Value* left = b.CreateSub(extent, column);
      o.room = b.CreateSelect(b.CreateICmpULT(column, extent), min(left, word(kChunk)), word(0));
      for (int j = 0; j < kChunk; ++j) o.beside[j] = wide(in_bytes(min(word(j), b.CreateSub(last, column))));
    }
    return o;
  }

  // f(row): rows of 8 chunks and more differ in all of their 8 successors, rows of 4 in every second.
  Value* swizzle(const Operand& o, Value* row) {
    if (o.chunks >= 8) return b.CreateAnd(row, word(7));
    return b.CreateAnd(b.CreateLShr(row, 1), word(3));
  }

  // What a lane gives ldmatrix: the row of the tile that it names. `along` (0 or 1) is its matrix's place
  // along the operand's own dimension, `inner` along the inner one, in units of 8.
  //   inner_last: an address for each step of 16 along the inner dimension; the fragments lie whole rows
  //   apart else:       an address for each fragment; the steps lie whole rows apart
  void place_fragments(Operand& o, Value* base, Value* first, int width, Value* along, Value* inner,
                       Value* lane) {
    Value* row = b.CreateAnd(lane, word(7));
    Value* turn = swizzle(o, row);
    row = b.CreateAdd(row, b.CreateShl(o.inner_last ? along : inner, 3));
    if (o.inner_last) row = b.CreateAdd(row, first);
    base = b.CreateAdd(base, b.CreateMul(row, word(o.row_bytes())));
    const int addresses = o.inner_last ? tile_.k / 16 : width / 16;
    for (int i = 0; i < addresses; ++i) {
      Value* chunk = add(o.inner_last ? inner : b.CreateAdd(along, b.CreateLShr(first, 3)), 2 * i);
      o.from.push_back(b.CreateAdd(base, b.CreateShl(b.CreateXor(chunk, turn), 4)));
    }
  }

  // Sends the tile that begins at k0 to the buffer at `buffer` bytes.
  void send(const Operand& o, Value* k0, Value* buffer) {
    const auto whole = [&] {
      for (int v = 0; v < o.moves; ++v) {
        Value* exists = b.CreateICmpULT(inner(o, k0, v), k_);
        Value* from = address(o, k0, v, exists);
        Value* to = b.CreateAdd(o.to, add(buffer, v * o.rows_apart * o.row_bytes()));
        if (!kernel_.pitch) {
          cores_.copy(to, from, exists);
          continue;
        }
        // Rows with a gap end inside of a chunk.
        Value* left = o.inner_last ? min(b.CreateSub(k_, inner(o, k0, v)), word(kChunk)) : o.room;
        left = b.CreateSelect(exists, left, word(0));
        if (modern_) {
          cores_.copy_bytes(to, from, in_bytes(left));
        } else {
          const auto at_once = [&] {
            return Values{b.CreateAlignedLoad(stored(2, kChunk), from, llvm::Align(16))};
          };
          deposit(to,
                  either(b.CreateICmpEQ(left, word(kChunk)), at_once, [&] { return gather(o, k0, v); })[0]);
        }
      }
      return Values{};
    };
    const auto pieces = [&] {
      for (int v = 0; v < o.moves; ++v)
        deposit(b.CreateAdd(o.to, add(buffer, v * o.rows_apart * o.row_bytes())), gather(o, k0, v)[0]);
      return Values{};
    };
    either(o.aligned, whole, pieces);
  }
  void deposit(Value* to, Value* chunk) {
    cores_.put(to, b.CreateBitCast(chunk, llvm::FixedVectorType::get(b.getInt32Ty(), 4)));
  }
  // Chunk v, element by element.
  Values gather(const Operand& o, Value* k0, int v) {
    Value* chunk = llvm::PoisonValue::get(stored(2, kChunk));
    for (int j = 0; j < kChunk; ++j) {
      Value* exists = b.CreateICmpULT(add(inner(o, k0, v), o.inner_last ? j : 0), k_);
      Value* from = address(o, k0, v, exists, j);
      Value* element = b.CreateAlignedLoad(b.getInt16Ty(), from, llvm::Align(2));
      chunk = b.CreateInsertElement(chunk, b.CreateSelect(exists, element, b.getInt16(0)), uint64_t(j));
    }
    return {chunk};
  }

  // Where the thread's chunk v begins along the inner dimension.
  Value* inner(const Operand& o, Value* k0, int v) {
    return o.inner_last ? b.CreateAdd(k0, b.CreateShl(o.chunk, 3))
                        : add(b.CreateAdd(k0, o.row), v * o.rows_apart);
  }
  // Of element j of chunk v; where that does not exist, of one that does.
  Value* address(const Operand& o, Value* k0, int v, Value* exists, int j = 0) {
    Value* place = add(inner(o, k0, v), o.inner_last ? j : 0);
    place = wide(b.CreateSelect(exists, place, word(0)));
    if (o.inner_last) return offset(o.begin[static_cast<size_t>(v)], b.CreateShl(place, 1));
    Value* row = offset(o.begin[0], b.CreateMul(place, o.stride));
    return j == 0 ? row : offset(row, o.beside[j]);
  }

  // The thread's elements of the product: of each fragment of 16 x 8 four, rows lane_row_ and 8 on, columns
  // lane_column_ and its neighbour.
  Values products() {
    const int last = stages() - 1;
    for (int stage = 0; stage < last; ++stage) {
      send(a_, word(stage * tile_.k), word(stage * buffer_bytes()));
      send(b_, word(stage * tile_.k), word(stage * buffer_bytes()));
      cores_.commit();
    }
    Values carried = {word(0), word(last * buffer_bytes())};  // the buffers of this tile and of the next sent
    carried.resize(2 + static_cast<size_t>(fragments_m() * fragments_n() * 4),
                   llvm::ConstantFP::get(b.getFloatTy(), 0.0));
    carried = target_->loop(word(0), k_, word(tile_.k), carried, [&](Value* k0, const Values& now) {
      cores_.wait(last - 1);
      barrier();
      Value* next = add(k0, last * tile_.k);
      target_->branch(b.CreateICmpULT(next, k_), [&] {
        send(a_, next, now[1]);
        send(b_, next, now[1]);
      });
      cores_.commit();
      Values sums(now.begin() + 2, now.end());
      for (int step = 0; step < tile_.k / 16; ++step) multiply(step, now[0], sums);
      Value* after = add(now[0], buffer_bytes());
      after = b.CreateSelect(b.CreateICmpEQ(after, word(stages() * buffer_bytes())), word(0), after);
      Values out = {after, now[0]};
      out.insert(out.end(), sums.begin(), sums.end());
      return out;
    });
    return Values(carried.begin() + 2, carried.end());
  }

  // Four 8 x 8 matrices: fragment i, 16 along the operand's own dimension, of a step of 16 along the inner
  // one.
  Values fragment(const Operand& o, int i, int step, Value* buffer) {
    Value* from = o.from[static_cast<size_t>(o.inner_last ? step : i)];
    from = add(b.CreateAdd(from, buffer), (o.inner_last ? i : step) * 16 * o.row_bytes());
    return cores_.load_matrices(from, !o.inner_last);
  }

  void multiply(int step, Value* buffer, Values& sums) {
    std::vector<Values> left, right;
    for (int i = 0; i < fragments_m(); ++i) left.push_back(fragment(a_, i, step, buffer));
    for (int j = 0; j < fragments_n() / 2; ++j) right.push_back(fragment(b_, j, step, buffer));
    for (int i = 0; i < fragments_m(); ++i) {
      for (int j = 0; j < fragments_n(); ++j) {
        const Values& x = left[static_cast<size_t>(i)];
        const Values& y = right[static_cast<size_t>(j / 2)];
        const size_t first = j % 2 == 0 ? 0 : 2;
        Value** sum = &sums[static_cast<size_t>(4 * (i * fragments_n() + j))];
        cores_.multiply(x, y[first], y[first + 1], sum);
      }
    }
  }

  // The 16 rows of fragments i: two neighbouring elements at a time where C allows it.
  void store_rows(int i, const Values& sums) {
    put_runs(2, [&](bool pairs) {
      for (int half = 0; half < 2; ++half) {
        Value* row = add(b.CreateAdd(b.CreateAdd(row0_, warp_row_), lane_row_), 16 * i + 8 * half);
        Value* row_exists = b.CreateICmpULT(row, m_);
        for (int j = 0; j < fragments_n(); ++j) {
          Value* column = add(b.CreateAdd(b.CreateAdd(column0_, warp_column_), lane_column_), 8 * j);
          Value* const* sum = &sums[static_cast<size_t>(4 * (i * fragments_n() + j) + 2 * half)];
          for (int e = 0; e < (pairs ? 1 : 2); ++e) {
            Value* value = pairs ? pair(sum[0], sum[1]) : sum[e];
            Value* exists = b.CreateAnd(row_exists, b.CreateICmpULT(add(column, e), n_));
            target_->branch(exists, [&] { store(row, add(column, e), value, pairs ? 2 : 1); });
          }
        }
      }
    });
  }
  Value* pair(Value* x, Value* y) {
    Value* both = b.CreateInsertElement(llvm::PoisonValue::get(lanes(2)), x, uint64_t{0});
    return b.CreateInsertElement(both, y, uint64_t{1});
  }
  void store(Value* row, Value* column, Value* value, int count) {
    if (kernel_.accumulate) {
      const llvm::Align align = aligned_to(count * c_bytes_);
      value = b.CreateFAdd(value, b.CreateAlignedLoad(lanes(count), c_address(row, column), align));
    }
    put(row, column, value, count);
  }

  const bool modern_;                                   // cp.async, and mma over 16 of the inner dimension
  const int stages_;                                    // tiles of A and B in shared memory
  Value *warp_row_ = nullptr, *warp_column_ = nullptr;  // the warp's first element in the tile
  Value *lane_row_ = nullptr, *lane_column_ = nullptr;  // the thread's in a fragment
  TensorCores cores_;
  Operand a_{}, b_{};
};

}  // namespace

llvm::Function* emit_mma_gemm(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu,
                              const Body* then) {
  return MmaEmitter(module, kernel, gpu, then).emit();
}

}  // namespace gacc::codegen
