// Each class of defect, planted in defects/defects.ptx, is reported by line, block and thread, and only that.
#include "tests/emulator/harness.h"

#include <algorithm>

namespace gacc::emulator {
namespace {

struct Defects : testing::Test {
  std::string text = read_text(GACC_EMULATOR_TESTS "/defects/defects.ptx");
  Machine machine{text};

  // The line marked HERE in a kernel.
  int line_of(const std::string& kernel) const {
    size_t at = text.find("// HERE", text.find(".entry " + kernel + "("));
    return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n'));
  }
  void expect(const std::string& kernel, Defect defect, uint32_t thread, int64_t count, uint32_t block = 0) {
    ASSERT_EQ(machine.emulator.reports().size(), 1u) << machine.reports();
    const Report& report = machine.emulator.reports()[0];
    EXPECT_EQ(report.defect, defect) << report.render();
    EXPECT_EQ(report.kernel, kernel);
    EXPECT_EQ(report.line, line_of(kernel)) << report.render();
    EXPECT_EQ(report.block.x, block) << report.render();
    EXPECT_EQ(report.thread.x, thread) << report.render();
    if (count) {
      EXPECT_EQ(report.count, count) << report.render();
    }
  }
};

TEST_F(Defects, OutOfBounds) {
  uint64_t p = machine.put(std::vector<int>(28));
  // The store behind the load is reported too: it has its own line.
  machine.run("out_of_bounds", {1}, {32}, 0, false, p);
  ASSERT_EQ(machine.emulator.reports().size(), 2u) << machine.reports();
  const Report& report = machine.emulator.reports()[0];
  EXPECT_EQ(report.defect, Defect::out_of_bounds);
  EXPECT_EQ(report.line, line_of("out_of_bounds"));
  EXPECT_EQ(report.thread.x, 28u);
  EXPECT_EQ(report.count, 4);
  EXPECT_NE(report.text.find("offset 112 of `memory` (112 bytes)"), std::string::npos) << report.text;
}
TEST_F(Defects, OutsideOfDeclaredRanges) {
  uint64_t p = machine.put(std::vector<int>(64));
  machine.emulator.declare_live(p, 0, 100, "@fc1.weight");
  machine.emulator.declare_live(p, 128, 128, "@fc1.bias");
  machine.run("out_of_bounds", {1}, {32}, 0, false, p);
  ASSERT_EQ(machine.emulator.reports().size(), 2u) << machine.reports();
  EXPECT_EQ(machine.emulator.reports()[0].thread.x, 25u);
  EXPECT_NE(machine.emulator.reports()[0].text.find("after @fc1.weight"), std::string::npos)
      << machine.reports();
}
TEST_F(Defects, Misaligned) {
  machine.run("misaligned", {1}, {1}, 0, false, machine.put(std::vector<int>(4)));
  expect("misaligned", Defect::misaligned, 0, 1);
}
TEST_F(Defects, UninitialisedGlobal) {
  machine.run("uninitialised_global", {1}, {32}, 0, false, machine.room<int>(4));
  expect("uninitialised_global", Defect::uninitialised_memory, 0, 32);
}

// Values that share bytes: 32 words, from launch to launch.
struct Lives : Defects {
  uint64_t a = machine.put(std::vector<int>(32)), b = machine.put(std::vector<int>(32));
  void move(uint64_t from, uint64_t to, uint32_t words = 32) {
    machine.run("move_words", {1}, {words}, 0, false, from, to);
  }
};
TEST_F(Lives, AValueIsUnwrittenWhenItsLifeBegins) {
  machine.emulator.begin_values({{a, 128, 0, 1}});
  move(a, b);
  expect("move_words", Defect::uninitialised_memory, 0, 32);
}
TEST_F(Lives, AndWhenItHasEnded) {
  machine.emulator.begin_values({{a, 128, -1, 0}, {b, 128, 0, 1}});
  move(a, b);
  EXPECT_EQ(machine.reports(), "");
  machine.emulator.begin_values({{b, 128, -1, 0}});
  move(b, machine.room<int>(32));
  EXPECT_EQ(machine.reports(), "");
  machine.emulator.begin_values({});
  move(a, machine.room<int>(32));
  expect("move_words", Defect::uninitialised_memory, 0, 32);
}
// One value ends and another begins in the same bytes: the first is there until the second is written.
TEST_F(Lives, InPlace) {
  machine.emulator.begin_values({{a, 128, -1, 0}, {a, 128, 0, 1}});
  move(a, a, 28);  // four words are not written
  EXPECT_EQ(machine.reports(), "");
  machine.emulator.begin_values({{a, 128, -1, 0}});
  move(a, b);
  expect("move_words", Defect::uninitialised_memory, 28, 4);
}
// What is written and read in one launch, and what takes its place there.
TEST_F(Lives, OneLaunchLong) {
  machine.emulator.begin_values({{a, 128, 0, 0}, {a, 64, 0, 1}});
  move(b, a);
  machine.emulator.begin_values({{a, 64, -1, 0}});
  move(a, b);
  expect("move_words", Defect::uninitialised_memory, 16, 16);
}
// In a cooperative kernel the barriers of its grid count.
TEST_F(Lives, Phases) {
  const auto run = [&](int64_t first, int64_t last) {
    const uint64_t p = machine.put(std::vector<int>(2));
    machine.emulator.begin_values({{p + 4, 4, first, last}});
    machine.run("behind_the_grid_barrier", {2}, {64}, 0, true, p, 1);
  };
  run(0, 1);
  EXPECT_EQ(machine.reports(), "");
  run(0, 0);
  expect("behind_the_grid_barrier", Defect::uninitialised_memory, 0, 128, 1);
  machine.emulator.clear_reports();
  run(1, 2);
  expect("behind_the_grid_barrier", Defect::uninitialised_memory, 0, 128, 1);
}
TEST_F(Defects, UninitialisedShared) {
  machine.run("uninitialised_shared", {1}, {32}, 0, false);
  expect("uninitialised_shared", Defect::uninitialised_memory, 0, 32);
}
TEST_F(Defects, UninitialisedLocal) {
  machine.run("uninitialised_local", {1}, {2}, 0, false);
  expect("uninitialised_local", Defect::uninitialised_memory, 0, 2);
}
TEST_F(Defects, UninitialisedRegister) {
  machine.run("uninitialised_register", {1}, {32}, 0, false);
  expect("uninitialised_register", Defect::uninitialised_register, 0, 0);
}
TEST_F(Defects, SharedRace) {
  // Both stores of the second warp meet one of the first warp's, so each line is reported.
  machine.run("shared_race", {1}, {64}, 0, false);
  ASSERT_EQ(machine.emulator.reports().size(), 2u) << machine.reports();
  const Report& report = machine.emulator.reports()[1];
  EXPECT_EQ(report.defect, Defect::shared_race);
  EXPECT_EQ(report.line, line_of("shared_race"));
  EXPECT_EQ(report.thread.x, 32u);
  EXPECT_EQ(report.count, 32);
}
TEST_F(Defects, GlobalRace) {
  machine.run("global_race", {3}, {1}, 0, false, machine.room<int>(1));
  expect("global_race", Defect::global_race, 0, 2, 1);
}
TEST_F(Defects, GlobalRaceBetweenWarps) {
  machine.run("warps_through_memory", {1}, {96}, 0, false, machine.room<int>(1));
  expect("warps_through_memory", Defect::global_race, 64, 32);
  EXPECT_NE(machine.reports().find("read at offset 0 of `memory` (4 bytes) after a write by warp 0"),
            std::string::npos)
      << machine.reports();
}
TEST_F(Defects, ArrivalOrdersNothing) {
  machine.run("arrival_orders_nothing", {1}, {64}, 0, false, machine.put(std::vector<int>(2)));
  expect("arrival_orders_nothing", Defect::global_race, 32, 32);
}
TEST_F(Defects, RaceBehindTheGridBarrier) {
  machine.run("behind_the_grid_barrier", {2}, {64}, 0, true, machine.put(std::vector<int>(2)), 0);
  expect("behind_the_grid_barrier", Defect::global_race, 32, 32, 1);
  EXPECT_NE(machine.reports().find("after a write by block 0"), std::string::npos) << machine.reports();
}
TEST_F(Defects, NoRaceBetweenLaunches) {
  uint64_t p = machine.room<int>(1);
  for (int i = 0; i < 2; ++i) machine.run("global_race", {1}, {1}, 0, false, p);
  EXPECT_EQ(machine.reports(), "");
}
TEST_F(Defects, DivergentBarrier) {
  machine.run("divergent_barrier", {1}, {32}, 0, false);
  ASSERT_FALSE(machine.emulator.reports().empty());
  const Report& report = machine.emulator.reports()[0];
  EXPECT_EQ(report.defect, Defect::divergent_barrier);
  EXPECT_EQ(report.line, line_of("divergent_barrier"));
  EXPECT_EQ(report.thread.x, 5u);
}
// Lanes 0 to 4 come to the barrier from code that stands behind it: all meet there.
TEST_F(Defects, NoDivergenceWhereLanesComeFromBehind) {
  machine.run("met_from_behind", {1}, {64}, 0, false);
  EXPECT_EQ(machine.reports(), "");
}
// The same of a vote and a shuffle, whose masks name all lanes.
TEST_F(Defects, NoBadMaskWhereLanesComeFromBehind) {
  const uint64_t sums = machine.room<int>(32);
  machine.run("voted_from_behind", {1}, {32}, 0, false, sums);
  EXPECT_EQ(machine.reports(), "");
  const std::vector<int> got = machine.get<int>(sums, 32);
  for (int lane = 0; lane < 32; ++lane) EXPECT_EQ(got[static_cast<size_t>(lane)], 0x7f + (lane ^ 1)) << lane;
}
TEST_F(Defects, BadShuffle) {
  machine.run("bad_shuffle", {1}, {32}, 0, false);
  expect("bad_shuffle", Defect::bad_shuffle, 0, 16);
}
TEST_F(Defects, DivisionByZero) {
  machine.run("division_by_zero", {1}, {32}, 0, false);
  expect("division_by_zero", Defect::division_by_zero, 0, 1);
}
TEST_F(Defects, Deadlock) {
  machine.run("deadlock", {1}, {96}, 0, false);
  expect("deadlock", Defect::deadlock, 32, 1);
}
TEST_F(Defects, Spinning) {
  machine.run("spin", {2}, {32}, 0, true, machine.put(std::vector<int>(1)));
  ASSERT_EQ(machine.emulator.reports().size(), 1u) << machine.reports();
  EXPECT_EQ(machine.emulator.reports()[0].defect, Defect::deadlock);
}
TEST_F(Defects, Endless) {
  machine.emulator.limit_warps(100000);
  machine.run("endless", {1}, {64}, 0, false, machine.room<int>(1));
  ASSERT_FALSE(machine.emulator.reports().empty());
  const Report& report = machine.emulator.reports().back();
  EXPECT_EQ(report.defect, Defect::endless) << machine.reports();
  EXPECT_NE(report.render().find("endless: line "), std::string::npos) << report.render();
  EXPECT_LT(machine.emulator.executed(), 300000u);
}

TEST_F(Defects, AsynchronousCopyReadTooEarly) {
  machine.run("async_too_early", {1}, {1}, 0, false, machine.put(std::vector<int>(4)));
  expect("async_too_early", Defect::uninitialised_memory, 0, 1);
}

// The same programs without their defect report nothing.
TEST_F(Defects, CleanVariants) {
  machine.run("out_of_bounds", {1}, {32}, 0, false, machine.put(std::vector<int>(32)));
  machine.run("shared_race", {1}, {32}, 0, false);
  machine.run("warps_through_memory", {1}, {64}, 0, false, machine.room<int>(1));
  machine.run("behind_the_grid_barrier", {2}, {64}, 0, true, machine.put(std::vector<int>(2)), 1);
  EXPECT_EQ(machine.reports(), "");
}

}  // namespace
}  // namespace gacc::emulator
