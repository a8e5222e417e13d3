// R33: state on the host, and its copies through the arena.
#include "ir/host_state.h"

#include <map>
#include <set>

#include "ir/verify/rules.h"

namespace gacc::ir {

void verify_host_buffers(const Module& module, const Broken& broken) {
  bool any = false;
  for (const Buffer& buffer : module.buffers) {
    const auto wrong = [&]<class... A>(fmt::format_string<A...> format, A&&... args) {
      broken("R33", buffer.at, "`@{}` {}", buffer.name, fmt::format(format, std::forward<A>(args)...));
    };
    any = any || buffer.host;
    const bool slot = buffer.role == BufferRole::slot, part = buffer.role == BufferRole::part;
    if ((buffer.host || slot || part) && module.phase < Phase::fused)
      wrong("is for state on the host in phase {}", phase_text(module.phase));
    if (buffer.host) {
      const auto has = [&](BufferRole role) {
        return module.find_belonging(*module.find_buffer(buffer.name), role).has_value();
      };
      const bool parameter = buffer.role == BufferRole::weight && buffer.trainable && has(BufferRole::half) &&
                             has(BufferRole::gradient);
      const bool state =
          (buffer.role == BufferRole::moment || buffer.role == BufferRole::master || parameter) &&
          buffer.type.dtype == DType::f32;
      if (!state && !is_fetched(buffer))
        wrong("is neither a moment, nor a master, nor a frozen or half weight, and cannot lie on the host");
    }
    if (buffer.from != 0 && !part) wrong("is no part, and begins at no element of another buffer");
    if (!slot && !part) continue;
    const Buffer& of = module[*buffer.of];
    const int64_t size = elements(buffer.type.shape, 1), all = elements(of.type.shape, 1);
    if (of.type.dtype != buffer.type.dtype || of.role == BufferRole::slot || of.role == BufferRole::part)
      wrong("is no part of `@{}`", of.name);
    if (buffer.from < 0 || size > all || buffer.from > all - size)
      wrong("has elements {} to {} of `@{}`, which has {}", buffer.from, buffer.from + size - 1, of.name,
            all);
    if (slot && !of.host) wrong("is a slot of `@{}`, which does not lie on the host", of.name);
  }
  if (any != (module.host_bytes > 0) && module.phase >= Phase::planned)
    broken("R33", {}, "the module has {} bytes on the host", module.host_bytes);
}

namespace {

class HostStateRules : RegionRules {
 public:
  HostStateRules(const Module& module, const Region& region, const Broken& broken)
      : RegionRules{module, region, broken}, section_(section_of_ops(region)) {}

  void run() {
    for (size_t i = 0; i < region.ops.size(); ++i) {
      const Op& op = region.ops[i];
      if (is_copy(op)) {
        copy(op);
      } else if (op.info == &op_host_fetch) {
        fetch(op);
      } else {
        touch(op);
        if (section_ && section_->first < i && i < section_->last) in_section(op);
      }
    }
    for (const auto& [slot, stage] : slots_)
      if (stage != Stage::out) wrong(region.at, "`@{}` does not go back to the host", module[slot].name);
    if (section_) after_section();
    parts();
  }

 private:
  enum class Stage : uint8_t { in, updated, out };

  template <class... A>
  void wrong(const Location& at, fmt::format_string<A...> format, A&&... args) {
    broken("R33", at, "{}: {}", region_text(region.kind), fmt::format(format, std::forward<A>(args)...));
  }

  // A frozen or half weight becomes a value.
  void fetch(const Op& op) {
    const BufferId* host = as_buffer(op.operands[0]);
    if (host == nullptr || !is_on_host(module, *host) || !is_fetched(module[*host]))
      return wrong(op.at, "`host.fetch` takes a frozen or half weight that lies on the host");
    if (region.kind == RegionKind::init || region.kind == RegionKind::update)
      wrong(op.at, "`@{}` is fetched where it is not read", module[*host].name);
  }

  void copy(const Op& op) {
    const bool in = op.info == &op_host_in;
    if (as_buffer(op.operands[0]) == nullptr || as_buffer(op.operands[1]) == nullptr)
      return wrong(op.at, "`{}` copies a buffer to a buffer", op.info->name);
    const BufferId host = *as_buffer(op.operands[in ? 1 : 0]), other = *as_buffer(op.operands[in ? 0 : 1]);
    const Buffer& arena = module[other];
    const bool init = region.kind == RegionKind::init && !in;
    if (region.kind != RegionKind::update && !init) return wrong(op.at, "it copies no state");
    if (arena.role != BufferRole::slot && !(init && arena.role == BufferRole::part))
      return wrong(op.at, "`@{}` is no {}", arena.name, init ? "part" : "slot");
    if (!is_on_host(module, host) || is_on_host(module, other))
      return wrong(op.at, "`@{}` does not lie on the host, or `@{}` does", module[host].name, arena.name);
    if (init) {
      if (op.when) wrong(op.at, "state is copied under no condition");
      if (arena.role == BufferRole::part) return;
      const auto slot = slots_.find(other);
      if (slot == slots_.end() || slot->second != Stage::updated || *arena.of != host)
        return wrong(op.at, "`@{}` goes out before it was made, or elsewhere", arena.name);
      slot->second = Stage::out;
      return;
    }
    if (module[storage_of(module, host)].role == BufferRole::weight &&
        !module[storage_of(module, host)].trainable)
      return wrong(op.at, "`@{}` is a frozen weight, which `host.fetch` copies", module[host].name);
    if (storage_of(module, host) != storage_of(module, *arena.of))
      wrong(op.at, "`@{}` is a slot of `@{}`, not of `@{}`", arena.name, module[*arena.of].name,
            module[host].name);
    if (!section_) return wrong(op.at, "`@{}` goes out, and nothing comes in", arena.name);
    if (!op.when || as_value(*op.when) == nullptr || *op.when != section_->flag)
      wrong(op.at, "all copies have one condition, a value");
    if (in) {
      if (!slots_.emplace(other, Stage::in).second) wrong(op.at, "`@{}` comes in a second time", arena.name);
      home_[other] = host;
      return;
    }
    const auto slot = slots_.find(other);
    if (slot == slots_.end() || slot->second != Stage::updated || home_[other] != host)
      return wrong(op.at, "`@{}` goes out before it came in and was updated, or elsewhere", arena.name);
    slot->second = Stage::out;
  }

  // Slots are touched while they are in; what lies on the host never.
  void touch(const Op& op) {
    op.each_operand([&](const Operand& operand) {
      const BufferId* buffer = as_buffer(operand);
      if (buffer == nullptr) return;
      if (is_on_host(module, *buffer))
        wrong(op.at, "`{}` takes `@{}`, which lies on the host", op.info->name, module[*buffer].name);
      if (module[*buffer].role != BufferRole::slot) return;
      if (region.kind == RegionKind::init) return start(op, *buffer);
      const auto slot = slots_.find(*buffer);
      if (slot == slots_.end() || slot->second != Stage::in)
        wrong(op.at, "`{}` takes `@{}` before it came in, or after it was updated", op.info->name,
              module[*buffer].name);
    });
    for (const BufferId buffer : written(op)) {
      const auto slot = slots_.find(buffer);
      if (slot != slots_.end() && slot->second == Stage::in) slot->second = Stage::updated;
    }
  }

  // `init` makes a frozen or half weight in a slot: one op writes it, and none reads it.
  void start(const Op& op, BufferId slot) {
    if (!contains(written(op), slot) || !slots_.emplace(slot, Stage::updated).second)
      wrong(op.at, "`{}` takes `@{}`, which one op makes and the host gets", op.info->name,
            module[slot].name);
  }

  // Checks an op of a section that may be left out together with its copies.
  void in_section(const Op& op) {
    if (op.info->writes != 0 && op.when != section_->flag)
      wrong(op.at, "`{}` stands between copies, and writes under another condition", op.info->name);
    made_.insert(op.results.begin(), op.results.end());
  }
  void after_section() {
    for (size_t i = section_->last + 1; i < region.ops.size(); ++i)
      region.ops[i].each_operand([&](const Operand& operand) {
        const ValueId* value = as_value(operand);
        if (value != nullptr && made_.contains(*value))
          wrong(region.ops[i].at, "`%{}` is made between copies and read behind them", region[*value].name);
      });
  }

  // Parts of a buffer that a region uses are the same elements, or none of them.
  void parts() {
    std::map<std::pair<BufferId, int64_t>, std::pair<BufferId, int64_t>>
        used;  // by place: the part, and its end
    for (const Op& op : region.ops)
      for (const Operand& operand : op.operands) {
        const BufferId* buffer = as_buffer(operand);
        if (buffer == nullptr || module[*buffer].role != BufferRole::part) continue;
        const int64_t begin = part_begin(module, *buffer);
        used.try_emplace({storage_of(module, *buffer), begin},
                         std::pair(*buffer, begin + type_bytes(module[*buffer].type, 1)));
        if (used.at({storage_of(module, *buffer), begin}).first != *buffer)
          wrong(op.at, "`@{}` has the elements of another part", module[*buffer].name);
      }
    for (auto at = used.begin(); at != used.end(); ++at) {
      const auto next = std::next(at);
      if (next != used.end() && next->first.first == at->first.first &&
          next->first.second < at->second.second)
        wrong(region.at, "`@{}` and `@{}` share elements", module[at->second.first].name,
              module[next->second.first].name);
    }
  }

  const std::optional<StateSection> section_;
  std::map<BufferId, Stage> slots_;
  std::map<BufferId, BufferId> home_;  // of a slot: where it came from
  std::set<ValueId> made_;             // in the section
};

}  // namespace

void verify_host_state(const Module& module, const Region& region, const Broken& broken) {
  HostStateRules(module, region, broken).run();
}

}  // namespace gacc::ir
