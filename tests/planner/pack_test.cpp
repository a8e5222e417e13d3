// The complete offset search against an exhaustive one on tiny cases, and the reading of its files.
#include "passes/planner/offsets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "passes/planner/offsets_csv.h"

namespace gacc::passes::planner {
namespace {

bool meet(const Block& a, const Block& b) { return a.first <= b.last && b.first <= a.last; }

// Every offset of every block, at this granularity of one byte.
bool fits(const std::vector<Block>& blocks, int64_t capacity, std::vector<int64_t>& offsets) {
  const size_t i = offsets.size();
  if (i == blocks.size()) return true;
  for (int64_t at = 0; at + blocks[i].bytes <= capacity; ++at) {
    bool free = true;
    for (size_t j = 0; j < i && free; ++j)
      free = !meet(blocks[i], blocks[j]) || at + blocks[i].bytes <= offsets[j] ||
             offsets[j] + blocks[j].bytes <= at;
    if (!free) continue;
    offsets.push_back(at);
    if (fits(blocks, capacity, offsets)) return true;
    offsets.pop_back();
  }
  return false;
}

void expect_placed(const std::vector<Block>& blocks, int64_t capacity, const Placement& placement) {
  EXPECT_LE(placement.height, capacity);
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const int64_t a = placement.offsets[i], b = placement.offsets[j];
      EXPECT_TRUE(!meet(blocks[i], blocks[j]) || a + blocks[i].bytes <= b || b + blocks[j].bytes <= a);
    }
  }
}

std::vector<Block> random_blocks(std::mt19937& random, size_t most) {
  std::vector<Block> blocks(2 + random() % most);
  for (Block& block : blocks) {
    block.bytes = static_cast<int64_t>(random() % 5);
    block.first = static_cast<int>(random() % 9);
    block.last = block.first + static_cast<int>(random() % 5);
  }
  return blocks;
}

TEST(Pack, AgreesWithExhaustiveSearch) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const std::vector<Block> blocks = random_blocks(random, 7);
    const int64_t capacity = liveness_bound(blocks) + static_cast<int64_t>(random() % 8 == 0);
    std::vector<int64_t> offsets;
    const bool possible = fits(blocks, capacity, offsets);
    const Packing packing = search_packing(blocks, capacity, kPackWork);
    ASSERT_EQ(packing.placement.has_value(), possible) << "seed " << seed;
    EXPECT_EQ(packing.proven, !possible);
    if (possible) expect_placed(blocks, capacity, *packing.placement);
  }
}

// Cuts instants x bytes into `count` blocks that fill it.
std::vector<Block> slice(std::mt19937& random, int instants, int64_t bytes, size_t count) {
  std::vector<Block> blocks = {{bytes, 0, instants - 1}};
  while (blocks.size() < count) {
    Block& whole = blocks[random() % blocks.size()];
    Block rest = whole;
    const auto cut = [&](int64_t size) { return 1 + static_cast<int64_t>(random()) % (size - 1); };
    if (random() % 2 == 0 && whole.last > whole.first) {
      rest.first = whole.first + static_cast<int>(cut(whole.last - whole.first + 1));
      whole.last = rest.first - 1;
    } else if (whole.bytes > 1) {
      rest.bytes = cut(whole.bytes);
      whole.bytes -= rest.bytes;
    } else {
      continue;
    }
    blocks.push_back(rest);
  }
  return blocks;
}

// The first runs are given up after a dead end or a few: what they placed must not reach the run that ends.
TEST(Pack, RunsThatAreGivenUpLeaveNothing) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::vector<Block> blocks = slice(random, 12, 100, 20);
    const Packing packing = search_packing(blocks, 100, kPackWork, 1);
    ASSERT_TRUE(packing.placement);
    expect_placed(blocks, 100, *packing.placement);
  }
}

TEST(Pack, TheBoundIsAProof) {
  const Packing packing = pack({{10, 0, 3}, {20, 2, 5}}, 29);
  EXPECT_FALSE(packing.placement);
  EXPECT_TRUE(packing.proven);
}

TEST(Buffers, ColumnsInAnyOrder) {
  BufferTable table;
  std::string problem;
  ASSERT_TRUE(parse_buffers("size,upper,id,lower\r\n8,4,a,0\r\n\n4,9,b,4\n", table, problem)) << problem;
  ASSERT_EQ(table.blocks.size(), 2u);
  EXPECT_EQ(table.blocks[0].bytes, 8);
  EXPECT_FALSE(meet(table.blocks[0], table.blocks[1]));
  EXPECT_EQ(print_buffers(table, {0, 16}), "size,upper,id,lower,offset\n8,4,a,0,0\n4,9,b,4,16\n");
}

TEST(Buffers, InstantsNumberTheBounds) {
  BufferTable table;
  std::string problem;
  ASSERT_TRUE(parse_buffers("id,lower,upper,size\na,0,10,4\nb,10,1000,4\nc,5,15,8\n", table, problem))
      << problem;
  const int expected[][2] = {{0, 1}, {2, 3}, {1, 2}};  // of the instants 0, 5, 10, 15, 1000
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(table.blocks[i].first, expected[i][0]) << i;
    EXPECT_EQ(table.blocks[i].last, expected[i][1]) << i;
  }
  EXPECT_TRUE(meet(table.blocks[0], table.blocks[2]) && meet(table.blocks[1], table.blocks[2]));
  EXPECT_FALSE(meet(table.blocks[0], table.blocks[1]));
}

TEST(Buffers, MistakesAreNamedByLine) {
  const auto problem_of = [](std::string_view text) {
    BufferTable table;
    std::string problem;
    EXPECT_FALSE(parse_buffers(text, table, problem)) << text;
    return problem;
  };
  EXPECT_EQ(problem_of("").substr(0, 2), "1:");
  EXPECT_NE(problem_of("id,lower,upper\n").find("no column `size`"), std::string::npos);
  EXPECT_EQ(problem_of("id,lower,size,upper,size\n"), "1: the header names the column `size` twice");
  EXPECT_NE(problem_of("id,lower,upper,size,offset\n").find("has a column `offset`"), std::string::npos);
  EXPECT_EQ(problem_of("id,lower,upper,size\na,0,1\n"), "2: 3 fields, the header has 4");
  EXPECT_EQ(problem_of("id,lower,upper,size\na,0,1,x\n"), "2: size is `x`, not a whole number");
  EXPECT_EQ(problem_of("id,lower,upper,size\na,0,1,-4\n"), "2: size is -4");
  EXPECT_NE(problem_of("id,lower,upper,size\na,1,1,4\n").find("must be above lower"), std::string::npos);
  EXPECT_NE(problem_of("id,lower,upper,size\na,0,1,4\na,0,1,4\n").find("a second buffer"), std::string::npos);
  EXPECT_NE(problem_of("id,lower,upper,size\na,0,1,9223372036854775807\n").find("2^60"), std::string::npos);
}

}  // namespace
}  // namespace gacc::passes::planner
