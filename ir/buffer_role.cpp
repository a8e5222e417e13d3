#include "ir/buffer_role.h"

#include <algorithm>
#include <iterator>

#include "ir/contains.h"

namespace gacc::ir {

namespace {

constexpr RoleInfo kRoles[] = {
#define ROLE(id, kind, suffix, combine) {#id, BufferKind::kind, suffix, RankCombine::combine},
#define NAMED(id, name, role, dtype)
#include "ir/buffers.def"
};

constexpr NamedInfo kNamed[] = {
#define ROLE(id, kind, suffix, combine)
#define NAMED(id, name, role, dtype) {name, BufferRole::role, DType::dtype},
#include "ir/buffers.def"
};

}  // namespace

std::string_view kind_text(BufferKind kind) {
  constexpr std::string_view texts[] = {"param", "accum", "state"};
  return texts[static_cast<size_t>(kind)];
}

const RoleInfo& role_info(BufferRole role) { return kRoles[static_cast<size_t>(role)]; }

std::optional<BufferRole> parse_role(std::string_view text) {
  return enumerator<BufferRole>(kRoles, text, &RoleInfo::text);
}

BufferRole plain_role(BufferKind kind, std::string_view name) {
  if (const NamedInfo* known = find_named(name)) return known->role;
  if (kind == BufferKind::param) return BufferRole::weight;
  return kind == BufferKind::accum ? BufferRole::total : BufferRole::control;
}

std::string_view combine_text(RankCombine combine) {
  constexpr std::string_view texts[] = {"none", "sum", "ordered", "apart"};
  return texts[static_cast<size_t>(combine)];
}

const NamedInfo& named_info(Named which) { return kNamed[static_cast<size_t>(which)]; }

const NamedInfo* find_named(std::string_view name) {
  const auto* found = std::ranges::find(kNamed, name, &NamedInfo::name);
  return found != std::end(kNamed) ? found : nullptr;
}

}  // namespace gacc::ir
