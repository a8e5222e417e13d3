// Moves, comparisons with a second predicate, control flow and special registers, against the text of the PTX
// ISA (not confirmed on hardware); and that every opcode of the table has its test.
#include "emulator/lane_ops.h"

#include <cstdio>

#include "tests/emulator/opcodes.h"

namespace gacc::emulator {
namespace {

TEST(Opcodes, Moves) {
  Bytes data;
  for (unsigned i = 0; i < 512; ++i) data.push_back(static_cast<uint8_t>(i * 37 + 129));
  for (const std::string& opcode : opcodes_of(kMoves)) {
    Words words(opcode);
    words.has("mov");
    const bool predicate = words.has("pred");
    const std::string type = predicate ? "" : words.take(kTypes);
    if (!words.done()) continue;
    std::string body;
    if (predicate) {
      body = "ld.global.u32 %r1, [%rd29]; setp.lt.s32 %p1, %r1, 0; " + opcode +
             " %p2, %p1; selp.u32 %r2, 1, 0, %p2; st.global.u32 [%rd28], %r2;";
    } else {
      const int size = bytes_of_type(type);
      const std::string reg = type == "f32" ? "%f" : size == 2 ? "%h" : size == 4 ? "%r" : "%rd";
      body = fmt::format("ld.global.b{0} {1}1, [%rd29]; {2} {1}2, {1}1; st.global.b{0} [%rd28], {1}2;",
                         8 * size, reg, opcode);
    }
    const Bytes out = run_vector({.opcode = opcode, .text = kernel_text(body), .in = data, .out_bytes = 512});
    const size_t size = predicate ? 4 : static_cast<size_t>(bytes_of_type(type));
    for (size_t i = 0; i < 512; ++i) {
      const uint8_t sign = data[i / 16 * 16 + 3] >> 7;
      const uint8_t moved = predicate ? (i % 16 == 0 ? sign : 0) : data[i];
      ASSERT_EQ(out[i], i % 16 < size ? moved : 0xee) << opcode << " byte " << i;
    }
  }
}

// The first element of a vector is the lowest part.
TEST(Opcodes, MovesOfVectors) {
  const Bytes data = bytes_of(std::vector<uint64_t>(64, 0x8877665544332211));
  const std::pair<const char*, uint64_t> cases[] = {
      {"mov.b32 {%h1,%h2}, %r1; mov.b32 %r2, {%h2,%h1}; cvt.u64.u32 %rd2, %r2;", 0x22114433},
      {"mov.b64 {%r2,%r3}, %rd1; mov.b64 %rd2, {%r3,%r2};", 0x4433221188776655},
      {"mov.b64 {%h1,%h2,%h3,%h4}, %rd1; mov.b64 %rd2, {%h4,%h3,%h2,%h1};", 0x2211443366558877},
      {"mov.b64 {_,%r2}, %rd1; cvt.u64.u32 %rd2, %r2;", 0x88776655}};
  for (const auto& [text, want] : cases) {
    const Bytes out =
        run_vector({.opcode = text,
                    .text = kernel_text("ld.global.b64 %rd1, [%rd29]; ld.global.b32 %r1, [%rd29];\n" +
                                        std::string(text) + "\nst.global.b64 [%rd28], %rd2;"),
                    .in = data,
                    .out_bytes = 512});
    EXPECT_EQ(value_at<uint64_t>(out, 6), want) << text;
  }
}

// p = low a CMP low b, q = high a CMP high b, every pair of relations.
TEST(Opcodes, ComparisonsOfPairs) {
  // 1 and 2 and a NaN, whose bits are those of a small, a larger one and a NaN in both half types.
  constexpr uint16_t kValues[] = {0x3c00, 0x4000, 0x7fff};
  Bytes in(512);
  for (size_t lane = 0; lane < 32; ++lane)
    for (size_t operand = 0; operand < 2; ++operand)
      for (size_t half = 0; half < 2; ++half) {
        const size_t which = (lane / (operand == 0 ? 1 : 3) + half * (operand + 1)) % 3;
        std::memcpy(in.data() + 16 * lane + 4 * operand + 2 * half, &kValues[which], 2);
      }
  for (const std::string& opcode : opcodes_of(kComparisons)) {
    if (!opcode.ends_with("f16x2")) continue;
    const LaneOp* op = find_lane_op(opcode.substr(0, opcode.size() - 2));
    ASSERT_NE(op, nullptr) << opcode;
    std::string body = "ld.global.b32 %r1, [%rd29]; ld.global.b32 %r2, [%rd29+4];\n";
    body += fmt::format("{0} %p1|%p2, %r1, %r2; {0} _|%p4, %r1, %r2;\n", opcode);
    body +=
        "selp.u32 %r10, 1, 0, %p1; selp.u32 %r11, 2, 0, %p2; selp.u32 %r12, 4, 0, %p4;\n"
        "add.u32 %r10, %r10, %r11; add.u32 %r10, %r10, %r12; st.global.u32 [%rd28], %r10;\n";
    const Bytes out = run_vector({.opcode = opcode, .text = kernel_text(body), .in = in, .out_bytes = 512});
    for (size_t lane = 0; lane < 32; ++lane) {
      const auto relation = [&](size_t half) {
        alignas(64) uint8_t data[3][8 * kLanes] = {};
        const void* sources[2] = {data[0], data[1]};
        for (size_t operand = 0; operand < 2; ++operand)
          std::memcpy(data[operand], in.data() + 16 * lane + 4 * operand + 2 * half, 2);
        op->fn(data[2], sources, 1);
        return uint32_t{data[2][0]} & 1;
      };
      const uint32_t want = relation(0) + relation(1) * 2 + relation(1) * 4;
      ASSERT_EQ(value_at<uint32_t>(out, lane * 4), want) << opcode << " lane " << lane;
    }
  }
}

// p = a CMP b, q = !p. What CMP means is semantics_test's.
TEST(Opcodes, Comparisons) {
  for (const std::string& opcode : opcodes_of(kComparisons)) {
    if (opcode.ends_with("f16x2")) continue;  // above
    const LaneOp* op = find_lane_op(opcode);
    ASSERT_NE(op, nullptr) << opcode << " is no entry of the arithmetic";
    const int size = op->source[0];
    const std::string type = opcode.substr(opcode.rfind('.') + 1);
    const std::string reg = type == "f32" ? "%f" : size == 2 ? "%h" : size == 4 ? "%r" : "%rd";
    const uint64_t small = type == "f32" ? 0x3f800000 : 1, large = type == "f32" ? 0x40000000 : 2;
    const bool second = type.find("f16") == std::string::npos;  // half types write one predicate
    const Bytes in = bytes_of(std::vector<uint64_t>{small, large, large, small, small, small, 0, 0});
    std::string body = "mov.u32 %r20, 0;\n";
    for (int pair = 0; pair < 3; ++pair) {
      body += fmt::format("ld.global.b{0} {1}1, [%rd30+{2}]; ld.global.b{0} {1}2, [%rd30+{3}];\n", 8 * size,
                          reg, 16 * pair, 16 * pair + 8);
      body += fmt::format("{0} %p4, {1}1, {1}2;\n", opcode, reg);
      body += second ? fmt::format("{0} %p1|%p2, {1}1, {1}2;\n", opcode, reg)
                     : "mov.pred %p1, %p4; setp.ne.u32 %p2, 0, 0;\n";
      body +=
          "selp.u32 %r10, 1, 0, %p1; selp.u32 %r11, 2, 0, %p2; selp.u32 %r12, 4, 0, %p4; add.u32 %r10, %r10, "
          "%r11; add.u32 %r10, %r10, %r12; shl.b32 %r20, %r20, 3; or.b32 %r20, %r20, %r10;\n";
    }
    body += "st.global.u32 [%rd28], %r20;\n";
    const Bytes out = run_vector({.opcode = opcode, .text = kernel_text(body), .in = in, .out_bytes = 512});
    uint32_t want = 0;
    for (size_t pair = 0; pair < 3; ++pair) {
      alignas(64) uint8_t data[3][8 * kLanes] = {};
      const void* sources[2] = {data[0], data[1]};
      std::memcpy(data[0], in.data() + 16 * pair, static_cast<size_t>(size));
      std::memcpy(data[1], in.data() + 16 * pair + 8, static_cast<size_t>(size));
      op->fn(data[2], sources, 1);
      const bool relation = data[2][0] & 1;
      want = want << 3 | uint32_t{relation} * 5 | uint32_t{second && !relation} * 2;
    }
    ASSERT_EQ(value_at<uint32_t>(out, 0), want) << opcode;
  }
}

TEST(Opcodes, Control) {
  // Half of the lanes take each way; a value tells which.
  const auto way = [](uint32_t lane) { return lane % 2 == 0 ? 10 + lane : 20 + lane; };
  for (const std::string& opcode : opcodes_of(kControl)) {
    Words words(opcode);
    const std::string root = words.take(kControl);
    const bool uniform = words.has("uni");
    if (!words.done()) continue;
    const std::string start = "and.b32 %r1, %r31, 1; setp.eq.u32 %p1, %r1, 0; add.u32 %r2, %r31, 20;\n";
    const std::string end = "st.global.u32 [%rd28], %r2;\n";
    std::string body, wanted;
    if (root == "bra") {  // forward for some lanes, and back in a loop of ten
      body = start +
             (uniform ? "@!%p1 bra ODD; mov.u32 %r3, 0; LOOP: add.u32 %r3, %r3, 1; setp.ge.u32 %p2, %r3, 10; "
                        "@%p2 bra "
                        "OUT; bra.uni LOOP; OUT: add.u32 %r2, %r31, %r3; bra.uni ODD; ODD:\n"
                      : "@!%p1 bra ODD; mov.u32 %r3, 0; LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 10; "
                        "@%p2 bra "
                        "LOOP; add.u32 %r2, %r31, %r3; ODD:\n") +
             end;
    } else if (root == "ret" || root == "exit") {  // the odd lanes leave first
      body = start + "st.global.u32 [%rd28], %r2; @!%p1 bra ODD; add.u32 %r2, %r31, 10;\n" + end +
             "bra DONE; ODD: " + opcode + "; DONE:\n";
    } else {
      body = start + "@%p1 add.u32 %r2, %r31, 10;\n" + end + opcode + "; st.global.u32 [%rd28], 0;\n";
      wanted = "trap";
    }
    std::string reports;
    const Bytes out = run_vector({.opcode = opcode,
                                  .text = kernel_text(body),
                                  .in = Bytes(512),
                                  .out_bytes = 512,
                                  .quiet = wanted.empty()},
                                 &reports);
    if (!wanted.empty()) {
      EXPECT_NE(reports.find("the kernel executed trap"), std::string::npos) << opcode;
    }
    for (uint32_t lane = 0; lane < 32; ++lane)
      ASSERT_EQ(value_at<uint32_t>(out, lane * 4), way(lane)) << opcode << " lane " << lane;
  }
}

// A grid of 3 x 2 x 2 blocks of 5 x 3 x 3 threads: 45 threads, two warps.
TEST(Opcodes, SpecialRegisters) {
  const uint32_t block[3] = {5, 3, 3}, grid[3] = {3, 2, 2};
  for (const SpecialRegister& reg : special_registers()) {
    const std::string name(reg.name);
    const std::string text =
        ".version 8.5\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 more[];\n.visible "
        ".entry k(.param .u64 p)\n{\n.reg "
        ".b32 %r<16>; .reg .b64 %rd<8>; .shared .align 16 .b8 room[48];\nld.param.u64 %rd1, [p]; mov.u32 "
        "%r1, room; mov.u32 %r1, more;\n"
        "mov.u32 %r1, %ctaid.z; mad.lo.u32 %r1, %r1, 2, %ctaid.y; mad.lo.u32 %r1, %r1, 3, "
        "%ctaid.x;\nmad.lo.u32 %r1, %r1, "
        "3, %tid.z; mad.lo.u32 %r1, %r1, 3, %tid.y; mad.lo.u32 %r1, %r1, 5, %tid.x; mad.wide.u32 %rd2, %r1, "
        "16, %rd1;\n" +
        fmt::format(
            "mov.u32 %r4, {0}; mov.u32 %r5, {0}; st.global.b32 [%rd2], %r4; st.global.b32 [%rd2+8], %r5;\n"
            "ret;\n}}\n",
            name);
    Machine machine(text);
    const size_t threads = 12 * 45;
    const uint64_t out = machine.put(std::vector<uint64_t>(threads * 2));
    machine.run("k", {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, 64, false, out);
    EXPECT_EQ(machine.reports(), "") << name;
    const std::vector<uint64_t> got = machine.get<uint64_t>(out, threads * 2);
    for (uint32_t t = 0; t < threads; ++t) {
      const uint32_t in_block = t % 45, number = t / 45, lane = in_block % 32;
      const uint32_t tid[3] = {in_block % 5, in_block / 5 % 3, in_block / 15},
                     cta[3] = {number % 3, number / 3 % 2, number / 6};
      const size_t axis = name.ends_with(".y") ? 1 : name.ends_with(".z") ? 2 : 0;
      uint64_t want = ~uint64_t{0};
      if (name.starts_with("%tid")) want = tid[axis];
      if (name.starts_with("%ntid")) want = block[axis];
      if (name.starts_with("%ctaid")) want = cta[axis];
      if (name.starts_with("%nctaid")) want = grid[axis];
      if (name == "%laneid") want = lane;
      ASSERT_EQ(got[t * 2], want) << name << " thread " << t;
    }
  }
}

// A new opcode needs a test here; a new modifier of a known one fails that one's test, by name.
TEST(Opcodes, EachHasATest) {
  Roots tested;
  for (const Roots* roots :
       {&kLoads, &kStores, &kAtomics, &kNoValue, &kCopies, &kMoves, &kAddresses, &kControl, &kShuffles,
        &kVotes, &kBarriers, &kMatrixLoads, &kProducts, &kComparisons})
    tested.insert(roots->begin(), roots->end());
  const std::vector<std::string> all = all_opcodes();
  for (const std::string& opcode : all)
    EXPECT_TRUE(tested.contains(split_opcode(opcode)[0])) << opcode << " has no vector";
  for (const std::string& opcode : all)
    if (!opcode.starts_with("setp")) {
      EXPECT_EQ(unknown_part(split_opcode(opcode)), "") << opcode;
    }
  std::printf("%zu spellings beside the arithmetic\n", all.size());
}

}  // namespace
}  // namespace gacc::emulator
