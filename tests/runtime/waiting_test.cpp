// What is said of work that takes long, and when: by a clock of the test's own.
#include "runtime/tell/waiting.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace gacc {
namespace {

using Said = std::vector<std::pair<double, std::string>>;  // a line, and when

// Asks every half second up to `end`; `work` gives what is done at a time.
template <class F>
Said said_until(double end, bool moves, const F& work) {
  WaitingLines lines(moves);
  Said said;
  for (double now = 0; now <= end; now += 0.5)
    if (const auto line = lines.line(now, work(now))) said.emplace_back(now, *line);
  return said;
}

std::optional<LongWork::State> reading(double now) {
  return LongWork::State{"reading weights", static_cast<int64_t>(now), 200};
}

TEST(Waiting, says_nothing_of_what_takes_less_than_two_seconds) {
  const auto short_pieces = [](double now) {
    const bool pause = static_cast<int>(now * 2) % 4 == 3;  // half a second after each one and a half
    return pause ? std::nullopt : reading(now);
  };
  EXPECT_EQ(said_until(20, false, short_pieces), Said());
  EXPECT_EQ(said_until(20, true, short_pieces), Said());
}

TEST(Waiting, says_few_lines_where_they_stay) {
  const Said expected = {{2, "reading weights, 1 % (0:02)"},
                         {10, "reading weights, 5 % (0:10)"},
                         {30, "reading weights, 15 % (0:30)"},
                         {60, "reading weights, 30 % (1:00)"},
                         {120, "reading weights, 60 % (2:00)"}};
  EXPECT_EQ(said_until(150, false, reading), expected);
}

TEST(Waiting, moves_on_a_terminal) {
  const Said said = said_until(4, true, reading);
  ASSERT_EQ(said.size(), 5U);  // from the second second on, at each look
  EXPECT_EQ(said.front(), std::pair(2.0, std::string("reading weights, 1 % (0:02)")));
  EXPECT_EQ(said.back(), std::pair(4.0, std::string("reading weights, 2 % (0:04)")));
}

// One piece behind the other, without a pause, is one wait; what is said is the last one's.
TEST(Waiting, adds_up_pieces_that_follow_each_other) {
  const auto pieces = [](double now) {
    return now < 1.5 ? reading(now) : std::optional(LongWork::State{"compiling code for the CPU", 0, 0});
  };
  EXPECT_EQ(said_until(3, false, pieces), (Said{{2, "compiling code for the CPU (0:02)"}}));
}

std::string current() {
  std::string text = "nothing";
  LongWork::look([&](const std::optional<LongWork::State>& work) {
    if (work) text = fmt::format("{} {}/{}", work->what, work->done, work->parts);
  });
  return text;
}

TEST(Waiting, tells_of_the_inner_piece_of_work) {
  EXPECT_EQ(current(), "nothing");
  {
    LongWork outer("starting");
    {
      LongWork inner("reading", 8);
      inner.done(3);
      EXPECT_EQ(current(), "reading 3/8");
    }
    outer.now("drawing");
    EXPECT_EQ(current(), "drawing 0/0");
  }
  EXPECT_EQ(current(), "nothing");
}

}  // namespace
}  // namespace gacc
