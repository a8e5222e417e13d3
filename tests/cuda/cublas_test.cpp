// Row-major products through the column-major interface of cuBLASLt, computed by the fake: all transposes,
// with and without accumulation, against the definition.
#include <gtest/gtest.h>

#include "runtime/cuda/cublas_lt.h"

namespace gacc::cuda {
namespace {

constexpr int64_t kM = 5, kN = 7, kK = 3;

std::vector<float> fill(int64_t count, int start) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>((start + 3 * i) % 11) - 5);
  return values;  // small integers: sums are exact
}

Pointer pointer(const std::vector<float>& values) { return reinterpret_cast<Pointer>(values.data()); }

TEST(CublasLt, RowMajorProductsOfAllKinds) {
  const char* const names[] = {GACC_FAKE_CUBLAS};
  std::unique_ptr<GemmEngine> engine;
  ASSERT_EQ(open_cublas_lt(names, 80, engine).text(), "");
  std::vector<float> workspace(1 << 20);  // 4 MiB, of which a warm-up may use all
  engine->use_workspace(pointer(workspace));
  for (int kind = 0; kind < 8; ++kind) {
    const bool ta = kind & 1, tb = kind & 2, accumulate = kind & 4;
    const std::vector<float> a = fill(kM * kK, 1), b = fill(kK * kN, 2), before = fill(kM * kN, 3);
    std::vector<float> c = before, expected(before.size());
    for (int64_t row = 0; row < kM; ++row)
      for (int64_t column = 0; column < kN; ++column) {
        float sum = accumulate ? before[static_cast<size_t>(row * kN + column)] : 0;
        for (int64_t i = 0; i < kK; ++i)
          sum += a[static_cast<size_t>(ta ? i * kM + row : row * kK + i)] *
                 b[static_cast<size_t>(tb ? column * kK + i : i * kN + column)];
        expected[static_cast<size_t>(row * kN + column)] = sum;
      }
    const Product product{pointer(a), pointer(b), pointer(c), kM, kN, kK, ta, tb, accumulate, {}};
    EXPECT_NE(engine->launch(product, nullptr).text(), "") << "not prepared";
    ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
    EXPECT_EQ(c, before) << "prepare touched the result";
    ASSERT_EQ(engine->launch(product, nullptr).text(), "");
    EXPECT_EQ(c, expected) << "kind " << kind;
  }
}

TEST(CublasLt, TheWorkspaceFollowsTheGpu) {
  const char* const names[] = {"libgacc-no-such-cublas.so", GACC_FAKE_CUBLAS};
  std::unique_ptr<GemmEngine> engine;
  ASSERT_EQ(open_cublas_lt(names, 89, engine).text(), "");
  EXPECT_EQ(engine->workspace_bytes(), 4 << 20);
  ASSERT_EQ(open_cublas_lt(names, 90, engine).text(), "");
  EXPECT_EQ(engine->workspace_bytes(), 32 << 20);
}

}  // namespace
}  // namespace gacc::cuda
