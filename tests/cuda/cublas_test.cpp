// Row-major products through the column-major interface of cuBLASLt, computed by the fake: all transposes,
// with and without accumulation, against the definition.
#include <dlfcn.h>
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

// A bias is added by the product's own algorithm; two products that differ in it alone are both there.
TEST(CublasLt, BiasIsAddedToEveryRow) {
  const char* const names[] = {GACC_FAKE_CUBLAS};
  std::unique_ptr<GemmEngine> engine;
  ASSERT_EQ(open_cublas_lt(names, 80, engine).text(), "");
  std::vector<float> workspace(1 << 20);
  engine->use_workspace(pointer(workspace));
  const std::vector<float> a = fill(kM * kK, 1), b = fill(kK * kN, 2), first = fill(kN, 5),
                           second = fill(kN, 8);
  std::vector<float> plain(kM * kN), c(kM * kN);
  Product product{pointer(a), pointer(b), pointer(plain), kM, kN, kK, false, false, false, {}};
  EXPECT_FALSE(engine->adds_bias(product));
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_EQ(engine->launch(product, nullptr).text(), "");
  product.c = pointer(c);
  for (const std::vector<float>* bias : {&first, &second, &first}) {
    product.bias = pointer(*bias);
    ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
    ASSERT_TRUE(engine->adds_bias(product));
    ASSERT_EQ(engine->launch(product, nullptr).text(), "");
    for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i], plain[i] + (*bias)[i % kN]) << "element " << i;
  }
}

// Where the algorithm that the product has cannot add a bias, the product stays as it was and says so.
TEST(CublasLt, TheAlgorithmIsNotChangedForABias) {
  const char* const names[] = {GACC_FAKE_CUBLAS};
  std::unique_ptr<GemmEngine> engine;
  ASSERT_EQ(open_cublas_lt(names, 80, engine).text(), "");
  std::vector<float> workspace(1 << 20);
  engine->use_workspace(pointer(workspace));
  GemmTuning tuning;
  int calls = 0;  // the third algorithm is the fastest, and takes no bias
  tuning.measure = [&](const std::function<Status()>& launch, double& microseconds) {
    microseconds = 10 - ++calls;
    return launch();
  };
  ASSERT_TRUE(engine->tune(tuning));
  const std::vector<float> a = fill(kM * kK, 1), b = fill(kK * kN, 2), bias = fill(kN, 5);
  std::vector<float> c(kM * kN), again(kM * kN);
  Product product{pointer(a), pointer(b), pointer(c), kM, kN, kK, false, false, false, {}};
  product.bias = pointer(bias);
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  EXPECT_EQ(calls, 3);
  EXPECT_FALSE(engine->adds_bias(product));
  ASSERT_EQ(engine->launch(product, nullptr).text(), "");
  product.bias = 0;
  product.c = pointer(again);
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_EQ(engine->launch(product, nullptr).text(), "");
  EXPECT_EQ(c, again);
}

TEST(CublasLt, TheWorkspaceFollowsTheGpu) {
  const char* const names[] = {"libgacc-no-such-cublas.so", GACC_FAKE_CUBLAS};
  std::unique_ptr<GemmEngine> engine;
  ASSERT_EQ(open_cublas_lt(names, 89, engine).text(), "");
  EXPECT_EQ(engine->workspace_bytes(), 4 << 20);
  ASSERT_EQ(open_cublas_lt(names, 90, engine).text(), "");
  EXPECT_EQ(engine->workspace_bytes(), 32 << 20);
}

// The fake's algorithms take 3, 1 and 1 microseconds.
struct Stopwatch {
  int (*last)() = reinterpret_cast<int (*)()>(dlsym(dlopen(GACC_FAKE_CUBLAS, RTLD_NOW | RTLD_NOLOAD),
                                                    "fake_last_algorithm"));
  int measured = 0;
  Status operator()(const std::function<Status()>& launch, double& microseconds) {
    if (Status status = launch(); !status) return status;
    ++measured;
    microseconds = last() == 42 ? 3 : 1;
    return {};
  }
};

TEST(CublasLt, TuningKeepsTheFastestAlgorithm) {
  const char* const names[] = {GACC_FAKE_CUBLAS};
  std::vector<float> workspace(1 << 20);
  const std::vector<float> a = fill(kM * kK, 1), b = fill(kK * kN, 2);
  std::vector<float> c(kM * kN);
  const Product product{pointer(a), pointer(b), pointer(c), kM, kN, kK, false, false, false, {}};
  Product other = product;
  other.m = 4;
  std::unique_ptr<GemmEngine> engine;
  ASSERT_EQ(open_cublas_lt(names, 80, engine).text(), "");
  engine->use_workspace(pointer(workspace));
  Stopwatch watch;
  GemmTuning tuning{{"a GPU", engine->name()}, std::ref(watch)};
  ASSERT_TRUE(engine->tune(tuning));
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "") << "known by now";
  EXPECT_EQ(watch.measured, 3);
  ASSERT_EQ(tuning.choices.products.size(), 1U);
  EXPECT_EQ(tuning.choices.products[0].algorithm.data[0], 43U) << "the first of the two fastest";
  EXPECT_EQ(tuning.choices.products[0].candidates, 3);
  ASSERT_EQ(engine->launch(product, nullptr).text(), "");
  EXPECT_EQ(watch.last(), 43);
  // What is not measured any more is the library's first proposal.
  tuning.measure = nullptr;
  ASSERT_EQ(engine->prepare(other, nullptr).text(), "");
  ASSERT_EQ(engine->launch(other, nullptr).text(), "");
  EXPECT_EQ(watch.last(), 42);
  // Another run takes what the text says.
  GemmTuning later;
  ASSERT_EQ(parse_gemm_choices(gemm_choices_text(tuning.choices), later.choices).text(), "");
  EXPECT_EQ(gemm_choices_text(later.choices), gemm_choices_text(tuning.choices));
  ASSERT_EQ(open_cublas_lt(names, 80, engine).text(), "");
  engine->use_workspace(pointer(workspace));
  engine->tune(later);
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_EQ(engine->launch(product, nullptr).text(), "");
  EXPECT_EQ(watch.last(), 43);
}

TEST(CublasLt, TextThatHoldsNoAlgorithmsIsRefused) {
  GemmChoices choices;
  const std::string good = gemm_choices_text({"a GPU", "cuBLASLt 13.1", {ChosenAlgorithm{}}});
  ASSERT_EQ(parse_gemm_choices(good, choices).text(), "");
  for (size_t size = 0; size + 2 < good.size(); ++size)
    EXPECT_FALSE(parse_gemm_choices(good.substr(0, size), choices)) << size;
  for (const auto& [from, to] : {std::pair("00000000\"", "0000000g\""), std::pair("00000000\"", "0000000\""),
                                 std::pair("\"workspace_bytes\": 0", "\"workspace_bytes\": -1"),
                                 std::pair("[0, ", "[\"0\", "), std::pair("\"gpu\"", "\"cpu\"")}) {
    std::string bad = good;
    ASSERT_NE(bad.find(from), std::string::npos);
    bad.replace(bad.find(from), std::string_view(from).size(), to);
    EXPECT_FALSE(parse_gemm_choices(bad, choices)) << bad;
  }
}

}  // namespace
}  // namespace gacc::cuda
