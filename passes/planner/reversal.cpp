// best(s, t, held, m): the least cost of the backward parts of blocks t, t - 1, .. s with m bytes for them,
// when y_s-1 is there (others count it) and so is y_t, if held. It is the least of
//   - s = t: the backward part makes what it needs itself, or the block passes and keeps what an option says;
//   - y_t goes at once;
//   - blocks s..j-1 pass, best(j, t, held, m - y_j-1), best(s, j - 1, y_j-1 is there, m);
//   - block s passes and keeps what an option says, best(s + 1, t, held, m - that - y_s), the backward part of s.
// Each must fit m while it runs; while blocks pass, so must the gradients before block t and y_t, if held.
#include "passes/planner/reversal.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_map>

namespace gacc::passes::planner {

namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr size_t kMostStages = 1024;       // classify takes a cell for each pair of them
constexpr int64_t kMostCells = 4'000'000;  // of the table
// Options that are looked at in all: with a step of bytes that is fine, and with one that costs precision.
constexpr int64_t kMostFineWork = 150'000'000, kMostCoarseWork = 500'000'000;
constexpr int64_t kCoarsestSteps = 512;  // bytes are counted in no fewer steps than this

}  // namespace

Reversal::Reversal(const std::vector<Stage>& stages, int64_t least, int64_t budget, int64_t most)
    : stages_(stages) {
  if (stages.empty() || stages.size() > kMostStages) return;
  classify();
  choose_step(least, budget, most);
  for (size_t c = 0; c < segments_.size() && solved(); ++c) {
    const auto [s, t] = segments_[c];
    fill(s, t, false);
    if (stages_[t].reads_after) fill(s, t, true);
  }
}

void Reversal::classify() {
  const size_t n = stages_.size();
  classes_.assign(n * n, 0);
  std::unordered_map<uint64_t, size_t> known;
  for (size_t length = 1; length <= n; ++length) {
    for (size_t s = 0; s + length <= n; ++s) {
      const size_t t = s + length - 1;
      const uint64_t front = length == 1 ? 0 : segment(s, t - 1) + 1;
      const auto kind = static_cast<uint64_t>(last(t) ? 0 : stages_[t].kind + 1);
      const auto [place, fresh] = known.emplace(front << 32 | kind, segments_.size());
      if (fresh) segments_.emplace_back(s, t);
      classes_[s * n + t] = place->second;
    }
  }
}

void Reversal::choose_step(int64_t least, int64_t budget, int64_t most) {
  int64_t divisor = 0, all = 0;
  std::map<int64_t, int> sizes;  // of what crosses: how many
  for (const Stage& stage : stages_) {
    int64_t saved = 0;
    for (const Option& option : stage.passed) {
      divisor = std::gcd(divisor, option.saved);
      saved = std::max(saved, option.saved);
    }
    divisor = std::gcd(divisor, stage.after);
    all += stage.after + saved;
    if (stage.after > 0) ++sizes[stage.after];
  }
  int64_t rows = 0, offers = 0;
  for (const auto& [s, t] : segments_) {
    const int64_t held = stages_[t].reads_after ? 2 : 1;
    rows_.push_back(static_cast<size_t>(rows));
    rows += held;
    offers += held * static_cast<int64_t>(t - s + 1 + stages_[s].passed.size());
  }
  const auto take = [&](int64_t step, int64_t most_work) {
    step_ = step;
    top_ = budget + (most - budget + step - 1) / step * step;
    const int64_t slots = std::min(top_ / step, (top_ - least + all) / step + 1);
    if ((slots + 1) * rows > kMostCells || (slots + 1) * offers > most_work) return false;
    slots_ = static_cast<size_t>(slots);
    table_.assign((slots_ + 1) * static_cast<size_t>(rows), {kImpossible});
    return true;
  };
  if (take(std::max<int64_t>(divisor, 1), kMostFineWork) || sizes.empty()) return;
  // The size that most blocks hand on, or a part of it: others are often multiples, or next to nothing.
  const int64_t usual = std::ranges::max_element(sizes, [](const auto& a, const auto& b) {
                          return a.second < b.second;
                        })->first;
  for (const int64_t parts : {8, 4, 2})
    if (take(std::max<int64_t>(1, usual / parts), kMostFineWork)) return;
  if (take(usual, kMostCoarseWork) || most / kCoarsestSteps < 4 * usual) return;
  take(most / kCoarsestSteps, kMostCoarseWork);
}

void Reversal::fill(size_t s, size_t t, bool held) {
  const Stage &first = stages_[s], &final = stages_[t];
  Cell* const out = &table_[row_begin(s, t, held)];
  // Costs `cost` and, by slots taken, what two rows say (the first beyond `taken` more), where `need` fits.
  const auto offer = [&](int64_t need, double cost, const Cell* a, size_t taken, const Cell* b, Choice choice,
                         size_t index) {
    const int64_t end = std::min(room(need), static_cast<int64_t>(slots_) - static_cast<int64_t>(taken));
    for (int64_t k = 0; k <= end; ++k) {
      double sum = cost;
      if (a != nullptr) sum += a[static_cast<size_t>(k) + taken].cost;
      if (b != nullptr) sum += b[k].cost;
      if (sum < out[k].cost) out[k] = {sum, choice, static_cast<int>(index)};
    }
  };
  if (!final.backward && !last(t))
    return offer(0, 0, s == t ? nullptr : row(s, t - 1, false), 0, nullptr, Choice::skip, 0);
  if (held) offer(0, 0, row(s, t, false), 0, nullptr, Choice::free, 0);
  const int64_t others = final.gradients + (held ? final.after : 0);  // while blocks pass
  if (s == t) {
    for (size_t o = 0; o < first.again[held ? 1 : 0].size() && !last(t); ++o) {
      const Option& option = first.again[held ? 1 : 0][o];
      offer(option.reading, option.extra, nullptr, 0, nullptr, Choice::remake, o);
    }
    for (size_t o = 0; o < first.passed.size() && !held; ++o) {
      const Option& option = first.passed[o];
      offer(std::max(option.passing + others, option.reading), first.cost + option.extra, nullptr, 0, nullptr,
            Choice::keep, o);
    }
    return;
  }
  double cost = 0;
  int64_t passing = 0;
  for (size_t j = s + 1; j <= t; ++j) {
    const Stage& before = stages_[j - 1];
    cost += before.cost;
    passing = std::max(passing, before.passing + (j - 1 > s ? stages_[j - 2].after : 0));
    offer(passing + others, cost, row(j, t, held), slots(before.after), row(s, j - 1, before.reads_after),
          Choice::split, j - s);
  }
  for (size_t o = 0; o < first.passed.size(); ++o) {
    const Option& option = first.passed[o];
    offer(std::max(option.passing + others, option.reading), first.cost + option.extra, row(s + 1, t, held),
          slots(option.saved + first.after), nullptr, Choice::keep_on, o);
  }
}

size_t Reversal::slot_of(int64_t budget) const {
  return static_cast<size_t>((top_ - std::min(budget, top_) + step_ - 1) / step_);
}

double Reversal::extra(int64_t budget) const {
  const size_t slot = slot_of(budget);
  double base = 0;
  for (const Stage& stage : stages_) base += stage.cost;
  return slot > slots_ ? kImpossible : row(0, stages_.size() - 1, false)[slot].cost - base;
}

std::vector<Decision> Reversal::decisions(int64_t budget) const {
  std::vector<Decision> out;
  walk(0, stages_.size() - 1, false, slot_of(budget), 0, out);
  return out;
}

void Reversal::walk(size_t s, size_t t, bool held, size_t slot, int pass, std::vector<Decision>& out) const {
  using Kind = Decision::Kind;
  const auto decide = [&](Kind kind, size_t stage, int option = 0) {
    out.push_back({kind, static_cast<int>(stage), pass, option, held});
  };
  const Cell& cell = row(s, t, held)[slot];
  switch (cell.choice) {
    case Choice::none:
      return;
    case Choice::skip:
      if (s == t) return;
      decide(Kind::store, t - 1);  // for the backward part of block t - 1
      return walk(s, t - 1, false, slot, pass, out);
    case Choice::free:
      decide(Kind::free, t);
      return walk(s, t, false, slot, pass, out);
    case Choice::remake:
      return decide(Kind::remake, t, cell.index);
    case Choice::keep:
      return decide(Kind::keep, s, cell.index);
    case Choice::keep_on:
      decide(Kind::keep, s, cell.index);
      decide(Kind::store, s);
      return walk(s + 1, t, held, slot + slots(stages_[s].passed[cell.index].saved + stages_[s].after), pass,
                  out);
    case Choice::split: {
      const size_t j = s + static_cast<size_t>(cell.index);
      const Stage& before = stages_[j - 1];
      decide(Kind::store, j - 1);
      walk(j, t, held, slot + slots(before.after), pass, out);
      return walk(s, j - 1, before.reads_after, slot, pass + 1, out);
    }
  }
}

}  // namespace gacc::passes::planner
