// Vectors for the opcodes of emulator/opcodes.h: which test has which, an opcode's words as a vector
// takes them, and how a vector's kernel is run. GACC_VECTORS_PTX=DIR keeps every kernel there, for ptxas.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "emulator/lane_ops.h"
#include "emulator/opcodes.h"
#include "tests/emulator/harness.h"

namespace gacc::emulator {

using Bytes = std::vector<uint8_t>;
using Roots = std::set<std::string_view>;

// One set for each test that takes opcodes from the table.
inline const Roots kLoads = {"ld"}, kStores = {"st"}, kAtomics = {"atom", "red"},
                   kNoValue = {"membar", "fence"}, kCopies = {"cp"}, kMoves = {"mov"}, kAddresses = {"cvta"},
                   kControl = {"bra", "ret", "exit", "trap"}, kShuffles = {"shfl"}, kVotes = {"vote"},
                   kBarriers = {"bar", "barrier"}, kMatrixLoads = {"ldmatrix"}, kProducts = {"mma"},
                   kComparisons = {"setp"};

// Appends the spellings of slots[slot..] after `text`; at most one hint beyond those that must be there.
inline void spell(const OpcodeForm& form, size_t slot, const std::string& text, bool hinted,
                  std::vector<std::string>& to) {
  if (slot == form.slots.size()) return to.push_back(text);
  const OpcodeSlot& s = form.slots[slot];
  if (s.optional) spell(form, slot + 1, text, hinted, to);
  for (const std::string_view word : s.words) {
    const bool counts = s.hint && (s.optional || word != s.words[0]);
    if (counts && hinted) continue;
    spell(form, slot + 1, text + "." + std::string(word), hinted || counts, to);
  }
}

// Every accepted spelling of the forms and of setp with a second predicate: all combinations of what changes
// a value, and every hint once.
inline std::vector<std::string> all_opcodes() {
  std::vector<std::string> all;
  for (const OpcodeForm& form : opcode_forms()) spell(form, 0, std::string(form.root), false, all);
  for (const LaneOp* op : all_lane_ops()) {
    if (!op->name.starts_with("setp.")) continue;
    all.push_back(op->name);
    if (op->name.ends_with("f16")) all.push_back(all.back() + "x2");
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());  // two forms may share a spelling
  return all;
}

inline std::vector<std::string> opcodes_of(const Roots& roots) {
  std::vector<std::string> found;
  for (const std::string& opcode : all_opcodes())
    if (roots.contains(split_opcode(opcode)[0])) found.push_back(opcode);
  return found;
}

// The words of an opcode. A vector takes those that it knows; `done` fails for one that is left.
struct Words {
  std::string opcode;
  Parts rest;

  explicit Words(const std::string& text) : opcode(text), rest(split_opcode(opcode)) {}
  Words(const Words&) = delete;
  bool has(std::string_view word) { return !take(Roots{word}).empty(); }
  std::string take(const Roots& words) {  // the first that is one of them, or ""
    for (size_t i = 0; i < rest.size(); ++i)
      if (words.contains(rest[i])) {
        std::string word(rest[i]);
        rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
        return word;
      }
    return "";
  }
  void hints() {
    take({"weak", "relaxed", "acquire", "release", "acq_rel", "volatile"});
    take({"cta", "cluster", "gpu", "sys"});
    take({"ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::evict_normal", "L1::evict_unchanged",
          "L1::evict_first", "L1::evict_last", "L1::no_allocate"});
    take({"L2::64B", "L2::128B", "L2::256B"});
  }
  bool done() {
    for (const std::string_view word : rest)
      ADD_FAILURE() << "no vector knows `" << word << "` in " << opcode;
    return rest.empty();
  }
};

// A vector's kernel: registers of every kind; %r31 is the lane, %rd30 `in`, %rd31 `out`, %rd29 and %rd28
// those plus 16 bytes a lane.
inline std::string kernel_text(const std::string& body, const std::string& before = "",
                               const std::string& more_params = "") {
  return ".version 8.5\n.target sm_90\n.address_size 64\n" + before +
         "\n.visible .entry k(.param .u64 p_in, .param .u64 p_out" + more_params +
         ")\n{\n.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<32>; .reg .b64 %rd<32>; .reg .f32 %f<9>;\n"
         ".reg .f64 %fd<9>;\nld.param.u64 %rd30, [p_in]; ld.param.u64 %rd31, [p_out];\n"
         "mov.u32 %r31, %tid.x; mad.wide.u32 %rd29, %r31, 16, %rd30; mad.wide.u32 %rd28, %r31, 16, %rd31;\n" +
         body + "\nret;\n}\n";
}

struct Run {
  std::string opcode;  // for messages
  std::string text;    // of the module
  Bytes in;
  size_t out_bytes = 0;
  uint32_t threads = 32;
  Bytes block = {};   // the third parameter, if any
  bool quiet = true;  // a report fails
};
// What the kernel wrote; `out` begins as 0xee.
inline Bytes run_vector(const Run& run, std::string* reports = nullptr) {
  if (const char* folder = std::getenv("GACC_VECTORS_PTX")) {
    static int number = 0;
    std::ofstream(fmt::format("{}/{:05}.ptx", folder, number++)) << "// " << run.opcode << "\n" << run.text;
  }
  Emulator emulator;
  std::unique_ptr<LoadedModule> module;
  const Status loaded = emulator.load(run.text, module);
  EXPECT_TRUE(loaded.ok()) << run.opcode << ": " << loaded.text() << "\n" << run.text;
  if (!loaded.ok()) return Bytes(run.out_bytes);
  const Bytes in = run.in.empty() ? Bytes(16) : run.in;
  const uint64_t from = emulator.allocate(static_cast<int64_t>(in.size()), "in");
  const uint64_t to = emulator.allocate(static_cast<int64_t>(run.out_bytes), "out");
  Bytes out(run.out_bytes, 0xee);
  EXPECT_TRUE(emulator.write(from, in.data(), static_cast<int64_t>(in.size())));
  EXPECT_TRUE(emulator.write(to, out.data(), static_cast<int64_t>(out.size())));
  Bytes params(16 + run.block.size());
  std::memcpy(params.data(), &from, 8);
  std::memcpy(params.data() + 8, &to, 8);
  if (!run.block.empty()) std::memcpy(params.data() + 16, run.block.data(), run.block.size());
  const Status launched = emulator.launch(*module->find("k"), {1, 1, 1}, {run.threads, 1, 1}, 0, params);
  EXPECT_TRUE(launched.ok()) << run.opcode << ": " << launched.text();
  std::string text;
  for (const Report& report : emulator.reports()) text += report.render() + "\n";
  if (run.quiet) {
    EXPECT_EQ(text, "") << run.opcode << "\n" << run.text;
  }
  if (reports) *reports = text;
  EXPECT_TRUE(emulator.read(to, out.data(), static_cast<int64_t>(out.size())));
  return out;
}

template <class T>
T value_at(const Bytes& bytes, size_t index) {
  T value{};
  if ((index + 1) * sizeof value > bytes.size()) {
    ADD_FAILURE() << "no element " << index;
    return value;
  }
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}
template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// 16 bytes of each lane, with the sign bit set in some elements of every width.
inline constexpr uint8_t kPattern[16] = {0xf1, 0x62, 0x93, 0x84, 0x15, 0x26, 0x37, 0x48,
                                         0x99, 0xaa, 0xbb, 0xcc, 0x5d, 0x6e, 0x7f, 0x01};
inline Bytes pattern() {
  Bytes bytes;
  for (unsigned lane = 0; lane < 32; ++lane)
    for (const uint8_t byte : kPattern) bytes.push_back(static_cast<uint8_t>(byte ^ lane));
  return bytes;
}

inline int bytes_of_type(const std::string& type) {
  return std::atoi(type.c_str() + type.find_first_of("0123456789")) / 8;
}
inline const Roots kTypes = {"b8",  "b16", "b32", "b64", "u8",  "u16", "u32",
                             "u64", "s8",  "s16", "s32", "s64", "f32"};

}  // namespace gacc::emulator
