// Offsets for everything, in one arena: buffers first (they live for ever; of state the numbers before the rest, for
// the runtime reads some of them together), then one transient area that the regions share, for they never run at the
// same time. The regions of training make its size; predict takes as many samples as fit into it, or gives its output
// for one in parts.
//
//   1. Live ranges, from ir/liveness.h, at kernel granularity.
//   2. In-place pairs: a result may take the bytes of an operand that dies in its kernel where may_reuse
//      allows it. In each kernel the pairs are a matching that saves the most bytes; pairs chain to one
//      block. The result of a product is taken first: what else dies there may have another reader, which
//      would have to be done before the product can do the kernel (pass `epilogues`).
//   3. The blocks of each region are placed by planner/offsets.h; inputs side by side where that is no higher.
//
// A kernel's pairs depend on that kernel alone and save the most there, so the bytes live after step 2, at
// the fullest kernel, are a lower bound of every plan for this graph and order.
#include "passes/plan_memory.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "ir/dependence.h"
#include "ir/host_state.h"
#include "ir/liveness.h"
#include "ir/positions.h"
#include "ir/region_facts.h"
#include "ir/row_pitch.h"
#include "passes/analysis/rewrite.h"
#include "passes/answer.h"
#include "passes/launch_mode.h"
#include "passes/pass.h"
#include "passes/planner/offsets.h"
#include "passes/schedule/launches.h"

namespace gacc::passes {

namespace {

using namespace ir;

// A slot of what the region takes from the host and gives back (memory.host); `init` only gives.
struct Slot {
  BufferId buffer{};
  size_t block = 0;
};

// A region's values in blocks: those of one block share bytes, one after the other.
struct Transients {
  Facts facts;
  std::vector<LiveRange> ranges;
  std::vector<size_t> block_of;  // by range
  std::vector<planner::Block> blocks;
  std::vector<Slot> slots{};

  const std::vector<Kernel>& kernels() const { return facts->kernels; }
};

// Tells whether `result` may be written over all that `kernel` reads of `operand`'s bytes.
bool may_take(const Region& region, const StorageRoots& roots, const Kernel& kernel, ValueId operand,
              ValueId result) {
  bool any = false;
  for (const Operand& read : kernel.reads) {
    if (roots(read) != Operand(operand)) continue;
    any = true;
    if (!may_reuse(region, kernel, *as_value(read), result)) return false;
  }
  return any;
}

// Ranges by the kernel that they begin and end in; an input begins in none.
struct Turnover {
  std::vector<size_t> born{}, dying{};
};
std::vector<Turnover> turnovers(const Region& region, const Transients& t) {
  std::vector<Turnover> out(t.kernels().size());
  for (size_t i = 0; i < t.ranges.size(); ++i) {
    const LiveRange& range = t.ranges[i];
    const bool input = contains(region.inputs, range.value);
    if (t.kernels().empty()) break;
    if (input || range.first < range.last) out[range.last].dying.push_back(i);
    if (!input) out[range.first].born.push_back(i);
  }
  return out;
}

// The pairs of one kernel, (operand, result) as indices of ranges: a matching of most bytes. Both of a pair
// have one size, so taking results by falling size and augmenting is optimal.
std::vector<std::pair<size_t, size_t>> in_place_pairs(const Region& region, const Transients& t,
                                                      const Kernel& kernel, Turnover turnover) {
  auto& [born, dying] = turnover;
  std::ranges::stable_sort(born, [&](size_t a, size_t b) { return t.ranges[a].bytes > t.ranges[b].bytes; });
  std::stable_partition(dying.begin(), dying.end(), [&](size_t i) {
    const auto made_in = static_cast<size_t>(t.ranges[i].first);
    return t.kernels()[made_in].form == KernelForm::gemm &&
           t.kernels()[made_in].writes.front() == Operand(t.ranges[i].value);
  });
  std::vector<std::vector<size_t>> options(born.size());  // indices into dying
  for (size_t r = 0; r < born.size(); ++r) {
    for (size_t o = 0; o < dying.size(); ++o) {
      const LiveRange &from = t.ranges[dying[o]], &to = t.ranges[born[r]];
      if (from.bytes == to.bytes && may_take(region, t.facts->root, kernel, from.value, to.value))
        options[r].push_back(o);
    }
  }
  std::vector<int> taken_by(dying.size(), -1);
  std::vector<bool> visited;
  const std::function<bool(size_t)> augment = [&](size_t r) {
    for (const size_t o : options[r]) {
      if (visited[o]) continue;
      visited[o] = true;
      if (taken_by[o] < 0 || augment(static_cast<size_t>(taken_by[o]))) {
        taken_by[o] = static_cast<int>(r);
        return true;
      }
    }
    return false;
  };
  for (size_t r = 0; r < born.size(); ++r) {
    visited.assign(dying.size(), false);
    augment(r);
  }
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t o = 0; o < dying.size(); ++o)
    if (taken_by[o] >= 0) pairs.emplace_back(dying[o], born[taken_by[o]]);
  return pairs;
}

void add_slots(const Module& module, const Region& region, Transients& t) {
  if (!passes_state(region) && region.kind != RegionKind::init) return;
  for (const SlotRange& slot : slot_ranges(module, t.kernels())) {
    t.slots.push_back({slot.buffer, t.blocks.size()});
    t.blocks.push_back({aligned(slot.bytes), slot.first, slot.last});
  }
}

Transients transients(const Module& module, const Region& region) {
  Transients t;
  t.facts = facts(module, region);
  t.ranges = live_ranges(module, region, t.kernels());
  t.block_of.resize(t.ranges.size());
  std::iota(t.block_of.begin(), t.block_of.end(), size_t{0});
  // In kernel order an operand's block is final when its pair is made, so chains need no union-find.
  std::vector<Turnover> by_kernel = turnovers(region, t);
  for (size_t k = 0; k < t.kernels().size(); ++k)
    for (const auto& [operand, result] : in_place_pairs(region, t, t.kernels()[k], std::move(by_kernel[k])))
      t.block_of[result] = t.block_of[operand];
  std::vector<size_t> number(t.ranges.size(), SIZE_MAX);
  for (size_t i = 0; i < t.ranges.size(); ++i) {
    const LiveRange& range = t.ranges[i];
    size_t& block = number[t.block_of[i]];
    if (block == SIZE_MAX) {
      block = t.blocks.size();
      t.blocks.push_back({aligned(range.bytes), range.first, range.last});
    }
    t.block_of[i] = block;
    t.blocks[block].first = std::min(t.blocks[block].first, range.first);
    t.blocks[block].last = std::max(t.blocks[block].last, range.last);
  }
  add_slots(module, region, t);
  return t;
}

// Reshapes stand where their operand does, so that every named value that has bytes has a place.
void place_aliases(const Module& module, Region& region) {
  for (const Op& op : region.ops) {
    if (op.info->lowering != Lowering::alias) continue;
    const Operand& operand = op.operands.front();
    if (const BufferId* buffer = as_buffer(operand))
      region[op.results.front()].offset = module[*buffer].offset;
    if (const ValueId* value = as_value(operand)) region[op.results.front()].offset = region[*value].offset;
  }
}

void place(Region& region, const Transients& t, const std::vector<int64_t>& offsets, int64_t base) {
  for (size_t i = 0; i < t.ranges.size(); ++i)
    region[t.ranges[i].value].offset = base + offsets[t.block_of[i]];
}

// By kernel: the blocks that it reads, then those that it writes.
std::vector<std::vector<size_t>> touched_blocks(const Transients& t) {
  std::map<ValueId, size_t> block_of;
  for (size_t i = 0; i < t.ranges.size(); ++i) block_of[t.ranges[i].value] = t.block_of[i];
  std::vector<std::vector<size_t>> out(t.kernels().size());
  for (size_t k = 0; k < t.kernels().size(); ++k)
    t.kernels()[k].each_operand([&](const Operand& operand) {
      const ValueId* value = as_value(t.facts->root(operand));
      if (value != nullptr && block_of.contains(*value)) out[k].push_back(block_of[*value]);
    });
  return out;
}

// The blocks of a step that is one kernel of levels (pass `persistent`): the bytes of each stay its own until
// the last level that uses it has ended. So a level need not wait for another because of memory alone.
std::vector<planner::Block> by_levels(const Module& module, const Transients& t, int64_t base) {
  Region apart = module.step;  // with no byte used twice
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (const planner::Block& block : t.blocks) {
    offsets.push_back(end);
    end += block.bytes;
  }
  place(apart, t, offsets, base);
  place_aliases(module, apart);
  const std::vector<int32_t> levels = Dependence(module, apart, t.kernels()).earliest_levels();
  std::vector<int32_t> last_level(t.blocks.size(), -1);
  const std::vector<std::vector<size_t>> touched = touched_blocks(t);
  for (size_t k = 0; k < t.kernels().size(); ++k)
    for (const size_t block : touched[k]) last_level[block] = std::max(last_level[block], levels[k]);
  std::vector<planner::Block> blocks = t.blocks;
  for (size_t b = 0; b < blocks.size(); ++b)
    for (size_t k = 0; k < levels.size(); ++k)
      if (levels[k] <= last_level[b]) blocks[b].last = std::max(blocks[b].last, static_cast<int>(k));
  return blocks;
}

// Four: a layer's gradient of a weight then ends before the next layer but one needs its bytes.
constexpr size_t kKernelsKeptApart = 4;
constexpr int64_t kStreamsWork = int64_t{1} << 22;  // of the search for such places

// The blocks of a step that is a graph of two streams (pass `streams`): what a kernel of the second stream touches
// stays for the next few kernels, so that these need not wait for it because of memory alone. Not where more
// than `height` bytes would be live then.
std::vector<planner::Block> by_streams(const Module& module, const Transients& t, int64_t height) {
  const std::vector<bool> second = fit_second_stream(module.step, *t.facts);
  const std::vector<std::vector<size_t>> touched = touched_blocks(t);
  std::vector<planner::Block> blocks = t.blocks;
  std::vector<int64_t> live(t.kernels().size());
  for (const planner::Block& block : blocks)
    for (int k = block.first; k <= block.last; ++k) live[k] += block.bytes;
  const auto stay = [&](planner::Block& block, size_t until) {
    for (auto k = static_cast<size_t>(block.last) + 1; k <= std::min(until, live.size() - 1); ++k) {
      if (live[k] + block.bytes > height) return;
      live[k] += block.bytes;
      ++block.last;
    }
  };
  for (size_t k = 0; k < t.kernels().size(); ++k) {
    if (!second[k]) continue;
    for (const size_t block : touched[k]) stay(blocks[block], k + kKernelsKeptApart);
  }
  return blocks;
}

// Moves the inputs side by side, in their order, where that is no higher than `height`: one copy fills them
// (Device::write_all).
void join_inputs(const Region& region, const Transients& t, const std::vector<planner::Block>& blocks,
                 int64_t height, planner::Placement& placement) {
  if (region.inputs.size() < 2) return;
  const auto end =
      t.block_of.begin() + static_cast<ptrdiff_t>(region.inputs.size());  // their ranges are the first
  planner::Placement joined = planner::place_greedily(blocks, height, {t.block_of.begin(), end});
  if (joined.height <= height) placement = std::move(joined);
}

// Returns the region that goes on with what predict leaves: it is empty where there is none.
Region& behind_predict(Module& module) { return module.answer.ops.empty() ? module.measure : module.answer; }

// The values of predict and, behind them in time, of the region that goes on with its result: that stays where predict
// leaves it.
struct Predictions {
  Transients predict{}, next{};
  planner::Placement placement{};  // of the blocks of predict, then of the other ones of `next`
};

Predictions place_predictions(Module& module, int64_t height) {
  Predictions p{.predict = transients(module, module.predict)};
  std::vector<planner::Block> blocks = p.predict.blocks;
  if (const Region& next = behind_predict(module); !next.ops.empty()) {
    p.next = transients(module, next);
    const Operand result = p.predict.facts->root(module.predict.yields.front().what);
    const auto left =
        std::ranges::find(p.predict.ranges, *as_value(result), &LiveRange::value) - p.predict.ranges.begin();
    const size_t shared = p.predict.block_of[left], table = p.next.block_of.front();
    const auto begin = static_cast<int>(p.predict.kernels().size());
    blocks[shared].last = begin + p.next.blocks[table].last;
    std::vector<size_t> number(p.next.blocks.size(), shared);
    for (size_t i = 0; i < number.size(); ++i) {
      const planner::Block& block = p.next.blocks[i];
      if (i == table) continue;
      number[i] = blocks.size();
      blocks.push_back({block.bytes, begin + block.first, begin + block.last});
    }
    for (size_t& block : p.next.block_of) block = number[block];
  }
  p.placement = planner::place_greedily(blocks, height);
  return p;
}

// Returns `all`, or the largest number that fits, by halving, to within `step`; 0 when none does. The last number that
// `fits` has said yes to is the one returned.
template <class F>
int64_t most_fitting(int64_t all, int64_t step, F&& fits) {
  if (fits(all)) return all;
  int64_t most = 0, none = all;
  while (none - most > step) {
    const int64_t middle = most + (none - most) / 2;
    if (fits(middle))
      most = middle;
    else
      none = middle;
  }
  return most;
}

// Places the values of predict, with the most samples that the area has room for. `measure` stays only where they are a
// whole micro-batch. When not even one sample fits, its output comes in parts, as large as fit (answer.h). When those
// do not fit either, the module has no such region, and a setting says what the arena would need.
void place_predict(Module& module, int64_t end, int64_t height, Diag& diag) {
  if (module.predict.yields.empty()) return;
  Predictions fitting;
  int64_t needed = std::numeric_limits<int64_t>::max();
  const auto fits = [&](int64_t samples) {
    module.results.predict_batch = samples;
    Predictions placed = place_predictions(module, height);
    needed = std::min(needed, placed.placement.height);
    if (placed.placement.height > height) return false;
    fitting = std::move(placed);
    return true;
  };
  const auto fits_in_parts = [&] {
    const Region whole = module.predict;
    const std::vector<RowCut> cuts = row_cuts(module);
    const int64_t rows = cuts.empty() ? 0 : whole[cuts.front().rows].type.shape[1];
    for (int64_t size = rows / 2; size > 0; --size) {
      if (rows % size != 0) continue;
      for (const RowCut& cut : cuts) {
        module.predict = whole;
        cut_predict(module, cut, size, diag);
        if (fits(1)) return true;
      }
    }
    return false;
  };
  const int64_t all = module.micro_batch();
  int64_t most = all;
  if (!fits(all)) {
    module.measure = Region{RegionKind::measure};
    most = most_fitting(all, 1, fits);
  }
  if (most == 0 && fits_in_parts()) most = 1;
  if (most == 0) {
    module.results.predict_batch.clear();
    module.results.predict_needs = end + needed;
    module.predict = Region{RegionKind::predict};
    module.answer = Region{RegionKind::answer};
    return;
  }
  module.results.predict_batch = most;
  place(module.predict, fitting.predict, fitting.placement.offsets, end);
  Region& next = behind_predict(module);
  place(next, fitting.next, fitting.placement.offsets, end);
  place_aliases(module, module.predict);
  place_aliases(module, next);
}

// Gives the caches of decode, and the scores that follow from them, another number of positions.
void set_positions(Region& decode, int64_t before, int64_t positions) {
  std::vector<bool> has(decode.values.size());
  const auto change = [&](ValueId value, bool first) {
    Shape& shape = decode[value].type.shape;
    int64_t& extent = first ? shape.front() : shape.back();
    has[index(value)] = extent == before;
    if (has[index(value)]) extent = positions;
  };
  for (const Op& op : decode.ops) {
    if (op.info == &op_cache_put) {
      const bool keys = has_flag(op, "keys");
      change(*as_value(op.operands.front()), !keys);
      change(op.results.front(), !keys);
    } else if (op.info != &op_cache_read) {
      const bool any = std::ranges::any_of(op.operands, [&](const Operand& operand) {
        const ValueId* value = as_value(operand);
        return value != nullptr && has[index(*value)];
      });
      for (const ValueId result : any ? op.results : std::vector<ValueId>()) change(result, false);
    }
  }
}

// Places the values of decode and its caches, with the most positions that the area has room for. With too few the
// module has no such region.
void place_decode(Module& module, int64_t end, int64_t height) {
  constexpr int64_t kFewest = 16;
  Region& decode = module.decode;
  if (decode.ops.empty()) return;
  int64_t positions = cached_positions(module);
  std::optional<Transients> fitting;
  planner::Placement placement;
  const auto fits = [&](int64_t count) {
    set_positions(decode, positions, count);
    positions = count;
    Transients t = transients(module, decode);
    planner::Placement placed = planner::place_greedily(t.blocks, height);
    if (placed.height > height) return false;
    fitting = std::move(t), placement = std::move(placed);
    return true;
  };
  const int64_t most = most_fitting(positions, kFewest, fits);
  if (most == 0) {
    decode = Region{RegionKind::decode};
    return;
  }
  set_positions(decode, positions, most);
  place(decode, *fitting, placement.offsets, end);
  place_aliases(module, decode);
}

constexpr int64_t kSmallValue = 4096;  // bytes

// The buffers that have bytes of their own, in the order in which they lie, and where each begins. Returns where
// the last one ends.
template <class Visit>
int64_t lay_out(const Module& module, Visit visit) {
  int64_t end = 0;
  using enum BufferKind;
  for (const auto& [kind, numbers] :
       {std::pair(param, false), {accum, false}, {state, true}, {state, false}}) {
    for (const BufferId id : module.buffer_ids()) {
      const Buffer& buffer = module[id];
      if (buffer.kind != kind || storage_of(module, id) != id || buffer.host) continue;
      if (buffer.role == BufferRole::slot) continue;
      if (kind == state && buffer.type.shape.empty() != numbers) continue;
      const int64_t offset = aligned(end, alignment(buffer));
      visit(id, offset);
      end = offset + room_bytes(buffer);
    }
  }
  return aligned(end);
}

int64_t buffer_bytes(const Module& module, BufferKind kind) {
  int64_t sum = 0;
  lay_out(module, [&](BufferId id, int64_t) {
    if (module[id].kind == kind) sum += room_bytes(module[id]);
  });
  return sum;
}

int64_t buffer_bytes(const Module& module, BufferRole role) {
  int64_t sum = 0;
  for (const Buffer& buffer : module.buffers)
    if (buffer.role == role && !buffer.host) sum += room_bytes(buffer);
  return sum;
}

// The block in the host's memory: its addresses follow those of the arena.
template <class Visit>
int64_t lay_out_host(const Module& module, Visit visit) {
  int64_t end = 0;
  for (const BufferId id : module.buffer_ids()) {
    if (!module[id].host) continue;
    visit(id, end);
    end += aligned(room_bytes(module[id]));
  }
  return end;
}

// Places the buffers that lie in another buffer's bytes.
void place_in_others(Module& module) {
  for (const BufferId id : module.buffer_ids()) {
    const BufferId storage = storage_of(module, id);
    if (storage != id) module[id].offset = *module[storage].offset + part_begin(module, id);
  }
}

constexpr int64_t kAheadWork = int64_t{1} << 20;  // of the search for such places

// The blocks of a step that fetches weights from the host: those that are fetched have their bytes from the time on at
// which the `ahead`-th fetch before them has its own. So the copy runs beside the kernels until then. Not where more
// than `height` bytes would be live.
std::vector<planner::Block> fetched_ahead(const Region& region, const Transients& t, int64_t height,
                                          size_t ahead) {
  std::vector<planner::Block> blocks = t.blocks;
  std::vector<int64_t> live(t.kernels().size());
  for (const planner::Block& block : blocks)
    for (int k = block.first; k <= block.last; ++k) live[k] += block.bytes;
  std::vector<size_t> fetched;  // by copy: the block
  for (size_t i = 0; i < t.ranges.size(); ++i) {
    const LiveRange& range = t.ranges[i];
    if (contains(region.inputs, range.value)) continue;
    if (t.kernels()[static_cast<size_t>(range.first)].form == KernelForm::copy)
      fetched.push_back(t.block_of[i]);
  }
  std::ranges::stable_sort(fetched, {}, [&](size_t block) { return t.blocks[block].first; });
  for (size_t i = 0; i < fetched.size(); ++i) {
    planner::Block& block = blocks[fetched[i]];
    const int begin = i < ahead ? 0 : t.blocks[fetched[i - ahead]].first;
    while (block.first > begin && live[static_cast<size_t>(block.first) - 1] + block.bytes <= height)
      live[static_cast<size_t>(--block.first)] += block.bytes;
  }
  return blocks;
}

// The regions of training, placed each for itself in the area that they share.
struct Training {
  int64_t end = 0, height = 0;  // of the buffers; of the area
  std::map<RegionKind, Transients> values{};
  std::map<RegionKind, planner::Placement> placements{};
};

// Places them as low as a search gets; an arena of `budget` bytes is low enough.
Training place_training(const Module& module, int64_t budget) {
  Training out{.end = lay_out(module, [](BufferId, int64_t) {})};
  int64_t least = 0;  // no plan's area has less
  for (const RegionKind kind : training_regions) {
    const Transients& t = out.values[kind] = transients(module, module.region(kind));
    least = std::max(least, planner::liveness_bound(t.blocks));
  }
  const int64_t most = std::max(least, budget - out.end);
  for (auto& [kind, t] : out.values) {
    planner::Placement& placement = out.placements[kind];
    for (size_t ahead = kFetchedAhead; kind == RegionKind::step && fetches(module.step) && ahead > 0;
         --ahead) {
      std::vector<planner::Block> early = fetched_ahead(module.step, t, most, ahead);
      std::optional<planner::Placement> found = planner::pack(early, most, kAheadWork).placement;
      if (!found) continue;
      t.blocks = std::move(early);
      placement = std::move(*found);
      break;
    }
    if (placement.offsets.empty()) placement = planner::place(t.blocks, most);
    if (!t.blocks.empty()) out.height = std::max(out.height, placement.height);
  }
  return out;
}

}  // namespace

bool plan_memory(Module& module, const Options&, Diag& diag) {
  lay_out(module, [&](BufferId id, int64_t offset) { module[id].offset = offset; });
  const auto& budget = module.settings.recompute.budget;
  auto [end, height, values, placements] = place_training(module, budget.given() ? *budget : 0);
  // The update's kernels are many, small, and mostly independent of each other, unless one takes the bytes of
  // a value that another has just read: where there is room, its small values keep their bytes to the end,
  // and the kernels can be merged (pass `merge`).
  Transients apart = values[RegionKind::update];
  for (planner::Block& block : apart.blocks) {
    if (block.bytes > kSmallValue) continue;
    block.first = 0;
    block.last = static_cast<int>(apart.kernels().size()) - 1;
  }
  planner::Placement roomy = planner::place(apart.blocks);
  if (apart.blocks.empty() || (roomy.height <= height && apart.slots.empty()))
    placements[RegionKind::update] = std::move(roomy);
  const Transients& step = values[RegionKind::step];
  std::vector<planner::Block> of_step = step.blocks;
  if (is_persistent_step(module)) {
    std::vector<planner::Block> levels = by_levels(module, step, end);
    planner::Placement wide = planner::place(levels);
    if (wide.height <= height) {
      placements[RegionKind::step] = std::move(wide);
      of_step = std::move(levels);
    }
  } else {
    std::vector<planner::Block> streams = by_streams(module, step, height);
    if (auto wide = planner::pack(streams, height, kStreamsWork).placement) {
      placements[RegionKind::step] = std::move(*wide);
      of_step = std::move(streams);
    }
  }
  join_inputs(module.step, step, of_step, height, placements[RegionKind::step]);
  const Transients& of_eval = values[RegionKind::eval];
  join_inputs(module.eval, of_eval, of_eval.blocks, height, placements[RegionKind::eval]);
  for (const RegionKind kind : training_regions) {
    Region& region = module.region(kind);
    place(region, values[kind], placements[kind].offsets, end);
    for (const Slot& slot : values[kind].slots)
      module[slot.buffer].offset = end + placements[kind].offsets[slot.block];
  }
  module.arena_bytes = end + height;
  module.host_bytes = lay_out_host(
      module, [&](BufferId id, int64_t offset) { module[id].offset = *module.arena_bytes + offset; });
  place_in_others(module);
  for (const RegionKind kind : training_regions) place_aliases(module, module.region(kind));
  place_predict(module, end, height, diag);
  place_decode(module, end, height);
  return !diag.failed();
}

int64_t transient_bytes(const Module& module, const Region& region) {
  return planner::liveness_bound(transients(module, region).blocks);
}

int64_t placed_bytes(const Module& module, const Region& region, int64_t most) {
  const Transients t = transients(module, region);
  return t.blocks.empty() ? 0 : planner::place_within(t.blocks, most).height;
}

int64_t arena_of(const Module& fused, int64_t budget) {
  const Training training = place_training(fused, budget);
  return training.end + training.height;
}

int64_t buffer_bytes(const Module& module) {
  return lay_out(module, [](BufferId, int64_t) {});
}

int64_t host_bytes(const Module& module) {
  return lay_out_host(module, [](BufferId, int64_t) {});
}

MemoryReport memory_report(const Module& module) {
  MemoryReport report;
  const int64_t masters = buffer_bytes(module, BufferRole::master);
  report.weights = buffer_bytes(module, BufferKind::param) + masters;
  report.gradients = buffer_bytes(module, BufferKind::accum);
  report.half_weights = buffer_bytes(module, BufferRole::half);
  report.optimizer = buffer_bytes(module, BufferKind::state) - report.half_weights - masters;
  report.host = module.host_bytes;
  report.peak = module.arena_bytes.value_or(0);
  report.lower_bound = buffer_bytes(module);

  // The fullest kernel of any region: its live bytes are the bound, and what they are is the attribution.
  const Region* fullest = nullptr;
  Transients at;
  int instant = 0;
  int64_t most = 0;
  for (const RegionKind kind : training_regions) {
    const Region& region = module.region(kind);
    Transients t = transients(module, region);
    for (int k = 0; k < std::max<int>(1, static_cast<int>(t.kernels().size())); ++k) {
      int64_t live = 0;
      for (const planner::Block& block : t.blocks)
        live += block.first <= k && k <= block.last ? block.bytes : 0;
      if (live <= most) continue;
      most = live;
      fullest = &region;
      instant = k;
    }
    if (fullest == &region) at = std::move(t);
  }
  report.lower_bound += most;
  if (fullest != nullptr) {
    std::vector<bool> counted(at.blocks.size(), false);
    for (size_t i = 0; i < at.ranges.size(); ++i) {
      const LiveRange& range = at.ranges[i];
      if (instant < range.first || instant > range.last || counted[at.block_of[i]]) continue;
      counted[at.block_of[i]] = true;  // an operand and the result in its place: counted as the operand
      const auto& inputs = fullest->inputs;
      const size_t maker = maker_of(*fullest, range.value);
      if (contains(inputs, range.value))
        report.inputs += range.bytes;
      else if (maker < fullest->ops.size() && fullest->ops[maker].origin == Origin::forward &&
               fullest->ops[maker].info != &op_host_fetch)
        report.activations += range.bytes;
      else
        report.workspace += range.bytes;
    }
  }
  for (const Slot& slot : at.slots) {
    const planner::Block& block = at.blocks[slot.block];
    if (block.first <= instant && instant <= block.last) report.workspace += block.bytes;
  }
  report.padding = report.peak - report.weights - report.half_weights - report.gradients - report.optimizer -
                   report.activations - report.workspace - report.inputs;
  return report;
}

}  // namespace gacc::passes
