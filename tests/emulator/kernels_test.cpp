// The emulator runs what nvcc made of kernels/kernels.cu, with the right results and without a report.
#include <random>

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
