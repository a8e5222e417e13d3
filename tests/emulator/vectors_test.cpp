// Arithmetic against values worked out from the text of the PTX ISA (not confirmed on hardware: none was at
// hand): rounding modes, saturation, flushing, NaN, edge cases of shifts and bit fields; mma layouts are in
// kernels_test.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "emulator/lane_ops.h"
#include "emulator/numbers.h"

namespace gacc::emulator {
namespace {

// Runs one entry with the same values in every lane; operands are given as bits.
uint64_t eval(const std::string& name, std::vector<uint64_t> sources, uint32_t mask = ~0u) {
  const LaneOp* op = find_lane_op(name);
  EXPECT_NE(op, nullptr) << name;
  if (!op || op->sources != sources.size()) return ~0ull;
  alignas(64) uint8_t data[5][8 * kLanes] = {};
  const void* pointers[4];
  for (size_t i = 0; i < sources.size(); ++i) {
    if (op->source[i] == kPredicate)
      std::memcpy(data[i], &sources[i], 4);
    else
      for (size_t l = 0; l < kLanes; ++l)
        std::memcpy(data[i] + l * op->source[i], &sources[i], op->source[i]);
    pointers[i] = data[i];
  }
  op->fn(data[4], pointers, mask);
  uint64_t result = 0;
  size_t width = op->result == kPredicate ? 4 : op->result;
  size_t lane = op->result == kPredicate ? 0 : static_cast<size_t>(31 - __builtin_clz(mask));
  std::memcpy(&result, data[4] + lane * width, width);
  return result;
}
uint64_t f(float x) { return bits_as<uint32_t>(x); }
constexpr uint64_t kNan = 0x7fffffff;

TEST(Vectors, RoundingOfF32) {
  float e = 0x1p-24f;  // half an ulp of 1
  EXPECT_EQ(eval("add.f32", {f(1), f(e)}), f(1));
  EXPECT_EQ(eval("add.rn.f32", {f(1 + 0x1p-23f), f(e)}), f(1 + 0x1p-22f));  // a tie, to even
  EXPECT_EQ(eval("div.rn.f32", {f(1), f(3)}), f(1 / 3.0f));
  EXPECT_EQ(eval("fma.rn.f32", {f(1 + 0x1p-12f), f(1 - 0x1p-12f), f(-1)}), f(-0x1p-24f));
  EXPECT_EQ(eval("sqrt.rn.f32", {f(2)}), f(std::sqrt(2.0f)));
  EXPECT_EQ(eval("rcp.rn.f32", {f(3)}), f(1 / 3.0f));
}
TEST(Vectors, SubnormalsAndNan) {
  float tiny = 0x1p-130f;
  EXPECT_EQ(eval("add.f32", {f(tiny), f(tiny)}), f(2 * tiny));
  EXPECT_EQ(eval("add.f32", {0xffc12345u, f(1)}), kNan);
  EXPECT_EQ(eval("min.f32", {f(NAN), f(1)}), f(1));
  EXPECT_EQ(eval("max.NaN.f32", {f(1), f(NAN)}), kNan);
  EXPECT_EQ(eval("min.f32", {f(0.0f), f(-0.0f)}), f(-0.0f));
  EXPECT_EQ(eval("max.f32", {f(-0.0f), f(0.0f)}), f(0.0f));
}
TEST(Vectors, FloatToInteger) {
  for (auto [mode, want] : {std::pair{"rni", 2}, {"rzi", 2}, {"rmi", 2}, {"rpi", 3}})
    EXPECT_EQ(eval(std::string("cvt.") + mode + ".s32.f32", {f(2.5f)}), static_cast<uint64_t>(want)) << mode;
  for (auto [mode, want] : {std::pair{"rni", -4}, {"rzi", -3}, {"rmi", -4}, {"rpi", -3}})
    EXPECT_EQ(eval(std::string("cvt.") + mode + ".s32.f32", {f(-3.5f)}), static_cast<uint32_t>(want)) << mode;
  EXPECT_EQ(eval("cvt.rzi.s32.f32", {f(3e9f)}), 0x7fffffffu);
  EXPECT_EQ(eval("cvt.rzi.u32.f32", {f(-1)}), 0u);
  EXPECT_EQ(eval("cvt.rzi.u32.f32", {f(5e9f)}), 0xffffffffu);
  EXPECT_EQ(eval("cvt.rzi.s32.f32", {f(NAN)}), 0u);
  EXPECT_EQ(eval("cvt.rzi.u8.f32", {f(300)}), 255u);
}
TEST(Vectors, IntegerToFloat) {
  EXPECT_EQ(eval("cvt.rn.f32.s32", {16777217}), f(16777216.0f));
  EXPECT_EQ(eval("cvt.rn.f32.u64", {~0ull}), f(0x1p64f));
}
TEST(Vectors, SmallFloats) {
  EXPECT_EQ(eval("cvt.rn.f16.f32", {f(65519.0f)}), 0x7bffu);
  EXPECT_EQ(eval("cvt.rn.f16.f32", {f(65520.0f)}), 0x7c00u);
  EXPECT_EQ(eval("cvt.rn.f16.f32", {f(0x1p-24f)}), 1u);
  EXPECT_EQ(eval("cvt.rn.f16.f32", {f(0x1p-25f)}), 0u);  // a tie, to even
  EXPECT_EQ(eval("cvt.rn.f16.f32", {f(0x1.8p-24f)}), 2u);
  EXPECT_EQ(eval("cvt.rn.f16.f32", {f(1 + 0x1p-11f)}), 0x3c00u);
  EXPECT_EQ(eval("cvt.rn.f16.f32", {f(1 + 0x1.8p-10f)}), 0x3c02u);
  EXPECT_EQ(eval("cvt.rn.f16.f32", {f(NAN)}), 0x7fffu);
  EXPECT_EQ(eval("cvt.f32.f16", {1}), f(0x1p-24f));
  EXPECT_EQ(eval("cvt.rn.bf16.f32", {0x3f808000u}), 0x3f80u);
  EXPECT_EQ(eval("cvt.rn.bf16.f32", {0x3f818000u}), 0x3f82u);
  EXPECT_EQ(eval("cvt.rn.bf16.f32", {0x7f7fffffu}), 0x7f80u);
  EXPECT_EQ(eval("cvt.rn.bf16x2.f32", {f(1), f(2)}), 0x3f804000u);  // the first goes to the top
  EXPECT_EQ(eval("cvt.rn.f16x2.f32", {f(1), f(2)}), 0x3c004000u);
  EXPECT_EQ(eval("fma.rn.f16", {0x3c01, 0x3c01, 0x8000}), 0x3c02u);
  EXPECT_EQ(eval("add.f16x2", {0x3c004000, 0x3c003c00}), 0x40004200u);
  EXPECT_EQ(eval("fma.rn.bf16x2", {0x3f803f80, 0x40004000, 0x3f80bf80}), 0x40403f80u);
  // Product at a tie between two bf16 and an addend far below it: to odd keeps the side.
  EXPECT_EQ(eval("fma.rn.bf16", {0x3f81, 0x3fc0, 0x0100}),
            eval("cvt.rn.bf16.f32", {f(std::nextafter(1.0078125f * 1.5f, 9.0f))}));
}
TEST(Vectors, AllHalvesRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto h = static_cast<uint16_t>(bits);
    if ((h & 0x7fff) > 0x7c00) continue;
    ASSERT_EQ(half_from(float_of_half(h)), h);
  }
}
TEST(Vectors, ShiftsAndFields) {
  EXPECT_EQ(eval("shl.b32", {1, 32}), 0u);
  EXPECT_EQ(eval("shr.s32", {0x80000000u, 40}), 0xffffffffu);
  EXPECT_EQ(eval("shr.u32", {0x80000000u, 40}), 0u);
  EXPECT_EQ(eval("bfe.u32", {0xabcd1234u, 8, 8}), 0x12u);
  EXPECT_EQ(eval("bfe.s32", {0x0000f000u, 12, 4}), 0xffffffffu);
  EXPECT_EQ(eval("bfe.u32", {0xffffffffu, 28, 10}), 0xfu);
  EXPECT_EQ(eval("bfe.s32", {5, 0, 0}), 0u);
  EXPECT_EQ(eval("bfi.b32", {0xff, 0, 8, 4}), 0xf00u);
  EXPECT_EQ(eval("prmt.b32", {0x33221100u, 0x77665544u, 0x0475}), 0x00447755u);
  EXPECT_EQ(eval("prmt.b32", {0x00008000u, 0, 0x9999}), 0xffffffffu);
  EXPECT_EQ(eval("shf.l.wrap.b32", {0x80000000u, 1, 1}), 3u);
  EXPECT_EQ(eval("shf.r.clamp.b32", {1, 0xf0, 36}), 0xf0u);
  EXPECT_EQ(eval("popc.b64", {0xff00000000000001ull}), 9u);
  EXPECT_EQ(eval("clz.b32", {1}), 31u);
  EXPECT_EQ(eval("clz.b64", {0}), 64u);
  EXPECT_EQ(eval("brev.b32", {1}), 0x80000000u);
  EXPECT_EQ(eval("mul.hi.s32", {0xffffffffu, 2}), 0xffffffffu);
  EXPECT_EQ(eval("mul.wide.s32", {0xffffffffu, 2}), static_cast<uint64_t>(-2));
  EXPECT_EQ(eval("mul.hi.u64", {~0ull, 2}), 1u);
  EXPECT_EQ(eval("mad.lo.s32", {3, 4, 5}), 17u);
  EXPECT_EQ(eval("div.s32", {0x80000000u, 0xffffffffu}), 0x80000000u);
  EXPECT_EQ(eval("max.s32", {0xffffffffu, 2}), 2u);
}
TEST(Vectors, ComparisonsWithNan) {
  for (const char* name : {"eq", "ne", "lt", "le", "gt", "ge", "num"})
    EXPECT_EQ(eval(std::string("setp.") + name + ".f32", {f(NAN), f(1)}), 0u) << name;
  for (const char* name : {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"})
    EXPECT_EQ(eval(std::string("setp.") + name + ".f32", {f(NAN), f(1)}), 0xffffffffu) << name;
}
TEST(Vectors, ApproximationsAreTheRoundedValue) {
  EXPECT_EQ(eval("ex2.approx.f32", {f(3)}), f(8));
  EXPECT_EQ(eval("ex2.approx.ftz.f32", {f(-140)}), f(0));
  EXPECT_EQ(eval("lg2.approx.f32", {f(0.125f)}), f(-3));
  EXPECT_EQ(eval("rsqrt.approx.f32", {f(4)}), f(0.5f));
  // What functions of half precision lean on at the ends of the range.
  EXPECT_EQ(eval("ex2.approx.ftz.f32", {f(-INFINITY)}), f(0));
  EXPECT_EQ(eval("ex2.approx.ftz.f32", {f(128)}), f(INFINITY));
  EXPECT_EQ(eval("rcp.approx.ftz.f32", {f(INFINITY)}), f(0));
  EXPECT_EQ(eval("rcp.approx.ftz.f32", {f(0x1.8p126f)}), f(0));
  EXPECT_EQ(eval("div.full.f32", {f(0x1p127f), f(0x1p127f)}), f(1));
  EXPECT_EQ(eval("div.full.f32", {f(0x1p-140f), f(0x1p-139f)}), f(0.5f));
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
