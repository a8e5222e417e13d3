// Loads, stores, addresses and what has no value: every spelling of the table against what the PTX ISA says
// of it (not confirmed on hardware). Each lane has 16 bytes of its own.
#include "tests/emulator/opcodes.h"

namespace gacc::emulator {
namespace {

std::string pattern_text() {  // as a variable's initial value
  std::string text;
  for (const uint8_t byte : pattern()) text += fmt::format("{}{}", text.empty() ? "" : ",", byte);
  return text;
}

// An element of `type` in a register of 64 bits: signed types extend the sign, the others zeros.
uint64_t extended(const uint8_t* bytes, const std::string& type) {
  uint64_t value = 0;
  const int size = bytes_of_type(type);
  for (int i = size - 1; i >= 0; --i) value = value << 8 | bytes[i];
  if (type[0] == 's' && bytes[size - 1] >= 0x80)
    for (int i = size; i < 8; ++i) value |= uint64_t{0xff} << 8 * i;
  return value;
}

// Registers that take an element: floats their own, others the narrowest or, when `wide`, 64 bits.
std::string register_for(const std::string& type, bool wide) {
  if (type == "f32") return "%f";
  if (wide) return "%rd";
  const int size = bytes_of_type(type);
  return size <= 2 ? "%h" : size == 4 ? "%r" : "%rd";
}
std::string vector_of(const std::string& reg, int count) {
  if (count == 1) return reg + "1";
  std::string text = "{" + reg + "1";
  for (int i = 2; i <= count; ++i) text += fmt::format(",{}{}", reg, i);
  return text + "}";
}
// Stores register `i` (from 1) as 64 bits at [to + 8 (i - 1)].
std::string keep(const std::string& reg, int i, const std::string& to) {
  const std::string from = fmt::format("{}{}", reg, i);
  std::string text;
  if (reg == "%h") text = fmt::format("cvt.u64.u16 %rd20, {};\n", from);
  if (reg == "%r" || reg == "%f") text = fmt::format("mov.b32 %r20, {}; cvt.u64.u32 %rd20, %r20;\n", from);
  if (reg == "%rd") text = fmt::format("mov.b64 %rd20, {};\n", from);
  return text + fmt::format("st.global.u64 [{}+{}], %rd20;\n", to, 8 * (i - 1));
}

// Code that makes %rd1 (or %r1) the lane's 16 bytes of `space`, less 32; `fill` copies them from `in`.
std::string prepare(const std::string& space, bool fill, std::string& address) {
  address = "%rd1+32";
  if (space.empty() || space == "global") return "sub.u64 %rd1, %rd29, 32;\n";
  if (space == "const")
    return "mov.u64 %rd2, table; mad.wide.u32 %rd1, %r31, 16, %rd2; sub.u64 %rd1, %rd1, 32;\n";
  std::string text;
  if (space == "local") {
    text = ".local .align 16 .b8 own[48]; mov.u64 %rd2, own; add.u64 %rd1, %rd2, 0;\n";
    if (fill) text += "ld.global.v2.b64 {%rd3,%rd4}, [%rd29]; st.local.v2.b64 [%rd1+32], {%rd3,%rd4};\n";
    return text;
  }
  // Shared memory: `shared` by 32-bit addresses, `shared::cta` by 64-bit ones.
  text = ".shared .align 16 .b8 room[544];\n";
  if (space == "shared") {
    address = "%r1+32";
    text += "mov.u32 %r2, room; mad.lo.u32 %r1, %r31, 16, %r2;\n";
  } else {
    text += "mov.u64 %rd2, room; mad.wide.u32 %rd1, %r31, 16, %rd2;\n";
  }
  if (fill)
    text += fmt::format("ld.global.v2.b64 {{%rd3,%rd4}}, [%rd29]; st.shared.v2.b64 [{}], {{%rd3,%rd4}};\n",
                        address);
  return text;
}

struct Access {
  std::string space, type;
  int count = 1;
};
Access access_of(Words& words) {
  Access a;
  words.hints();
  words.has("nc");
  a.space = words.take({"global", "shared", "shared::cta", "local", "const", "param", "param::entry"});
  a.count = words.has("v2") ? 2 : words.has("v4") ? 4 : 1;
  a.type = words.take(kTypes);
  return a;
}

TEST(Opcodes, Loads) {
  const Bytes data = pattern();
  const std::string table = ".const .align 16 .b8 table[512] = {" + pattern_text() + "};\n";
  for (const std::string& opcode : opcodes_of(kLoads)) {
    Words words(opcode);
    words.take(kLoads);
    const Access a = access_of(words);
    if (!words.done()) continue;
    const size_t size = static_cast<size_t>(bytes_of_type(a.type));
    for (const bool wide : {false, true}) {
      const std::string reg = register_for(a.type, wide);
      std::string address, before = a.space == "const" ? table : "", more, body;
      const auto load = [&](const std::string& from, const std::string& to) {
        std::string text = fmt::format("{} {}, [{}];\n", opcode, vector_of(reg, a.count), from);
        for (int i = 1; i <= a.count; ++i) text += keep(reg, i, to);
        return text;
      };
      if (a.space == "param" || a.space == "param::entry") {  // the same for all lanes
        more = ", .param .align 16 .b8 block[512]";
        body = "mad.wide.u32 %rd27, %r31, 32, %rd31;\n" + load("block+48", "%rd27");
      } else {
        body = prepare(a.space, true, address);
        body += "mad.wide.u32 %rd27, %r31, 32, %rd31;\n" + load(address, "%rd27");
      }
      const Bytes out = run_vector({.opcode = opcode,
                                    .text = kernel_text(body, before, more),
                                    .in = data,
                                    .out_bytes = 32 * 32,
                                    .block = more.empty() ? Bytes{} : data});
      for (size_t lane = 0; lane < 32; ++lane)
        for (size_t e = 0; e < static_cast<size_t>(a.count); ++e) {
          const uint8_t* from = data.data() + (more.empty() ? lane * 16 : 48) + e * size;
          uint64_t want = extended(from, a.type);
          if (reg == "%h") want &= 0xffff;
          if (reg == "%r") want &= 0xffffffff;
          ASSERT_EQ(value_at<uint64_t>(out, lane * 4 + e), want)
              << opcode << " lane " << lane << " element " << e;
        }
    }
  }
}

TEST(Opcodes, Stores) {
  const Bytes data = pattern();
  for (const std::string& opcode : opcodes_of(kStores)) {
    Words words(opcode);
    words.take(kStores);
    const Access a = access_of(words);
    if (!words.done()) continue;
    const size_t size = static_cast<size_t>(bytes_of_type(a.type));
    for (const bool wide : {false, true}) {
      const std::string reg = register_for(a.type, wide);
      std::string address, body;
      for (int e = 0; e < a.count; ++e) {
        std::string type = a.type;
        if (type[0] == 'f') type[0] = 'b';
        body += fmt::format("ld.global.{} {}{}, [%rd29+{}];\n", a.type[0] == 'f' ? a.type : type, reg, e + 1,
                            static_cast<size_t>(e) * size);
      }
      const std::string value = vector_of(reg, a.count);
      if (a.space.empty() || a.space == "global") {
        body += fmt::format("sub.u64 %rd20, %rd28, 64; {} [%rd20+64], {};\n", opcode, value);
      } else {
        std::string place = a.space == "local" ? "local" : "shared";
        std::string setup = prepare(a.space, false, address);
        if (a.space != "shared") {  // %rd1 and %rd2 may hold values
          for (size_t at; (at = setup.find("%rd1")) != std::string::npos;) setup.replace(at, 4, "%rd21");
          for (size_t at; (at = setup.find("%rd2,")) != std::string::npos;) setup.replace(at, 5, "%rd22,");
          for (size_t at; (at = setup.find("%rd2;")) != std::string::npos;) setup.replace(at, 5, "%rd22;");
          address = "%rd21+32";
        } else {
          setup = ".shared .align 16 .b8 room[544];\nmov.u32 %r22, room; mad.lo.u32 %r21, %r31, 16, %r22;\n";
          address = "%r21+32";
        }
        body +=
            setup +
            fmt::format(
                "mov.b64 %rd20, 0xeeeeeeeeeeeeeeee; st.{0}.v2.b64 [{1}], {{%rd20,%rd20}}; {2} [{1}], {3};\n"
                "ld.{0}.v2.b64 {{%rd23,%rd24}}, [{1}]; st.global.v2.b64 [%rd28], {{%rd23,%rd24}};\n",
                place, address, opcode, value);
      }
      const Bytes out =
          run_vector({.opcode = opcode, .text = kernel_text(body), .in = data, .out_bytes = 512});
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_EQ(out[i], i % 16 < size * static_cast<size_t>(a.count) ? data[i] : 0xee)
            << opcode << " byte " << i;
    }
  }
}

TEST(Opcodes, FencesChangeNothing) {
  for (const std::string& opcode : opcodes_of(kNoValue)) {
    Words words(opcode);
    const std::string root = words.take(kNoValue);
    if (root == "membar") words.take({"cta", "gl", "sys"});
    if (root == "fence") words.take({"sc", "acq_rel"}), words.take({"cta", "cluster", "gpu", "sys"});
    if (!words.done()) continue;
    const std::string body = fmt::format(
        "ld.global.b64 %rd1, [%rd29]; st.global.b64 [%rd28], %rd1; {}; ld.global.b64 %rd2, [%rd28]; "
        "st.global.b64 [%rd28+8], %rd2;",
        opcode);
    const Bytes data = pattern(),
                out = run_vector({.opcode = opcode, .text = kernel_text(body), .in = data, .out_bytes = 512});
    for (size_t i = 0; i < 512; ++i) ASSERT_EQ(out[i], data[i / 16 * 16 + i % 8]) << opcode;
  }
}

TEST(Opcodes, AddressesOfSpaces) {
  const Bytes data = pattern();
  for (const std::string& opcode : opcodes_of(kAddresses)) {
    Words words(opcode);
    words.has("cvta");
    const bool to = words.has("to");
    const std::string space = words.take({"global", "shared", "shared::cta", "local", "const"});
    words.has("u64");
    if (!words.done()) continue;
    // The generic address reads what the space's own does; back again, it is the space's own.
    std::string address;
    const std::string table =
        space == "const" ? ".const .align 16 .b8 table[512] = {" + pattern_text() + "};\n" : "";
    std::string body = prepare(space == "shared" ? "shared::cta" : space, true, address);
    body += fmt::format("cvta.{}.u64 %rd5, %rd1;\n", space);
    body += to ? fmt::format("{} %rd6, %rd5; ld.{}.v2.b64 {{%rd7,%rd8}}, [%rd6+32];\n", opcode, space)
               : "ld.v2.b64 {%rd7,%rd8}, [%rd5+32];\n";
    body += "st.global.v2.b64 [%rd28], {%rd7,%rd8};\n";
    const Bytes out =
        run_vector({.opcode = opcode, .text = kernel_text(body, table), .in = data, .out_bytes = 512});
    ASSERT_EQ(out, data) << opcode;
  }
}

}  // namespace
}  // namespace gacc::emulator
