// The way from a kernel to its body and call: members become formulas over slots, the domain becomes rows and columns;
// then host or device decide how the work is cut.
#include "kernels/specialisation.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

#include "kernels/gemm.h"
#include "kernels/machine.h"

namespace gacc::kernels {

namespace {

// Columns of a row on the device: below the first, several rows share a warp; above the others a row has a
// block, of kBlockThreads and of kLongRowThreads.
constexpr int64_t kWarpRow = 128, kBlockRow = 1024, kLongRow = 8192;
// Threads of a block that has a long row, and of one that rows share.
constexpr int64_t kLongRowThreads = 1024, kShortRowsThreads = 128;
// The most registers of a thread; those that its part of a row may take, and those that it needs besides.
constexpr int64_t kMostRegisters = 255, kMostHeld = 48, kOtherRegisters = 52;
// Elements of 2 and of 4 bytes in an access of 16 bytes, the widest.
constexpr int kEight = 8, kFour = 4;
// Operations (Body::cost) of an element from which on a thread has 4 elements at once, and then 1: all of them are in
// its registers.
constexpr int kMostCostOfEight = 100, kMostCostOfFour = 200;
// Operations that an element costs at least, with its load and store.
constexpr int kLeastCost = 4;
// Elements of a host task are a multiple of this, which every CPU's vectors divide.
constexpr int64_t kTaskGrain = 256;
constexpr int64_t kColumnGrain = 64;  // of a column sum's columns
// Threads of a column sum that are side by side, at least: they read 128 bytes of a row.
constexpr int64_t kLeastSide = 8;

// Returns the threads that lie side by side over so many vectors of a row: a power of two, a warp at most.
int64_t team_of(int64_t vectors) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::min(vectors, kWarp))));
}

using ir::Access;
using ir::KernelForm;
using ir::Lowering;
using ir::Operand;
using ir::ScalarOp;

class BodyBuilder {
 public:
  BodyBuilder(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel, Purpose purpose)
      : module_(module), region_(region), kernel_(kernel), purpose_(purpose) {}

  Specialisation build() {
    body_.form = kernel_.form;
    body_.stages = kernel_.stages;
    for (const Operand& operand : kernel_.reads) slot(operand).read = true;
    for (const Operand& operand : kernel_.writes) slot(operand).written = true;
    for (const ir::KernelMember& member : kernel_.members) add_member(member);
    set_domain();
    add_samples();
    if (body_.form == KernelForm::total_reduce || body_.form == KernelForm::column_reduce) set_parts();
    body_.extents = static_cast<int32_t>(call_.extents.size());
    if (purpose_ == Purpose::host)
      schedule_host();
    else
      schedule_device();
    body_.block = call_.block;
    call_.kernel = kernel_;
    return std::move(made_);
  }

 private:
  // The slot of a memory operand, made at its first mention.
  Slot& slot(const Operand& operand) {
    const int32_t found = find_slot(operand);
    if (found >= 0) return body_.slots[found];
    const ir::Type type = ir::operand_type(module_, region_, operand);
    call_.operands.push_back(operand);
    Slot& made = body_.slots.emplace_back();
    made.dtype = type.dtype;
    const std::optional<Access> access = ir::access(type.shape, kernel_.domain);
    // None: the result [P] of a sum in parts (OfSlot::reduced), or [T,1] in [B,T,C], for ops with one result
    // a row.
    made.access = access.value_or(Access::row);
    // [C,1] in [B,C,S], or [C,1,1] in [B,C,H,W] walked in rows of H W elements
    const bool channel = access == Access::channel;
    if (channel) made.access = Access::row;
    operands_.push_back({type, !access || channel});
    return made;
  }
  int32_t find_slot(const Operand& operand) const {
    const auto found = std::ranges::find(call_.operands, operand);
    return found == call_.operands.end() ? -1 : static_cast<int32_t>(found - call_.operands.begin());
  }

  Source source(const Operand& operand) const {
    if (const double* number = ir::as_number(operand)) return {Source::From::number, 0, 0, *number};
    if (const ir::ValueId* value = ir::as_value(operand)) {
      if (const auto made = sources_.find(*value); made != sources_.end()) return made->second;
    }
    return {Source::From::slot, find_slot(operand), 0, 0};
  }

  void add_member(const ir::KernelMember& from) {
    const ir::Op& op = region_.ops[from.op];
    Member member;
    member.kind = op.info->lowering;
    member.combine = op.info->combine;
    member.stage = from.stage;
    member.per_row = from.per_row;
    if (op.when) member.when = source(*op.when);
    if (member.kind == Lowering::pointwise) {
      member.program = ir::record(ir::OpView{module_, region_, op});
      for (const Operand& operand : op.operands) member.inputs.push_back(source(operand));
      body_.cost += cost_of(member.program);
      for (size_t n = 0; n < member.program.nodes.size(); ++n) {
        const ir::ScalarNode& node = member.program.nodes[n];
        if (node.op == ScalarOp::constant && node.kind != ir::ScalarKind::truth)
          made_.constants.emplace_back(body_.members.size(), n);
        uses_samples_ = uses_samples_ || node.op == ScalarOp::samples;
        uses_position_ = uses_position_ || node.op == ScalarOp::sample_uniform;
        uses_column_ = uses_column_ || node.op == ScalarOp::column || node.op == ScalarOp::sample_uniform;
      }
    } else {
      member.inputs.push_back(source(ir::reduced(op)));
      member.ordered = ir::has_flag(op, "ordered");
      body_.cost += 1;
    }
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (!op.info->is_written(i)) continue;
      const int32_t index = find_slot(op.operands[i]);
      const bool adds = member.kind != Lowering::pointwise && op.info->is_read(i);
      member.accumulate = member.accumulate || adds;
      member.types.push_back(body_.slots[index].dtype);
      member.stores.push_back(index);
      member.old.push_back(adds || op.when ? index : -1);
    }
    const bool reduces = member.kind == Lowering::column_reduce || member.kind == Lowering::total_reduce;
    for (const ir::ValueId result : op.results) {
      sources_[result] = {Source::From::member, static_cast<int32_t>(body_.members.size()),
                          static_cast<int32_t>(member.types.size()), 0};
      const int32_t index = find_slot(result);
      member.types.push_back(region_[result].type.dtype);
      member.stores.push_back(index >= 0 && body_.slots[index].written ? index : -1);
      member.old.push_back(-1);
    }
    for (const int32_t index : member.stores)
      if (reduces && index >= 0) operands_[index].reduced = true;
    body_.members.push_back(std::move(member));
  }

  // Rows, columns and periods; kernels that need no row index become one long row, and kernels that repeat an
  // operand every P rows become kernels of rows P times as long.
  void set_domain() {
    const bool batch = ir::has_batch(kernel_.domain);
    int64_t rows = ir::rows(kernel_.domain, 1), columns = ir::columns(kernel_.domain);
    if (kernel_.inner != 0) {
      rows = rows * columns / kernel_.inner;
      columns = kernel_.inner;
    }
    bool flat = true, mergeable = true;
    int64_t period = 0;
    for (size_t i = 0; i < body_.slots.size(); ++i) {
      Slot& slot = body_.slots[i];
      const ir::Type& type = operands_[i].type;
      if (operands_[i].reduced) {
        // Found by its part or column; how its shape compares with the domain's is nobody's business.
        if (!slot.read) slot.access = Access::scalar;
        continue;
      }
      flat = flat && (slot.access == Access::element || slot.access == Access::scalar) && type.pitch == 0;
      mergeable = mergeable && slot.access != Access::row && type.pitch == 0;
      if (slot.access != Access::suffix) continue;
      const int64_t own = ir::rows(type.shape, 1);
      mergeable = mergeable && (period == 0 || own == period);
      period = own;
    }
    const bool one_pass =
        (body_.form == KernelForm::pointwise || body_.form == KernelForm::total_reduce) && !uses_column_;
    row_size_ = columns;
    if (body_.blocks()) {
      const int64_t block = ir::dtype_info(body_.members[0].types[0]).block;
      call_.extents = {{rows * columns / block, false}, {block, false}};
      return;
    }
    body_.flat = one_pass && flat;
    // Nor must it show whether a launch has more than one part.
    const bool whole =
        body_.form == KernelForm::pointwise || (!has_parts() && !ir::keeps_bits(module_.settings));
    if (body_.flat) {
      call_.extents = {{1, false}, {rows * columns, batch}};
      return;
    }
    if (one_pass && whole && mergeable && period > 1) {
      rows /= period, columns *= period;
      merged_ = true;
    }
    call_.extents = {{rows, batch}, {columns, false}};
    for (size_t i = 0; i < body_.slots.size(); ++i) {
      Slot& slot = body_.slots[i];
      if (operands_[i].reduced || merged_) continue;
      if (slot.access != Access::suffix && !operands_[i].repeats_rows) continue;
      const int64_t own = ir::rows(operands_[i].type.shape, 1);
      if (own == 1 && slot.access == Access::suffix) continue;
      slot.period = static_cast<int32_t>(call_.extents.size());
      call_.extents.push_back({own, false});
    }
    for (size_t i = 0; i < body_.slots.size(); ++i) {
      const int64_t pitch = operands_[i].type.pitch;
      if (pitch == 0) continue;
      if (pitch_ == 0) call_.extents.push_back({pitch, false});  // that of all
      pitch_ = pitch;
      body_.slots[i].pitch = static_cast<int32_t>(call_.extents.size()) - 1;
    }
  }

  // Adds the extents that formulas ask about samples.
  void add_samples() {
    if (uses_position_) {
      body_.rows_of_sample = static_cast<int32_t>(call_.extents.size());
      call_.extents.push_back({call_.extents[0].factor, false});  // as walked: Kernel::inner may redraw them
    }
    if (uses_samples_) {
      body_.samples = static_cast<int32_t>(call_.extents.size());
      call_.extents.push_back({1, true});
    }
  }

  bool has_parts() const {
    return std::ranges::any_of(
        operands_, [](const OfSlot& o) { return o.reduced && ir::elements(o.type.shape, 1) > 1; });
  }

  // Part p sums rows [p * chunk, (p + 1) * chunk) (of a flat body: elements).
  void set_parts() {
    for (const OfSlot& operand : operands_) {
      if (!operand.reduced) continue;
      int64_t own = ir::elements(operand.type.shape, 1);
      if (body_.form == KernelForm::column_reduce) own /= row_size_;
      if (parts_ != 0 && parts_ != own)
        throw Unfit("reductions with different numbers of parts do not share a kernel");
      parts_ = own;
    }
    parts_ = std::max<int64_t>(parts_, 1);
    chunk_ = ceil_divide(ir::rows(kernel_.domain, module_.micro_batch()), parts_);
    if (body_.flat) chunk_ *= row_size_;
    if (merged_) chunk_ = call_.extents[0].at(module_.micro_batch());
    body_.chunk = static_cast<int32_t>(call_.extents.size());
    call_.extents.push_back({chunk_, false});
    if (body_.form == KernelForm::column_reduce && purpose_ == Purpose::host)
      call_.extents.push_back(
          {std::max<int64_t>(1, host_work() / chunk_ / kColumnGrain) * kColumnGrain, false});
  }

  // Returns the elements of a host task.
  int64_t host_work() const {
    return std::max(kTaskOperations / std::max(body_.cost, kLeastCost) / kTaskGrain * kTaskGrain, kTaskGrain);
  }

  void schedule_host() {
    const int64_t columns = call_.extents[1].at(module_.micro_batch());
    if (body_.chunk >= 0) {
      call_.unit = Unit::parts;
      call_.items = {parts_, false};
      if (body_.form == KernelForm::column_reduce)
        call_.items.factor *= ceil_divide(columns, call_.extents.back().factor);
    } else {
      call_.unit = body_.flat ? Unit::elements : Unit::rows;
      call_.items = call_.extents[body_.flat ? 1 : 0];
      call_.tile = body_.flat ? host_work() : std::max<int64_t>(1, host_work() / columns);
    }
  }

  void schedule_device() {
    const int64_t micro_batch = module_.micro_batch();
    const Extent rows = call_.extents[0], columns = call_.extents[1];
    const int64_t elements = rows.at(micro_batch) * std::max(pitch_, columns.at(micro_batch));
    body_.wide_index = elements >= kWideIndexElements;
    // 16-byte accesses: 4 elements at once, of half types 8, where every row starts at a multiple of that.
    const int64_t walked = walks_gaps() ? ceil_divide(columns.factor, kEight) * kEight : columns.factor;
    const bool fours = walked % kFour == 0;
    const bool eights =
        walked % kEight == 0 && body_.cost < kMostCostOfEight &&
        std::ranges::any_of(body_.slots, [](const Slot& s) { return ir::dtype_bytes(s.dtype) == 2; });
    switch (body_.form) {
      case KernelForm::pointwise: {
        if (body_.blocks()) {
          call_.items = rows;
          call_.block = call_.per_block = kBlockThreads;
          break;
        }
        body_.vector = eights ? kEight : fours && body_.cost < kMostCostOfFour ? kFour : 1;
        const Extent along = body_.flat ? columns : rows;
        const int64_t other = body_.flat ? 1 : ceil_divide(columns.factor, body_.vector) * body_.vector;
        call_.items = {along.factor * other / body_.vector, along.times_batch};
        call_.block = call_.per_block = kBlockThreads;
        break;
      }
      case KernelForm::rowwise:
        // By the row's length alone: a sum that is recomputed in another kernel has the same bits.
        body_.vector = !fours ? 1 : walked % kEight == 0 && columns.factor < kWarpRow ? kEight : kFour;
        call_.items = rows;
        // Stages read their row again. Of long rows fewer are under way, so the second-level cache has them.
        call_.block = columns.factor > kLongRow    ? kLongRowThreads
                      : columns.factor > kBlockRow ? kBlockThreads
                                                   : kShortRowsThreads;
        body_.team =
            columns.factor > kBlockRow ? call_.block : team_of(ceil_divide(columns.factor, body_.vector));
        call_.per_block = call_.block / body_.team;
        hold_row(columns.factor);
        if (call_.per_block == 1)
          body_.shared = reduction_bytes(call_.block, reductions(Lowering::row_reduce));
        break;
      case KernelForm::column_reduce:
        body_.vector = eights ? kEight : fours ? kFour : 1;
        if (ordered()) {  // a thread has a column from its first row to the last
          body_.vector = 1;
          body_.side = call_.block = kWarp;
          call_.items = {parts_ * ceil_divide(columns.factor, kWarp), false};
          call_.per_block = 1;
          body_.shared = call_.block * 4;
          break;
        }
        // By the shape alone, so not by the vector: a sum that is recomputed in another kernel has the same
        // bits. Where blocks of 8 columns a thread would be few, they take fewer columns.
        body_.side = team_of(ceil_divide(columns.factor, kEight));
        // Nor by the number of parts, where they are those of samples and bits must not depend on these.
        while (body_.side > kLeastSide && !ir::keeps_bits(module_.settings) &&
               parts_ * ceil_divide(columns.factor, body_.side * kEight) < kBlocksThatFillGpu)
          body_.side /= 2;
        call_.items = {parts_ * ceil_divide(columns.factor, body_.side * body_.vector), false};
        // At least as many threads as columns.
        call_.block = std::clamp<int64_t>(
            body_.side * static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(chunk_))),
            std::max(kEight * body_.side, kWarp), kBlockThreads);
        call_.per_block = 1;
        body_.resident = 2;  // or ptxas spills to save registers that nobody needs
        body_.shared = call_.block * body_.vector * 4;
        break;
      default:
        body_.vector = eights && (!body_.flat || chunk_ % kEight == 0) ? kEight
                       : fours && (!body_.flat || chunk_ % kFour == 0) ? kFour
                                                                       : 1;
        call_.items = {parts_, false};
        call_.block = ordered() ? kWarp : kBlockThreads;  // in order one thread adds
        call_.per_block = 1;
        body_.shared = reduction_bytes(call_.block, reductions(Lowering::total_reduce));
    }
    body_.gaps = columns.factor % body_.vector != 0;
  }

  // Keeps a row in registers, or as many of its vectors as there is room for: a stage does not load again what the one
  // before has loaded.
  void hold_row(int64_t columns) {
    std::map<int32_t, int> readers;  // stages, by slot
    for (int number = 0; number < body_.stages; ++number)
      for (const int32_t slot : body_.slots_of_stage(number)) ++readers[slot];
    int64_t real = 0, stored = 0;  // registers of a vector
    for (const auto& [slot, stages] : readers) {
      const auto& [dtype, access] = std::tie(body_.slots[slot].dtype, body_.slots[slot].access);
      if (stages < 2 || (access != Access::element && access != Access::suffix)) continue;
      const bool pairs = ir::dtype_bytes(dtype) == 2 && body_.vector % 2 == 0;
      real += body_.vector, stored += pairs ? body_.vector / 2 : body_.vector;
    }
    const int64_t room = std::min(Machine::kRegisters / call_.block, kMostRegisters) - kOtherRegisters;
    const int64_t whole = columns / (body_.team * body_.vector);
    body_.held = std::min(whole, std::min(room, kMostHeld) / std::max<int64_t>(stored, 1));
    body_.held_as_stored = body_.held * real > room && body_.vector % 2 == 0;
    body_.held_registers = body_.held * stored;
    body_.holds_all = body_.held * body_.team * body_.vector == columns;
    // 512 threads, or ptxas spills a few registers for one more block, or takes more than 128.
    if (body_.held > 0 && call_.block <= kBlockThreads) body_.resident = 2 * kBlockThreads / call_.block;
  }

  // Returns true if a row's last vector may reach into the gap behind it: every operand that has an element for each
  // point has a gap.
  bool walks_gaps() const {
    if (pitch_ == 0 || body_.form == KernelForm::column_reduce) return false;
    for (size_t i = 0; i < body_.slots.size(); ++i) {
      const Slot& slot = body_.slots[i];
      if (operands_[i].reduced || slot.access == Access::row || slot.access == Access::scalar) continue;
      if (slot.pitch < 0) return false;
    }
    return true;
  }

  bool ordered() const { return std::ranges::any_of(body_.members, &Member::ordered); }

  int64_t reductions(Lowering kind) const {
    return std::ranges::count_if(body_.members, [&](const Member& member) { return member.kind == kind; });
  }

  const ir::Module& module_;
  const ir::Region& region_;
  const ir::Kernel& kernel_;
  Purpose purpose_;
  Specialisation made_;
  BodyCall& call_ = made_.call;
  Body& body_ = made_.body;
  // The operand of each slot.
  struct OfSlot {
    ir::Type type;
    bool repeats_rows;     // it holds one value a row for a period of rows
    bool reduced = false;  // column and total reductions write it
  };
  std::vector<OfSlot> operands_;
  int64_t pitch_ = 0;                      // of the slots that have one
  std::map<ir::ValueId, Source> sources_;  // values of the body's own members
  bool uses_column_ = false, uses_position_ = false, uses_samples_ = false, merged_ = false;
  int64_t parts_ = 0, chunk_ = 0, row_size_ = 1;
};

}  // namespace

const ScalarCost& scalar_cost(ScalarOp op) {
  static constexpr ScalarCost usual{1, {1, 1}, {0, 0}}, none{0, {0, 0}, {0, 0}};
  static constexpr std::pair<ScalarOp, ScalarCost> others[] = {
      {ScalarOp::input, none},
      {ScalarOp::constant, none},
      {ScalarOp::column, none},
      {ScalarOp::element, none},
      {ScalarOp::samples, none},
      {ScalarOp::div, {4, {10, 7}, {1, 1}}},  // exact division and root with their checks
      {ScalarOp::sqrt, {4, {10, 10}, {1, 1}}},
      {ScalarOp::exp, {16, {20, 2}, {0, 1}}},
      {ScalarOp::log, {24, {32, 32}, {0, 0}}},
      {ScalarOp::tanh, {32, {50, 14}, {1, 2}}},
      {ScalarOp::erf, {32, {44, 26}, {0, 1}}},
      {ScalarOp::sin, {24, {27, 27}, {0, 0}}},
      {ScalarOp::cos, {24, {27, 27}, {0, 0}}},
      {ScalarOp::uniform, {120, {85, 85}, {0, 0}}},
      {ScalarOp::sample_uniform, {120, {85, 85}, {0, 0}}}};
  const auto* found = std::ranges::find(others, op, [](const auto& other) { return other.first; });
  return found != std::end(others) ? found->second : usual;
}

int cost_of(const ir::ScalarProgram& program) {
  int cost = 0;
  for (const ir::ScalarNode& node : program.nodes) cost += scalar_cost(node.op).operations;
  return cost;
}

Specialisation specialise(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel,
                          Purpose purpose) {
  return BodyBuilder(module, region, kernel, purpose).build();
}

}  // namespace gacc::kernels
