// The sum over ranks has the bits of one rank, for every number of ranks, lanes and micro-batches; and what
// ranks must agree on. Ranks are threads here, which meet in a Collective of this file.
#include <gtest/gtest.h>

#include <barrier>
#include <bit>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include "runtime/ranks/rank_sums.h"

namespace gacc {
namespace {

struct Meeting {
  explicit Meeting(int ranks) : size(ranks), barrier(ranks), sends(static_cast<size_t>(ranks)) {}
  int size;
  std::barrier<> barrier;
  std::vector<std::span<const Outgoing>> sends;
};

class ThreadRank final : public Collective {
 public:
  ThreadRank(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return meeting_.size; }
  Status exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives) override {
    meeting_.sends[static_cast<size_t>(rank_)] = sends;
    meeting_.barrier.arrive_and_wait();
    std::vector<size_t> next(meeting_.sends.size());  // of each rank's messages
    for (const auto& [rank, to] : receives) {
      const std::span<const Outgoing> all = meeting_.sends[static_cast<size_t>(rank)];
      size_t& at = next[static_cast<size_t>(rank)];
      while (all[at].rank != rank_) ++at;
      const std::span<const std::byte> from = all[at++].bytes;
      EXPECT_EQ(from.size(), to.size());
      std::ranges::copy(from, to.begin());
    }
    for (const auto& [rank, bytes] : sends)
      if (rank != rank_) sent_ += std::ssize(bytes);
    meeting_.barrier.arrive_and_wait();
    return {};
  }
  int64_t bytes_sent() const override { return sent_; }

 private:
  Meeting& meeting_;
  int rank_;
  int64_t sent_ = 0;
};

void on_ranks(int ranks, const std::function<void(ThreadRank&)>& work) {
  Meeting meeting(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      ThreadRank rank(meeting, r);
      work(rank);
    });
  for (std::thread& thread : threads) thread.join();
}

class Memory final : public Device {
 public:
  explicit Memory(size_t numbers, bool of_host = false) : floats(numbers), of_host_(of_host) {}
  std::string name() const override { return "memory"; }
  Status load(const Artifact&) override { return {}; }
  Status run(Program, int64_t) override { return {}; }
  Status write(int64_t offset, std::span<const std::byte> bytes) override {
    std::memcpy(floats.data() + offset / 4, bytes.data(), bytes.size());
    return {};
  }
  Status read(int64_t offset, std::span<std::byte> bytes) override {
    std::memcpy(bytes.data(), floats.data() + offset / 4, bytes.size());
    return {};
  }
  int64_t peak_bytes() const override { return 0; }
  std::span<std::byte> host_memory(int64_t offset, int64_t bytes) override {
    if (!of_host_) return {};
    return std::as_writable_bytes(std::span(floats))
        .subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
  }
  std::vector<float> floats;

 private:
  bool of_host_;
};

using Number = std::optional<float>;  // none: no micro-batch, which is no zero

Number add(Number a, Number b) { return !a ? b : !b ? a : *a + *b; }

void collect(const LaneWindow& window, LaneRange node, LaneRange mine, std::vector<LaneRange>& nodes) {
  if (node.high <= mine.low || mine.high <= node.low) return;
  const int64_t middle = (node.low + node.high) / 2;
  if (node.low < mine.low || mine.high < node.high) {
    collect(window, {node.low, middle}, mine, nodes);
    return collect(window, {middle, node.high}, mine, nodes);
  }
  for (int64_t p = 0; p < window.launches; ++p)
    if (p * window.lanes / window.accumulate == node.low) return nodes.push_back(node);
}

// The sums that a rank has: the largest subtrees of its lanes, without those that have no micro-batch.
std::vector<LaneRange> nodes_of(const LaneWindow& window, int rank, int ranks) {
  const auto first = [&](int64_t r) { return (r * window.lanes + ranks - 1) / ranks; };
  std::vector<LaneRange> nodes;
  collect(window, {0, window.lanes}, {first(rank), first(rank + 1)}, nodes);
  return nodes;
}

struct Case {
  LaneWindow window;
  std::function<float(int64_t position, int64_t element)> value;
  float at(int64_t position, int64_t element) const { return value(position, element); }
  Number lane(int64_t lane, int64_t element) const {
    Number total;
    for (int64_t p = 0; p < window.launches; ++p)
      if (p * window.lanes / window.accumulate == lane) total = add(total, at(p, element));
    return total;
  }
  Number tree(LaneRange node, int64_t element) const {
    if (node.high - node.low == 1) return lane(node.low, element);
    const int64_t middle = (node.low + node.high) / 2;
    return add(tree({node.low, middle}, element), tree({middle, node.high}, element));
  }
};

// Minus zero in every number's place now and then: a lane that is not there must not turn it into zero.
float some_number(int64_t position, int64_t element) {
  uint64_t state = static_cast<uint64_t>(position * 1000 + element + 1) * 6364136223846793005U;
  state ^= state >> 29;
  state *= 0xbf58476d1ce4e5b9U;
  if (element % 7 == 3) return -0.0F;
  return (static_cast<float>(state >> 40) / 16777216.0F - 0.5F) * std::exp2(static_cast<float>(state % 12));
}

class SumOfRanks : public testing::TestWithParam<bool> {};  // whether the arena is in the host's memory

INSTANTIATE_TEST_SUITE_P(Arena, SumOfRanks, testing::Bool(),
                         [](const auto& which) { return which.param ? "of_the_host" : "of_a_device"; });

TEST_P(SumOfRanks, HasTheBitsOfOneRank) {
  constexpr int64_t kFloats = 5, kMore = 8, kElements = kFloats + kMore;
  for (const int64_t lanes : {1, 2, 4, 8})
    for (const int64_t accumulate : {8, 11})
      for (const int64_t launches : {int64_t{1}, int64_t{4}, int64_t{7}, accumulate})
        for (int ranks = 1; ranks <= lanes; ++ranks) {
          const Case all{{lanes, accumulate, launches}, some_number};
          on_ranks(ranks, [&](ThreadRank& rank) {
            // A block of f32, one of i32, one of f32; each node of each block at 64 numbers a block.
            const auto nodes = nodes_of(all.window, rank.rank(), ranks);
            Memory memory(64 * 4 * 8, GetParam());
            const int64_t sizes[] = {kFloats, 3, kMore};
            std::vector<LaneSum> blocks;
            for (size_t b = 0; b < 3; ++b) {
              LaneSum& block = blocks.emplace_back();
              block.elements = sizes[b];
              block.integer = b == 1;
              block.target = static_cast<int64_t>(b * 512 * 4);
              for (size_t i = 0; i < nodes.size(); ++i) {
                const size_t at = b * 512 + 64 * i;
                block.nodes.push_back(static_cast<int64_t>(at * 4));
                for (int64_t e = 0; e < sizes[b]; ++e) {
                  float& number = memory.floats[at + static_cast<size_t>(e)];
                  int32_t count = 0;
                  for (int64_t p = 0; p < launches; ++p) {
                    const int64_t lane = p * lanes / accumulate;
                    if (nodes[i].low <= lane && lane < nodes[i].high) count += static_cast<int32_t>(p + e);
                  }
                  number = block.integer ? std::bit_cast<float>(count)
                                         : *all.tree(nodes[i], b == 0 ? e : kFloats + e);
                }
              }
            }
            // Too small for all at once.
            std::vector<std::byte> scratch(static_cast<size_t>(ranks) * 4 * 10);
            const LaneNodes known = gather_nodes(rank, nodes).take();
            const Status status = sum_over_ranks(rank, memory, all.window, known, blocks, scratch);
            ASSERT_TRUE(status) << status.text();
            for (int64_t e = 0; e < kElements; ++e) {
              const size_t at =
                  e < kFloats ? static_cast<size_t>(e) : static_cast<size_t>(1024 + e - kFloats);
              ASSERT_EQ(std::bit_cast<uint32_t>(memory.floats[at]),
                        std::bit_cast<uint32_t>(*all.tree({0, lanes}, e)))
                  << "V " << lanes << " K " << accumulate << " n " << launches << " R " << ranks
                  << " element " << e;
            }
            for (int32_t e = 0; e < 3; ++e) {
              const auto n = static_cast<int32_t>(launches);
              ASSERT_EQ(std::bit_cast<int32_t>(memory.floats[512 + static_cast<size_t>(e)]),
                        n * (n - 1) / 2 + n * e);
            }
          });
        }
}

TEST(Ranks, SendTwoRMinusOneByRTimesTheNumbers) {
  for (const int ranks : {2, 4, 8})
    on_ranks(ranks, [&](ThreadRank& rank) {
      constexpr int64_t kNumbers = 1 << 14;
      Memory memory(kNumbers);
      const LaneSum block{kNumbers, false, 1, {0}, 0};
      std::vector<std::byte> scratch(1 << 16);
      const auto nodes = nodes_of({8, 8, 8}, rank.rank(), ranks);
      const LaneNodes known = gather_nodes(rank, nodes).take();
      ASSERT_TRUE(sum_over_ranks(rank, memory, {8, 8, 8}, known, std::span(&block, 1), scratch));
      // And to each other which nodes it has: their size and lanes.
      const auto who = static_cast<int64_t>(8 + nodes.size() * sizeof(LaneRange)) * (ranks - 1);
      EXPECT_EQ(rank.bytes_sent(), 2 * (ranks - 1) * kNumbers * 4 / ranks + who);
    });
}

TEST(Ranks, TooLittleRoomIsAnError) {
  on_ranks(2, [](ThreadRank& rank) {
    Memory memory(1);
    const LaneSum block{1, false, 1, {0}, 0};
    std::vector<std::byte> scratch(4);
    const LaneNodes known = gather_nodes(rank, nodes_of({2, 2, 2}, rank.rank(), 2)).take();
    EXPECT_FALSE(sum_over_ranks(rank, memory, {2, 2, 2}, known, std::span(&block, 1), scratch));
  });
}

std::string agreed(const std::function<std::pair<Status, Facts>(int)>& of_rank) {
  std::string text;
  on_ranks(3, [&](ThreadRank& rank) {
    const auto [status, facts] = of_rank(rank.rank());
    const Status answer = agree(rank, status, facts);
    if (rank.rank() == 1) text = answer.text();
  });
  return text;
}

TEST(Ranks, AgreeOnErrorsAndFacts) {
  const Facts same = {{"the seed", "7"}, {"the device", ""}};
  EXPECT_EQ(agreed([&](int) { return std::pair{Status(), same}; }), "");
  EXPECT_EQ(agreed([&](int rank) {
              return std::pair{rank == 2 ? Status::error("no file") : Status(), same};
            }),
            "rank 2: no file");
  EXPECT_EQ(agreed([&](int) { return std::pair{Status::error("no file"), Facts()}; }), "no file");
  EXPECT_EQ(agreed([&](int rank) {
              Facts facts = same;
              if (rank == 2) facts[0].second = "8";
              return std::pair{Status(), facts};
            }),
            "rank 2 differs from rank 0: the seed is 8 there, and 7 on rank 0");
  EXPECT_EQ(agreed([&](int rank) {
              Facts facts = same;
              if (rank == 1) facts.emplace_back("a column", "c");
              return std::pair{Status(), facts};
            }),
            "rank 1 differs from rank 0: only one of them has a column (c)");
}

TEST(Ranks, AloneNeedsNothing) {
  Collective alone;
  EXPECT_EQ(*maximum(alone, 5), 5);
  EXPECT_EQ(*broadcast(alone, "words"), "words");
  alone.ask_to_stop();
  EXPECT_TRUE(alone.stop_asked());
  EXPECT_EQ(alone.bytes_sent(), 0);
}

}  // namespace
}  // namespace gacc
