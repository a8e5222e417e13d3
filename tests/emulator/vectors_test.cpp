// What semantics_test leaves open: approximate units give the rounded value, all halves survive a round trip, and
// no entry touches lanes that are not active.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "emulator/lane_ops.h"
#include "emulator/numbers.h"

namespace gacc::emulator {
namespace {

// The result of an entry of f32, in a lane of which all have the same operands.
float eval(const std::string& name, const std::vector<float>& sources) {
  const LaneOp* op = find_lane_op(name);
  EXPECT_NE(op, nullptr) << name;
  if (!op || op->sources != sources.size()) return NAN;
  std::vector<std::vector<float>> lanes;
  std::vector<const void*> pointers;
  for (const float source : sources) lanes.emplace_back(kLanes, source);
  for (const std::vector<float>& operand : lanes) pointers.push_back(operand.data());
  std::vector<float> result(kLanes);
  op->fn(result.data(), pointers.data(), ~0u);
  return result.back();
}

TEST(Vectors, AllHalvesRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto h = static_cast<uint16_t>(bits);
    if ((h & 0x7fff) > 0x7c00) continue;
    ASSERT_EQ(half_from(float_of_half(h)), h);
  }
}
TEST(Vectors, ApproximationsAreTheRoundedValue) {
  EXPECT_EQ(eval("ex2.approx.f32", {3}), 8);
  EXPECT_EQ(eval("ex2.approx.ftz.f32", {-140}), 0);
  EXPECT_EQ(eval("lg2.approx.f32", {0.125f}), -3);
  EXPECT_EQ(eval("rsqrt.approx.f32", {4}), 0.5f);
  // What functions of half precision lean on at the ends of the range.
  EXPECT_EQ(eval("ex2.approx.ftz.f32", {-INFINITY}), 0);
  EXPECT_EQ(eval("ex2.approx.ftz.f32", {128}), INFINITY);
  EXPECT_EQ(eval("rcp.approx.ftz.f32", {INFINITY}), 0);
  EXPECT_EQ(eval("rcp.approx.ftz.f32", {0x1.8p126f}), 0);
  EXPECT_EQ(eval("div.full.f32", {0x1p127f, 0x1p127f}), 1);
  EXPECT_EQ(eval("div.full.f32", {0x1p-140f, 0x1p-139f}), 0.5f);
}
// Every entry runs on every lane mask without touching other lanes: the widths it declares are right.
TEST(Vectors, EveryEntryKeepsInactiveLanes) {
  EXPECT_GT(all_lane_ops().size(), 300u);
  for (const LaneOp* op : all_lane_ops()) {
    alignas(64) uint8_t data[5][8 * kLanes + 16];
    const void* pointers[4];
    for (auto& lane : data) std::memset(lane, 0x3c, sizeof lane);
    for (int i = 0; i < 4; ++i) pointers[i] = data[i];
    op->fn(data[4], pointers, 0x0000ff00u);
    size_t width = op->result == kPredicate ? 0 : op->result;
    for (size_t b = 0; b < sizeof data[4]; ++b) {
      bool active = width ? b / width >= 8 && b / width < 16 : b == 1;
      if (!active) {
        ASSERT_EQ(data[4][b], 0x3c) << op->name << " byte " << b;
      }
    }
  }
}

}  // namespace
}  // namespace gacc::emulator
