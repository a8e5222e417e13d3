// 1. The forward pass is cut where one tensor alone crosses (chain.h); every operation of the backward pass
//    belongs to the block whose tensors it reads, those between two blocks to the one that makes fewer bytes
//    cross.
// 2. A block by itself is a small graph. Every subset of its larger tensors is tried as what it keeps: saved
//    bytes, peak and extra cost, and the non-dominated ones are its options. Equal blocks are tried once.
// 3. Blocks s..t with m slots of memory, the tensor before s at hand: either s keeps what one option says and
//    s+1..t follow, or s..j-1 run without keeping anything, j..t follow, and then s..j-1 start over (Herrmann
//    et al., heterogeneous chains). The table gives the least extra cost.
// 4. A choice made in the n-th run of a block becomes a gap that drops its tensor n times.
#include "passes/planner/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "passes/planner/chain.h"

namespace gacc::passes::planner {

namespace {

constexpr size_t kMostBlocks = 64, kMostChoices = 9;
// Of the budget. Blocks by themselves take more than in the program, where a gradient may take an operand's
// place, and less, where others have something at hand: what is planned for more may fit, for less may not.
constexpr double kParts[] = {1.4, 1.25, 1.15, 1.08, 1, 0.94, 0.88, 0.8, 0.7, 0.6};
constexpr double kNever = std::numeric_limits<double>::infinity();

struct Option {
  unsigned kept = 0;  // bit i: choice i of the block
  int64_t saved = 0, peak = 0;
  double extra = 0;
};

struct Block {
  int from = 0, to = 0;                // operations of the forward pass
  int back_from = 0, back_to = 0;      // of the backward pass
  int after = -1;                      // the tensor that crosses to the next block; -1: there is none
  double forward = 0;                  // the cost of another run
  std::vector<int> choices{}, rest{};  // larger and smaller tensors that the backward pass reads
  std::vector<Option> options{};
};

class Blocks {
 public:
  explicit Blocks(const Graph& graph) : graph_(graph), chain_(find_chain(graph)) {}

  bool find() {
    if (chain_.points.empty() || chain_.points.size() >= kMostBlocks) return false;
    for (size_t i = 0; i <= chain_.points.size(); ++i) {
      Block block;
      block.from = i == 0 ? 0 : chain_.points[i - 1] + 1;
      block.to = i == chain_.points.size() ? chain_.turn : chain_.points[i] + 1;
      if (i < chain_.points.size()) block.after = chain_.tensors[i];
      for (int o = block.from; o < block.to; ++o)
        if (!graph_.operation(o).once) block.forward += graph_.operation(o).again_cost();
      blocks_.push_back(std::move(block));
    }
    cut_backward();
    std::map<std::string, std::vector<Option>> known;
    for (Block& block : blocks_) find_options(block, known);
    return true;
  }

  std::vector<Plan> plans(int64_t budget) {
    std::vector<Plan> out;
    fill_table(budget);
    for (const double part : kParts) {
      const auto m = static_cast<size_t>(part / kParts[0] * static_cast<double>(slots_));
      if (cell(0, blocks_.size() - 1, m).cost == kNever) break;
      Plan plan(graph_);
      expand(plan, 0, blocks_.size() - 1, m, 0);
      out.push_back(std::move(plan));
    }
    return out;
  }

 private:
  struct Cell {
    double cost = kNever;
    int choice = 0;  // option of block s, or -j: the chain is split before block j
  };

  bool in_forward(const Block& block, int o) const { return o >= block.from && o < block.to; }
  bool inside(const Block& block, int o) const {
    return in_forward(block, o) || (o >= block.back_from && o < block.back_to);
  }

  // The block of the forward pass whose tensors the operation reads, those that cross aside; -1: none.
  int block_read(int o) const {
    int found = -1;
    for (const int x : graph_.operation(o).inputs) {
      const int producer = graph_.tensor(x).producer;
      if (producer < 0 || producer >= chain_.turn || graph_.once(x) ||
          std::find(chain_.tensors.begin(), chain_.tensors.end(), x) != chain_.tensors.end())
        continue;
      const auto next = std::lower_bound(chain_.points.begin(), chain_.points.end(), producer);
      found = std::max(found, static_cast<int>(next - chain_.points.begin()));
    }
    return found;
  }

  // Bytes of the backward pass that are made before operation o and read there or later.
  int64_t crossing(int o) const {
    int64_t bytes = 0;
    for (const Tensor& x : graph_.tensors) {
      if (x.producer >= chain_.turn && x.producer < o && !x.uses.empty() && x.uses.back() >= o)
        bytes += x.bytes;
    }
    return bytes;
  }

  void cut_backward() {
    auto current = static_cast<int>(blocks_.size()) - 1;
    int last = chain_.turn;  // the last operation that is known to belong to `current`
    blocks_.back().back_from = chain_.turn;
    for (int o = chain_.turn; o < graph_.end(); ++o) {
      const int block = block_read(o);
      if (block < 0 || block > current) continue;
      if (block < current) {
        int cut = o;
        int64_t least = crossing(o);
        for (int other = o - 1; other > last; --other) {
          const int64_t bytes = crossing(other);
          if (bytes < least) least = bytes, cut = other;
        }
        while (current > block) {
          blocks_[static_cast<size_t>(current)].back_to = cut;
          blocks_[static_cast<size_t>(--current)].back_from = cut;
        }
      }
      last = o;
    }
    blocks_[static_cast<size_t>(current)].back_to = graph_.end();
    for (int rest = current - 1; rest >= 0; --rest)
      blocks_[static_cast<size_t>(rest)].back_from = blocks_[static_cast<size_t>(rest)].back_to =
          graph_.end();
  }

  // The block alone. Operation 0 makes what comes from elsewhere (at no bytes: others count them), one
  // between the two halves reads what crosses to the next block and makes the gradients that come back from
  // there.
  struct Alone {
    Graph graph;
    int turn = 0;
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
      if (producer >= 0) graph.operations[static_cast<size_t>(producer)].outputs.push_back(at->second);
      return at->second;
    }
    void read(int x, int by) {
      graph.operations[static_cast<size_t>(by)].inputs.push_back(x);
      graph.tensors[static_cast<size_t>(x)].uses.push_back(by);
    }
  };

  void copy(const Block& block, int o, Alone& alone) const {
    const Operation& from = graph_.operation(o);
    for (const int x : from.inputs) {
      if (alone.local.contains(x)) continue;
      const int producer = graph_.tensor(x).producer;
      const bool gradient = producer >= chain_.turn && !inside(block, producer);
      alone.add(graph_, x,
                producer < 0 ? -1
                : gradient   ? alone.turn
                             : 0,
                gradient ? graph_.tensor(graph_.tensor(x).storage).bytes : 0);
    }
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

  Alone cut_out(const Block& block) const {
    Alone alone;
    alone.graph.operations.emplace_back();
    alone.graph.operations.back().once = true;
    for (int o = block.from; o < block.to; ++o) copy(block, o, alone);
    alone.turn = static_cast<int>(alone.graph.operations.size());
    alone.graph.operations.emplace_back();
    alone.graph.operations.back().once = true;
    if (const auto at = alone.local.find(block.after); at != alone.local.end())
      alone.read(at->second, alone.turn);
    for (int o = block.back_from; o < block.back_to; ++o) copy(block, o, alone);
    const auto end = static_cast<int>(alone.graph.operations.size());
    alone.graph.operations.emplace_back();
    for (const auto& [x, here] : alone.local) {
      const Tensor& tensor = graph_.tensor(x);
      const bool leaves =
          tensor.producer >= chain_.turn && inside(block, tensor.producer) &&
          std::any_of(tensor.uses.begin(), tensor.uses.end(), [&](int use) { return !inside(block, use); });
      if (leaves) alone.read(here, end);
    }
    return alone;
  }

  static std::string key(const Graph& graph) {
    std::string text;
    for (const Operation& op : graph.operations) {
      text += fmt::format("{} {} {}:", op.cost, op.again, op.once);
      for (const int x : op.inputs) text += fmt::format(" {}", x);
      for (const int x : op.outputs)
        text += fmt::format(" ={} {}", x, graph.tensors[static_cast<size_t>(x)].bytes);
      for (const auto& [from, to] : op.in_place) text += fmt::format(" {}/{}", from, to);
      text += '\n';
    }
    return text;
  }

  // The gap of x between the two passes: its number in the plan, or -1.
  static int between(const Graph& graph, const Plan& plan, int x, int turn) {
    const auto& uses = graph.tensor(x).uses;
    const auto next = std::lower_bound(uses.begin(), uses.end(), turn);
    return next == uses.end() ? -1 : plan.first(x) + static_cast<int>(next - uses.begin());
  }

  void find_options(Block& block, std::map<std::string, std::vector<Option>>& known) {
    const Alone alone = cut_out(block);
    const Plan nothing(alone.graph);
    std::vector<int> all;
    for (int o = block.from; o < block.to; ++o) {
      for (const int x : graph_.operation(o).outputs) {
        if (x != block.after && !graph_.once(x) && between(graph_, Plan(graph_), x, chain_.turn) >= 0)
          all.push_back(x);
      }
    }
    const auto bytes = [&](int x) { return graph_.tensor(x).bytes; };
    std::stable_sort(all.begin(), all.end(), [&](int a, int b) { return bytes(a) > bytes(b); });
    for (const int x : all) {
      const bool large = block.choices.size() < kMostChoices && bytes(x) * 16 >= bytes(all.front());
      (large ? block.choices : block.rest).push_back(x);
    }
    std::vector<Option>& options = known[key(alone.graph)];
    if (options.empty()) options = try_all(block, alone);
    block.options = options;
  }

  std::vector<Option> try_all(const Block& block, const Alone& alone) {
    Simulator simulator(alone.graph);
    const double base = alone.graph.base_cost();
    std::vector<Option> all;
    for (unsigned kept = 0; kept < 1U << block.choices.size(); ++kept) {
      Plan plan(alone.graph);
      Option option{.kept = kept};
      for (const int x : block.rest) option.saved += graph_.tensor(x).bytes;
      for (size_t i = 0; i < block.choices.size(); ++i) {
        const int x = alone.local.at(block.choices[i]);
        const int gap = between(alone.graph, plan, x, alone.turn);
        if ((kept >> i & 1U) != 0)
          option.saved += graph_.tensor(block.choices[i]).bytes;
        else if (gap >= 0)
          plan.gaps[static_cast<size_t>(gap)] = Gap::drop;
      }
      const Measure measure = simulator.run(plan);
      option.peak = measure.peak;
      option.extra = measure.cost - base;
      all.push_back(option);
    }
    std::vector<Option> out;
    for (const Option& a : all) {
      const bool dominated = std::any_of(all.begin(), all.end(), [&](const Option& b) {
        const bool no_worse = b.saved <= a.saved && b.peak <= a.peak && b.extra <= a.extra;
        return no_worse && (b.saved < a.saved || b.peak < a.peak || b.extra < a.extra || b.kept < a.kept);
      });
      if (!dominated) out.push_back(a);
    }
    return out;
  }

  Cell& cell(size_t s, size_t t, size_t m) { return table_[(s * blocks_.size() + t) * (slots_ + 1) + m]; }
  size_t slots(int64_t bytes) const { return static_cast<size_t>((bytes + slot_ - 1) / slot_); }
  int64_t bytes_after(size_t block) const {
    return block < blocks_.size() && blocks_[block].after >= 0 ? graph_.tensor(blocks_[block].after).bytes
                                                               : 0;
  }

  void fill_table(int64_t budget) {
    const size_t n = blocks_.size();
    slots_ = n <= 24 ? 384 : 128;
    slot_ = 1 + static_cast<int64_t>(kParts[0] * static_cast<double>(budget)) / static_cast<int64_t>(slots_);
    table_.assign(n * n * (slots_ + 1), {});
    for (size_t length = 1; length <= n; ++length) {
      for (size_t s = 0; s + length <= n; ++s) {
        fill(s, s + length - 1);
      }
    }
  }

  void fill(size_t s, size_t t) {
    const auto offer = [&](size_t m, double cost, int choice) {
      if (Cell& at = cell(s, t, m); cost < at.cost) at = {cost, choice};
    };
    const std::vector<Option>& options = blocks_[s].options;
    for (size_t i = 0; i < options.size(); ++i) {
      const size_t after = s == t ? 0 : slots(options[i].saved + bytes_after(s));
      for (size_t m = std::max(slots(options[i].peak), after); m <= slots_; ++m)
        offer(m, options[i].extra + (s == t ? 0 : cell(s + 1, t, m - after).cost), static_cast<int>(i));
    }
    double forward = 0;
    for (size_t j = s + 1; j <= t; ++j) {
      forward += blocks_[j - 1].forward;
      const size_t held = slots(bytes_after(j - 1));
      for (size_t m = held; m <= slots_; ++m)
        offer(m, forward + cell(j, t, m - held).cost + cell(s, j - 1, m).cost, -static_cast<int>(j));
    }
  }

  // x goes the first `times` times it is there, and stays then.
  void keep_from(Plan& plan, int x, int times) const {
    if (const int gap = between(graph_, plan, x, chain_.turn); gap >= 0)
      plan.gaps[static_cast<size_t>(gap)] = dropped(times);
    else
      plan.held[static_cast<size_t>(x)] = static_cast<char>(times + 1);
  }

  void expand(Plan& plan, size_t s, size_t t, size_t m, int run) {
    const int choice = cell(s, t, m).choice;
    if (choice < 0) {
      const auto j = static_cast<size_t>(-choice);
      keep_from(plan, blocks_[j - 1].after, run);
      expand(plan, j, t, m - slots(bytes_after(j - 1)), run);
      expand(plan, s, j - 1, m, run + 1);
      return;
    }
    const Block& block = blocks_[s];
    const Option& option = block.options[static_cast<size_t>(choice)];
    for (const int x : block.rest) keep_from(plan, x, run);
    for (size_t i = 0; i < block.choices.size(); ++i)
      keep_from(plan, block.choices[i], (option.kept >> i & 1U) != 0 ? run : run + 1);
    if (s == t) return;
    keep_from(plan, block.after, run);
    expand(plan, s + 1, t, m - slots(option.saved + bytes_after(s)), run);
  }

  const Graph& graph_;
  const Chain chain_;
  std::vector<Block> blocks_;
  std::vector<Cell> table_;  // [s][t][m]
  size_t slots_ = 0;
  int64_t slot_ = 1;
};

}  // namespace

std::vector<Plan> block_plans(const Graph& graph, int64_t budget) {
  Blocks blocks(graph);
  if (!blocks.find()) return {};
  return blocks.plans(budget);
}

}  // namespace gacc::passes::planner
