// The emulator runs what nvcc made of kernels/kernels.cu, with the right results and without a report.
#include <cmath>
#include <random>

#include "emulator/numbers.h"
#include "tests/emulator/harness.h"

namespace gacc::emulator {
namespace {

struct Kernels : testing::Test {
  Machine machine{read_text(GACC_EMULATOR_TESTS "/kernels/kernels.ptx")};
  std::mt19937 random{7};
  std::vector<float> floats(size_t n) {
    std::vector<float> x(n);
    for (float& v : x) v = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
    return x;
  }
  void TearDown() override { EXPECT_EQ(machine.reports(), ""); }
};

TEST_F(Kernels, ReduceSum) {
  auto x = floats(5000);
  double want = 0;
  for (float v : x) want += v;
  uint64_t in = machine.put(x), out = machine.put(std::vector<float>{0});
  machine.run("reduce_sum", {4}, {256}, 0, false, in, 5000, out);
  EXPECT_NEAR(machine.get<float>(out, 1)[0], want, 1e-3);
}

TEST_F(Kernels, WhatTheyDidIsCounted) {
  const uint64_t in = machine.put(std::vector<float>(300)), out = machine.put(std::vector<float>{0});
  const auto counts = [&](int n) {
    machine.run("reduce_sum", {1}, {256}, 0, false, in, n, out);
    return machine.emulator.last();
  };
  const LaunchCounts one = counts(256), more = counts(257);  // one warp goes round its loop once more
  EXPECT_EQ(one.loads, 256u);
  EXPECT_EQ(more.loads, 257u);
  EXPECT_EQ(more.loaded_bytes, 257u * sizeof(float));
  EXPECT_GT(more.longest_warp, one.longest_warp);
  EXPECT_EQ(more.longest_warp - one.longest_warp, more.instructions - one.instructions);
  EXPECT_LE(more.instructions, 8 * more.longest_warp);  // of eight warps
}

TEST_F(Kernels, Scan) {
  std::vector<int> x(200), want(200);
  int sum = 0;
  for (size_t i = 0; i < x.size(); ++i) want[i] = sum += x[i] = static_cast<int>(random() % 100);
  uint64_t in = machine.put(x), out = machine.room<int>(200);
  machine.run("scan", {1}, {200}, 2 * 200 * 4, false, in, out);
  EXPECT_EQ(machine.get<int>(out, 200), want);
}

TEST_F(Kernels, Histogram) {
  std::vector<uint8_t> x(3001);
  std::vector<unsigned> want(256);
  for (uint8_t& v : x) ++want[v = static_cast<uint8_t>(random() % 37 * 7)];
  uint64_t in = machine.put(x), out = machine.put(std::vector<unsigned>(256));
  machine.run("histogram", {3}, {128}, 0, false, in, 3001, out);
  EXPECT_EQ(machine.get<unsigned>(out, 256), want);
}

TEST_F(Kernels, Matmul) {
  const size_t n = 64;
  auto a = floats(n * n), b = floats(n * n);
  uint64_t pa = machine.put(a), pb = machine.put(b), pc = machine.room<float>(n * n);
  machine.run("matmul", {4, 4}, {16, 16}, 0, false, pa, pb, pc, static_cast<int>(n));
  auto c = machine.get<float>(pc, n * n);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      float want = 0;
      for (size_t k = 0; k < n; ++k) want = std::fma(a[i * n + k], b[k * n + j], want);
      ASSERT_EQ(c[i * n + j], want);  // the same order of the same operations
    }
}

TEST_F(Kernels, MmaTile) {
  std::vector<uint16_t> a(256), b(128);
  for (auto& v : a) v = half_from(static_cast<int>(random() % 17) - 8);
  for (auto& v : b) v = half_from((static_cast<int>(random() % 17) - 8) / 4.0);
  uint64_t pa = machine.put(a), pb = machine.put(b), pc = machine.room<float>(128);
  machine.run("mma_tile", {1}, {32}, 0, false, pa, pb, pc);
  auto c = machine.get<float>(pc, 128);
  for (size_t i = 0; i < 16; ++i)
    for (size_t j = 0; j < 8; ++j) {
      float want = 0;
      for (size_t k = 0; k < 16; ++k) want += float_of_half(a[i * 16 + k]) * float_of_half(b[k * 8 + j]);
      ASSERT_EQ(c[i * 8 + j], want) << i << "," << j;  // small integers: exact
    }
}

TEST_F(Kernels, AxpyHalf) {
  std::vector<uint16_t> x(202), y(202);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = half_from(0.01 * static_cast<double>(i)), y[i] = half_from(1.0 / (1.0 + static_cast<double>(i)));
  uint64_t px = machine.put(x), py = machine.put(y);
  machine.run("axpy_half", {1}, {128}, 0, false, px, py, 1.5f, 101);
  auto got = machine.get<uint16_t>(py, 202);
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(got[i], half_from(1.5 * float_of_half(x[i]) + float_of_half(y[i]))) << i;  // exact in double
}

TEST_F(Kernels, ScaleBf16) {
  std::vector<uint16_t> x(100);
  for (size_t i = 0; i < x.size(); ++i) x[i] = bf16_from(0.37 * static_cast<double>(i) - 9);
  uint64_t px = machine.put(x), py = machine.room<uint16_t>(100);
  machine.run("scale_bf16", {2}, {64}, 0, false, px, py, 3.0f, 100);
  auto got = machine.get<uint16_t>(py, 100);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], bf16_from(3.0f * float_of_bf16(x[i])));
}

TEST_F(Kernels, Compact) {
  std::vector<int> x(192), want;
  for (int& v : x) {
    v = static_cast<int>(random() % 21) - 10;
    if (v > 0) want.push_back(v);
  }
  uint64_t px = machine.put(x), py = machine.room<int>(192), pc = machine.room<int>(1);
  machine.run("compact", {1}, {192}, 0, false, px, py, pc);
  ASSERT_EQ(machine.get<int>(pc, 1)[0], static_cast<int>(want.size()));
  EXPECT_EQ(machine.get<int>(py, want.size()), want);
}

TEST_F(Kernels, RotateOverTheGrid) {
  const int n = 6 * 64, rounds = 5;
  std::vector<int> x(n);
  for (int i = 0; i < n; ++i) x[static_cast<size_t>(i)] = i;
  uint64_t px = machine.put(x), py = machine.room<int>(n), counter = machine.put(std::vector<unsigned>{0});
  machine.run("rotate", {6}, {64}, 0, true, px, py, counter, rounds);
  auto got = machine.get<int>(py, n);  // an odd number of rounds ends in y
  for (int i = 0; i < n; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], (i + n - rounds) % n);
}

TEST_F(Kernels, LastBlockAdds) {
  auto x = floats(10 * 32);
  double want = 0;
  for (float v : x) want += v;
  uint64_t px = machine.put(x), parts = machine.room<float>(10), done = machine.put(std::vector<unsigned>{0}),
           out = machine.room<float>(1);
  machine.run("last_block", {10}, {32}, 0, false, px, parts, done, out);
  EXPECT_NEAR(machine.get<float>(out, 1)[0], want, 1e-4);
}

}  // namespace
}  // namespace gacc::emulator
