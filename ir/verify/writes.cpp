// Rules of what ops write, and of what they repeat.
#include <algorithm>

#include "ir/host_state.h"
#include "ir/kernel.h"
#include "ir/verify/rules.h"

namespace gacc::ir {

namespace {

struct WriteRules : RegionRules {
  // Returns true if the op adds to a buffer and never shares a kernel: then others of its kind may add to it as well.
  static bool adds_alone(const Op& op) {
    const bool alone = op.info->lowering == Lowering::gemm || op.info->lowering == Lowering::handwritten;
    return alone && op.info->accumulates;
  }

  // R6: a buffer is written at most once, and never read after that; or several ops add to it, one by one
  void memory_rule() {
    const StorageRoots roots(region);
    std::vector<const Op*> written(module.buffers.size(), nullptr);
    std::vector<const Op*> parts_written(module.buffers.size(), nullptr);  // by the whole
    const auto is_part = [&](BufferId buffer) { return module[buffer].role == BufferRole::part; };
    const auto whole = [&](BufferId buffer) { return index(storage_of(module, buffer)); };
    const auto place = [&](BufferId buffer) { return is_part(buffer) ? index(buffer) : whole(buffer); };
    for (const Op& op : region.ops) {
      const auto read = [&](const Operand& operand, bool added_to) {
        const std::optional<BufferId> id = roots.buffer(operand);
        if (!id || module[*id].role == BufferRole::slot) return;  // R33
        const Op* before = written[place(*id)];
        if (before == nullptr) before = is_part(*id) ? written[whole(*id)] : parts_written[whole(*id)];
        if (before == nullptr || (added_to && adds_alone(op) && adds_alone(*before))) return;
        broken("R6", op.at, "`@{}` is used after it was written", module[*id].name);
      };
      // `init` copies to the host what it made in a gradient's place, which is then free again.
      if (region.kind == RegionKind::init && op.info == &op_host_out) {
        const BufferId from = *as_buffer(op.operands[1]);
        written[place(from)] = parts_written[whole(from)] = nullptr;
      }
      for (size_t i = 0; i < op.operands.size(); ++i) read(op.operands[i], op.info->is_written(i));
      if (op.when) read(*op.when, false);
      for (const BufferId buffer : ir::written(op)) {
        written[place(buffer)] = &op;
        if (is_part(buffer)) parts_written[whole(buffer)] = &op;
      }
    }
  }

  // R7: what a region may write
  void region_writes() {
    for (const Op& op : region.ops) {
      for (const BufferId id : written(op)) {
        const Buffer& buffer = module[id];
        const bool acc = op.info->accumulates;
        const bool ordinal =
            op.info == &op_samples_advance && (buffer.name == named_info(Named::samples_low).name ||
                                               buffer.name == named_info(Named::samples_high).name);
        const bool sum = buffer.kind == BufferKind::accum &&
                         (buffer.role == BufferRole::node || role_info(buffer.role).combines());
        const auto slice_of = [&](BufferRole role) {
          return buffer.role == BufferRole::slice && module[*buffer.of].role == role;
        };
        const struct {
          RegionKind kind;
          bool may;
          std::string_view says;
        } rules[] = {
            {RegionKind::step, (buffer.kind == BufferKind::accum && acc) || ordinal,
             "writes accumulators by *.acc only, not"},
            {RegionKind::eval, buffer.role == BufferRole::evaluation && acc,
             "adds to state of the role `evaluation` only, not to"},
            {RegionKind::measure, buffer.role == BufferRole::evaluation && acc,
             "adds to state of the role `evaluation` only, not to"},
            {RegionKind::close, sum, "writes the window's sums and their nodes only, not"},
            {RegionKind::norms, slice_of(BufferRole::norm_parts), "writes slices of sums in parts only, not"},
            {RegionKind::ratios, slice_of(BufferRole::ratio_parts),
             "writes slices of sums in parts only, not"},
            {RegionKind::clear, sum, "writes the window's sums only, not"},
            {RegionKind::predict, false, "writes no buffer, not"},
            {RegionKind::answer, false, "writes no buffer, not"},
            {RegionKind::decode, false, "writes no buffer, not"}};
        for (const auto& [kind, may, says] : rules)
          if (kind == region.kind && !may)
            broken("R7", op.at, "{} {} `@{}`", region_text(kind), says, buffer.name);
      }
    }
  }

  // R16: a clone equals its original, and takes its place: neither the original nor an earlier clone is read
  // after it.
  void clones() {
    std::vector<const Op*> maker(region.values.size(), nullptr);
    std::vector<bool> read(region.values.size(), false);
    for (const Op& op : region.ops) {
      for (const ValueId result : op.results) maker[index(result)] = &op;
      for (const Operand& operand : op.operands)
        if (const ValueId* value = as_value(operand)) read[index(*value)] = true;
    }
    // The value that a value is, or repeats.
    const auto base = [&](ValueId value) {
      const Op* op = maker[index(value)];
      if (op == nullptr || !op->remat) return value;
      const Op* original = maker[index(*op->remat)];
      for (size_t i = 0; original != nullptr && i < op->results.size() && i < original->results.size(); ++i)
        if (op->results[i] == value) return original->results[i];
      return value;
    };
    const auto same = [&](const Operand& a, const Operand& b) {
      const ValueId *x = as_value(a), *y = as_value(b);
      return x != nullptr && y != nullptr ? base(*x) == base(*y) : a == b;
    };
    std::vector<ValueId> newest(region.values.size());  // by value: its last clone so far
    for (const Op& op : region.ops) {
      for (const Operand& operand : op.operands) {
        const ValueId* value = as_value(operand);
        if (value == nullptr) continue;
        const ValueId now = newest[index(base(*value))];
        if (now.index >= 0 && now != *value)
          broken("R16", op.at, "`%{}` is read after `%{}` took its place", region[*value].name,
                 region[now].name);
      }
      if (!op.remat) continue;
      if (!at_least(Phase::recomputed))
        broken("R16", op.at, "a clone stands in phase {}", phase_text(module.phase));
      const Op* original =
          op.remat->index >= 0 && index(*op.remat) < maker.size() ? maker[index(*op.remat)] : nullptr;
      const bool equal =
          original != nullptr && !original->remat && original->results.front() == *op.remat &&
          original->info == op.info && original->attrs == op.attrs && op.info->writes == 0 &&
          std::equal(op.operands.begin(), op.operands.end(), original->operands.begin(),
                     original->operands.end(), same) &&
          std::equal(op.results.begin(), op.results.end(), original->results.begin(), original->results.end(),
                     [&](ValueId a, ValueId b) { return region[a].type == region[b].type; });
      if (!equal) {
        broken("R16", op.at, "this `{}` does not repeat what makes `%{}`", op.info->name,
               original != nullptr ? region[*op.remat].name : "?");
        continue;
      }
      for (const ValueId result : op.results)
        if (read[index(result)]) newest[index(base(result))] = result;
    }
  }
};

}  // namespace

void verify_writes(const Module& module, const Region& region, const Broken& broken) {
  WriteRules rules{{module, region, broken}};
  rules.memory_rule();
  rules.region_writes();
}
void verify_clones(const Module& module, const Region& region, const Broken& broken) {
  WriteRules{{module, region, broken}}.clones();
}

}  // namespace gacc::ir
