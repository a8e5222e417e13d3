// The table of forms. A form is written as in the ISA: words in their order, a name in capitals for one of a
// group; `?` marks what may be left out, `~` a hint that may be, `!` a hint that may not.
#include "emulator/opcodes.h"

#include <algorithm>
#include <map>

#include "emulator/lane_ops.h"

namespace gacc::emulator {
namespace {

Parts words_of(std::string_view text, char separator) {
  Parts words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

const std::map<std::string_view, std::string_view>& groups() {
  static const std::map<std::string_view, std::string_view> made = {
      {"TYPE", "b8 b16 b32 b64 u8 u16 u32 u64 s8 s16 s32 s64 f32"},
      {"NARROW", "b8 b16 b32 u8 u16 u32 s8 s16 s32 f32"},  // four of them fill at most 16 bytes
      {"MOVED", "pred b16 b32 b64 u16 u32 u64 s16 s32 s64 f32"},
      {"LOADED", "global shared shared::cta local const param param::entry"},
      {"STORED", "global shared shared::cta local"},
      {"STRONG", "global shared shared::cta"},  // spaces that other threads see
      {"SHARED", "shared shared::cta"},
      {"WINDOW", "global shared shared::cta local const"},
      {"SCOPE", "cta cluster gpu sys"},
      {"READ_CACHE", "ca cg cs lu cv"},
      {"WRITE_CACHE", "wb cg cs wt"},
      {"TEXTURE_CACHE", "ca cg cs"},
      {"EVICTION", "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate"},
      {"PREFETCH", "L2::64B L2::128B L2::256B"},
      {"READ_ORDER", "relaxed acquire"},
      {"WRITE_ORDER", "relaxed release"},
      {"ORDER", "relaxed acquire release acq_rel"},
      {"LOGIC", "and or xor"},
      {"SELECT", "min max"},
      {"BITS", "b32 b64"},
      {"SUMMED", "u32 s32 u64 f32"},
      {"INTEGER", "u32 s32 u64 s64"},
      {"LEVEL", "cta gl sys"},
      {"FENCE", "sc acq_rel"},
      {"SHUFFLE", "up down bfly idx"},
      {"MATRICES", "x1 x2 x4"}};
  return made;
}

constexpr std::string_view kForms[] = {
    // Plain loads and stores with a cache operator or a priority of eviction.
    "ld ~weak ?LOADED ~READ_CACHE TYPE", "ld ~weak ?LOADED ~READ_CACHE v2 TYPE",
    "ld ~weak ?LOADED ~READ_CACHE v4 NARROW", "ld ~weak global ~EVICTION ~PREFETCH TYPE",
    "ld ~weak global ~EVICTION ~PREFETCH v2 TYPE", "ld ~weak global ~EVICTION ~PREFETCH v4 NARROW",
    "ld global ~TEXTURE_CACHE nc TYPE", "ld global ~TEXTURE_CACHE nc v2 TYPE",
    "ld global ~TEXTURE_CACHE nc v4 NARROW", "ld global nc ~EVICTION ~PREFETCH TYPE",
    "ld global nc ~EVICTION ~PREFETCH v2 TYPE", "ld global nc ~EVICTION ~PREFETCH v4 NARROW",
    "st ~weak ?STORED ~WRITE_CACHE TYPE", "st ~weak ?STORED ~WRITE_CACHE v2 TYPE",
    "st ~weak ?STORED ~WRITE_CACHE v4 NARROW", "st ~weak global ~EVICTION TYPE",
    "st ~weak global ~EVICTION v2 TYPE", "st ~weak global ~EVICTION v4 NARROW",
    // Those that other threads are meant to see.
    "ld volatile ?STRONG TYPE", "ld volatile ?STRONG v2 TYPE", "ld volatile ?STRONG v4 NARROW",
    "ld READ_ORDER !SCOPE ?STRONG TYPE", "ld READ_ORDER !SCOPE ?STRONG v2 TYPE",
    "ld READ_ORDER !SCOPE ?STRONG v4 NARROW", "st volatile ?STRONG TYPE", "st volatile ?STRONG v2 TYPE",
    "st volatile ?STRONG v4 NARROW", "st WRITE_ORDER !SCOPE ?STRONG TYPE",
    "st WRITE_ORDER !SCOPE ?STRONG v2 TYPE", "st WRITE_ORDER !SCOPE ?STRONG v4 NARROW",
    "atom ~ORDER ~SCOPE ?STRONG LOGIC BITS", "atom ~ORDER ~SCOPE ?STRONG exch BITS",
    "atom ~ORDER ~SCOPE ?STRONG cas BITS", "atom ~ORDER ~SCOPE ?STRONG add SUMMED",
    "atom ~ORDER ~SCOPE ?STRONG SELECT INTEGER", "atom ~ORDER ~SCOPE ?STRONG inc u32",
    "atom add ~ORDER !SCOPE ?STRONG u32",  // as the headers of cooperative groups write it
    "red ~WRITE_ORDER ~SCOPE ?STRONG LOGIC BITS", "red ~WRITE_ORDER ~SCOPE ?STRONG add SUMMED",
    "red ~WRITE_ORDER ~SCOPE ?STRONG SELECT INTEGER", "membar !LEVEL", "fence ~FENCE !SCOPE",
    "cp async ca SHARED global ~PREFETCH", "cp async cg SHARED global ~PREFETCH", "cp async commit_group",
    "cp async wait_group", "cp async wait_all", "mov MOVED", "cvta WINDOW u64", "cvta to WINDOW u64",
    "bra ?uni", "ret ?uni", "exit", "trap", "shfl sync SHUFFLE b32", "vote sync ballot b32", "bar ?cta sync",
    "bar ?cta arrive", "bar warp sync", "barrier ?cta sync ?aligned", "barrier ?cta arrive ?aligned",
    "ldmatrix sync aligned m8n8 MATRICES ?trans ?SHARED b16",
    "mma sync aligned m16n8k8 row col f32 f16 f16 f32", "mma sync aligned m16n8k16 row col f32 f16 f16 f32",
    "mma sync aligned m16n8k8 row col f32 bf16 bf16 f32",
    "mma sync aligned m16n8k16 row col f32 bf16 bf16 f32"};

bool has(const OpcodeSlot& slot, std::string_view word) {
  return std::ranges::find(slot.words, word) != slot.words.end();
}

// Returns whether parts[part..] fill slots[slot..].
bool fits(const OpcodeForm& form, const Parts& parts, size_t slot, size_t part) {
  if (slot == form.slots.size()) return part == parts.size();
  const OpcodeSlot& s = form.slots[slot];
  if (part < parts.size() && has(s, parts[part]) && fits(form, parts, slot + 1, part + 1)) return true;
  return s.optional && fits(form, parts, slot + 1, part);
}

}  // namespace

Parts split_opcode(std::string_view opcode) { return words_of(opcode, '.'); }

const std::vector<OpcodeForm>& opcode_forms() {
  static const std::vector<OpcodeForm> made = [] {
    std::vector<OpcodeForm> forms;
    for (const std::string_view text : kForms) {
      const Parts words = words_of(text, ' ');
      OpcodeForm form{words[0], {}};
      for (size_t i = 1; i < words.size(); ++i) {
        std::string_view word = words[i];
        const char mark = word[0];
        if (mark == '?' || mark == '~' || mark == '!') word.remove_prefix(1);
        auto group = groups().find(word);
        form.slots.push_back({group == groups().end() ? Parts{word} : words_of(group->second, ' '),
                              mark == '?' || mark == '~', mark == '~' || mark == '!'});
      }
      forms.push_back(std::move(form));
    }
    return forms;
  }();
  return made;
}

std::string unknown_part(const Parts& parts) {
  bool root = false;
  std::vector<bool> known(parts.size(), false);
  for (const OpcodeForm& form : opcode_forms()) {
    if (form.root != parts[0]) continue;
    if (fits(form, parts, 0, 1)) return {};
    root = true;
    for (size_t i = 1; i < parts.size(); ++i)
      for (const OpcodeSlot& slot : form.slots)
        if (has(slot, parts[i])) known[i] = true;
  }
  for (size_t i = 1; root && i < parts.size(); ++i)
    if (!known[i]) return std::string(parts[i]);
  std::string whole;
  for (const std::string_view part : parts) whole.append(whole.empty() ? "" : ".").append(part);
  return whole;
}

const std::vector<SpecialRegister>& special_registers() {
  static const std::vector<SpecialRegister> made = {
      {"%tid.x", [](const Geometry& of, uint32_t t) { return of.block.at(t).x; }},
      {"%tid.y", [](const Geometry& of, uint32_t t) { return of.block.at(t).y; }},
      {"%tid.z", [](const Geometry& of, uint32_t t) { return of.block.at(t).z; }},
      {"%ntid.x", [](const Geometry& of, uint32_t) { return of.block.x; }},
      {"%ntid.y", [](const Geometry& of, uint32_t) { return of.block.y; }},
      {"%ntid.z", [](const Geometry& of, uint32_t) { return of.block.z; }},
      {"%ctaid.x", [](const Geometry& of, uint32_t) { return of.at.x; }},
      {"%ctaid.y", [](const Geometry& of, uint32_t) { return of.at.y; }},
      {"%ctaid.z", [](const Geometry& of, uint32_t) { return of.at.z; }},
      {"%nctaid.x", [](const Geometry& of, uint32_t) { return of.grid.x; }},
      {"%nctaid.y", [](const Geometry& of, uint32_t) { return of.grid.y; }},
      {"%nctaid.z", [](const Geometry& of, uint32_t) { return of.grid.z; }},
      {"%laneid", [](const Geometry&, uint32_t t) { return t % kLanes; }}};
  return made;
}

}  // namespace gacc::emulator
