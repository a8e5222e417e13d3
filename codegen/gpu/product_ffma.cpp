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
  GemmEmitter(Target& target, const GemmKernel& kernel)
      : GemmBase(target, kernel), ffma_(target, tile_, kernel.type) {}

  void emit() {
    begin();
    ffma_.place(thread_, !kernel_.transpose_a, kernel_.transpose_b, kernel_.transpose_a,
                !kernel_.transpose_b);
    const Dense from[2] = {operand(a_, ffma_.left()), operand(b_, ffma_.right())};
    // Small tiles have registers to spare: what C held is fetched while the products are computed. Others add
    // it a few rows at a time.
    const int rows = ffma_.rows();
    const bool ordered = kernel_.ordered, early = kernel_.accumulate && (ordered || tile_.groups == 1);
    const int at_once = kernel_.accumulate && !early ? kRowsHeld : rows;
    Values held;
    if (early) held = load_c(0, rows);
    const auto fetch_both = [&](Value* k0, Value* left) {
      Values fetched = fetch(from[0], ffma_.left(), k0, left);
      const Values of_b = fetch(from[1], ffma_.right(), k0, left);
      fetched.insert(fetched.end(), of_b.begin(), of_b.end());
      return fetched;
    };
    const auto exists = [&](const FfmaTile::Staging& staging, int v, int j, Value* left, const Values&) {
      return ffma_.exists(staging, v, j, left);
    };
    Values sums = ffma_.products(k_, fetch_both, exists, ordered ? held : Values());
    if (ordered) held.clear();
    begin_epilogue();
    for (int r = 0; r < rows; r += at_once) {
      if (kernel_.accumulate && !early) held = load_c(r, at_once);
      for (size_t i = 0; i < held.size(); ++i) {
        Value*& sum = sums[ffma_.sum(r, 0, 0) + i];
        sum = b.CreateFAdd(sum, held[i]);
      }
      store_rows(ffma_, r, r + at_once, sums, false);
    }
  }

 private:
  Dense operand(const Matrix& from, const FfmaTile::Staging& staging) {
    Dense o = dense(from, staging.inner_last, kVector);
    reach(o, from, staging.outer, 0, staging.moves, staging.outer_step);
    return o;
  }

  // The thread's vectors of the tile that begins at k0: what is out of bounds is anything.
  Values fetch(const Dense& o, const FfmaTile::Staging& staging, Value* k0, Value* left) {
    Value* first = b.CreateAdd(k0, staging.inner);
    const auto address = [&](int v, int j) {
      Value* place = b.CreateAdd(first, word(v * staging.inner_step + (o.inner_last ? j : 0)));
      return GemmBase::address(o, v, j, place, ffma_.exists(staging, v, j, left));
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
    // Rows with a gap end inside of a vector.
    const auto up_to_gap = [&](int v) {
      Value* inside = o.inner_last ? ffma_.exists(staging, v, kVector - 1, left)
                                   : b.CreateICmpUGE(o.room, word(kVector - 1));
      return t_.either(
          inside, [&] { return Values{whole(v)}; }, [&] { return Values{gathered(v)}; })[0];
    };
    const auto all = [&](const auto& vector) {
      Values vectors;
      for (int v = 0; v < staging.moves; ++v) vectors.push_back(vector(v));
      return vectors;
    };
    return t_.either(
        o.aligned, [&] { return kernel_.pitch ? all(up_to_gap) : all(whole); },
        [&] { return all(gathered); });
  }

  // Loads C in the thread's rows first, first + 1, ...; anything for elements past its edge. It reads no
  // other thread's elements, which may be written already.
  Values load_c(int first, int count) {
    const int run = ffma_.run();
    Value *own_row = ffma_.row(row0_, 0), *own_column = ffma_.column(column0_, 0, 0);
    const auto inside = [&](Value* at, Value* extent, Value* own) {
      return b.CreateSelect(b.CreateICmpULT(at, extent), at, own);
    };
    const auto each = [&](bool whole) {
      Values elements;
      for (int r = first; r < first + count; ++r) {
        Value* row = inside(ffma_.row(row0_, r), m_, own_row);
        for (int g = 0; g < tile_.groups; ++g) {
          const int width = whole ? run : 1;
          for (int i = 0; i < run; i += width) {
            Value* at = c_address(row, inside(ffma_.column(column0_, g, i), n_, own_column));
            Value* vector = b.CreateAlignedLoad(lanes(width), at, aligned_to(width * c_bytes_));
            for (int e = 0; e < width; ++e) elements.push_back(width > 1 ? lane(vector, e) : vector);
          }
        }
      }
      return elements;
    };
    const auto some = [&] {
      if (run == 1) return each(true);
      return t_.either(
          c_aligned(run), [&] { return each(true); }, [&] { return each(false); });
    };
    const auto none = [&] { return Values(ffma_.sum(count, 0, 0), real(0)); };
    return t_.either(b.CreateAnd(b.CreateICmpULT(own_row, m_), b.CreateICmpULT(own_column, n_)), some, none);
  }

  FfmaTile ffma_;
};

}  // namespace

void emit_ffma_gemm(Target& target, const GemmKernel& kernel) { GemmEmitter(target, kernel).emit(); }

llvm::Function* emit_gemm(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu,
                          const Body* then) {
  // The epilogue's slots and extents come first, so that its members' numbers hold.
  Body body;
  body.extents = 0;
  if (then != nullptr) body = *then;
  body.form = ir::KernelForm::gemm;
  body.slots.resize(body.slots.size() + 3);
  body.extents += kernel.pitch ? 6 : 3;
  body.block = kernel.tile->threads();
  const std::unique_ptr<Target> target = make_nvptx_target(module, body, gpu);
  target->begin(kernel.name());
  if (kernel.tile->mma())
    emit_mma_gemm(*target, kernel, gpu.async_copies);
  else
    emit_ffma_gemm(*target, kernel);
  target->end();
  return target->function;
}

}  // namespace gacc::codegen
