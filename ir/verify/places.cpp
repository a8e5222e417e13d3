// Rules of kernels, and of places in the arena.
#include <algorithm>
#include <set>

#include "ir/host_state.h"
#include "ir/region_facts.h"
#include "ir/row_pitch.h"
#include "ir/verify/rules.h"

namespace gacc::ir {

namespace {

// R15: one place, in the arena or in the host's block behind it. There is one from phase planned on, and not before.
void verify_place(const Module& module, const Location& at, const std::string& name, int64_t bytes,
                  const std::optional<int64_t>& offset, int64_t alignment, bool host, const Broken& broken) {
  const bool planned = module.phase >= Phase::planned;
  if (!offset) {
    if (planned) broken("R15", at, "`{}` has no place in the arena", name);
    return;
  }
  if (!planned) return broken("R15", at, "`{}` has a place before phase planned", name);
  const int64_t arena = module.arena_bytes.value_or(0), begin = host ? arena : 0;
  const int64_t end = host ? arena + module.host_bytes : arena;
  if (*offset < begin || *offset % alignment != 0 || bytes > end || *offset > end - bytes)
    broken("R15", at, "`{}` at {} is misaligned or outside the {} of {} bytes", name, *offset,
           host ? "host's block" : "arena", end - begin);
}

struct PlaceRules : RegionRules {
  void run() {
    std::set<int32_t> seen;
    for (size_t i = 0; i < region.ops.size(); ++i) {
      const Op& op = region.ops[i];
      if (at_least(Phase::fused) != (op.kernel >= 0))
        return broken("R14", op.at, "`{}` {} a kernel number in phase {}", op.info->name,
                      op.kernel >= 0 ? "has" : "lacks", phase_text(module.phase));
      const bool continues = i > 0 && region.ops[i - 1].kernel == op.kernel;
      if (op.kernel >= 0 && !continues && !seen.insert(op.kernel).second)
        return broken("R14", op.at, "the ops of kernel {} do not stand together", op.kernel);
    }
    if (!at_least(Phase::fused)) {
      for (const Value& value : region.values) {
        if (value.offset) broken("R15", {}, "`%{}` has a place before phase planned", value.name);
        if (value.type.pitch != 0) broken("R25", {}, "`%{}` has a pitch before phase fused", value.name);
      }
      return;
    }
    const Facts known = facts(module, region);
    const std::vector<Kernel>& all = known->kernels;
    if (!known->problem.empty()) return broken("R14", region.ops.front().at, "{}", known->problem);
    const auto value_place = [&](ValueId id, const Location& at) {
      verify_place(module, at, "%" + region[id].name,
                   type_bytes(region[id].type, module.most_samples(region)), region[id].offset,
                   kArenaAlignment, false, broken);
    };
    for (const Yield& yield : region.yields)
      if (const ValueId* id = as_value(yield.what)) value_place(*id, region.at);
    for (const ValueId input : region.inputs) value_place(input, region.at);
    pitches(all);
    for (const Kernel& kernel : all) {
      for (const Operand& write : kernel.writes)
        if (const ValueId* id = as_value(write)) value_place(*id, region.ops[kernel.members.front().op].at);
    }
  }

  // R25
  void pitches(const std::vector<Kernel>& all) {
    for (size_t i = 0; i < region.values.size(); ++i) {
      const Type& type = region.values[i].type;
      if (type.pitch == 0) continue;
      if (!may_have_pitch(region, all, ValueId{static_cast<int32_t>(i)}))
        broken("R25", region.at, "`%{}` is {}: a kernel that it meets does not walk rows",
               region.values[i].name, type_text(type));
    }
  }
};

}  // namespace

void verify_buffer_places(const Module& module, const Broken& broken) {
  for (const BufferId id : module.buffer_ids()) {
    const Buffer& buffer = module[id];
    verify_place(module, buffer.at, "@" + buffer.name, room_bytes(buffer), buffer.offset, alignment(buffer),
                 is_on_host(module, id), broken);
  }
  if ((module.phase >= Phase::planned) != module.arena_bytes.has_value())
    broken("R15", {}, "a module has an arena size in phase planned, and only then");
}

void verify_places(const Module& module, const Region& region, const Broken& broken) {
  PlaceRules{{module, region, broken}}.run();
}

}  // namespace gacc::ir
