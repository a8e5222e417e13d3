// Matrix products against double, on shapes at and around the tile borders, and the same bits for any
// threads.
#include "codegen/host/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "codegen/host/thread_pool.h"

namespace gacc::host {
namespace {

struct Case {
  int64_t m, n, k;
};

std::vector<float> random(int64_t count, uint32_t seed) {
  std::mt19937 source(seed);
  std::uniform_real_distribution<float> number(-1, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = number(source);
  return values;
}

Gemm product(Case size, int flags) {
  Gemm gemm{.m = size.m,
            .n = size.n,
            .k = size.k,
            .transpose_a = (flags & 1) != 0,
            .transpose_b = (flags & 2) != 0,
            .accumulate = (flags & 4) != 0};
  gemm.cut();
  return gemm;
}

std::vector<float> compute(const Gemm& gemm, int threads, const std::vector<float>& a,
                           const std::vector<float>& b, std::vector<float> c) {
  Pool pool(threads);
  pool.run(gemm.tasks(), [&](int64_t task) { EXPECT_TRUE(gemm.run(a.data(), b.data(), c.data(), task)); });
  return c;
}

TEST(Gemm, AgreesWithDouble) {
  const Case cases[] = {{1, 1, 1},     {1, 10, 128},   {7, 33, 5},     {32, 512, 784},
                        {31, 129, 17}, {512, 784, 32}, {130, 257, 64}, {300, 130, 260}};
  for (const Case size : cases) {
    for (int flags = 0; flags < 8; ++flags) {
      const Gemm gemm = product(size, flags);
      const std::vector<float> a = random(size.m * size.k, 1), b = random(size.k * size.n, 2),
                               before = random(size.m * size.n, 3);
      const std::vector<float> c = compute(gemm, 1, a, b, before);
      double error = 0, norm = 0;
      for (int64_t i = 0; i < size.m; ++i)
        for (int64_t j = 0; j < size.n; ++j) {
          double sum = gemm.accumulate ? before[static_cast<size_t>(i * size.n + j)] : 0.0;
          for (int64_t p = 0; p < size.k; ++p)
            sum += double{a[static_cast<size_t>(gemm.transpose_a ? p * size.m + i : i * size.k + p)]} *
                   b[static_cast<size_t>(gemm.transpose_b ? j * size.k + p : p * size.n + j)];
          const double difference = c[static_cast<size_t>(i * size.n + j)] - sum;
          error += difference * difference;
          norm += sum * sum;
        }
      // f32 epsilon times a few: errors of the k additions are random
      EXPECT_LT(std::sqrt(error / norm), 1e-6)
          << size.m << "x" << size.n << "x" << size.k << " flags " << flags;
    }
  }
}

// Rows with gaps of anything: the numbers of rows without.
TEST(Gemm, RowsWithGaps) {
  const Case size{130, 257, 65};
  constexpr int64_t gap = 7;
  const auto spread = [](const std::vector<float>& values, int64_t columns) {
    std::vector<float> rows;
    for (size_t i = 0; i < values.size(); ++i) {
      rows.push_back(values[i]);
      if ((static_cast<int64_t>(i) + 1) % columns == 0) rows.insert(rows.end(), gap, NAN);
    }
    return rows;
  };
  for (int flags = 0; flags < 8; ++flags) {
    Gemm gemm = product(size, flags);
    const int64_t a_row = gemm.a_row(), b_row = gemm.b_row(), c_row = gemm.c_row();
    const std::vector<float> a = random(size.m * size.k, 1), b = random(size.k * size.n, 2),
                             before = random(size.m * size.n, 3), want = compute(gemm, 1, a, b, before);
    gemm.pitch = {a_row + gap, b_row + gap, c_row + gap};
    const std::vector<float> got =
        compute(gemm, 2, spread(a, a_row), spread(b, b_row), spread(before, c_row));
    for (int64_t i = 0; i < size.m; ++i)
      for (int64_t j = 0; j < size.n; ++j)
        ASSERT_FLOAT_EQ(got[static_cast<size_t>(i * gemm.c_row() + j)],
                        want[static_cast<size_t>(i * size.n + j)])
            << "flags " << flags << " at " << i << "," << j;
  }
}

TEST(Gemm, ThreadsDoNotChangeBits) {
  for (const Case size : {Case{32, 512, 784}, Case{512, 784, 32}, Case{200, 300, 100}, Case{260, 100, 300}}) {
    for (int flags = 0; flags < 8; ++flags) {
      const Gemm gemm = product(size, flags);
      const std::vector<float> a = random(size.m * size.k, 4), b = random(size.k * size.n, 5),
                               before = random(size.m * size.n, 6);
      const std::vector<float> one = compute(gemm, 1, a, b, before), two = compute(gemm, 2, a, b, before),
                               four = compute(gemm, 4, a, b, before);
      EXPECT_EQ(std::memcmp(one.data(), two.data(), 4 * one.size()), 0);
      EXPECT_EQ(std::memcmp(one.data(), four.data(), 4 * one.size()), 0);
    }
  }
}

// What train.require = "bits" rests on.
TEST(Gemm, ProductsInOrderShowNoSplit) {
  for (const bool turned : {false, true}) {  // rows of a larger product are those of a smaller one
    for (const Case size : {Case{45, 70, 600}, Case{13, 3, 5}, Case{64, 129, 48}}) {
      Gemm all{.m = size.m, .n = size.n, .k = size.k, .transpose_b = turned, .ordered = true};
      all.cut();
      const std::vector<float> a = random(size.m * size.k, 1), b = random(size.k * size.n, 2);
      const std::vector<float> whole =
          compute(all, 2, a, b, std::vector<float>(static_cast<size_t>(size.m * size.n)));
      for (int64_t row = 0; row < size.m; ++row) {
        Gemm one{.m = 1, .n = size.n, .k = size.k, .transpose_b = turned, .ordered = true};
        one.cut();
        const auto first = a.begin() + row * size.k;
        const std::vector<float> alone =
            compute(one, 1, {first, first + size.k}, b, std::vector<float>(static_cast<size_t>(size.n)));
        ASSERT_EQ(std::memcmp(alone.data(), whole.data() + row * size.n, alone.size() * sizeof(float)), 0)
            << row;
      }
    }
  }
  for (const int64_t rows :
       {1, 6, 40, 200}) {  // of a sample: a sum of 12 samples is that of 5, of 1 and of 6
    const int64_t samples = 12, m = 21, n = 50;
    const std::vector<float> a = random(samples * rows * m, 3), b = random(samples * rows * n, 4);
    const auto add = [&](int64_t begin, int64_t end, std::vector<float> c) {
      Gemm part{.m = m,
                .n = n,
                .k = (end - begin) * rows,
                .transpose_a = true,
                .accumulate = true,
                .ordered = true,
                .rows_of_sample = rows};
      part.cut();
      return compute(part, 2, {a.begin() + begin * rows * m, a.begin() + end * rows * m},
                     {b.begin() + begin * rows * n, b.begin() + end * rows * n}, std::move(c));
    };
    const std::vector<float> zero(static_cast<size_t>(m * n)),
        whole = add(0, samples, zero), parts = add(6, samples, add(5, 6, add(0, 5, zero)));
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0) << rows;
  }
}

TEST(Gemm, TilesCoverARaggedProduct) {
  Gemm gemm = product({32, 512, 784}, 2);
  gemm.m = 5;  // the last micro-batch
  const std::vector<float> a = random(5 * 784, 7), b = random(512 * 784, 8);
  const std::vector<float> c = compute(gemm, 2, a, b, std::vector<float>(5 * 512, NAN));
  for (const float value : c) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace gacc::host
