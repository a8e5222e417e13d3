// The roles of buffers and the known names of buffers.def, as types.
#pragma once
#include <optional>
#include <string_view>

#include "ir/types.h"

namespace gacc::ir {

// param: trained or frozen weights. accum: sums over a window of micro-batches. state: everything else that
// lives across launches.
enum class BufferKind : uint8_t { param, accum, state };
inline constexpr BufferKind all_buffer_kinds[] = {BufferKind::param, BufferKind::accum, BufferKind::state};
std::string_view kind_text(BufferKind kind);

enum class BufferRole : uint8_t {
#define ROLE(id, kind, suffix, combine) id,
#define NAMED(id, name, role, dtype)
#include "ir/buffers.def"
};

// The way in which the copies of several ranks become one (buffers.def).
enum class RankCombine : uint8_t { none, sum, ordered, per_rank };

struct RoleInfo {
  std::string_view text;
  BufferKind kind;
  std::string_view suffix;
  RankCombine combine;
  // The window's copies become one; so it is a sum of lanes, too.
  bool combines() const { return combine == RankCombine::sum || combine == RankCombine::ordered; }
  bool belongs() const { return !suffix.empty(); }  // to another buffer, Buffer::of
};
const RoleInfo& role_info(BufferRole role);
std::optional<BufferRole> parse_role(std::string_view text);
// The role of a buffer of which nothing more is said: that of a known name, else its kind's.
BufferRole plain_role(BufferKind kind, std::string_view name);
std::string_view combine_text(RankCombine combine);

enum class Named : uint8_t {
#define ROLE(id, kind, suffix, combine)
#define NAMED(id, name, role, dtype) id,
#include "ir/buffers.def"
};

struct NamedInfo {
  std::string_view name;
  BufferRole role;
  DType dtype;
};
const NamedInfo& named_info(Named which);
const NamedInfo* find_named(std::string_view name);  // nullptr: not one of the known names

}  // namespace gacc::ir
