// Products of half operands against double, with the same bits for any threads.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "codegen/host/native_product.h"
#include "codegen/host/products.h"
#include "codegen/host/thread_pool.h"
#include "tests/codegen/half_values.h"

namespace gacc::host {
namespace {

using codegen::half_bits;
using codegen::half_value;

constexpr DType kHalves[] = {DType::f16, DType::bf16};

struct Case {
  int64_t m, n, k;
};

std::vector<uint16_t> random_halves(int64_t count, uint32_t seed, DType type) {
  std::mt19937 source(seed);
  std::uniform_real_distribution<double> number(-1, 1);
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) value = half_bits(number(source), type);
  return values;
}

// By conversions, or by the CPU's own instructions: as on this CPU, or with copies of what has gaps.
enum class How : uint8_t { converted, native, copied };

struct Product {
  // `gap`: elements between rows.
  Product(Case size, int flags, DType type, How how = How::converted, int64_t gap = 0) : size(size) {
    const bool accumulate = (flags & 4) != 0;
    gemm = {.m = size.m,
            .n = size.n,
            .k = size.k,
            .transpose_a = (flags & 1) != 0,
            .transpose_b = (flags & 2) != 0,
            .accumulate = accumulate,
            .type = type,
            .result = accumulate ? DType::f32 : type};
    if (gap > 0) gemm.pitch = {gemm.a_row() + gap, gemm.b_row() + gap, gemm.c_row() + gap};
    gemm.cut();
    if (how != How::converted) gemm.prepare(/*threads=*/3);
    if (how == How::copied && gemm.native != nullptr)
      gemm.native = NativeProduct::make(gemm, /*copies=*/true, 3);
    a = random_halves((gemm.transpose_a ? size.k : size.m) * gemm.a_row(), 1, type);
    b = random_halves((gemm.transpose_b ? size.n : size.k) * gemm.b_row(), 2, type);
    c.assign(static_cast<size_t>(size.m * gemm.c_row()), 0.25F);
    for (const uint16_t x : a) exact_a.push_back(half_value(x, type));
    for (const uint16_t x : b) exact_b.push_back(half_value(x, type));
  }
  // C as f32.
  std::vector<float> compute(int threads) const {
    Pool pool(threads);
    std::vector<float> scratch(static_cast<size_t>(threads * Gemm::kScratchBytes / 4), NAN), sums = c;
    std::vector<uint16_t> halves(c.size(), 0x7fff);
    const bool full = gemm.result == DType::f32;
    void* result = full ? static_cast<void*>(sums.data()) : halves.data();
    pool.run(gemm.tasks(), [&](int64_t task) {
      float* own = scratch.data() + Pool::current() * (Gemm::kScratchBytes / 4);
      EXPECT_TRUE(gemm.run(a.data(), b.data(), result, task, {Pool::current(), own}));
    });
    if (!full) widen(half_type(gemm.type), halves.data(), sums.data(), static_cast<int64_t>(sums.size()));
    return sums;
  }
  double expected(int64_t i, int64_t j) const {
    double sum = gemm.accumulate ? 0.25 : 0.0;
    for (int64_t p = 0; p < size.k; ++p)
      sum += exact_a[static_cast<size_t>(gemm.transpose_a ? p * gemm.a_row() + i : i * gemm.a_row() + p)] *
             exact_b[static_cast<size_t>(gemm.transpose_b ? j * gemm.b_row() + p : p * gemm.b_row() + j)];
    return sum;
  }
  Case size;
  Gemm gemm;
  std::vector<uint16_t> a, b;
  std::vector<double> exact_a, exact_b;
  std::vector<float> c;
};

// Sums are f32: what is not rounded to half is as exact as f32 products; what is, is off by half an ulp of
// it.
void agrees_with_double(DType type, How how) {
  for (const Case size : {Case{1, 1, 1}, Case{7, 33, 5}, Case{32, 512, 784}, Case{130, 257, 64},
                          Case{3, 700, 1000}, Case{520, 8, 40}, Case{300, 400, 1100}}) {
    for (int flags = 0; flags < 16; ++flags) {
      const Product product(size, flags, type, how, /*gap=*/(flags & 8) != 0 ? 3 : 0);
      const std::vector<float> c = product.compute(1);
      const double ulp = product.gemm.accumulate ? 0 : type == DType::f16 ? 0x1p-11 : 0x1p-8;
      for (int64_t i = 0; i < size.m; ++i)
        for (int64_t j = i % 7; j < size.n; j += 7) {
          const double want = product.expected(i, j);
          ASSERT_NEAR(c[static_cast<size_t>(i * product.gemm.c_row() + j)], want,
                      ulp * std::fabs(want) + 1e-7 * static_cast<double>(size.k))
              << size.m << "x" << size.n << "x" << size.k << " flags " << flags << " at " << i << "," << j;
        }
    }
  }
}

TEST(HalfGemm, F16AgreesWithDouble) { agrees_with_double(DType::f16, How::converted); }
TEST(HalfGemm, Bf16AgreesWithDouble) { agrees_with_double(DType::bf16, How::converted); }
TEST(HalfGemm, NativeBf16AgreesWithDouble) { agrees_with_double(DType::bf16, How::native); }
TEST(HalfGemm, CopiedBf16AgreesWithDouble) { agrees_with_double(DType::bf16, How::copied); }

TEST(HalfGemm, ThreadsDoNotChangeBits) {
  for (const Case size : {Case{32, 512, 784}, Case{512, 784, 32}, Case{600, 300, 1000}}) {
    for (const DType type : kHalves) {
      for (int flags = 0; flags < 8; ++flags) {
        const Product product(size, flags, type, How::native);
        const std::vector<float> one = product.compute(1), three = product.compute(3);
        EXPECT_EQ(std::memcmp(one.data(), three.data(), 4 * one.size()), 0);
      }
    }
  }
}

// What is made ready for a full micro-batch is not what a ragged one needs.
TEST(HalfGemm, PreparedAnewForARaggedMicroBatch) {
  for (int flags = 0; flags < 4; ++flags) {
    Product product({64, 300, 500}, flags, DType::bf16, How::native);
    const Product ragged({5, 300, 500}, flags, DType::bf16);
    product.a = ragged.a;
    product.c = ragged.c;
    product.gemm.m = 5;
    product.gemm.prepare();
    const std::vector<float> c = product.compute(1);
    for (int64_t i = 0; i < 5; ++i)
      for (int64_t j = 0; j < 300; ++j)
        ASSERT_NEAR(c[static_cast<size_t>(i * 300 + j)], ragged.expected(i, j),
                    0x1p-8 * std::fabs(ragged.expected(i, j)) + 5e-5);
  }
}

// 4,096 ones and eight times 2^-10: a sum in f16 would stop at 2,048.
TEST(HalfGemm, SumsAreF32) {
  for (const DType type : kHalves) {
    Product product({1, 1, 4104}, 4, type);
    for (size_t i = 0; i < product.a.size(); ++i) {
      product.a[i] = half_bits(i < 4096 ? 1.0 : 0x1p-10, type);
      product.b[i] = half_bits(1.0, type);
    }
    EXPECT_EQ(product.compute(1)[0], 4096.25F + 0x1p-7F);
    product.gemm.accumulate = false;  // an f32 result that is not added to
    EXPECT_EQ(product.compute(1)[0], 4096.0F + 0x1p-7F);
    product.gemm.result = type;
    EXPECT_EQ(product.compute(1)[0], 4096.0F);
  }
}

// Neither large nor long products need more than the scratch; the tiles of a half result fit beside the
// blocks.
TEST(HalfGemm, TilesFitTheScratch) {
  for (const Case size :
       {Case{4096, 4096, 64}, Case{1, 100000, 10}, Case{100000, 1, 10}, Case{32, 30000, 768}}) {
    Gemm gemm{.m = size.m, .n = size.n, .k = size.k, .type = DType::bf16, .result = DType::bf16};
    gemm.cut();
    EXPECT_LE(gemm.tile_m + gemm.tile_n, 512);
  }
}

}  // namespace
}  // namespace gacc::host
