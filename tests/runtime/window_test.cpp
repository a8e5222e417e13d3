// The arithmetic of windows and tails, against the oracle's description of them.
#include "runtime/session/window.h"

#include <gtest/gtest.h>

#include "ir/text/size_text.h"

namespace gacc {
namespace {

// The windows of some epochs as text: "8x4 8x4 8x3+" (samples x launches; '+' short of K, '-' dropped, '?'
// left open).
std::string windows(WindowRules rules, int epochs) {
  std::string text;
  int64_t launches = 0, samples = 0;
  auto close = [&](const char* mark) {
    text += fmt::format("{}{}x{}{}", text.empty() ? "" : " ", samples, launches, mark);
    launches = samples = 0;
  };
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (int64_t launch = 0; launch < rules.launches_per_epoch(); ++launch) {
      ++launches;
      samples += rules.batch(launch);
      WindowRules::Next next = rules.after(launch, launches);
      if (next == WindowRules::Next::update) close(launches < rules.accumulate ? "+" : "");
      if (next == WindowRules::Next::drop) close("-");
    }
  if (launches) close("?");
  return text;
}

TEST(Window, tails) {
  EXPECT_EQ(windows({10, 2, 2, Tail::flush}, 1), "4x2 4x2 2x1+");
  EXPECT_EQ(windows({10, 2, 2, Tail::drop}, 2), "4x2 4x2 2x1- 4x2 4x2 2x1-");
  EXPECT_EQ(windows({10, 2, 2, Tail::carry}, 2), "4x2 4x2 4x2 4x2 4x2");
  EXPECT_EQ(windows({11, 2, 4, Tail::flush}, 1), "8x4 3x2+");
  EXPECT_EQ(windows({11, 2, 4, Tail::drop}, 1), "8x4 2x1-");
  EXPECT_EQ(windows({11, 2, 4, Tail::carry}, 2), "8x4 7x4 7x4");
  EXPECT_EQ(windows({3, 4, 2, Tail::carry}, 3), "6x2 3x1?");
  EXPECT_EQ(windows({8, 2, 4, Tail::drop}, 1), "8x4");
  EXPECT_EQ(windows({5, 1, 1, Tail::flush}, 1), "1x1 1x1 1x1 1x1 1x1");
}

TEST(Window, updates_of_so_many_launches) {
  for (const Tail tail : {Tail::flush, Tail::drop, Tail::carry})
    for (const int64_t samples : {1, 3, 10, 11, 24}) {
      for (const int64_t accumulate : {1, 2, 4}) {
        const WindowRules rules{samples, 2, accumulate, tail};
        int64_t made = 0, updates = 0, open = 0;
        EXPECT_EQ(rules.updates_of(0), 0);
        for (int epoch = 0; epoch < 3; ++epoch)
          for (int64_t launch = 0; launch < rules.launches_per_epoch(); ++launch) {
            const WindowRules::Next next = rules.after(launch, ++open);
            updates += next == WindowRules::Next::update;
            if (next != WindowRules::Next::launch) open = 0;
            EXPECT_EQ(rules.updates_of(++made), updates) << samples << " samples, K " << accumulate;
          }
      }
    }
}

TEST(Window,
     the_case_of_1000_samples) {  // 16 x 4: 63 launches, the last window has 3, the last micro-batch 8
  WindowRules rules{1000, 16, 4, Tail::flush};
  EXPECT_EQ(rules.launches_per_epoch(), 63);
  EXPECT_EQ(rules.batch(62), 8);
  EXPECT_EQ(rules.after(62, 3), WindowRules::Next::update);
}

TEST(Window, a_run_that_could_never_update_is_an_error) {
  auto says = [](WindowRules rules, std::optional<int64_t> epochs) {
    return rules.check_can_update(epochs).text();
  };
  EXPECT_EQ(says({1, 32, 4, Tail::flush}, 1), "");
  EXPECT_EQ(says({0, 32, 4, Tail::flush}, 1), "the training data has no samples");
  EXPECT_NE(says({31, 32, 1, Tail::drop}, 1).find("31 samples do not fill one micro-batch of 32"),
            std::string::npos);
  EXPECT_NE(says({127, 32, 4, Tail::drop}, {}).find("make 3 launches of 32 an epoch, a window needs 4"),
            std::string::npos);
  EXPECT_EQ(says({128, 32, 4, Tail::drop}, 1), "");
  EXPECT_NE(says({33, 32, 5, Tail::carry}, 2).find("train for at least 3 epochs"), std::string::npos);
  EXPECT_EQ(says({33, 32, 5, Tail::carry}, 3), "");
  EXPECT_EQ(says({33, 32, 5, Tail::carry}, {}), "");
}

// The compiler has the same words for numbers in messages, in a place of its own.
TEST(Counted, number_and_noun_agree) {
  struct Case {
    int64_t count;
    const char *noun, *text;
  };
  for (const Case& each : {Case{0, "epoch", "0 epochs"},
                           {1, "epoch", "1 epoch"},
                           {2, "update", "2 updates"},
                           {1, "launch", "1 launch"},
                           {3, "launch", "3 launches"},
                           {2, "class", "2 classes"}}) {
    EXPECT_EQ(counted(each.count, each.noun), each.text);
    EXPECT_EQ(ir::counted(each.count, each.noun), each.text);
  }
}

}  // namespace
}  // namespace gacc
