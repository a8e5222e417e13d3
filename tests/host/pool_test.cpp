// The pool runs every task exactly once, whatever the number of threads, and never hangs.
#include "codegen/host/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

namespace gacc::host {
namespace {

TEST(Pool, RunsEveryTaskOnce) {
  for (int threads = 1; threads <= 4; ++threads) {  // up to twice the cores of a small machine
    Pool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> count(static_cast<size_t>(tasks));
      for (int round = 0; round < 20; ++round)
        pool.run(tasks, [&](int64_t i) { ++count[static_cast<size_t>(i)]; });
      for (const auto& each : count) EXPECT_EQ(each, 20);
    }
  }
}

TEST(Pool, ResultsOfALaunchAreVisibleToTheNext) {
  Pool pool(4);
  std::vector<int64_t> values(256, 1);
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> next(values.size());
    pool.run(256, [&](int64_t i) {
      next[static_cast<size_t>(i)] = values[static_cast<size_t>((i + 97) % 256)] + 1;
    });
    values.swap(next);
  }
  for (const int64_t value : values) EXPECT_EQ(value, 501);
}

TEST(Pool, WakesSleepingWorkers) {
  Pool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // long past spinning and yielding
    std::atomic<int64_t> sum{0};
    pool.run(100, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum, 4950);
  }
}

TEST(Pool, StopsWithoutWorkAndRightAfterALaunch) {
  for (int round = 0; round < 300; ++round) Pool(4).run(round % 2 * 4, [](int64_t) {});
}

TEST(Pool, HasFewerThreadsWhereNoMoreCanBeStarted) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer takes all addresses";
#endif
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit little{rlim_t{2} << 30, before.rlim_max};  // a thread takes 8 MiB of addresses
  setrlimit(RLIMIT_AS, &little);
  {
    Pool pool(1000);
    std::atomic<int64_t> sum{0};
    pool.run(5000, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum, 12497500);
    EXPECT_LT(pool.threads(), 1000);
  }
  setrlimit(RLIMIT_AS, &before);
}

TEST(Pool, DefaultIsEveryUsableCore) { EXPECT_EQ(Pool().threads(), usable_cores()); }

}  // namespace
}  // namespace gacc::host
