// Built-in matrix products against sums in double: every tile and variant, at the edges of tiles and with
// leading extents that do and do not allow 16-byte accesses. Operands stand between guard words that are NaN:
// a read past the end shows in the result, a write past it in the guards.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "tests/codegen/gemm/gemm_runner.h"
#include "tests/codegen/gemm/ordered_sum.h"

namespace gacc::codegen {
namespace {

constexpr size_t kGuard = 64;
constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

// A matrix of `elements` between guards, beginning `shift` words after a multiple of 16 bytes.
class Matrix {
 public:
  Matrix(int64_t elements, size_t shift, std::mt19937& random)
      : words_(static_cast<size_t>(elements) + 2 * kGuard + 8, kNothing), elements_(elements) {
    const auto address = reinterpret_cast<uintptr_t>(words_.data() + kGuard) / 4;
    first_ = kGuard + (4 - address % 4) % 4 + shift;
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < elements; ++i) data()[i] = uniform(random);
  }
  float* data() { return words_.data() + first_; }
  float at(int64_t i) const { return words_[first_ + static_cast<size_t>(i)]; }
  bool guarded() const {
    for (size_t i = 0; i < words_.size(); ++i) {
      const bool inside = i >= first_ && i < first_ + static_cast<size_t>(elements_);
      if (!inside && !std::isnan(words_[i])) return false;
    }
    return true;
  }

 private:
  std::vector<float> words_;
  int64_t elements_;
  size_t first_ = 0;
};

struct Shape {
  int64_t m, n, k;
};

// All tiles with the variants' flags; tiles are found by asking for shapes that need them.
std::vector<GemmKernel> all_kernels() {
  std::vector<GemmKernel> kernels;
  for (const auto& [side, depth] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 128}, {320, 320}, {640, 640}, {1280, 1280}}) {
    for (int flags = 0; flags < 8; ++flags)
      kernels.push_back(choose_gemm(side, side, depth, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0));
  }
  return kernels;
}

void check(GemmRunner& runner, size_t index, const GemmKernel& kernel, const Shape& s, size_t shift) {
  SCOPED_TRACE(testing::Message() << kernel.name() << " " << s.m << " x " << s.n << " x " << s.k
                                  << ", words off alignment: " << shift);
  std::mt19937 random(static_cast<unsigned>(s.m * 31 + s.n * 7 + s.k));
  Matrix a(s.m * s.k, shift, random), b(s.k * s.n, shift, random), c(s.m * s.n, shift, random);
  Matrix before = c;
  const float* was = kernel.accumulate ? before.data() : nullptr;
  ASSERT_EQ(runner.run(index, a.data(), b.data(), c.data(), s.m, s.n, s.k), "");
  EXPECT_TRUE(c.guarded());
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0, size = 1;
      OrderedSum exact(*kernel.tile);
      for (int64_t l = 0; l < s.k; ++l) {
        const float x = a.at(kernel.transpose_a ? l * s.m + i : i * s.k + l);
        const float y = b.at(kernel.transpose_b ? j * s.k + l : l * s.n + j);
        sum += static_cast<double>(x) * y, size += std::fabs(static_cast<double>(x) * y);
        exact.add(l, x, y);
      }
      if (was != nullptr) sum += was[i * s.n + j];
      const float got = c.at(i * s.n + j);
      ASSERT_NEAR(got, sum, 1e-5 * size) << "at " << i << ", " << j;
      ASSERT_EQ(got, exact.sum() + (was != nullptr ? was[i * s.n + j] : 0))
          << "not in order at " << i << ", " << j;
    }
  }
}

TEST(Gemm, EveryTileAndVariantAtTheEdges) {
  const std::vector<GemmKernel> kernels = all_kernels();
  GemmRunner runner(kernels);
  std::set<std::string> names;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const GemmTile& t = *kernels[i].tile;
    names.insert(kernels[i].name());
    const int64_t m = t.m, n = t.n, k = t.k;
    // One element; odd; a tile, one less, one more; multiples of four that are no tiles; several tiles.
    for (const Shape& s : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{m, n, k}, Shape{m - 1, n + 1, k + 1},
                           Shape{m + 1, n - 1, k - 1}, Shape{m + 4, n - 4, 2 * k + 4}, Shape{4, 4, 4},
                           Shape{2, 2 * n + 2, 3}, Shape{1, n, 2 * k}, Shape{m, 1, 10}}) {
      check(runner, i, kernels[i], s, 0);
      if (HasFatalFailure()) return;
    }
    check(runner, i, kernels[i], {m, n, k}, 1);  // addresses that are no multiples of 16 (and, by 2, of 8)
    check(runner, i, kernels[i], {12, 8, 20}, 2);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(names.size(), 40U) << "a tile is never chosen";
}

// Elements that do not exist are not multiplied: what lies behind an operand may be infinite.
TEST(Gemm, InfiniteInputsStayInTheirRowAndColumn) {
  const GemmKernel kernel = choose_gemm(8, 8, 5, false, true, false);
  GemmRunner runner({kernel});
  std::vector<float> a(3 * 5, 1), b(2 * 5, 1), c(3 * 2, 0);
  a[1 * 5 + 4] = std::numeric_limits<float>::infinity();
  ASSERT_EQ(runner.run(0, a.data(), b.data(), c.data(), 3, 2, 5), "");
  EXPECT_EQ(c, (std::vector<float>{5, 5, a[9], a[9], 5, 5}));
}

TEST(Gemm, TheTileDependsOnTheShapeAlone) {
  const auto name = [](int64_t m, int64_t n, int64_t k = 512) {
    return choose_gemm(m, n, k, true, false, true).name();
  };
  EXPECT_EQ(name(32, 512, 127), "gacc_gemm_f32_tn_acc_16x16");
  EXPECT_EQ(name(32, 512, 128), "gacc_gemm_f32_tn_acc_16x16_sliced");
  EXPECT_EQ(name(160, 160), "gacc_gemm_f32_tn_acc_16x16");
  EXPECT_EQ(name(256, 512), "gacc_gemm_f32_tn_acc_32x32");
  EXPECT_EQ(name(512, 784), "gacc_gemm_f32_tn_acc_64x64");
  EXPECT_EQ(name(4096, 4096), "gacc_gemm_f32_tn_acc_128x128");
  EXPECT_EQ(choose_gemm(1, 1, 1, false, true, false).name(), "gacc_gemm_f32_nt_16x16");
  const auto half = [](const char* target, ir::DType type) {
    return choose_gemm(32, 512, 784, false, true, false, type, type, GpuTarget(target)).name();
  };
  EXPECT_EQ(half("sm_80", ir::DType::f16), "gacc_gemm_f16_nt_32x32_sliced");
  EXPECT_EQ(half("sm_90", ir::DType::f16), "gacc_gemm_f16_nt_32x32_sliced");
  EXPECT_EQ(half("sm_75", ir::DType::bf16), "gacc_gemm_bf16_nt_16x16_sliced");
}

}  // namespace
}  // namespace gacc::codegen
