// See products.h.
#include "codegen/host/products.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

namespace gacc::host {

namespace {

// oneDNN's own threading changes bits with the number of threads, so every thread that calls it asks OpenMP
// for one thread. The setting is per thread. Where oneDNN was built without OpenMP there is nothing to ask.
bool forbid_nested_threads() {
  using Setter = void (*)(int);
  static const Setter setter = [] {
    for (const char* name : {"libgomp.so.1", "libomp.so.5", "libiomp5.so"})
      if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD))
        if (void* symbol = dlsym(library, "omp_set_num_threads")) return reinterpret_cast<Setter>(symbol);
    return Setter{nullptr};
  }();
  if (setter != nullptr) setter(1);
  return true;
}

// Measured with oneDNN 2.6 on the shapes of the MNIST MLP (AVX-512): a tile of 2-3 MFLOP (20 us) keeps 95 %
// of the untiled rate if it is at least 64 x 128, or all of fewer rows. A product of 1-2 MFLOP gains from one
// cut even so. Large products get larger tiles, 64-128 in all, which is balanced enough for some 16 threads.
constexpr int64_t kTileFlops = int64_t{5} << 19, kOneCutFlops = int64_t{1} << 20, kMostTiles = 64;
constexpr int64_t kMinRows = 64, kMinColumns = 128, kColumnStep = 16;

// Where types are half: floats of a thread's blocks of A and B, and the most that a tile's sides may add up
// to, so that a block is at least 256 deep. The tile of C then has at most kMostTileSides^2 / 4 elements.
constexpr int64_t kBlockFloats = int64_t{128} << 10, kMostTileSides = 512, kDepthStep = 16;
static_assert(4 * (kBlockFloats + kMostTileSides * kMostTileSides / 4) == Gemm::kScratchBytes);

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// A block of a matrix whose rows lie `stride` apart, as f32 without gaps.
void widen_block(Element type, const uint16_t* from, int64_t stride, int64_t rows, int64_t columns,
                 float* to) {
  for (int64_t row = 0; row < rows; ++row)
    widen(half_type(type), from + row * stride, to + row * columns, columns);
}

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// ISAs are sets of bits. ONEDNN_MAX_CPU_ISA=AVX512_CORE leaves this one out.
bool multiplies_bf16() {
  constexpr auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const bool has = (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
  return has;
}

dnnl::matmul::primitive_desc describe(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                      const dnnl::memory::desc& c, bool accumulate) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // many threads run a primitive at once
  dnnl::post_ops sum;
  if (accumulate) sum.append_sum();
  attributes.set_post_ops(sum);
#if DNNL_VERSION_MAJOR >= 3
  return {cpu(), a, b, c, attributes};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, cpu()};
#endif
}

}  // namespace

struct Gemm::Native {
  struct Product {
    dnnl::matmul run;
    // By thread: A, B, C and the scratch memory. Only the addresses in them change: making one costs the library
    // as much as a product of 1 MFLOP.
    std::vector<std::array<dnnl::memory, 4>> memories{};
  };
  // By whether a tile is the last row's, and the last column's, where that is smaller.
  std::array<std::optional<Product>, 4> products{};

  static size_t place(bool rest_of_rows, bool rest_of_columns) {
    return (rest_of_rows ? 2U : 0U) + (rest_of_columns ? 1U : 0U);
  }
};

// Without them the operands are converted: on another CPU, or where oneDNN has nothing better than loops.
void Gemm::prepare(int threads) {
  native.reset();
  if (type != Element::bf16 || !multiplies_bf16()) return;
  static thread_local const bool alone = forbid_nested_threads();
  (void)alone;
  using Kind = dnnl::memory::data_type;
  auto made = std::make_shared<Native>();
  try {
    for (const bool rest_m : {false, true}) {
      for (const bool rest_n : {false, true}) {
        const int64_t rows = rest_m ? m % tile_m : m < tile_m ? 0 : tile_m;
        const int64_t columns = rest_n ? n % tile_n : n < tile_n ? 0 : tile_n;
        if (rows == 0 || columns == 0) continue;
        const auto stride = [](bool transposed, int64_t leading) {
          return transposed ? dnnl::memory::dims{1, leading} : dnnl::memory::dims{leading, 1};
        };
        const dnnl::memory::desc a({rows, k}, Kind::bf16, stride(transpose_a, a_row()));
        const dnnl::memory::desc b({k, columns}, Kind::bf16, stride(transpose_b, b_row()));
        const dnnl::memory::desc c({rows, columns}, result == Element::f32 ? Kind::f32 : Kind::bf16,
                                   stride(false, c_row()));
        const dnnl::matmul::primitive_desc description = describe(a, b, c, accumulate);
        const dnnl::memory::desc scratch = description.scratchpad_desc();
        if (std::string_view(description.impl_info_str()).starts_with("ref") ||
            scratch.get_size() > static_cast<size_t>(kScratchBytes))
          return;
        Native::Product& one =
            made->products[Native::place(rest_m, rest_n)].emplace(dnnl::matmul(description));
        for (int thread = 0; thread < threads; ++thread) {
          auto& memories = one.memories.emplace_back();
          std::ranges::transform(std::array{a, b, c, scratch}, memories.begin(),
                                 [](const auto& matrix) { return dnnl::memory(matrix, cpu(), nullptr); });
        }
      }
    }
  } catch (const dnnl::error&) {
    return;
  }
  native = std::move(made);
}

bool Gemm::multiply_native(const Tile& tile, const uint16_t* a, const uint16_t* b, void* c,
                           const ProductThread& thread) const {
  static thread_local const dnnl::stream stream(cpu());
  const Native::Product& product =
      *native->products[Native::place(tile.rows < tile_m, tile.columns < tile_n)];
  const std::array<const void*, 4> addresses{a + (transpose_a ? tile.i : tile.i * a_row()),
                                             b + (transpose_b ? tile.j * b_row() : tile.j), c,
                                             thread.scratch};
  constexpr std::array roles{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
  std::array<dnnl_exec_arg_t, 4> arguments{};
  for (size_t i = 0; i < roles.size(); ++i) {
    dnnl_memory_t memory = product.memories[static_cast<size_t>(thread.number)][i].get();
    if (dnnl_memory_set_data_handle(memory, const_cast<void*>(addresses[i])) != dnnl_success) return false;
    arguments[i] = {roles[i], memory};
  }
  return dnnl_primitive_execute(product.run.get(), stream.get(), static_cast<int>(arguments.size()),
                                arguments.data()) == dnnl_success &&
         dnnl_stream_wait(stream.get()) == dnnl_success;
}

void Gemm::cut() {
  tile_m = std::max<int64_t>(m, 1);
  tile_n = std::max<int64_t>(n, 1);
  // Halve the longer side while the tile stays worth a thread's while. Bounds on the sides keep the packing
  // of the operands, which every tile repeats, small beside the arithmetic.
  const int64_t all = 2 * tile_m * tile_n * std::max<int64_t>(k, 1);
  const int64_t enough = std::max(kTileFlops, all / kMostTiles);
  for (bool first = true;; first = false) {
    if (2 * tile_m * tile_n * std::max<int64_t>(k, 1) <= (first ? kOneCutFlops : enough)) break;
    const bool rows = tile_m / 2 >= kMinRows, columns = tile_n / 2 >= (first ? kMinColumns / 2 : kMinColumns);
    if (!rows && !columns) break;
    if (rows && (!columns || 2 * tile_m >= tile_n)) {
      tile_m = (tile_m + 1) / 2;
    } else {
      tile_n = round_up((tile_n + 1) / 2, kColumnStep);
    }
  }
  while (needs_scratch() && tile_m + tile_n > kMostTileSides) {
    if (tile_m > tile_n) {
      tile_m = (tile_m + 1) / 2;
    } else {
      tile_n = round_up((tile_n + 1) / 2, kColumnStep);
    }
  }
}

bool Gemm::multiply(const Tile& tile, const float* a, int64_t lda, const float* b, int64_t ldb, int64_t depth,
                    bool add, float* c, int64_t ldc) const {
  return dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', tile.rows, tile.columns, depth, 1.0f, a,
                    lda, b, ldb, add ? 1.0f : 0.0f, c, ldc) == dnnl_success;
}

bool Gemm::multiply_halves(const Tile& tile, const uint16_t* a, const uint16_t* b, float* blocks, float* c,
                           int64_t ldc) const {
  const int64_t most = kBlockFloats / (tile_m + tile_n) / kDepthStep * kDepthStep,
                count = (k + most - 1) / most;
  const int64_t depth = round_up((k + count - 1) / count, kDepthStep);
  float *block_a = blocks, *block_b = blocks + tile_m * depth;
  for (int64_t p = 0; p < k; p += depth) {
    const int64_t here = std::min(depth, k - p);
    if (transpose_a) {
      widen_block(type, a + p * a_row() + tile.i, a_row(), here, tile.rows, block_a);
    } else {
      widen_block(type, a + tile.i * a_row() + p, a_row(), tile.rows, here, block_a);
    }
    if (transpose_b) {
      widen_block(type, b + tile.j * b_row() + p, b_row(), tile.columns, here, block_b);
    } else {
      widen_block(type, b + p * b_row() + tile.j, b_row(), here, tile.columns, block_b);
    }
    if (!multiply(tile, block_a, transpose_a ? tile.rows : here, block_b, transpose_b ? here : tile.columns,
                  here, accumulate || p > 0, c, ldc))
      return false;
  }
  return true;
}

bool multiply(const Product& p) {
  static thread_local const bool alone = forbid_nested_threads();
  (void)alone;
  return dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, p.a, p.lda,
                    p.b, p.ldb, p.accumulate ? 1.0f : 0.0f, p.c, p.ldc) == dnnl_success;
}

bool Gemm::run(const void* a, const void* b, void* c, int64_t task, const ProductThread& thread) const {
  static thread_local const bool alone = forbid_nested_threads();
  (void)alone;
  const int64_t across = (n + tile_n - 1) / tile_n;
  Tile tile{task / across * tile_m, task % across * tile_n, 0, 0};
  tile.rows = std::min(tile_m, m - tile.i);
  tile.columns = std::min(tile_n, n - tile.j);
  if (native != nullptr) {
    char* to = static_cast<char*>(c) + (tile.i * c_row() + tile.j) * (result == Element::f32 ? 4 : 2);
    return multiply_native(tile, static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), to,
                           thread);
  }
  // Sums go to C, or beside it where they are to be rounded.
  const bool rounds = result != Element::f32;
  float* sums = rounds ? thread.scratch + kBlockFloats : static_cast<float*>(c) + tile.i * c_row() + tile.j;
  const int64_t ldc = rounds ? tile.columns : c_row();
  bool good = false;
  if (type == Element::f32) {
    const int64_t lda = a_row(), ldb = b_row();
    good = multiply(tile, static_cast<const float*>(a) + (transpose_a ? tile.i : tile.i * lda), lda,
                    static_cast<const float*>(b) + (transpose_b ? tile.j * ldb : tile.j), ldb, k, accumulate,
                    sums, ldc);
  } else {
    good = multiply_halves(tile, static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b),
                           thread.scratch, sums, ldc);
  }
  for (int64_t row = 0; rounds && good && row < tile.rows; ++row)
    narrow(half_type(result), sums + row * ldc, static_cast<uint16_t*>(c) + (tile.i + row) * c_row() + tile.j,
           tile.columns);
  return good;
}

}  // namespace gacc::host
