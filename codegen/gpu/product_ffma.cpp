// Built-in matrix products by fused multiply-adds, of f32, and of half types where no tensor core takes them: how
// dense operands get into the tiles of ffma_tile.h.
//
// Nothing is read out of bounds and no thread leaves early: coordinates past the edge of C are moved back
// onto it (the products are computed and not stored), elements past the end of the inner dimension are read
// from its beginning and replaced by zeros.
#include "codegen/gpu/ffma_tile.h"
#include "codegen/gpu/product_base.h"

namespace gacc::codegen {

namespace {

constexpr int kVector = FfmaTile::kVector;
constexpr int kRowsHeld = 2;  // rows of C that a large tile adds at a time

class GemmEmitter : GemmBase {
 public:
  GemmEmitter(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu, const Body* then)
      : GemmBase(module, kernel, gpu, then), ffma_(*target_, tile_, kernel.type) {}

  llvm::Function* emit() {
    begin();
    ffma_.place(thread_, !kernel_.transpose_a, kernel_.transpose_b);
    a_ = operand(a_address_, a_row_, m_, row0_, ffma_.left());
    b_ = operand(b_address_, b_row_, n_, column0_, ffma_.right());
    // Small tiles have registers to spare: what C held is fetched while the products are computed. Others add
    // it a few rows at a time.
    const bool early = kernel_.accumulate && tile_.groups == 1;
    const int at_once = kernel_.accumulate && !early ? kRowsHeld : rows();
    Values held;
    if (early) held = load_c(0, rows());
    const auto fetch_both = [&](Value* k0, Value* left) {
      Values fetched = fetch(a_, k0, left);
      const Values of_b = fetch(b_, k0, left);
      fetched.insert(fetched.end(), of_b.begin(), of_b.end());
      return fetched;
    };
    const auto zeroed = [&](const FfmaTile::Staging& staging, int v, Value* vector, Value* left,
                            const Values&) {
      Value* zeros = llvm::Constant::getNullValue(lanes(kVector));
      if (!staging.inner_last) return b.CreateSelect(ffma_.exists(staging, v, 0, left), vector, zeros);
      for (int j = 0; j < kVector; ++j) {
        Value* element = b.CreateSelect(ffma_.exists(staging, v, j, left), lane(vector, j), lane(zeros, j));
        vector = b.CreateInsertElement(vector, element, static_cast<uint64_t>(j));
      }
      return vector;
    };
    const Values sums = ffma_.products(k_, fetch_both, zeroed);
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
  int rows() const { return ffma_.rows(); }
  int columns() const { return ffma_.columns(); }
  int run() const { return ffma_.run(); }

  // Where one operand's vectors come from.
  struct Operand : FfmaTile::Staging {
    Value* aligned = nullptr;             // i1, same for all threads: loads of whole vectors are possible
    Value* stride = nullptr;              // i64: bytes from one row in memory to the next
    std::vector<Value*> address{};        // where each vector's row (one for all: column) begins
    Value* whole = nullptr;               // !inner_last: i1, the vector ends before the edge
    Value* to_element[kVector - 1] = {};  // !inner_last: bytes to elements 1, 2, 3, or 0 past the edge
    Value* begin(int v) const { return address[address.size() > 1 ? static_cast<size_t>(v) : 0]; }
  };

  // `pitch` elements lie between its rows, `extent` is C's along the operand, `origin` the block's first place
  // there.
  Operand operand(Value* base, Value* pitch, Value* extent, Value* origin, const FfmaTile::Staging& staging) {
    Operand o{staging};
    o.stride = wide(in_bytes(pitch));
    o.aligned = multiple_of(kVector * bytes_, base, o.stride);
    Value* last = b.CreateSub(extent, word(1));
    if (o.inner_last) {
      for (int v = 0; v < (o.outer_step == 0 ? 1 : o.moves); ++v) {
        Value* row = min(b.CreateAdd(b.CreateAdd(origin, o.outer), word(v * o.outer_step)), last);
        o.address.push_back(offset(base, b.CreateMul(wide(row), o.stride)));
      }
    } else {
      // Where whole vectors are read rows begin at multiples of 4, and so does the last vector.
      Value* column = b.CreateAdd(origin, o.outer);
      column = min(column, b.CreateSelect(o.aligned, last_run(extent, kVector), last));
      o.address.push_back(offset(base, wide(in_bytes(column))));
      Value* room = b.CreateSub(last, column);
      o.whole = b.CreateICmpUGE(room, word(kVector - 1));
      for (int j = 1; j < kVector; ++j) o.to_element[j - 1] = wide(in_bytes(min(word(j), room)));
    }
    return o;
  }

  // The thread's vectors of the tile that begins at k0: what is out of bounds is anything.
  Values fetch(const Operand& o, Value* k0, Value* left) {
    Value* first = b.CreateAdd(k0, o.inner);
    const auto address = [&](int v, int j) {
      Value* place = b.CreateAdd(first, word(v * o.inner_step + (o.inner_last ? j : 0)));
      place = wide(b.CreateSelect(ffma_.exists(o, v, j, left), place, word(0)));
      if (o.inner_last) return offset(o.begin(v), in_bytes(place));
      Value* begin = offset(o.begin(v), b.CreateMul(place, o.stride));
      return j == 0 ? begin : offset(begin, o.to_element[j - 1]);
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
            Value* inside = o.inner_last ? ffma_.exists(o, v, kVector - 1, left) : o.whole;
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

  Value* c_row(int r) { return ffma_.row(row0_, r); }
  Value* c_column(int g, int i) { return ffma_.column(column0_, g, i); }
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
          for (int i = 0; i < (whole ? 1 : run()); ++i) {
            const int width = whole ? run() : 1;
            Value* at = c_address(row, inside(c_column(g, i), n_, own_column));
            Value* vector = b.CreateAlignedLoad(lanes(width), at, aligned_to(width * c_bytes_));
            for (int e = 0; e < width; ++e) elements.push_back(width > 1 ? lane(vector, e) : vector);
          }
        }
      }
      return elements;
    };
    const auto some = [&] {
      if (run() == 1) return each(true);
      return either(
          c_aligned(run()), [&] { return each(true); }, [&] { return each(false); });
    };
    const auto none = [&] {
      return Values(static_cast<size_t>(count * columns()), llvm::ConstantFP::get(b.getFloatTy(), 0.0));
    };
    return either(b.CreateAnd(b.CreateICmpULT(own_row, m_), b.CreateICmpULT(own_column, n_)), some, none);
  }

  // The thread's rows of C from row `first` on.
  void store_c(int first, const Values& sums) {
    put_runs(run(), [&](bool whole) {
      for (int r = 0; r < static_cast<int>(sums.size()) / columns(); ++r) {
        Value* row = c_row(first + r);
        Value* row_exists = b.CreateICmpULT(row, m_);
        for (int g = 0; g < tile_.groups; ++g) {
          for (int i = 0; i < (whole ? 1 : run()); ++i) {
            Value* column = c_column(g, i);
            Value* exists = b.CreateAnd(row_exists, b.CreateICmpULT(column, n_));
            target_->branch(exists, [&] {
              const auto at = static_cast<size_t>(r * columns() + g * run() + i);
              Value* value = side_by_side(&sums[at], whole ? run() : 1);
              put(row, column, value, whole ? run() : 1);
            });
          }
        }
      }
    });
  }

  FfmaTile ffma_;
  Operand a_{}, b_{};
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
