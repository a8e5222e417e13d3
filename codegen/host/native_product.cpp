#include "codegen/host/native_product.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "ir/module.h"

namespace gacc::host {

namespace {

// Measured with oneDNN 2.6 and AVX512-BF16: with whole rows of C a product of 512 columns and 128 terms runs at 1.18
// times the rate, a weight's gradient at 1.05 to 1.13 times; for tiles of more than kLongTile it does not matter, and
// other threads may want a part. With AMX a tile takes a tenth of the time.
constexpr int64_t kLongTile = int64_t{20} << 20, kLongTileOfAmx = 8 * kLongTile;

// The most terms of transposed A that are copied at a time.
constexpr int64_t kMostTermsOfPart = 512;

constexpr int64_t kBytes = 2;  // of an element of A and B

int64_t result_bytes(const Gemm& gemm) { return gemm.result == DType::f32 ? 4 : 2; }

}  // namespace

std::shared_ptr<const NativeProduct> NativeProduct::make(Gemm& gemm, bool copies, int threads) {
  Gemm some = gemm;
  some.cut(copies ? kLongTileOfAmx : kLongTile);
  auto made = std::make_shared<NativeProduct>();
  if (!made->add_parts(some, copies, threads)) return copies ? make(gemm, false, threads) : nullptr;
  gemm.tile_m = some.tile_m, gemm.tile_n = some.tile_n;
  return made;
}

bool NativeProduct::add_parts(const Gemm& gemm, bool copies, int threads) {
  const auto& [m, n, k] = std::tie(gemm.m, gemm.n, gemm.k);
  copies_a_ = copies && (gemm.transpose_a ? gemm.tile_m < m || gemm.a_row() != m : gemm.a_row() != k);
  copies_b_ = copies && (gemm.transpose_b ? gemm.b_row() != k : gemm.tile_n < n || gemm.b_row() != n);
  copies_c_ = copies && (gemm.tile_n < n || gemm.c_row() != n);
  // Sums of parts are those of C, so C is f32 then.
  const bool in_parts = copies && gemm.transpose_a && !gemm.transpose_b && gemm.result == DType::f32;
  most_terms_ = in_parts ? std::min(k, kMostTermsOfPart) : k;
  const int64_t rows = std::min(gemm.tile_m, m), columns = std::min(gemm.tile_n, n);
  const auto behind = [](int64_t place, bool copies, int64_t bytes) {
    return copies ? ir::aligned(place + bytes, 64) : place;
  };
  b_place_ = behind(0, copies_a_, rows * most_terms_ * kBytes);
  c_place_ = behind(b_place_, copies_b_, columns * most_terms_ * kBytes);
  library_place_ = behind(c_place_, copies_c_, rows * columns * result_bytes(gemm));
  if (library_place_ > Gemm::kScratchBytes) return false;
  try {
    for (const int64_t some_rows : {rows, m % gemm.tile_m})
      for (const int64_t some_columns : {columns, n % gemm.tile_n})
        for (int64_t p = 0; p < k && some_rows * some_columns > 0; p += most_terms_)
          if (!add_part(gemm, some_rows, some_columns, std::min(most_terms_, k - p), gemm.accumulate || p > 0,
                        threads))
            return false;
  } catch (const dnnl::error&) {
    return false;
  }
  return true;
}

const NativeProduct::Part* NativeProduct::find(int64_t rows, int64_t columns, int64_t terms,
                                               bool adds) const {
  const auto part = std::ranges::find_if(parts_, [&](const Part& one) {
    return one.rows == rows && one.columns == columns && one.terms == terms && one.adds == adds;
  });
  return part == parts_.end() ? nullptr : &*part;
}

bool NativeProduct::add_part(const Gemm& gemm, int64_t rows, int64_t columns, int64_t terms, bool adds,
                             int threads) {
  if (find(rows, columns, terms, adds) != nullptr) return true;
  using Kind = dnnl::memory::data_type;
  dnnl::primitive_attr attributes = shared_attributes();
  dnnl::post_ops sum;
  if (adds) sum.append_sum();
  attributes.set_post_ops(sum);
  const auto matrix = [](Kind kind, int64_t height, int64_t width, bool transposed, bool copied,
                         int64_t row) {
    if (copied) row = transposed ? height : width;
    return dnnl::memory::desc({height, width}, kind,
                              transposed ? dnnl::memory::dims{1, row} : dnnl::memory::dims{row, 1});
  };
  const dnnl::memory::desc a = matrix(Kind::bf16, rows, terms, gemm.transpose_a, copies_a_, gemm.a_row()),
                           b = matrix(Kind::bf16, terms, columns, gemm.transpose_b, copies_b_, gemm.b_row()),
                           c = matrix(gemm.result == DType::f32 ? Kind::f32 : Kind::bf16, rows, columns,
                                      false, copies_c_, gemm.c_row());
  const auto description = describe<dnnl::matmul>(attributes, std::tuple(a, b, c));
  const dnnl::memory::desc scratch = description.scratchpad_desc();
  if (std::string_view(description.impl_info_str()).starts_with("ref") ||
      scratch.get_size() > static_cast<size_t>(Gemm::kScratchBytes - library_place_))
    return false;
  parts_.push_back(
      {rows, columns, terms, adds,
       Primitive(
           dnnl::matmul(description),
           {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_SCRATCHPAD, scratch}},
           threads)});
  return true;
}

bool NativeProduct::run(const Gemm& gemm, const void* a, const void* b, void* c, int64_t i, int64_t rows,
                        int64_t j, int64_t columns, const ProductThread& thread) const {
  auto* const own = reinterpret_cast<char*>(thread.scratch);
  const int64_t c_bytes = result_bytes(gemm), c_step = gemm.c_row() * c_bytes, width = columns * c_bytes;
  auto* const place = static_cast<char*>(c) + i * c_step + j * c_bytes;
  char* const sums = copies_c_ ? own + c_place_ : place;
  if (copies_c_ && gemm.accumulate) copy_rows(place, c_step, rows, width, sums, width);
  // The part of a factor whose rows are terms, or, transposed, columns of the product.
  const auto part_of = [&](const void* factor, int64_t row, int64_t first_row, int64_t first, int64_t height,
                           int64_t length, bool copies, char* copy) -> const char* {
    const char* from = static_cast<const char*>(factor) + (first_row * row + first) * kBytes;
    if (!copies) return from;
    copy_rows(from, row * kBytes, height, length * kBytes, copy, length * kBytes);
    return copy;
  };
  for (int64_t p = 0; p < gemm.k; p += most_terms_) {
    const int64_t terms = std::min(most_terms_, gemm.k - p);
    const char* const left = gemm.transpose_a ? part_of(a, gemm.a_row(), p, i, terms, rows, copies_a_, own)
                                              : part_of(a, gemm.a_row(), i, p, rows, terms, copies_a_, own);
    const char* const right = gemm.transpose_b
                                  ? part_of(b, gemm.b_row(), j, p, columns, terms, copies_b_, own + b_place_)
                                  : part_of(b, gemm.b_row(), p, j, terms, columns, copies_b_, own + b_place_);
    const Part* const part = find(rows, columns, terms, gemm.accumulate || p > 0);
    if (part == nullptr || !part->product.run(thread.number, {left, right, sums, own + library_place_}))
      return false;
  }
  if (copies_c_) copy_rows(sums, width, rows, width, place, c_step);
  return true;
}

}  // namespace gacc::host
