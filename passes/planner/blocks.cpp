// 1. The forward pass is cut where one tensor alone crosses (graph.h); every operation of the backward pass
//    belongs to the block whose tensors it reads, those between two blocks to the one that makes fewer bytes
//    cross.
// 2. A block by itself is a small graph. Every subset of its larger tensors is tried as what it keeps: saved
//    bytes, peaks and extra cost, and the non-dominated ones are its options. Equal blocks are tried once.
// 3. Dynamic programming over the chain (reversal.h).
// 4. A choice made in the n-th pass of a block becomes an interval that drops its tensor n times.
#include "passes/planner/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "passes/planner/reversal.h"

namespace gacc::passes::planner {

namespace {

// Tensors of a block that are tried both kept and dropped: 2^9 plans of a block, 2^6 where there are more than
// kManyBlocks blocks.
constexpr size_t kMostChoices = 9, kMostChoicesOfMany = 6, kManyBlocks = 64;
// A tensor of less than one part in so many of the block's largest is no choice.
constexpr int64_t kSmallShare = 16;
constexpr int kEachTime = -1;  // instead of a number of times
// Shares of the budget that the chain is planned for. Blocks by themselves take more than in the program, where a
// gradient may take an operand's place, and less, where others have something at hand: what is planned for more
// may fit, for less may not.
constexpr double kBudgetShares[] = {1.15, 1.08, 1.04, 1.02, 1, 0.98, 0.96, 0.93, 0.9, 0.85, 0.8, 0.7};

struct ChainBlock {
  int from = 0, to = 0;                // operations of the forward pass
  int back_from = 0, back_to = 0;      // of the backward pass
  int after = -1;                      // the tensor that crosses to the next block; -1: there is none
  std::vector<int> choices{}, rest{};  // larger and smaller tensors that the backward pass reads
};

class Blocks {
 public:
  Blocks(const Graph& graph, Chain chain) : graph_(graph), chain_(std::move(chain)) {
    separator_.assign(graph_.tensors.size(), -1);
    for (size_t i = 0; i <= chain_.points.size(); ++i) {
      ChainBlock block;
      block.from = i == 0 ? 0 : chain_.points[i - 1] + 1;
      block.to = i == chain_.points.size() ? chain_.backward_begin : chain_.points[i] + 1;
      if (i < chain_.points.size()) {
        block.after = chain_.tensors[i];
        separator_[block.after] = static_cast<int>(i);
      }
      blocks_.push_back(std::move(block));
    }
    cut_backward();
    std::map<std::string, Stage> known;
    for (ChainBlock& block : blocks_) stages_.push_back(stage(block, known));
  }

  // False: the chain is too long.
  bool plan(int64_t budget, std::vector<RecomputePlan>& out) const {
    const auto part_of = [&](double part) {
      return part == 1 ? budget : static_cast<int64_t>(part * static_cast<double>(budget));
    };
    const Reversal reversal(stages_, part_of(kBudgetShares[std::size(kBudgetShares) - 1]), budget,
                            part_of(kBudgetShares[0]));
    if (!reversal.solved()) return false;
    for (const double part : kBudgetShares) {
      const int64_t bytes = part_of(part);
      if (!std::isfinite(reversal.extra(bytes))) break;
      RecomputePlan& plan = out.emplace_back(graph_);
      for (const Decision& decision : reversal.decisions(bytes)) decide(plan, decision);
    }
    return true;
  }

 private:
  // The block that the operation works for: the last whose insides it reads, else the one behind the first
  // separator that it reads; -1: it reads none.
  int block_read(int o) const {
    int inside = -1, behind = -1;
    for (const int x : graph_.operation(o).inputs) {
      const int producer = graph_.tensor(x).producer;
      if (producer < 0 || producer >= chain_.backward_begin || graph_.once(x)) continue;
      const int number = separator_[x];
      const auto next = std::ranges::lower_bound(chain_.points, producer);
      if (number < 0)
        inside = std::max(inside, static_cast<int>(next - chain_.points.begin()));
      else if (behind < 0 || number + 1 < behind)
        behind = number + 1;
    }
    return inside >= 0 ? inside : behind;
  }

  static bool is_read_from(const Tensor& x, int o) { return !x.uses.empty() && x.uses.back() >= o; }

  // Bytes of the backward pass that are made before operation o and read there or later.
  int64_t crossing(int o) const {
    int64_t bytes = 0;
    for (const Tensor& x : graph_.tensors)
      if (x.producer >= chain_.backward_begin && x.producer < o && is_read_from(x, o)) bytes += x.bytes;
    return bytes;
  }

  void cut_backward() {
    auto current = static_cast<int>(blocks_.size()) - 1;
    int last = chain_.backward_begin;  // the last operation that is known to belong to `current`
    blocks_.back().back_from = chain_.backward_begin;
    for (int o = chain_.backward_begin; o < graph_.end(); ++o) {
      const int block = block_read(o);
      if (block < 0 || block > current) continue;
      if (block < current) {
        int cut = o;
        int64_t least = crossing(o);
        for (int other = o - 1; other > last; --other) {
          const int64_t bytes = crossing(other);
          if (bytes >= least) continue;
          least = bytes;
          cut = other;
        }
        while (current > block) {
          blocks_[current].back_to = cut;
          blocks_[--current].back_from = cut;
        }
      }
      last = o;
    }
    // Nobody reads the forward pass any more: that is the first block's.
    for (int rest = current; rest > 0; --rest)
      blocks_[rest].back_to = blocks_[static_cast<size_t>(rest) - 1].back_from = last + 1;
    blocks_.front().back_to = graph_.end();
  }

  // The block alone. Operation 0 makes what comes from elsewhere (at no bytes: others count them). Two stand
  // between the halves: one reads what crosses to the next block, one makes the gradients that are there
  // before the backward part.
  struct Alone {
    Graph graph;
    int backward_begin = 0;
    std::map<int, int> local{};  // by tensor of the whole graph

    int add(const Graph& whole, int x, int producer, int64_t bytes) {
      const auto [at, first] = local.emplace(x, static_cast<int>(graph.tensors.size()));
      if (!first) return at->second;
      Tensor tensor;
      tensor.id = whole.tensor(x).id;
      tensor.producer = producer;
      tensor.storage = at->second;
      tensor.bytes = bytes;
      graph.tensors.push_back(std::move(tensor));
      if (producer >= 0) graph.operations[producer].outputs.push_back(at->second);
      return at->second;
    }
    void read(int x, int by) {
      graph.operations[by].inputs.push_back(x);
      graph.tensors[x].uses.push_back(by);
    }
  };

  void copy(int o, Alone& alone) const {
    const Operation& from = graph_.operation(o);
    for (const int x : from.inputs)
      if (!alone.local.contains(x)) alone.add(graph_, x, graph_.tensor(x).producer < 0 ? -1 : 0, 0);
    const auto number = static_cast<int>(alone.graph.operations.size());
    Operation to;
    to.cost = from.cost;
    to.again = from.again;
    to.backward = from.backward;
    to.once = from.once;
    alone.graph.operations.push_back(std::move(to));
    for (const int x : from.inputs) alone.read(alone.local.at(x), number);
    for (const int x : from.outputs) alone.add(graph_, x, number, graph_.tensor(x).bytes);
    for (const auto& [input, output] : from.in_place)
      alone.graph.operations.back().in_place.emplace_back(alone.local.at(input), alone.local.at(output));
  }

  Alone cut_out(const ChainBlock& block) const {
    Alone alone;
    const auto once = [&] {
      alone.graph.operations.emplace_back();
      alone.graph.operations.back().once = true;
    };
    once();
    for (int o = block.from; o < block.to; ++o) copy(o, alone);
    once();
    if (const auto at = alone.local.find(block.after); at != alone.local.end())
      alone.read(at->second, static_cast<int>(alone.graph.operations.size()) - 1);
    alone.backward_begin = static_cast<int>(alone.graph.operations.size());
    once();
    std::vector<int> storages;
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const Tensor& tensor = graph_.tensors[i];
      if (tensor.producer < chain_.backward_begin || tensor.producer >= block.back_from ||
          tensor.uses.empty() || tensor.uses.back() < block.back_from)
        continue;
      const bool counted = std::ranges::find(storages, tensor.storage) != storages.end();
      storages.push_back(tensor.storage);
      alone.add(graph_, static_cast<int>(i), alone.backward_begin,
                counted ? 0 : graph_.tensor(tensor.storage).bytes);
    }
    for (int o = block.back_from; o < block.back_to; ++o) copy(o, alone);
    const auto end = static_cast<int>(alone.graph.operations.size());
    alone.graph.operations.emplace_back();
    for (const auto& [x, here] : alone.local) {
      const Tensor& tensor = graph_.tensor(x);
      if (tensor.producer >= chain_.backward_begin && is_read_from(tensor, block.back_to))
        alone.read(here, end);
    }
    return alone;
  }

  static std::string key(const Graph& graph) {
    std::string text;
    for (const Operation& op : graph.operations) {
      text += fmt::format("{} {} {}:", op.cost, op.again, op.once);
      for (const int x : op.inputs) text += fmt::format(" {}", x);
      for (const int x : op.outputs) text += fmt::format(" ={} {}", x, graph.tensors[x].bytes);
      for (const auto& [from, to] : op.in_place) text += fmt::format(" {}/{}", from, to);
      text += '\n';
    }
    return text;
  }

  Stage stage(ChainBlock& block, std::map<std::string, Stage>& known) {
    const Alone alone = cut_out(block);
    std::vector<int> all;
    for (int o = block.from; o < block.to; ++o) {
      for (const int x : graph_.operation(o).outputs)
        if (x != block.after && !graph_.once(x) && is_read_from(graph_.tensor(x), chain_.backward_begin))
          all.push_back(x);
    }
    const auto bytes = [&](int x) { return graph_.tensor(x).bytes; };
    std::ranges::stable_sort(all, [&](int a, int b) { return bytes(a) > bytes(b); });
    const size_t most = blocks_.size() > kManyBlocks ? kMostChoicesOfMany : kMostChoices;
    for (const int x : all) {
      const bool large = block.choices.size() < most && bytes(x) * kSmallShare >= bytes(all.front());
      std::vector<int>& list = large ? block.choices : block.rest;
      list.push_back(x);
    }
    const auto [place, fresh] = known.emplace(key(alone.graph), Stage{});
    if (fresh) {
      place->second = measure(block, alone);
      place->second.kind = static_cast<int>(known.size());
    }
    return place->second;
  }

  Stage measure(const ChainBlock& block, const Alone& alone) const {
    Stage out;
    for (int o = block.from; o < block.to; ++o)
      if (!graph_.operation(o).once) out.cost += graph_.operation(o).again_cost();
    out.after = block.after < 0 ? 0 : graph_.tensor(block.after).bytes;
    for (const int x : alone.graph.operation(alone.backward_begin).outputs)
      out.gradients += alone.graph.tensor(x).bytes;
    out.backward = block.back_from < block.back_to;
    Simulator simulator(alone.graph);
    simulator.split(alone.backward_begin);
    const double base = alone.graph.base_cost();
    RecomputePlan plan(alone.graph);
    const auto set = [&](int x, Interval interval) {
      if (const auto at = alone.local.find(x); at != alone.local.end()) {
        if (const int number = plan.interval(alone.graph, at->second, alone.backward_begin); number >= 0)
          plan.intervals[number] = interval;
      }
    };
    // The ways to treat the larger tensors, without those that another one betters.
    const auto options = [&](Interval others, int64_t small, bool saves) {
      std::vector<Option> all;
      for (unsigned kept = 0; kept < 1U << block.choices.size(); ++kept) {
        int64_t saved = small;
        for (size_t i = 0; i < block.choices.size(); ++i) {
          const bool yes = (kept >> i & 1U) != 0;
          set(block.choices[i], yes ? saves ? Interval::keep : Interval::drop : others);
          if (yes && saves) saved += graph_.tensor(block.choices[i]).bytes;
        }
        const Measure measure = simulator.run(plan);
        all.push_back({kept, saved, measure.peak_before, measure.peak, measure.cost - base});
      }
      return undominated(all);
    };
    if (const auto at = alone.local.find(block.after); at != alone.local.end())
      out.reads_after = plan.interval(alone.graph, at->second, alone.backward_begin) >= 0;
    for (const int x : block.rest) set(x, Interval::drop);
    for (const bool held : {false, true}) {
      set(block.after, held ? Interval::keep : Interval::drop);
      if (!held || out.reads_after) out.again[held ? 1 : 0] = options(Interval::drop_again, 0, false);
    }
    int64_t small = 0;
    for (const int x : block.rest) {
      small += graph_.tensor(x).bytes;
      set(x, Interval::keep);
    }
    out.passed = options(Interval::drop, small, true);
    out.passing = std::ranges::min_element(out.passed, [](const Option& a, const Option& b) {
                    return a.passing < b.passing;
                  })->passing;
    return out;
  }

  static std::vector<Option> undominated(const std::vector<Option>& all) {
    std::vector<Option> out;
    for (const Option& a : all) {
      const bool dominated = std::ranges::any_of(all, [&](const Option& b) {
        const auto tied = [](const Option& o) { return std::tie(o.saved, o.passing, o.reading, o.extra); };
        const bool no_worse =
            b.saved <= a.saved && b.passing <= a.passing && b.reading <= a.reading && b.extra <= a.extra;
        return no_worse && (tied(a) != tied(b) || b.kept < a.kept);
      });
      if (!dominated) out.push_back(a);
    }
    return out;
  }

  // x goes the first `times` times it is there, and stays then.
  void keep_from(RecomputePlan& plan, int x, int times) const {
    if (const int interval = plan.interval(graph_, x, chain_.backward_begin); interval >= 0)
      plan.intervals[interval] = times == kEachTime ? Interval::drop_again : dropped(times);
    else if (times != kEachTime)
      plan.held[x] = static_cast<uint16_t>(times + 1);
  }

  void decide(RecomputePlan& plan, const Decision& decision) const {
    const auto i = static_cast<size_t>(decision.stage);
    const ChainBlock& block = blocks_[i];
    const int pass = decision.pass;
    switch (decision.kind) {
      case Decision::Kind::store:
        return keep_from(plan, block.after, pass);
      case Decision::Kind::free: {
        const int interval = plan.interval(graph_, block.after, block.back_from);
        if (interval != plan.interval(graph_, block.after, chain_.backward_begin))
          plan.intervals[interval] = Interval::drop;
        else if (!stages_[i + 1].backward)
          keep_from(plan, block.after, pass);  // nobody read it since it was stored: it need not have been
        return;
      }
      case Decision::Kind::remake: {
        const unsigned kept = stages_[i].again[decision.held ? 1 : 0][decision.option].kept;
        for (const int x : block.rest) keep_from(plan, x, pass);
        for (size_t c = 0; c < block.choices.size(); ++c)
          keep_from(plan, block.choices[c], (kept >> c & 1U) != 0 ? pass : kEachTime);
        return;
      }
      case Decision::Kind::keep: {
        const unsigned kept = stages_[i].passed[decision.option].kept;
        for (const int x : block.rest) keep_from(plan, x, pass);
        for (size_t c = 0; c < block.choices.size(); ++c)
          keep_from(plan, block.choices[c], (kept >> c & 1U) != 0 ? pass : pass + 1);
        return;
      }
    }
  }

  const Graph& graph_;
  const Chain chain_;
  std::vector<int> separator_;  // by tensor: its number in the chain, or -1
  std::vector<ChainBlock> blocks_;
  std::vector<Stage> stages_;
};

}  // namespace

std::vector<RecomputePlan> block_plans(const Graph& graph, int64_t budget) {
  std::vector<RecomputePlan> plans;
  Chain chain = find_chain(graph);
  while (!chain.tensors.empty() && !Blocks(graph, chain).plan(budget, plans)) {
    // Blocks of twice the length.
    for (auto* list : {&chain.tensors, &chain.points}) {
      for (size_t i = 0; 2 * i + 1 < list->size(); ++i) (*list)[i] = (*list)[2 * i + 1];
      list->resize(list->size() / 2);
    }
  }
  return plans;
}

}  // namespace gacc::passes::planner
