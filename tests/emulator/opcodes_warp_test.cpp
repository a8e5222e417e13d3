// What lanes and warps do together: every spelling of the table
// against the text of the PTX ISA (not confirmed on hardware).
#include <bit>

#include "emulator/lane_ops.h"
#include "emulator/numbers.h"
#include "tests/emulator/opcodes.h"

namespace gacc::emulator {
namespace {

uint32_t lane_value(size_t lane) { return 0x9e3779b9u * static_cast<uint32_t>(lane + 1); }
Bytes words_in(size_t count) {
  std::vector<uint32_t> words;
  for (size_t i = 0; i < count; ++i) words.push_back(lane_value(i));
  return bytes_of(words);
}
// %r1: lane_value of the thread, from `in` of 4 bytes a thread; %rd27: 8 bytes a thread of `out`.
constexpr const char* kLaneValue =
    "mad.wide.u32 %rd1, %r31, 4, %rd30; ld.global.u32 %r1, [%rd1]; mad.wide.u32 %rd27, %r31, 8, %rd31;\n";

TEST(Opcodes, Shuffles) {
  for (const std::string& opcode : opcodes_of(kShuffles)) {
    Words words(opcode);
    words.has("shfl");
    words.has("sync");
    const std::string mode = words.take({"up", "down", "bfly", "idx"});
    words.has("b32");
    if (!words.done()) continue;
    // c: the clamp in bits 0 to 4, the mask of segments in bits 8 to 12.
    for (const uint32_t c : {0x1fu, 0u, 15u, 0x1c1fu, 0x1c00u, 0x1003u, 0x0f10u})
      for (const uint32_t b : {0u, 1u, 2u, 3u, 5u, 8u, 16u, 31u, 33u})
        for (const bool part : {false, true}) {
          const uint32_t mask = part ? 0x0ff0f00fu : 0xffffffffu;
          std::string body = kLaneValue;
          // Lanes outside the mask go round it; b comes from a register, the predicate with every other one.
          body += fmt::format(
              "mov.u32 %r2, 7; mov.u32 %r3, 7; setp.ne.u32 %p1, %r31, 32; mov.u32 %r4, {}; shl.b32 %r5, 1, "
              "%r31; and.b32 %r5, %r5, {}; setp.eq.u32 %p2, %r5, 0; @%p2 bra AROUND;\n",
              b, mask);
          body += fmt::format(
              "{} %r2|%p1, %r1, %r4, {}, {}; selp.u32 %r3, 1, 0, %p1;\n{} %r6, %r1, %r4, {}, {};\n"
              "xor.b32 %r6, %r6, %r2; add.u32 %r3, %r3, %r6;\n",
              opcode, c, mask, opcode, c, mask);
          body += "AROUND: st.global.v2.u32 [%rd27], {%r2,%r3};\n";
          std::string reports;
          const Bytes out = run_vector({.opcode = opcode,
                                        .text = kernel_text(body),
                                        .in = words_in(32),
                                        .out_bytes = 256,
                                        .quiet = !part},
                                       &reports);
          for (uint32_t lane = 0; lane < 32; ++lane) {
            const auto got = value_at<uint32_t>(out, 2 * lane),
                       in_range = value_at<uint32_t>(out, 2 * lane + 1);
            if (!(mask >> lane & 1)) {
              ASSERT_EQ(got, 7u) << opcode;
              continue;
            }
            const uint32_t distance = b & 31, clamp = c & 31, segments = c >> 8 & 31;
            const int most = static_cast<int>((lane & segments) | (clamp & ~segments));
            const int least = static_cast<int>(lane & segments);
            int from = mode == "up"     ? static_cast<int>(lane) - static_cast<int>(distance)
                       : mode == "down" ? static_cast<int>(lane + distance)
                       : mode == "bfly" ? static_cast<int>(lane ^ distance)
                                        : least | static_cast<int>(distance & ~segments);
            const bool good = mode == "up" ? from >= most : from <= most;
            if (!good) from = static_cast<int>(lane);
            ASSERT_EQ(in_range, good) << opcode << " lane " << lane << " b " << b << " c " << c;
            if (mask >> from & 1) {
              ASSERT_EQ(got, lane_value(static_cast<size_t>(from)))
                  << opcode << " lane " << lane << " b " << b << " c " << c;
            } else {
              ASSERT_NE(reports.find("which does not execute this"), std::string::npos) << opcode;
            }
          }
        }
  }
}

TEST(Opcodes, Ballots) {
  for (const std::string& opcode : opcodes_of(kVotes)) {
    Words words(opcode);
    for (const char* word : {"vote", "sync", "ballot", "b32"}) words.has(word);
    if (!words.done()) continue;
    for (const uint32_t mask : {0xffffffffu, 0x0000ffffu, 0x80000001u})
      for (const uint32_t yes : {0u, 0xffffffffu, 0x0000ffffu, 0x80000001u, 0x5a5a0f0fu})
        for (const bool negated : {false, true}) {
          const std::string body = fmt::format(
              "{}mov.u32 %r2, 77; mov.u32 %r3, {}; shr.u32 %r4, %r3, %r31; and.b32 %r4, %r4, 1; "
              "setp.ne.u32 %p1, %r4, 0;\nmov.u32 %r5, {}; shr.u32 %r6, %r5, %r31; and.b32 %r6, %r6, 1; "
              "setp.eq.u32 %p2, %r6, 0; @%p2 bra AROUND;\n{} %r2, {}, {};\n"
              "AROUND: st.global.u32 [%rd27], %r2;\n",
              kLaneValue, yes, mask, opcode, negated ? "!%p1" : "%p1", mask);
          const Bytes out =
              run_vector({.opcode = opcode, .text = kernel_text(body), .in = words_in(32), .out_bytes = 256});
          const uint32_t said = (negated ? ~yes : yes) & mask;
          for (uint32_t lane = 0; lane < 32; ++lane)
            ASSERT_EQ(value_at<uint32_t>(out, 2 * lane), mask >> lane & 1 ? said : 77)
                << opcode << " lane " << lane << " of " << mask << " " << yes;
        }
  }
}

TEST(Opcodes, Barriers) {
  for (const std::string& opcode : opcodes_of(kBarriers)) {
    Words words(opcode);
    const std::string root = words.take(kBarriers);
    words.has("cta");
    const bool warp = words.has("warp"), aligned = words.has("aligned") || root == "bar";
    const std::string what = words.take({"sync", "arrive"});
    if (!words.done()) continue;
    // Three warps. `sync`: a value goes to the thread of the next warp. The unaligned ones are reached from
    // both sides of a branch inside each warp.
    const auto everywhere = [&](const std::string& text) {
      return fmt::format(
          "and.b32 %r9, %r31, 1; setp.eq.u32 %p4, %r9, {};\n@%p4 bra ODD;\n{}\nbra MEET;\nODD:\n{}\nMEET:\n",
          aligned ? 2 : 1, text, text);
    };
    const std::string exchange = fmt::format(
        "{}.shared .align 4 .b8 room[384]; mov.u32 %r2, room; mad.lo.u32 %r3, %r31, 4, %r2; "
        "add.u32 %r4, %r31, {}; rem.u32 %r4, %r4, {}; mad.lo.u32 %r4, %r4, 4, %r2;\n"
        "st.shared.u32 [%r3], %r1;\n",
        kLaneValue, warp ? 1 : 32, warp ? 32 : 96);
    const std::string fetch = "ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd27], %r5;\n";
    if (what == "sync") {
      for (const std::string& operands : warp ? std::vector<std::string>{" 0xffffffff"}
                                              : std::vector<std::string>{" 0", " 5, 96", " %r30"}) {
        const std::string body =
            "mov.u32 %r30, 9;\n" + exchange + everywhere(opcode + operands + ";") + fetch;
        const uint32_t threads = warp ? 32 : 96;
        const Bytes out = run_vector({.opcode = opcode,
                                      .text = kernel_text(body),
                                      .in = words_in(96),
                                      .out_bytes = 96 * 8,
                                      .threads = threads});
        for (uint32_t t = 0; t < threads; ++t)
          ASSERT_EQ(value_at<uint32_t>(out, 2 * t), lane_value((t + (warp ? 1 : 32)) % threads)) << opcode;
      }
    } else {
      // The first two warps bring values and go on; the third waits for all 96 threads.
      const std::string sync =
          (root == "bar" ? "bar.sync" : "barrier.sync.aligned") + std::string(" 3, 96;\n");
      const std::string body =
          exchange + "setp.ge.u32 %p1, %r31, 64; @%p1 bra WAIT;\n" + everywhere(opcode + " 3, 96;") +
          "bra DONE;\nWAIT: " + sync +
          "sub.u32 %r6, %r3, 256; ld.shared.u32 %r5, [%r6]; ld.shared.u32 %r7, [%r6+128]; "
          "st.global.v2.u32 [%rd27], {%r5,%r7};\nDONE:\n";
      const Bytes out = run_vector({.opcode = opcode,
                                    .text = kernel_text(body),
                                    .in = words_in(96),
                                    .out_bytes = 96 * 8,
                                    .threads = 96});
      for (uint32_t t = 64; t < 96; ++t) {
        ASSERT_EQ(value_at<uint32_t>(out, 2 * t), lane_value(t - 64)) << opcode;
        ASSERT_EQ(value_at<uint32_t>(out, 2 * t + 1), lane_value(t - 32)) << opcode;
      }
    }
  }
}

TEST(Opcodes, MatrixLoads) {
  for (const std::string& opcode : opcodes_of(kMatrixLoads)) {
    Words words(opcode);
    for (const char* word : {"ldmatrix", "sync", "aligned", "m8n8", "b16"}) words.has(word);
    const std::string many = words.take({"x1", "x2", "x4"});
    const bool transposed = words.has("trans");
    const std::string space = words.take({"shared", "shared::cta"});
    if (!words.done()) continue;
    const size_t count = many == "x1" ? 1 : many == "x2" ? 2 : 4;
    // Row j of matrix i is the 16 bytes with number (8 i + j) * 5 % 32; element c of it is number * 8 + c.
    Bytes in;
    for (uint16_t e = 0; e < 256; ++e) in.push_back(static_cast<uint8_t>(e)), in.push_back(0x40);
    std::string body =
        ".shared .align 16 .b8 room[512]; mov.u64 %rd1, room; mad.wide.u32 %rd2, %r31, 16, %rd1;\n"
        "ld.global.v2.b64 {%rd3,%rd4}, [%rd29]; st.shared.v2.b64 [%rd2], {%rd3,%rd4}; bar.sync 0;\n"
        "mul.lo.u32 %r1, %r31, 5; and.b32 %r1, %r1, 31; mad.wide.u32 %rd5, %r1, 16, %rd1;\n";
    if (space.empty()) body += "cvta.shared.u64 %rd5, %rd5;\n";
    const char* to = count == 1 ? "{%r2}" : count == 2 ? "{%r2,%r3}" : "{%r2,%r3,%r4,%r5}";
    body += fmt::format(
        "mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0; mov.u32 %r5, 0;\n{} {}, [%rd5];\n"
        "st.global.v4.u32 [%rd28], {{%r2,%r3,%r4,%r5}};\n",
        opcode, to);
    const Bytes out = run_vector({.opcode = opcode, .text = kernel_text(body), .in = in, .out_bytes = 512});
    for (size_t lane = 0; lane < 32; ++lane)
      for (size_t i = 0; i < count; ++i)
        for (size_t half = 0; half < 2; ++half) {
          const size_t row = transposed ? 2 * (lane % 4) + half : lane / 4,
                       column = transposed ? lane / 4 : 2 * (lane % 4) + half;
          ASSERT_EQ(value_at<uint16_t>(out, lane * 8 + i * 2 + half),
                    0x4000 + (8 * i + row) * 5 % 32 * 8 + column)
              << opcode;
        }
  }
}

// Fragments as in the ISA's tables: groupID = lane >> 2, in_group = lane % 4.
TEST(Opcodes, Products) {
  for (const std::string& opcode : opcodes_of(kProducts)) {
    Words words(opcode);
    for (const char* word : {"mma", "sync", "aligned", "row", "col", "f32", "f32"}) words.has(word);
    const std::string shape = words.take({"m16n8k8", "m16n8k16"});
    const std::string type = words.take({"f16", "bf16"});
    words.has(type);
    if (!words.done()) continue;
    const size_t k = static_cast<size_t>(std::stoi(shape.substr(6))), each = 2;
    const auto a = [](size_t i, size_t j) {
      return static_cast<float>(static_cast<int>((i * 7 + j * 3) % 13) - 6);
    };
    const auto b = [](size_t i, size_t j) {
      return static_cast<float>(static_cast<int>((i * 5 + j * 11) % 9) - 4) / 4;
    };
    const auto c = [](size_t i, size_t j) { return static_cast<float>(i * 8 + j); };
    const auto bits = [&](float x) -> uint32_t { return type == "f16" ? half_from(x) : bf16_from(x); };
    const size_t a_elements = 16 * k / 32, b_elements = 8 * k / 32;
    std::vector<uint32_t> in;  // a lane: 4 registers of a, 2 of b, 4 of c
    for (size_t lane = 0; lane < 32; ++lane) {
      const size_t group = lane >> 2, in_group = lane % 4;
      std::vector<uint32_t> registers(10);
      for (size_t i = 0; i < a_elements; ++i) {  // a_i
        const size_t r = i / each, row = r % 2 == 0 ? group : group + 8;
        const size_t column = in_group * each + i % each + (r >= 2 ? 4 * each : 0);
        registers[r] |= bits(a(row, column)) << 16 * (i % each);
      }
      for (size_t i = 0; i < b_elements; ++i) {  // b_i
        const size_t row = in_group * each + i % each + 4 * each * (i / each);
        registers[4 + i / each] |= bits(b(row, group)) << 16 * (i % each);
      }
      for (size_t i = 0; i < 4; ++i)
        registers[6 + i] = bits_as<uint32_t>(c(i < 2 ? group : group + 8, in_group * 2 + i % 2));
      in.insert(in.end(), registers.begin(), registers.end());
    }
    std::string body = "mad.wide.u32 %rd1, %r31, 40, %rd30;\n";
    for (int i = 0; i < 10; ++i)
      body += fmt::format("ld.global.b32 %{}{}, [%rd1+{}];\n", i < 6 ? "r" : "f", i < 6 ? i : i - 5, 4 * i);
    const size_t ra = a_elements / each, rb = b_elements / each;
    body += fmt::format(
        "{} {{%f1,%f2,%f3,%f4}}, {}, {}, {{%f1,%f2,%f3,%f4}};\nst.global.v4.f32 [%rd28], "
        "{{%f1,%f2,%f3,%f4}};\n",
        opcode, ra == 2 ? "{%r0,%r1}" : "{%r0,%r1,%r2,%r3}", rb == 1 ? "{%r4}" : "{%r4,%r5}");
    const Bytes out =
        run_vector({.opcode = opcode, .text = kernel_text(body), .in = bytes_of(in), .out_bytes = 512});
    for (size_t i = 0; i < 16; ++i)
      for (size_t j = 0; j < 8; ++j) {
        float want = c(i, j);
        for (size_t n = 0; n < k; ++n) want += a(i, n) * b(n, j);
        const size_t lane = i % 8 * 4 + j / 2, index = (i / 8) * 2 + j % 2;
        ASSERT_EQ(value_at<float>(out, lane * 4 + index), want) << opcode << " " << i << "," << j;
      }
  }
}

}  // namespace
}  // namespace gacc::emulator
