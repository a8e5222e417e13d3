// Streams of tokens: windows without gaps, targets one token later, splits, limits, and what is refused.
#include <algorithm>
#include <numeric>

#include "runtime/data/source.h"
#include "tests/data/make_files.h"

namespace gacc::test {
namespace {

// Targets stand first in the file of this model, as an author may have them, but are the second i32 input.
Plan token_plan(int64_t length, std::optional<int64_t> range = {}) {
  Plan plan;
  plan.micro_batch = 4;
  PlanInput input;
  input.dtype = DType::i32;
  input.shape = {length};
  input.range = range;
  for (const char* name : {"tokens", "next"}) {
    input.name = name;
    plan.inputs.push_back(input);
  }
  return plan;
}

std::vector<int32_t> gathered(const Dataset& data, const Plan& plan, size_t input,
                              std::vector<int64_t> order) {
  std::vector<std::byte> bytes(order.size() * static_cast<size_t>(plan.inputs[input].shape[0]) * 4);
  EXPECT_TRUE(data.gather(input, plan.inputs[input], order, bytes));
  return values<int32_t>(bytes);
}

std::string error(const std::string& spec, const Plan& plan) {
  Dataset data;
  return load_dataset(spec, plan, data).text();
}

TEST(Tokens, WindowsFollowEachOther) {
  Folder folder;
  const Plan plan = token_plan(3);
  const std::string file = folder.put("t.bin", raw<uint16_t>({5, 300, 7, 8, 65535, 10, 11, 12, 13}));
  Dataset data;
  ASSERT_EQ(load_dataset("tokens:" + file, plan, data).text(), "");
  EXPECT_EQ(data.samples, 2);  // 9 tokens: 13 would be the last target of a third window
  EXPECT_EQ(data.columns[0].dtype, "u16");
  EXPECT_EQ(gathered(data, plan, 0, {0, 1}), (std::vector<int32_t>{5, 300, 7, 8, 65535, 10}));
  EXPECT_EQ(gathered(data, plan, 1, {0, 1}), (std::vector<int32_t>{300, 7, 8, 65535, 10, 11}));
  EXPECT_EQ(gathered(data, plan, 1, {1, 0}), (std::vector<int32_t>{65535, 10, 11, 300, 7, 8}));
  ASSERT_EQ(load_dataset("tokens:" + file + ",limit=1", plan, data).text(), "");
  EXPECT_EQ(data.samples, 1);
  EXPECT_EQ(data.bytes(1).size(), 6u);
  ASSERT_EQ(load_dataset("tokens:" + file + ",limit=7", plan, data).text(), "");
  EXPECT_EQ(data.samples, 2);
}

TEST(Tokens, TextIsSplitByNinetyPercent) {
  Folder folder;
  const Plan plan = token_plan(2, 256);
  std::string text(24, ' ');
  std::iota(text.begin(), text.end(), 'a');
  const std::string file = folder.put("t.txt", text), zipped = folder.put("t.txt.gz", gzip(text));
  for (const std::string& path : {file, zipped}) {
    Dataset all, train, test;
    ASSERT_EQ(load_dataset("text:" + path, plan, all).text(), "");
    ASSERT_EQ(load_dataset("text:" + path + ",split=train", plan, train).text(), "");
    ASSERT_EQ(load_dataset("text:" + path + ",split=test", plan, test).text(), "");
    EXPECT_EQ(all.samples, 11);    // 24 bytes
    EXPECT_EQ(train.samples, 10);  // 21
    EXPECT_EQ(test.samples, 1);    // 3
    EXPECT_EQ(all.columns[0].dtype, "u8");
    EXPECT_EQ(gathered(train, plan, 1, {9}), (std::vector<int32_t>{'t', 'u'}));
    EXPECT_EQ(gathered(test, plan, 0, {0}), (std::vector<int32_t>{'v', 'w'}));
  }
}

TEST(Tokens, BytesThatLookLikeGzipAreTokens) {
  Folder folder;
  const Plan plan = token_plan(1);
  Dataset data;
  const std::string file = folder.put("t.bin", raw<uint16_t>({0x8b1f, 8, 9}));
  ASSERT_EQ(load_dataset("tokens:" + file, plan, data).text(), "");
  EXPECT_EQ(gathered(data, plan, 0, {0}), (std::vector<int32_t>{0x8b1f}));
}

TEST(Tokens, RefusesWhatDoesNotFit) {
  Folder folder;
  const std::string odd = folder.put("odd.bin", "abcde"), few = folder.put("few.bin", "abcdefgh"),
                    none = folder.put("none", "");
  EXPECT_EQ(error("tokens:" + odd, token_plan(1)), odd + ": has 5 bytes, but its tokens have 2 bytes each");
  EXPECT_EQ(error("tokens:" + few, token_plan(4)),
            few + ": holds 4 tokens; one sample takes 4, and one more for the last target");
  EXPECT_EQ(error("text:" + none, token_plan(1)),
            none + ": holds 0 tokens; one sample takes 1, and one more for the last target");
  EXPECT_EQ(error("text:" + few + ",split=test", token_plan(1)),
            few + ": the last 10 % are 1 token; one sample takes 1, and one more for the last target");
  EXPECT_EQ(error("text:" + few, token_plan(2, 'd')),
            few + ": token 3: the value 100 is not valid for the input \"tokens\": it takes 0 to 99");
  Plan ignoring = token_plan(2, 'd');
  ignoring.inputs[0].range.reset();
  ignoring.inputs[1].ignore_index = 'd';
  EXPECT_EQ(error("text:" + few, ignoring),
            few +
                ": token 4: the value 101 is not valid for the input \"next\": it takes 0 to 99, and 100 "
                "to be ignored");
  Plan alone = token_plan(2), uneven = token_plan(2), other = token_plan(2);
  alone.inputs.pop_back();
  EXPECT_EQ(error("text:" + few, alone),
            "text: needs an i32 input for the tokens and a second one for the targets");
  uneven.inputs[1].shape = {3};
  EXPECT_EQ(error("text:" + few, uneven),
            "text: tokens and targets come in windows of one length; the inputs \"tokens\" and \"next\" have "
            "the shapes [2] and [3]");
  other.inputs.push_back({});
  other.inputs.back().name = "x";
  other.inputs.back().dtype = DType::f32;
  EXPECT_EQ(error("tokens:" + few, other),
            "tokens: gives tokens and targets; there is nothing for the input \"x\"");
  EXPECT_NE(error("tokens:" + folder.path("missing"), token_plan(1)).find("missing"), std::string::npos);
  EXPECT_EQ(error("synthetic:tokens,limit=99999999999", token_plan(8)),
            "synthetic:tokens makes at most 4294967296 tokens, not 99999999999 times 8");
}

// The rule is there to be found: a table of what follows two tokens in the train set predicts the test set.
TEST(Tokens, GeneratedOnesArePureAndCanBeLearned) {
  const Plan plan = token_plan(16, 13);
  Dataset train, again, test;
  ASSERT_EQ(load_dataset("synthetic:tokens,limit=400", plan, train).text(), "");
  ASSERT_EQ(load_dataset("synthetic:tokens,limit=100", plan, again).text(), "");
  ASSERT_EQ(load_dataset("synthetic:tokens,limit=100,split=test", plan, test).text(), "");
  std::vector<int64_t> order(100);
  std::iota(order.begin(), order.end(), 0);
  EXPECT_EQ(gathered(train, plan, 0, order), gathered(again, plan, 0, order));
  EXPECT_NE(gathered(train, plan, 0, order), gathered(test, plan, 0, order));
  order.resize(400);
  std::iota(order.begin(), order.end(), 0);
  std::vector<int> seen(13 * 13 * 13);
  const std::vector<int32_t> x = gathered(train, plan, 0, order), y = gathered(train, plan, 1, order);
  const auto at = [](const std::vector<int32_t>& xs, const std::vector<int32_t>& ys, size_t i) {
    return static_cast<size_t>((xs[i - 1] * 13 + xs[i]) * 13 + ys[i]);
  };
  for (size_t i = 0; i < x.size(); ++i)
    if (i % 16 != 0) ++seen[at(x, y, i)];
  order.resize(100);
  const std::vector<int32_t> u = gathered(test, plan, 0, order), v = gathered(test, plan, 1, order);
  int right = 0, all = 0;
  for (size_t i = 0; i < u.size(); ++i) {
    if (i % 16 == 0) continue;
    const size_t first = at(u, v, i) - static_cast<size_t>(v[i]);
    const auto best = std::max_element(seen.begin() + static_cast<std::ptrdiff_t>(first),
                                       seen.begin() + static_cast<std::ptrdiff_t>(first) + 13);
    right += best - seen.begin() == static_cast<std::ptrdiff_t>(at(u, v, i));
    ++all;
  }
  EXPECT_GT(right, all * 8 / 10);
}

// Any bytes give windows that fit, or one line.
TEST(Tokens, EveryLengthOfStreamIsCutOrRefused) {
  const std::string stream(40, 'x');
  for (size_t size = 0; size <= stream.size(); ++size)
    for (const char* dtype : {"u8", "u16"})
      for (const char* split : {"", "train", "test"})
        for (const int64_t length : {int64_t{1}, int64_t{3}, int64_t{50}, int64_t{1} << 60}) {
          const Result<TokenWindows> cut =
              cut_tokens(static_cast<int64_t>(size), "f", dtype, split, length, {});
          if (!cut) continue;
          const size_t each = dtype == std::string("u8") ? 1 : 2;
          EXPECT_GE(cut->windows, 1);
          EXPECT_LE(cut->first + static_cast<size_t>(cut->windows * length + 1) * each, size);
        }
}

}  // namespace
}  // namespace gacc::test
