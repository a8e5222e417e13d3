// Built-in matrix products by fused multiply-adds: of f32, and of half types where no tensor core takes them.
//
//   for every tile of the inner dimension, and once more:
//     global -> registers, of this tile                           in flight while ...
//     products of the tile before, from its buffer in shared memory   ... these are computed
//     registers -> the other buffer; barrier
//
// In shared memory both operands lie with the inner dimension first, so a thread reads its micro_m elements
// of A and micro_n of B side by side. An operand whose inner dimension is the contiguous one in memory is
// turned on the way in.
//
// Nothing is read out of bounds and no thread leaves early: coordinates past the edge of C are moved back
// onto it (the products are computed and not stored), elements past the end of the inner dimension are read
// from its beginning and replaced by zeros.
#include "codegen/gpu/product_base.h"

#include <algorithm>

namespace gacc::codegen {

namespace {

constexpr int kVector = 4;    // elements of an access: 16 bytes, of half types 8
constexpr int kRowsHeld = 2;  // rows of C that a large tile adds at a time

class GemmEmitter : GemmBase {
 public:
  GemmEmitter(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu, const Body* then)
      : GemmBase(module, kernel, gpu, then) {}

  llvm::Function* emit() {
    begin();
    place();
    // Small tiles have registers to spare: what C held is fetched while the products are computed. Others add
    // it a few rows at a time.
    const bool early = kernel_.accumulate && tile_.groups == 1;
    const int at_once = kernel_.accumulate && !early ? kRowsHeld : rows();
    Values held;
    if (early) held = load_c(0, rows());
    const Values sums = products();
    begin_epilogue();
    for (int r = 0; r < rows(); r += at_once) {
      const auto first = sums.begin() + r * columns();
      Values some(first, first + at_once * columns());
      if (kernel_.accumulate && !early) held = load_c(r, at_once);
      for (size_t i = 0; i < held.size(); ++i) some[i] = b.CreateFAdd(some[i], held[i]);
      store_c(r, some);
    }
    target_->end();
    return target_->function;
  }

 private:
  // One operand's way into shared memory. A thread moves `moves` vectors a tile; vector v lies outer_step * v
  // and inner_step * v after its first one.
  struct Operand {
    bool inner_last = false;  // the inner dimension is the contiguous one
    int moves = 0, row = 0;   // vectors a thread; words from a row in shared memory to the next
    int outer_step = 0, inner_step = 0;
    Value* aligned = nullptr;  // i1, same for all threads: loads of whole vectors are possible
    Value* stride = nullptr;   // i64: bytes from one row in memory to the next
    Value *outer = nullptr, *inner = nullptr;  // the first vector's place in the tile
    std::vector<Value*> address{};             // where each vector's row (one for all: column) begins
    Value* whole = nullptr;                    // !inner_last: i1, the vector ends before the edge
    Value* beside[kVector - 1] = {};           // !inner_last: bytes to elements 1, 2, 3, or 0 past the edge
    Value* begin(int v) const { return address[address.size() > 1 ? static_cast<size_t>(v) : 0]; }
  };

  // Where the thread is in the block, and where its vectors come from and go to.
  void place() {
    // A warp has 4 x 8 threads: its reads of shared memory are two short rows.
    const int warps_across = tile_.n / (tile_.micro_n * tile_.groups) / 8;
    Value *warp = b.CreateLShr(thread_, 5), *lane = b.CreateAnd(thread_, word(31));
    Value *warp_down = b.CreateUDiv(warp, word(warps_across)),
          *warp_across = b.CreateURem(warp, word(warps_across));
    row_ =
        b.CreateMul(b.CreateAdd(b.CreateMul(warp_down, word(4)), b.CreateLShr(lane, 3)), word(tile_.micro_m));
    column_ = b.CreateMul(b.CreateAdd(b.CreateMul(warp_across, word(8)), b.CreateAnd(lane, word(7))),
                          word(tile_.micro_n));

    a_ = operand(a_address_, a_row_, m_, row0_, !kernel_.transpose_a, tile_.m);
    b_ = operand(b_address_, b_row_, n_, column0_, kernel_.transpose_b, tile_.n);
    shared_ = make_shared(b.getFloatTy(), 2 * static_cast<uint64_t>(buffer_words()));
  }

  int buffer_words() const { return tile_.k * (a_.row + b_.row); }

  // `pitch` elements lie between its rows, `extent` is C's along the operand, `origin` the block's first place
  // there, `width` the tile's extent.
  Operand operand(Value* base, Value* pitch, Value* extent, Value* origin, bool inner_last, int width) {
    Operand o;
    o.inner_last = inner_last;
    o.moves = width * tile_.k / kVector / threads_;
    o.row = width + GemmTile::kPad;
    o.stride = wide(in_bytes(pitch));
    o.aligned = multiple_of(kVector * bytes_, base, o.stride);
    Value* last = b.CreateSub(extent, word(1));
    if (inner_last) {
      // Up to four neighbouring threads share a row. Then come the tile's rows, then its next columns.
      const int shared_by = std::min(4, tile_.k / kVector), at_once = threads_ / shared_by;
      Value* rest = b.CreateUDiv(thread_, word(shared_by));
      o.outer = b.CreateURem(rest, word(width));
      o.inner = b.CreateAdd(b.CreateMul(b.CreateURem(thread_, word(shared_by)), word(kVector)),
                            b.CreateMul(b.CreateUDiv(rest, word(width)), word(kVector * shared_by)));
      if (at_once < width) {
        o.outer_step = at_once;
      } else {
        o.inner_step = at_once / width * shared_by * kVector;
      }
      for (int v = 0; v < (o.outer_step == 0 ? 1 : o.moves); ++v) {
        Value* row = min(b.CreateAdd(b.CreateAdd(origin, o.outer), word(v * o.outer_step)), last);
        o.address.push_back(offset(base, b.CreateMul(wide(row), o.stride)));
      }
    } else {
      const int shared_by = width / kVector;
      o.outer = b.CreateMul(b.CreateURem(thread_, word(shared_by)), word(kVector));
      o.inner = b.CreateUDiv(thread_, word(shared_by));
      o.inner_step = threads_ / shared_by;
      // Where whole vectors are read rows begin at multiples of 4, and so does the last vector.
      Value* column = b.CreateAdd(origin, o.outer);
      column = min(column, b.CreateSelect(o.aligned, last_run(extent, kVector), last));
      o.address.push_back(offset(base, wide(in_bytes(column))));
      Value* room = b.CreateSub(last, column);
      o.whole = b.CreateICmpUGE(room, word(kVector - 1));
      for (int j = 1; j < kVector; ++j) o.beside[j - 1] = wide(in_bytes(min(word(j), room)));
    }
    return o;
  }

  // Whether element j of vector v exists, in a tile that begins `left` before the end of the inner dimension.
  Value* exists(const Operand& o, int v, int j, Value* left) {
    return b.CreateICmpULT(b.CreateAdd(o.inner, word(v * o.inner_step + (o.inner_last ? j : 0))), left);
  }

  // The thread's vectors of the tile that begins at k0: what is out of bounds is anything.
  Values fetch(const Operand& o, Value* k0, Value* left) {
    Value* first = b.CreateAdd(k0, o.inner);
    const auto address = [&](int v, int j) {
      Value* place = b.CreateAdd(first, word(v * o.inner_step + (o.inner_last ? j : 0)));
      place = wide(b.CreateSelect(exists(o, v, j, left), place, word(0)));
      if (o.inner_last) return offset(o.begin(v), in_bytes(place));
      Value* begin = offset(o.begin(v), b.CreateMul(place, o.stride));
      return j == 0 ? begin : offset(begin, o.beside[j - 1]);
    };
    const auto whole = [&](int v) {
      return b.CreateAlignedLoad(stored(bytes_, kVector), address(v, 0), aligned_to(kVector * bytes_));
    };
    const auto gathered = [&](int v) {
      Value* vector = llvm::PoisonValue::get(stored(bytes_, kVector));
      for (int j = 0; j < kVector; ++j) {
        Value* element = b.CreateAlignedLoad(stored(bytes_), address(v, j), aligned_to(bytes_));
        vector = b.CreateInsertElement(vector, element, static_cast<uint64_t>(j));
      }
      return vector;
    };
    return either(
        o.aligned,
        [&] {
          Values vectors;
          for (int v = 0; v < o.moves; ++v) {
            if (!kernel_.pitch) {
              vectors.push_back(whole(v));
              continue;
            }
            // Rows with a gap end inside of a vector.
            Value* inside = o.inner_last ? exists(o, v, kVector - 1, left) : o.whole;
            vectors.push_back(either(
                inside, [&] { return Values{whole(v)}; }, [&] { return Values{gathered(v)}; })[0]);
          }
          return vectors;
        },
        [&] {
          Values vectors;
          for (int v = 0; v < o.moves; ++v) vectors.push_back(gathered(v));
          return vectors;
        });
  }

  Value* beyond(Value* from, int words) {
    return b.CreateConstInBoundsGEP1_32(b.getFloatTy(), from, static_cast<unsigned>(words));
  }
  Value* shared(Value* index) { return b.CreateInBoundsGEP(b.getFloatTy(), shared_, index); }

  // Into shared memory from word `at` on.
  void deposit(const Operand& o, const Values& vectors, Value* at, Value* left) {
    Value* zero = llvm::ConstantFP::get(b.getFloatTy(), 0.0);
    Value* begin = shared(b.CreateAdd(b.CreateAdd(at, o.outer), b.CreateMul(o.inner, word(o.row))));
    for (int v = 0; v < o.moves; ++v) {
      Value* to = beyond(begin, v * (o.outer_step + o.inner_step * o.row));
      Value* vector = vectors[static_cast<size_t>(v)];
      if (bytes_ == 2) vector = target_->half.widen(vector, kernel_.type);
      if (!o.inner_last) {
        vector = b.CreateSelect(exists(o, v, 0, left), vector, llvm::Constant::getNullValue(lanes(kVector)));
        b.CreateAlignedStore(vector, to, llvm::Align(16));
        continue;
      }
      for (int j = 0; j < kVector; ++j) {
        Value* element = b.CreateSelect(exists(o, v, j, left), lane(vector, j), zero);
        b.CreateAlignedStore(element, beyond(to, j * o.row), llvm::Align(4));
      }
    }
  }

  int rows() const { return tile_.micro_m * tile_.groups; }
  int columns() const { return tile_.micro_n * tile_.groups; }

  // The thread's elements of the product, row by row. The loop runs once more than there are tiles: the first
  // time nothing is there to multiply, the last time nothing is left to fetch.
  Values products() {
    Value* zero = llvm::ConstantFP::get(b.getFloatTy(), 0.0);
    Values carried = {word(buffer_words()), word(0)};  // the buffers of this tile and of the next
    carried.resize(2 + static_cast<size_t>(rows() * columns()), zero);
    Value* end = b.CreateAdd(k_, word(tile_.k));
    carried = target_->loop(word(0), end, word(tile_.k), carried, [&](Value* next, const Values& now) {
      Value* left = b.CreateSelect(b.CreateICmpULT(next, k_), b.CreateSub(k_, next), word(0));
      const Values of_a = fetch(a_, next, left), of_b = fetch(b_, next, left);
      Value* here = min(b.CreateAdd(b.CreateSub(k_, next), word(tile_.k)), word(tile_.k));
      Value* depth = b.CreateSelect(b.CreateICmpEQ(next, word(0)), word(0), here);
      const Values sums = multiply(now[0], depth, Values(now.begin() + 2, now.end()));
      deposit(a_, of_a, now[1], left);
      deposit(b_, of_b, b.CreateAdd(now[1], word(tile_.k * a_.row)), left);
      barrier();
      Values after = {now[1], now[0]};
      after.insert(after.end(), sums.begin(), sums.end());
      return after;
    });
    return Values(carried.begin() + 2, carried.end());
  }

  // Adds the products of the first `depth` of the tile in `buffer`, in order; rounded up, the rest is zero.
  Values multiply(Value* buffer, Value* depth, const Values& sums) {
    const int step = std::max(2, 64 / (rows() * columns()));
    return target_->loop(word(0), depth, word(step), sums, [&](Value* at, Values now) {
      Value* from_a = shared(b.CreateAdd(b.CreateAdd(buffer, row_), b.CreateMul(at, word(a_.row))));
      Value* from_b = shared(b.CreateAdd(b.CreateAdd(buffer, b.CreateAdd(column_, word(tile_.k * a_.row))),
                                         b.CreateMul(at, word(b_.row))));
      for (int i = 0; i < step; ++i) {
        const Values left = fragment(from_a, i * a_.row, tile_.micro_m, tile_.m);
        const Values right = fragment(from_b, i * b_.row, tile_.micro_n, tile_.n);
        size_t element = 0;
        for (Value* x : left) {
          for (Value* y : right) {
            now[element] = target_->math.fma(x, y, now[element]);
            ++element;
          }
        }
      }
      return now;
    });
  }

  // The thread's elements of one row in shared memory: `groups` runs of `width`, spread over `extent`.
  Values fragment(Value* from, int row, int width, int extent) {
    Values elements;
    for (int g = 0; g < tile_.groups; ++g) {
      const int at = row + g * (extent / tile_.groups);
      Value* vector =
          b.CreateAlignedLoad(lanes(width), beyond(from, at), llvm::Align(static_cast<uint64_t>(width) * 4));
      for (int i = 0; i < width; ++i) elements.push_back(lane(vector, i));
    }
    return elements;
  }

  // Row r and group g of the thread's elements, in C.
  Value* c_row(int r) {
    const int at = r / tile_.micro_m * (tile_.m / tile_.groups) + r % tile_.micro_m;
    return b.CreateAdd(b.CreateAdd(row0_, row_), word(at));
  }
  Value* c_column(int g, int i) {
    return b.CreateAdd(b.CreateAdd(column0_, column_), word(g * (tile_.n / tile_.groups) + i));
  }
  // What C holds in the thread's rows first, first + 1, ...; anything for elements past its edge. It reads no
  // other thread's elements, which may be written already.
  Values load_c(int first, int count) {
    Value *own_row = c_row(0), *own_column = c_column(0, 0);
    const auto inside = [&](Value* at, Value* extent, Value* own) {
      return b.CreateSelect(b.CreateICmpULT(at, extent), at, own);
    };
    const auto each = [&](bool whole) {
      Values elements;
      for (int r = first; r < first + count; ++r) {
        Value* row = inside(c_row(r), m_, own_row);
        for (int g = 0; g < tile_.groups; ++g) {
          for (int i = 0; i < (whole ? 1 : tile_.micro_n); ++i) {
            const int width = whole ? tile_.micro_n : 1;
            Value* at = c_address(row, inside(c_column(g, i), n_, own_column));
            Value* vector = b.CreateAlignedLoad(lanes(width), at, aligned_to(width * c_bytes_));
            for (int e = 0; e < width; ++e) elements.push_back(whole ? lane(vector, e) : vector);
          }
        }
      }
      return elements;
    };
    const auto some = [&] {
      return either(
          c_aligned(tile_.micro_n), [&] { return each(true); }, [&] { return each(false); });
    };
    const auto none = [&] {
      return Values(static_cast<size_t>(count * columns()), llvm::ConstantFP::get(b.getFloatTy(), 0.0));
    };
    return either(b.CreateAnd(b.CreateICmpULT(own_row, m_), b.CreateICmpULT(own_column, n_)), some, none);
  }

  // The thread's rows of C from row `first` on.
  void store_c(int first, const Values& sums) {
    put_runs(tile_.micro_n, [&](bool whole) {
      for (int r = 0; r < static_cast<int>(sums.size()) / columns(); ++r) {
        Value* row = c_row(first + r);
        Value* row_exists = b.CreateICmpULT(row, m_);
        for (int g = 0; g < tile_.groups; ++g) {
          const auto sum = [&](int i) {
            return sums[static_cast<size_t>(r * columns() + g * tile_.micro_n + i)];
          };
          for (int i = 0; i < (whole ? 1 : tile_.micro_n); ++i) {
            Value* column = c_column(g, i);
            Value* exists = b.CreateAnd(row_exists, b.CreateICmpULT(column, n_));
            target_->branch(exists, [&] {
              Value* value = sum(i);
              if (whole) {
                value = llvm::PoisonValue::get(lanes(tile_.micro_n));
                for (int j = 0; j < tile_.micro_n; ++j)
                  value = b.CreateInsertElement(value, sum(j), static_cast<uint64_t>(j));
              }
              put(row, column, value, whole ? tile_.micro_n : 1);
            });
          }
        }
      }
    });
  }

  Value *row_ = nullptr, *column_ = nullptr;  // the thread's first ones, in the tile
  Operand a_{}, b_{};
  llvm::GlobalVariable* shared_ = nullptr;
};

}  // namespace

llvm::Function* emit_ffma_gemm(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu,
                               const Body* then) {
  return GemmEmitter(module, kernel, gpu, then).emit();
}

llvm::Function* emit_gemm(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu,
                          const Body* then) {
  return kernel.tile->mma() ? emit_mma_gemm(module, kernel, gpu, then)
                            : emit_ffma_gemm(module, kernel, gpu, then);
}

}  // namespace gacc::codegen
