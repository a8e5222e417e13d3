// The formulas of the cost model. The expected microseconds are those of another program: the same formulas,
// written in Python from published measurements before there was any C++ (docs/gpu.md), run on the works
// below with its own table of machines.
#include "kernels/launch_cost.h"

#include <gtest/gtest.h>

namespace gacc::kernels {
namespace {

constexpr double kMicro = 1e6;
constexpr double kSame = 0.01;  // relative: rounding of the tables' figures

void expect_close(double seconds, double microseconds, std::string_view what) {
  EXPECT_NEAR(kMicro * seconds, microseconds, kSame * microseconds) << what;
}

double seconds_of(const Machine& machine, const ProductWork& product, Engine engine) {
  return estimate(machine, Work{.product = product}, engine).seconds;
}
double seconds_of(const Machine& machine, const AttentionWork& attention, Engine engine) {
  return estimate(machine, Work{.attention = attention}, engine).seconds;
}

TEST(Machine, ATargetHasItsCardOrTheOneBefore) {
  EXPECT_EQ(machine("sm_90a").card, "H100 SXM");
  EXPECT_EQ(machine("sm_90a").sms, 132);
  EXPECT_EQ(machine("sm_80").card, "A100 40 GB");
  EXPECT_EQ(machine("sm_87").target, "sm_86");
  EXPECT_EQ(machine("sm_103").target, "sm_100");
  EXPECT_EQ(machine("").target, "sm_75");
}

TEST(LaunchCost, ProductsOfTheLibrary) {
  struct Row {
    int64_t m, n, k, leading;
    double c_bytes, sm_90, sm_80, sm_75, sm_100;
  };
  constexpr Row kRows[] = {{16384, 2304, 768, 16, 2, 101.766, 261.446, 1928.113, 52.981},
                           {16384, 768, 3072, 16, 2, 117.867, 352.967, 2589.775, 61.157},
                           {768, 768, 16384, 16, 8, 43.253, 93.987, 719.63, 20.168},
                           {2048, 50257, 768, 2, 2, 404.54, 836.224, 7348.079, 221.394},
                           {2048, 768, 50257, 2, 2, 386.775, 853.482, 7502.687, 184.081},
                           {50257, 768, 2048, 2, 8, 402.06, 843.914, 7540.253, 199.556},
                           {128, 128, 8192, 16, 2, 6.965, 11.072, 30.06, 5.459},
                           {8192, 8192, 8192, 16, 2, 1510.535, 4252.9, 35037.647, 677.413}};
  for (const Row& row : kRows) {
    const ProductWork work{
        .m = row.m, .n = row.n, .k = row.k, .leading = row.leading, .c_bytes = row.c_bytes};
    const std::pair<const char*, double> expected[] = {
        {"sm_90", row.sm_90}, {"sm_80", row.sm_80}, {"sm_75", row.sm_75}, {"sm_100", row.sm_100}};
    for (const auto& [target, microseconds] : expected)
      expect_close(seconds_of(machine(target), work, Engine::library), microseconds, target);
  }
}

TEST(LaunchCost, ProductsOfTheArtifact) {
  struct Row {
    int64_t m, n, k, tile;
    double c_bytes, sm_90, sm_80;
  };
  constexpr Row kRows[] = {{16384, 2304, 768, 128, 2, 156.087, 339.648},
                           {768, 768, 16384, 64, 8, 141.789, 308.435},
                           // 64 multiprocessors have a tile, 2 * 32 * 32 * 512 FLOPs, at half of their rate.
                           {256, 256, 512, 32, 2, 3.343, 5.195}};
  for (const Row& row : kRows) {
    const ProductWork work{
        .m = row.m, .n = row.n, .k = row.k, .c_bytes = row.c_bytes, .tile_m = row.tile, .tile_n = row.tile};
    expect_close(seconds_of(machine("sm_90"), work, Engine::own), row.sm_90, "sm_90");
    expect_close(seconds_of(machine("sm_80"), work, Engine::own), row.sm_80, "sm_80");
  }
}

// A tile more, on a multiprocessor that had none, takes no more time; slices take half of it.
TEST(LaunchCost, AFewTilesHaveAFewMultiprocessors) {
  const auto seconds = [](int64_t m, int64_t slices) {
    const ProductWork work{.m = m, .n = 32, .k = 4096, .tile_m = 32, .tile_n = 32, .slices = slices};
    return seconds_of(machine("sm_90"), work, Engine::own);
  };
  EXPECT_NEAR(seconds(64 * 32, 1) / seconds(32, 1), 1, 0.05);  // its bytes
  EXPECT_NEAR(seconds(256 * 32, 1) / seconds(128 * 32, 1), 1.9, 0.1);
  EXPECT_NEAR((seconds(32, 1) - Machine::kTile) / (seconds(32, 4) - Machine::kTile), 2, 1e-2);
}

TEST(LaunchCost, Attention) {
  AttentionWork work{
      .heads = 192, .length = 1024, .channels = 64, .causal = true, .fetched = 16};  // a warp of 16 rows
  for (const auto& [target, microseconds] :
       {std::pair("sm_90", 113.32), {"sm_80", 227.67}, {"sm_89", 224.395}, {"sm_100", 96.681}})
    expect_close(seconds_of(machine(target), work, Engine::library), microseconds, target);
  // Of 32 rows all adds up: 192 heads * 1024 * 1024 * 17 / 32 scores, each 256 / (989e12 / 2.31e11 * 0.62) +
  // 10 / 128 + 1 / 16 + 8 / 128 cycles of 132 multiprocessors at 1.75 GHz.
  work.warp_rows = 32, work.fetched = 8;
  expect_close(seconds_of(machine("sm_90"), work, Engine::library), 138.702, "warps of 32 rows");
  work.gradient = true, work.fetched = 56;
  for (const auto& [target, microseconds] :
       {std::pair("sm_90", 421.087), {"sm_80", 742.67}, {"sm_89", 968.634}, {"sm_100", 347.398}})
    expect_close(seconds_of(machine(target), work, Engine::library), microseconds, target);
}

// A window as long as the sequence is none, and a short one's time grows with the length alone.
TEST(LaunchCost, WindowsOfAttention) {
  AttentionWork work{.heads = 12, .length = 1024, .channels = 64, .causal = true, .fetched = 16};
  const auto seconds = [&](int64_t length, int64_t window) {
    work.length = length, work.window = window;
    return seconds_of(machine("sm_80"), work, Engine::library);
  };
  EXPECT_NEAR(seconds(4096, 4096) / seconds(4096, 0), 1, 1e-9);
  EXPECT_NEAR(seconds(16384, 128) / seconds(8192, 128), 2, 0.02);
  EXPECT_LT(seconds(8192, 1024), 0.3 * seconds(8192, 0));
  EXPECT_LT(seconds(8192, 1), seconds(8192, 65));
}

// Of 16,384 rows of 3072 halves, a thread for each column.
Work column_sum() {
  Work work{.blocks = 48,
            .threads = 64,
            .flight = 4,
            .rounds = 16384,
            .chain = 58,
            .instructions = 65.0 * 16384 * 3072};
  work.loads.add(2, 201326592);
  work.stores.add(2, 100663296);
  return work;
}
// Streams without arithmetic.
Work stream() {
  Work work{.blocks = 18432, .threads = 256, .flight = 16, .instructions = 4.0 * 16384 * 2304};
  work.loads.add(16, 75497472);
  work.stores.add(16, 75497472);
  return work;
}
// A quarter from the cache, two bytes at a time, with special functions.
Work cached() {
  Work work{.blocks = 2048, .threads = 256, .flight = 8, .instructions = 8e9, .functions = 2e8};
  work.loads.add(2, 6e8);
  work.stores.add(2, 2e8);
  work.cached = 0.25 * work.transferred();
  return work;
}
// Few blocks fit an SM.
Work crowded() {
  Work work{.blocks = 600, .threads = 128, .registers = 128, .shared = 36864, .flight = 16, .flops = 5e9};
  work.loads.add(4, 1e8);
  work.stores.add(8, 1e8);
  return work;
}

TEST(LaunchCost, Kernels) {
  struct Row {
    const char* what;
    Work work;
    double microseconds[7];
  };
  constexpr const char* kTargets[] = {"sm_90", "sm_80", "sm_86", "sm_89", "sm_75", "sm_100", "sm_120"};
  const Row rows[] = {
      {"column sum", column_sum(), {8106.36, 9356.127, 7777.811, 5808.86, 8938.763, 9265.121, 6378.64}},
      {"stream", stream(), {56.973, 117.321, 191.003, 167.843, 628.903, 30.794, 98.018}},
      {"cached", cached(), {433.22, 829.002, 1060.998, 736.319, 3053.087, 380.139, 503.501}},
      {"crowded", crowded(), {176.346, 405.507, 315.163, 243.937, 1224.065, 165.909, 148.2}}};
  for (const Row& row : rows) {
    for (size_t i = 0; i < std::size(kTargets); ++i)
      expect_close(joined(terms(machine(kTargets[i]), row.work)), row.microseconds[i],
                   std::string(row.what) + " " + kTargets[i]);
  }
}

TEST(LaunchCost, WhatBoundsAKernel) {
  const Machine& h100 = machine("sm_90a");
  EXPECT_EQ(estimate(h100, stream(), Engine::library).bound, Bound::bandwidth);
  EXPECT_EQ(estimate(h100, column_sum(), Engine::library).bound, Bound::parallelism);
  EXPECT_EQ(estimate(h100, cached(), Engine::library).bound, Bound::compute);
  Work chain = stream();
  chain.rounds = 1000;
  EXPECT_EQ(estimate(h100, chain, Engine::library).bound, Bound::latency);
  Work many = stream();
  many.blocks *= 100;
  EXPECT_EQ(estimate(h100, many, Engine::library).bound, Bound::launch);
}

TEST(LaunchCost, WhatBoundsAProduct) {
  const Machine& h100 = machine("sm_90a");
  Work work;
  const auto bound = [&](int64_t m, int64_t n, int64_t k, int64_t blocks, Engine engine) {
    work.product = {.m = m, .n = n, .k = k};
    work.blocks = blocks;
    return estimate(h100, work, engine).bound;
  };
  EXPECT_EQ(bound(8192, 8192, 8192, 4096, Engine::library), Bound::compute);
  EXPECT_EQ(bound(8192, 8192, 64, 4096, Engine::library), Bound::bandwidth);
  EXPECT_EQ(bound(32, 512, 784, 16, Engine::library), Bound::parallelism);
  EXPECT_EQ(bound(768, 768, 16384, 144, Engine::own), Bound::compute);
  EXPECT_EQ(bound(256, 256, 16384, 64, Engine::own), Bound::parallelism);
}

TEST(LaunchCost, TheFloorIsTheCeilingOfTheMachine) {
  const Machine& h100 = machine("sm_90a");
  Work work = stream();
  work.moved = 3e9;
  EXPECT_DOUBLE_EQ(estimate(h100, work, Engine::library).floor, 1e-3);
  work.product = {.m = 8192, .n = 8192, .k = 8192};
  const double flops = 2.0 * 8192 * 8192 * 8192;
  EXPECT_DOUBLE_EQ(estimate(h100, work, Engine::library).floor, flops / 794e12);
  EXPECT_DOUBLE_EQ(estimate(h100, work, Engine::own).floor, flops / 420e12);
}

// Of two streams: 10 us each, by hand.
TEST(LaunchCost, LaunchesOnTwoStreamsShareTheMachine) {
  constexpr double kTen = 10e-6, kGap = 1e-6;
  const auto launch = [](double sms, double memory, int64_t stream, std::vector<size_t> after = {}) {
    return Streamed{0, kTen, {sms * kTen, memory * kTen, 0}, stream, std::move(after)};
  };
  const auto expect = [](const std::vector<Streamed>& launches, double microseconds) {
    EXPECT_NEAR(kMicro * streams_seconds(launches), microseconds, 1e-6);
  };
  expect({}, 0);
  expect({launch(1, 1, 0), launch(1, 1, 0)}, 20);          // one stream: one after the other
  expect({launch(0.5, 0.2, 0), launch(0.5, 0.7, 1)}, 10);  // enough for both
  expect({launch(1, 0, 0), launch(1, 0, 1)}, 20);          // none to spare
  expect({launch(0.9, 0, 0), launch(0.3, 0, 1)}, 12);      // a fifth over-asked
  // The second begins when the first has ended.
  expect({launch(0.5, 0, 0), launch(0.5, 0, 1, {0})}, 20);
  // The second stream's two are slower while the first has a launch: 12.5 us for it, 7.5 of the second one's
  // 20 alone are left.
  expect({launch(0.75, 0, 0), launch(0.5, 0, 1), launch(0.5, 0, 1)}, 22.5);
  // A gap takes nothing of the machine; what takes no time ends at once.
  Streamed behind = launch(1, 0, 1);
  behind.gap = kGap;
  expect({launch(1, 0, 0), behind}, 20);
  expect({Streamed{}, launch(1, 0, 1, {0})}, 10);
  // A copy takes nothing of the machine. The kernel waits for the second copy and for the first stream's.
  expect({launch(0, 0, 2), launch(0, 0, 2), launch(1, 0, 0), launch(1, 0, 1, {1, 2})}, 30);
}

}  // namespace
}  // namespace gacc::kernels
