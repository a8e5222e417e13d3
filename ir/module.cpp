#include "ir/module.h"

#include <algorithm>

#include "ir/op_info.h"
#include "ir/text/text.h"

namespace gacc::ir {

namespace {
constexpr std::string_view kPhases[] = {"model", "gradient",   "accumulated", "scaled",   "half",
                                        "fused", "recomputed", "planned",     "scheduled"};
constexpr std::string_view kYieldRoles[] = {"loss", "count", "weights", "grad", "metric", "output", "rows"};
}  // namespace

std::string_view phase_text(Phase phase) { return kPhases[static_cast<size_t>(phase)]; }

std::optional<Phase> parse_phase(std::string_view text) { return enumerator<Phase>(kPhases, text); }

std::string_view yield_role_text(YieldRole role) { return kYieldRoles[static_cast<size_t>(role)]; }

std::optional<YieldRole> parse_yield_role(std::string_view text) {
  return enumerator<YieldRole>(kYieldRoles, text);
}

Origin natural_origin(RegionKind kind) {
  if (kind == RegionKind::init) return Origin::init;
  constexpr RegionKind updates[] = {RegionKind::update, RegionKind::norms, RegionKind::ratios,
                                    RegionKind::clear};
  return contains(updates, kind) ? Origin::update : Origin::forward;
}

std::string_view origin_text(Origin origin) {
  constexpr std::string_view texts[] = {"forward", "gradient", "init", "update"};
  return texts[static_cast<size_t>(origin)];
}

int64_t alignment(const Buffer& buffer) {
  return buffer.type.shape.empty() ? kNumberAlignment : kArenaAlignment;
}

std::optional<ValueId> Region::find(std::string_view name) const {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].name == name) return ValueId{static_cast<int32_t>(i)};
  return std::nullopt;
}

ValueId Region::add_value(std::string name, Type type) {
  if (find(name)) {  // only names the user chose can collide (a layer called like another one's intermediate)
    int suffix = 2;
    while (find(fmt::format("{}.{}", name, suffix))) ++suffix;
    name = fmt::format("{}.{}", name, suffix);
  }
  values.push_back({std::move(name), std::move(type)});
  return {static_cast<int32_t>(values.size() - 1)};
}

BufferId Module::named(Named which) {
  const NamedInfo& info = named_info(which);
  return need_buffer({.name = std::string(info.name),
                      .kind = role_info(info.role).kind,
                      .role = info.role,
                      .type = {info.dtype, {}}});
}

BufferId Module::belonging(BufferId of, BufferRole role, std::string_view suffix, std::optional<Type> type) {
  const RoleInfo& info = role_info(role);
  std::string name = (*this)[of].name;
  name += suffix.empty() ? info.suffix : suffix;
  const Buffer& owner = (*this)[of];
  return need_buffer({.name = std::move(name),
                      .kind = info.kind,
                      .role = role,
                      .of = of,
                      .type = type.value_or(Type{DType::f32, owner.type.shape}),
                      .at = owner.at});
}

std::optional<BufferId> Module::find_belonging(BufferId of, BufferRole role) const {
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].role == role && buffers[i].of == of) return BufferId{static_cast<int32_t>(i)};
  return std::nullopt;
}

BufferId Module::need_buffer(Buffer buffer) {
  const auto found = find_buffer(buffer.name);
  return found ? *found : add_buffer(std::move(buffer));
}

std::vector<BufferId> Module::buffer_ids() const {
  std::vector<BufferId> ids;
  for (size_t i = 0; i < buffers.size(); ++i) ids.push_back({static_cast<int32_t>(i)});
  return ids;
}

BufferId Module::add_buffer(Buffer buffer) {
  buffers.push_back(std::move(buffer));
  return {static_cast<int32_t>(buffers.size() - 1)};
}

std::optional<BufferId> Module::find_buffer(std::string_view wanted) const {
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].name == wanted) return BufferId{static_cast<int32_t>(i)};
  return std::nullopt;
}

Region& Module::region(RegionKind kind) {
  constexpr Region Module::*members[] = {
#define GACC_REGION(name, batched) &Module::name,
#include "ir/regions.def"
  };
  return this->*members[static_cast<size_t>(kind)];
}
const Region& Module::region(RegionKind kind) const { return const_cast<Module*>(this)->region(kind); }

int64_t Module::most_samples(const Region& region) const {
  if (region.kind == RegionKind::decode) return 1;
  const bool asked = region.kind == RegionKind::predict || region.kind == RegionKind::answer ||
                     region.kind == RegionKind::measure;
  const bool fewer = asked && results.predict_batch.given();
  return fewer ? *results.predict_batch : micro_batch();
}

BufferId storage_of(const Module& module, BufferId buffer) {
  if (module[buffer].role == BufferRole::slice || module[buffer].role == BufferRole::part)
    return storage_of(module, *module[buffer].of);
  const bool part = module[buffer].role == BufferRole::weight && sharing_ranks(module.settings) > 0 &&
                    module.find_belonging(buffer, BufferRole::master);
  return part ? module.find_belonging(buffer, BufferRole::gradient).value_or(buffer) : buffer;
}

int64_t part_begin(const Module& module, BufferId buffer) {
  return module[buffer].role == BufferRole::part ? dtype_bytes(module[buffer].type.dtype, module[buffer].from)
                                                 : 0;
}

int64_t sharing_ranks(const Settings& settings) {
  return *settings.memory.shard == "optimizer" ? *settings.train.ranks : 0;
}

bool keeps_bits(const Settings& settings) { return *settings.train.require == "bits"; }

std::optional<Type> full_length_type(const Module& module, const Buffer& buffer) {
  const bool slice = buffer.role == BufferRole::slice || buffer.role == BufferRole::master ||
                     buffer.role == BufferRole::moment;
  if (!slice || sharing_ranks(module.settings) == 0) return std::nullopt;
  Type full_length{buffer.type.dtype, module[*buffer.of].type.shape};
  return full_length == buffer.type ? std::nullopt : std::optional(full_length);
}

ParamRule optimizer_rule(const Module& module, const Buffer& parameter) {
  const Settings& settings = module.settings;
  const bool decays = *settings.optimizer.decay == "all" || parameter.type.shape.size() > 1;
  const auto number = static_cast<size_t>(parameter.group);  // -1: past all
  const GroupSettings group = number < settings.groups.size() ? settings.groups[number] : GroupSettings{};
  return {group.weight_decay.value_or(decays ? settings.real("optimizer.weight_decay", 0) : 0),
          group.lr_factor.value_or(1)};
}

Type operand_type(const Module& module, const Region& region, const Operand& operand) {
  if (const ValueId* value = as_value(operand)) return region[*value].type;
  if (const BufferId* buffer = as_buffer(operand)) return module[*buffer].type;
  return {};
}

void compact(Region& region) {
  std::vector<bool> defined(region.values.size(), false);
  for (const ValueId id : region.inputs) defined[index(id)] = true;
  for (const Op& op : region.ops)
    for (const ValueId id : op.results) defined[index(id)] = true;
  std::vector<int32_t> renumbered(region.values.size(), -1);
  std::vector<Value> kept;
  for (size_t i = 0; i < region.values.size(); ++i) {
    if (!defined[i]) continue;
    renumbered[i] = static_cast<int32_t>(kept.size());
    kept.push_back(std::move(region.values[i]));
  }
  region.values = std::move(kept);
  const auto rename = [&](ValueId& id) { id.index = renumbered[index(id)]; };
  const auto rename_operand = [&](Operand& operand) {
    if (auto* id = std::get_if<ValueId>(&operand)) rename(*id);
  };
  std::ranges::for_each(region.inputs, rename);
  for (Op& op : region.ops) {
    op.each_operand(rename_operand);
    std::ranges::for_each(op.results, rename);
    if (op.remat) rename(*op.remat);
  }
  for (Yield& yield : region.yields) rename_operand(yield.what);
}

bool makes(const Op& op, const Operand& operand) {
  const ValueId* value = as_value(operand);
  return value != nullptr && contains(op.results, *value);
}

size_t maker_of(const Region& region, const Operand& operand) {
  const auto maker = std::ranges::find_if(region.ops, [&](const Op& op) { return makes(op, operand); });
  return static_cast<size_t>(maker - region.ops.begin());
}

bool is_read(const Region& region, ValueId value) {
  return std::ranges::any_of(region.ops, [&](const Op& op) { return op.reads(value); }) ||
         std::ranges::any_of(region.yields, [&](const Yield& yield) { return yield.what == Operand(value); });
}

std::vector<Op> take_dead(Region& region) {
  std::vector<bool> wanted(region.values.size(), false);
  const auto want = [&](const Operand& operand) {
    if (const ValueId* value = as_value(operand)) wanted[index(*value)] = true;
  };
  for (const Yield& yield : region.yields) want(yield.what);
  std::vector<Op> kept, dead;
  for (auto op = region.ops.rbegin(); op != region.ops.rend(); ++op) {
    const bool used = std::ranges::any_of(op->results, [&](ValueId result) { return wanted[index(result)]; });
    const bool lives = used || op->info->writes != 0;
    if (lives) op->each_operand(want);
    (lives ? kept : dead).push_back(std::move(*op));
  }
  std::ranges::reverse(kept);
  region.ops = std::move(kept);
  return dead;
}

void remove_dead(Region& region) {
  take_dead(region);
  compact(region);
}

void remove_unread(Region& region) {
  take_dead(region);
  std::erase_if(region.inputs, [&](ValueId input) { return !is_read(region, input); });
  compact(region);
}

}  // namespace gacc::ir
