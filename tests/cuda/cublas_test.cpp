// Row-major products through the column-major interface of cuBLASLt, computed by the fake: all transposes,
// with and without accumulation, against the definition.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>

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

constexpr int64_t kDemand = 2 << 20;  // of the fake's first two algorithms, in bytes

// A function of the fake.
template <class Function>
Function fake(const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen(GACC_FAKE_CUBLAS, RTLD_NOW | RTLD_NOLOAD), name));
}

const char* const kFakes[] = {GACC_FAKE_CUBLAS};

// The fake's engine, and a product of 5 x 7 x 3 without a workspace.
class CublasLt : public testing::Test {
 protected:
  void SetUp() override { open(); }
  void open() { ASSERT_EQ(open_cublas_lt(kFakes, 80, engine).text(), ""); }
  // The product adds no bias: C is that of the one without.
  void expect_plain() {
    EXPECT_FALSE(engine->adds_bias(product));
    ASSERT_EQ(engine->launch(product, nullptr).text(), "");
    product.bias = 0;
    product.c = pointer(again);
    ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
    ASSERT_EQ(engine->launch(product, nullptr).text(), "");
    EXPECT_EQ(c, again);
  }

  std::unique_ptr<GemmEngine> engine;
  const std::vector<float> workspace = std::vector<float>(kDemand / 4), a = fill(kM * kK, 1),
                           b = fill(kK * kN, 2), bias = fill(kN, 5);
  std::vector<float> c = std::vector<float>(kM * kN), again = c;
  Product product{pointer(a), pointer(b), pointer(c), kM, kN, kK, false, false, false, {}};
};

TEST_F(CublasLt, RowMajorProductsOfAllKinds) {
  for (int kind = 0; kind < 8; ++kind) {
    const bool ta = kind & 1, tb = kind & 2, accumulate = kind & 4;
    const std::vector<float> before = fill(kM * kN, 3);
    std::vector<float> expected(before.size());
    c = before;
    for (int64_t row = 0; row < kM; ++row)
      for (int64_t column = 0; column < kN; ++column) {
        float sum = accumulate ? before[static_cast<size_t>(row * kN + column)] : 0;
        for (int64_t i = 0; i < kK; ++i)
          sum += a[static_cast<size_t>(ta ? i * kM + row : row * kK + i)] *
                 b[static_cast<size_t>(tb ? column * kK + i : i * kN + column)];
        expected[static_cast<size_t>(row * kN + column)] = sum;
      }
    product = {pointer(a), pointer(b), pointer(c), kM, kN, kK, ta, tb, accumulate, {}};
    EXPECT_NE(engine->launch(product, nullptr).text(), "") << "not prepared";
    ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
    EXPECT_EQ(c, before) << "prepare touched the result";
    EXPECT_EQ(engine->workspace_bytes(product), kDemand);
    EXPECT_NE(engine->launch(product, nullptr).text(), "") << "no workspace";
    product.workspace = pointer(workspace);
    ASSERT_EQ(engine->launch(product, nullptr).text(), "");
    EXPECT_EQ(c, expected) << "kind " << kind;
  }
}

// A bias is added by the product's own algorithm; two products that differ in it alone are both there.
TEST_F(CublasLt, BiasIsAddedToEveryRow) {
  const std::vector<float> second = fill(kN, 8), &plain = again;
  product.c = pointer(plain);
  product.workspace = pointer(workspace);
  EXPECT_FALSE(engine->adds_bias(product));
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_EQ(engine->launch(product, nullptr).text(), "");
  product.c = pointer(c);
  for (const std::vector<float>* added : {&bias, &second, &bias}) {
    product.bias = pointer(*added);
    ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
    ASSERT_TRUE(engine->adds_bias(product));
    ASSERT_EQ(engine->launch(product, nullptr).text(), "");
    for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i], plain[i] + (*added)[i % kN]) << "element " << i;
  }
}

// Where the algorithm that the product has cannot add a bias, the product stays as it was and says so.
TEST_F(CublasLt, TheAlgorithmIsNotChangedForABias) {
  GemmTuning tuning;
  tuning.workspace = pointer(workspace);
  int calls = 0;  // the third algorithm is the fastest, and takes no bias
  tuning.measure = [&](const std::function<Status()>& launch, double& microseconds) {
    microseconds = 10 - ++calls;
    return launch();
  };
  ASSERT_TRUE(engine->tune(tuning));
  product.bias = pointer(bias);
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  EXPECT_EQ(calls, 2 * 3) << "two rounds";
  EXPECT_EQ(engine->workspace_bytes(product), 0);
  expect_plain();
}

// A bias that the library does not add after all is a launch of its own, and the product is as it would be.
TEST_F(CublasLt, ABiasThatFailsIsLeftToItsLaunch) {
  product.workspace = pointer(workspace);
  product.bias = pointer(bias);
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_TRUE(engine->adds_bias(product));
  fake<int (*)(int)>("fake_refuse_biases")(1);
  EXPECT_EQ(engine->warm_up(product, nullptr).text(), "");
  fake<int (*)(int)>("fake_refuse_biases")(0);
  expect_plain();
}

TEST_F(CublasLt, AnAlgorithmIsWarmedUpOnce) {
  const std::vector<float> before(kM * kN, 0.5F);
  c = before;
  product.workspace = pointer(workspace);
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_EQ(engine->warm_up(product, nullptr).text(), "");
  EXPECT_NE(c, before) << "it runs where its operands lie";
  c = before;
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_EQ(engine->warm_up(product, nullptr).text(), "");
  EXPECT_EQ(c, before);
}

// Whatever a plan has free: a product of a full micro-batch may have the workspace that the library is asked
// with, one of any other size has none.
TEST_F(CublasLt, RaggedProductsWorkInNoMemory) {
  const auto last = fake<int (*)()>("fake_last_algorithm");
  for (const bool ragged : {true, false, true}) {
    product.ragged = ragged;
    ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
    EXPECT_EQ(engine->workspace_bytes(product), ragged ? 0 : kDemand);
    product.workspace = ragged ? 0 : pointer(workspace);
    ASSERT_EQ(engine->launch(product, nullptr).text(), "");
    EXPECT_EQ(last(), ragged ? 44 : 42);
  }
}

// What a file says of an algorithm is believed as far as the library confirms it.
TEST_F(CublasLt, StoredAlgorithmsAreChecked) {
  GemmTuning measuring;
  measuring.workspace = pointer(workspace);
  measuring.measure = [](const std::function<Status()>& launch, double& microseconds) {
    microseconds = 1;
    return launch();
  };
  engine->tune(measuring);
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  const auto with = [&](uint64_t algorithm, size_t demand) {
    GemmTuning stored{measuring.choices};
    stored.choices.products.at(0).algorithm.data[0] = algorithm;
    stored.choices.products.at(0).workspace_bytes = 1;  // what counts is the library's word
    open();
    engine->tune(stored);
    fake<int (*)(size_t)>("fake_demand")(demand);
    Status status = engine->prepare(product, nullptr);
    fake<int (*)(size_t)>("fake_demand")(size_t{kDemand});
    return status ? fmt::format("{} bytes", engine->workspace_bytes(product)) : status.text();
  };
  EXPECT_EQ(with(43, 12345), "12345 bytes");
  EXPECT_EQ(with(44, 12345), "0 bytes");
  const std::string refused =
      "the stored algorithm of a matrix product of 5 x 7 x 3 is none here: cuBLASLt says ";
  EXPECT_EQ(with(45, 12345), refused + "CUBLAS_STATUS_INVALID_VALUE");
  EXPECT_EQ(with(43, (4 << 20) + 1), refused + "CUBLAS_STATUS_INTERNAL_ERROR") << "more than any is given";
}

// The loader knows neither; the first does not start.
TEST_F(CublasLt, IsFoundInFoldersAndTheNextOneIsTried) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "gacc-cublas-places", broken = folder / "broken",
                 whole = folder / "whole";
  for (const fs::path& to : {broken, whole}) {
    fs::create_directories(to);
    fs::copy_file(GACC_FAKE_CUBLAS, to / "libgacc-placed.so", fs::copy_options::overwrite_existing);
  }
  const char* const names[] = {"libgacc-placed.so"};
  const auto open = [&](const fs::path& folders) {
    setenv("GACC_CUDA_PATH", folders.c_str(), 1);
    const std::string text = open_cublas_lt(names, 80, engine).text();
    unsetenv("GACC_CUDA_PATH");
    return text;
  };
  EXPECT_EQ(open(folder), "cuBLAS is not installed (none of libgacc-placed.so)");
  EXPECT_EQ(open(broken),
            (broken / "libgacc-placed.so").string() + " does not start (CUBLAS_STATUS_INTERNAL_ERROR)");
  EXPECT_EQ(open(broken.string() + ":" + whole.string()), "");
  EXPECT_EQ(engine->name(), "cuBLASLt 13.1");
  fs::remove_all(folder);
}

TEST_F(CublasLt, TheMostWorkspaceFollowsTheGpu) {
  const char* const names[] = {"libgacc-no-such-cublas.so", GACC_FAKE_CUBLAS};
  ASSERT_EQ(open_cublas_lt(names, 89, engine).text(), "");
  EXPECT_EQ(engine->most_workspace(), 4 << 20);
  ASSERT_EQ(open_cublas_lt(names, 90, engine).text(), "");
  EXPECT_EQ(engine->most_workspace(), 32 << 20);
}

// The fake's algorithms take 3, 1 and 1 microseconds.
struct Stopwatch {
  int (*last)() = fake<int (*)()>("fake_last_algorithm");
  int measured = 0;
  Status operator()(const std::function<Status()>& launch, double& microseconds) {
    if (Status status = launch(); !status) return status;
    ++measured;
    microseconds = last() == 42 ? 3 : 1;
    return {};
  }
};

TEST_F(CublasLt, TuningKeepsTheFastestAlgorithm) {
  product.workspace = pointer(workspace);
  Product other = product;
  other.m = 4;
  Stopwatch watch;
  GemmTuning tuning{{"a GPU", engine->name()}, pointer(workspace), {}, std::ref(watch)};
  ASSERT_TRUE(engine->tune(tuning));
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "") << "known by now";
  EXPECT_EQ(watch.measured, 2 * 3) << "two rounds";
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
  open();
  engine->tune(later);
  ASSERT_EQ(engine->prepare(product, nullptr).text(), "");
  ASSERT_EQ(engine->launch(product, nullptr).text(), "");
  EXPECT_EQ(watch.last(), 43);
}

TEST_F(CublasLt, TextThatHoldsNoAlgorithmsIsRefused) {
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
