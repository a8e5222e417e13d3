// Atomics and cp.async: every spelling of the table against what the PTX ISA says of it (not confirmed on
// hardware).
#include <cmath>

#include "emulator/numbers.h"
#include "tests/emulator/opcodes.h"

namespace gacc::emulator {
namespace {

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// What stands in memory after OP: the ISA's table, in 128 bits; b and c are the operands.
uint64_t after(const std::string& op, const std::string& type, bool global, uint64_t old, uint64_t b,
               uint64_t c) {
  const int bits = 8 * bytes_of_type(type);
  if (type == "f32") {
    float x = bits_as<float>(static_cast<uint32_t>(old)), y = bits_as<float>(static_cast<uint32_t>(b));
    return bits_as<uint32_t>(global ? flushed(flushed(x) + flushed(y)) : x + y);
  }
  const auto number = [&](uint64_t v) -> __int128 {
    return type[0] == 's' ? (bits == 32 ? static_cast<int32_t>(v) : static_cast<int64_t>(v))
                          : static_cast<__int128>(v);
  };
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  if (op == "add") return static_cast<uint64_t>(number(old) + number(b)) & mask;
  if (op == "min") return number(b) < number(old) ? b : old;
  if (op == "max") return number(b) > number(old) ? b : old;
  if (op == "and") return old & b;
  if (op == "or") return old | b;
  if (op == "xor") return old ^ b;
  if (op == "exch") return b;
  if (op == "cas") return old == b ? c : old;
  if (op == "inc") return old >= b ? 0 : old + 1;
  ADD_FAILURE() << "no vector knows " << op;
  return 0;
}

std::vector<uint64_t> values_of(const std::string& type) {
  if (type == "f32")
    return {0,          0x80000000, 0x3f800000, 0x33800000, 0xbf800000,
            0x7f7fffff, 0x7f800000, 0x00000001, 0x80400000, 0x00800000};
  return {0,
          1,
          2,
          5,
          0x7fffffff,
          0x80000000,
          0xfffffffe,
          0xffffffff,
          0x7fffffffffffffff,
          0x8000000000000000,
          ~uint64_t{0}};
}

TEST(Opcodes, Atomics) {
  const Roots types = {"b32", "b64", "u32", "s32", "u64", "s64", "f32"};
  for (const std::string& opcode : opcodes_of(kAtomics)) {
    Words words(opcode);
    const bool returns = words.has("atom");
    words.has("red");
    words.hints();
    const std::string space = words.take({"global", "shared", "shared::cta"});
    const std::string op = words.take({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc"});
    const std::string type = words.take(types);
    if (!words.done()) continue;
    const size_t size = static_cast<size_t>(bytes_of_type(type));
    const std::string reg = type == "f32" ? "%f" : size == 4 ? "%r" : "%rd";
    const std::string plain = fmt::format("b{}", 8 * size);
    // Lane l: old, b and c in 32 bytes; the pairs of values in turn.
    const std::vector<uint64_t> values = values_of(type);
    const size_t lanes = (values.size() * values.size() + 31) / 32 * 32;
    Bytes in(lanes * 32);
    const auto operand = [&](size_t l, size_t which) {
      const size_t n = values.size();
      const uint64_t v = values[which == 0 ? l % n : which == 1 ? l / n % n : (l + 3) % n];
      return size == 8 ? v : v & ((uint64_t{1} << 8 * size) - 1);
    };
    for (size_t l = 0; l < lanes; ++l)
      for (size_t which = 0; which < 3; ++which) {
        const uint64_t v = operand(l, which);
        std::memcpy(in.data() + l * 32 + which * 8, &v, 8);
      }
    const bool shared = space.starts_with("shared");
    std::string body = fmt::format(
        ".shared .align 8 .b8 room[{}]; mov.u32 %r10, room; mad.lo.u32 %r10, %r31, 8, %r10;\n"
        "mad.wide.u32 %rd10, %r31, 32, %rd30;\n",
        lanes * 8);
    for (int i = 1; i <= 3; ++i)
      body += fmt::format("ld.global.{} {}{}, [%rd10+{}];\n", plain, reg, i, 8 * (i - 1));
    if (shared) body += fmt::format("st.shared.{} [%r10], {}1;\n", plain, reg);
    const std::string at = shared ? "%r10" : "%rd10";
    body += fmt::format("{} {}[{}], {}2{};\n", opcode, returns ? reg + "4, " : "", at, reg,
                        op == "cas" ? ", " + reg + "3" : "");
    if (returns) body += fmt::format("st.global.{} [%rd28], {}4;\n", plain, reg);
    body += fmt::format("ld.{0}.{1} {2}5, [{3}]; st.global.{1} [%rd28+8], {2}5;\n",
                        shared ? "shared" : "global", plain, reg, at);
    const Bytes out = run_vector({.opcode = opcode,
                                  .text = kernel_text(body),
                                  .in = in,
                                  .out_bytes = lanes * 16,
                                  .threads = static_cast<uint32_t>(lanes)});
    for (size_t l = 0; l < lanes; ++l) {
      uint64_t got[2] = {};
      for (size_t i = 0; i < 2; ++i) std::memcpy(&got[i], out.data() + l * 16 + 8 * i, size);
      const uint64_t old = operand(l, 0), want = after(op, type, !shared, old, operand(l, 1), operand(l, 2));
      if (returns) {
        ASSERT_EQ(got[0], old) << opcode << " lane " << l;
      }
      const bool nan = type == "f32" && std::isnan(bits_as<float>(static_cast<uint32_t>(want)));
      if (!nan) {
        ASSERT_EQ(got[1], want) << fmt::format("{} of {:#x} and {:#x}", opcode, old, operand(l, 1));
      }
    }
  }
}

// All lanes of two warps at one address: every one is done, and each sees another old value.
TEST(Opcodes, AtomicsOfManyLanes) {
  const Bytes out =
      run_vector({.opcode = "atom.global.add.u32",
                  .text = kernel_text("mov.u32 %r1, 1; atom.global.add.u32 %r2, [%rd30], %r1;\n"
                                      "st.global.u32 [%rd28], %r2; atom.global.inc.u32 %r3, [%rd30+4], 6;\n"
                                      "red.global.max.u32 [%rd30+8], %r31; bar.sync 0;\n"
                                      "ld.global.v4.u32 {%r4,%r5,%r6,%r7}, [%rd30]; "
                                      "st.global.v2.u32 [%rd28+8], {%r4,%r5};\n"),
                  .in = Bytes(16),
                  .out_bytes = 64 * 16,
                  .threads = 64});
  std::set<uint32_t> seen;
  for (size_t l = 0; l < 64; ++l) seen.insert(value_at<uint32_t>(out, l * 4));
  EXPECT_EQ(seen.size(), 64u);
  EXPECT_EQ(*seen.rbegin(), 63u);
  EXPECT_EQ(value_at<uint32_t>(out, 2), 64u);
  EXPECT_EQ(value_at<uint32_t>(out, 3), 64u % 7);
}

TEST(Opcodes, AsynchronousCopies) {
  const Bytes data = pattern();
  for (const std::string& opcode : opcodes_of(kCopies)) {
    Words words(opcode);
    words.has("cp");
    words.has("async");
    if (words.take({"commit_group", "wait_group", "wait_all"}) != "") {
      words.done();
      continue;  // in every vector below
    }
    const bool all = words.has("cg");
    words.hints();
    const std::string space = words.take({"shared", "shared::cta"});
    words.has("global");
    if (!words.done()) continue;
    // Three groups: 16 bytes, 16 or 8 bytes of which 5 come from memory and zeros follow, and 16 or 4 of
    // which none do. They arrive in the order of their groups.
    const int second = all ? 16 : 8, third = all ? 16 : 4;
    std::string body =
        ".shared .align 16 .b8 room[1536]; mov.u32 %r2, room; mad.lo.u32 %r1, %r31, 16, %r2;\n";
    body += fmt::format(
        "{0} [%r1], [%rd29], 16; cp.async.commit_group; {0} [%r1+512], [%rd29], {1}, 5;\n"
        "cp.async.commit_group; mov.u32 %r3, 0; {0} [%r1+1024], [%rd29], {2}, %r3;\n",
        opcode, second, third);
    body +=
        "mad.wide.u32 %rd10, %r31, 48, %rd31; cp.async.wait_group 1; ld.shared.v2.b64 {%rd1,%rd2}, [%r1]; "
        "st.global.v2.b64 [%rd10], {%rd1,%rd2};\ncp.async.wait_group 0; ld.shared.b64 %rd1, [%r1+512]; "
        "st.global.b64 [%rd10+16], %rd1;\ncp.async.wait_all; ld.shared.b32 %r4, [%r1+1024]; st.global.b32 "
        "[%rd10+32], %r4;\n";
    const Bytes out =
        run_vector({.opcode = opcode, .text = kernel_text(body), .in = data, .out_bytes = 32 * 48});
    for (size_t l = 0; l < 32; ++l)
      for (size_t i = 0; i < 36; ++i) {
        const uint8_t want = i < 16   ? data[l * 16 + i]
                             : i < 24 ? (i - 16 < 5 ? data[l * 16 + i - 16] : 0)
                             : i < 32 ? 0xee
                                      : 0;
        ASSERT_EQ(out[l * 48 + i], want) << opcode << " lane " << l << " byte " << i;
      }
  }
}

}  // namespace
}  // namespace gacc::emulator
