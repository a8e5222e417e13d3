// Branch and bound over canonical placements.
//
// Push every block of a placement down as long as one moves: each then rests on the ground or on a block that
// it meets in time. Such a placement is built by taking its blocks in order of (offset, rank), and each then
// goes exactly to the *floor* below it: the highest top among what it meets. So the search only chooses which
// block comes next.
//
// Time is cut into sections, the maximal sets of blocks that live together; two blocks meet exactly if some
// section holds both. A node keeps, per section, the lowest offset an unplaced block can still have there
// (`floor`) and the bytes of its unplaced blocks (`rest`). Pruning, each sound for canonical placements:
//   - a section with floor + rest > capacity has no completion;
//   - offsets only grow, so each floor is at least the offset placed last, and of two blocks at one offset the one of
//     lower rank came first;
//   - a block rises to the highest floor of its sections, a section to the lowest block it has left, and so
//     on to the fixed point;
//   - a block whose lowest offset is above all that could carry it waits until something is put below it;
//   - a block is no candidate while another would fit entirely below its offset: that one could come down.
// When the unplaced blocks fall apart in time, the parts are ranked anew, by what is left there, and solved
// one by one: a part that fails sends the search straight back past the others. States that failed are
// remembered: different stacks often leave the same. Runs of growing length alternate between orders of the
// blocks, later ones with noise (fixed seed).
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "passes/planner/offsets.h"

namespace gacc::passes::planner {

namespace {

// A block as the search sees it: the sections begin..end-1 hold it.
struct Item {
  int64_t bytes = 0;
  int begin = 0, end = 0;
  int64_t length = 0;  // of its life
};

// The keys that items are ranked by, the largest first; ties go to the next.
enum class Fact : uint8_t {
  fullest,  // unplaced bytes of its fullest section
  length,
  area,  // length times bytes
  sections,
  section_area,
};
using Order = std::array<Fact, 3>;
// Each solves cases that the others do not.
constexpr std::array<Order, 4> kOrders = {{{Fact::fullest, Fact::length, Fact::area},
                                           {Fact::fullest, Fact::section_area, Fact::sections},
                                           {Fact::sections, Fact::section_area, Fact::fullest},
                                           {Fact::fullest, Fact::sections, Fact::section_area}}};

constexpr int64_t kPlaced = std::numeric_limits<int64_t>::max();

enum class Outcome : uint8_t { found, none, unknown };

class Search {
 public:
  Search(std::vector<Item> items, int sections, int64_t capacity)
      : items_(std::move(items)),
        capacity_(capacity),
        members_(static_cast<size_t>(sections)),
        first_here_(static_cast<size_t>(sections)),
        last_here_(static_cast<size_t>(sections)),
        floor_(static_cast<size_t>(sections), 0),
        top_(static_cast<size_t>(sections), 0),
        rest_(static_cast<size_t>(sections), 0),
        left_(static_cast<size_t>(sections), 0),
        witness_(static_cast<size_t>(sections), 0),
        queued_(static_cast<size_t>(sections), Queued::no),
        lowest_(items_.size(), 0),
        placed_(items_.size(), -1),
        rank_(items_.size(), 0),
        failed_(std::min(size_t{1} << 18, std::bit_ceil(items_.size() + 1) * 256)) {
    for (size_t i = 0; i < items_.size(); ++i) {
      for (int s = items_[i].begin; s < items_[i].end; ++s) {
        members_[s].push_back(static_cast<int>(i));
        rest_[s] += items_[i].bytes;
        ++left_[s];
      }
      if (items_[i].begin == items_[i].end) continue;
      first_here_[items_[i].begin].push_back(static_cast<int>(i));
      last_here_[items_[i].end - 1].push_back(static_cast<int>(i));
    }
    std::ranges::transform(members_, witness_.begin(),
                           [](const auto& all) { return all.empty() ? 0 : all[0]; });
  }

  // One run with this order of the items; all facts but `fullest` are multiplied by an item's noise.
  Outcome run(const Order& order, std::vector<double> noise, int64_t work) {
    order_ = order;
    noise_ = std::move(noise);
    work_ = work;
    ++run_;
    any_failed_ = false;
    std::vector<int> all(items_.size());
    std::iota(all.begin(), all.end(), 0);
    std::ranges::sort(
        all, [&](int a, int b) { return std::pair(item(a).begin, a) < std::pair(item(b).begin, b); });
    rank(all);
    const Outcome outcome = solve_parts(all, 0, -1);
    if (outcome != Outcome::found) undo(0);
    return outcome;
  }
  const std::vector<int64_t>& offsets() const { return placed_; }

 private:
  struct Change {
    int64_t* what;
    int64_t before;
  };

  const Item& item(int i) const { return items_[i]; }

  void set(std::vector<int64_t>& values, int index, int64_t value) {
    int64_t& what = values[index];
    trail_.push_back({&what, what});
    what = value;
  }

  void undo(size_t mark) {
    for (; trail_.size() > mark; trail_.pop_back()) *trail_.back().what = trail_.back().before;
  }

  // Why a section is to be looked at: a block of it rose, or its floor did.
  enum class Queued : uint8_t { no, block, floor };

  void touch(int section, Queued why) {
    if (queued_[section] == Queued::no) queue_.push_back(section);
    queued_[section] = std::max(queued_[section], why);
  }

  // The same of sections begin..end-1, a block of which rose: most are queued already.
  void touch_all(int begin, int end) {
    static_assert(sizeof(Queued) == 1 && static_cast<int>(Queued::no) == 0);
    while (begin < end) {
      const void* next = std::memchr(&queued_[begin], 0, static_cast<size_t>(end - begin));
      if (next == nullptr) return;
      begin = static_cast<int>(static_cast<const Queued*>(next) - queued_.data());
      queued_[begin] = Queued::block;
      queue_.push_back(begin++);
    }
  }

  // Says whether all blocks of this section are known to be at or above that floor.
  bool is_above(int section, int64_t floor) const {
    return section >= 0 && section < std::ssize(queued_) && queued_[section] != Queued::floor &&
           floor_[section] >= floor;
  }

  // Returns the blocks of a section that may be below its floor. What a neighbour holds, too, is above the neighbour's.
  const std::vector<int>& below_floor(int section) const {
    const int64_t floor = floor_[section];
    if (is_above(section - 1, floor)) return first_here_[section];
    if (is_above(section + 1, floor)) return last_here_[section];
    return members_[section];
  }

  // The lowest of a section's blocks, all of which are at its floor or above.
  int64_t lowest_of(int section) {
    const int64_t floor = floor_[section];
    if (lowest_[witness_[section]] == floor) return floor;
    int64_t lowest = kPlaced;
    for (const int i : members_[section]) {
      if (lowest_[i] >= lowest) continue;
      lowest = lowest_[i], witness_[section] = i;
      if (lowest == floor) break;
    }
    return lowest;
  }

  // Blocks up to the floors of their sections, sections up to the lowest of their blocks, to the fixed point.
  bool settle() {
    bool good = true;
    for (size_t next = 0; next < queue_.size() && good; ++next) {
      const int section = queue_[next];
      const size_t s = static_cast<size_t>(section);
      const Queued why = std::exchange(queued_[s], Queued::no);
      if (rest_[s] == 0) continue;
      work_ -= left_[s];
      if (why == Queued::floor) {
        const int64_t floor = floor_[s];
        for (const int i : below_floor(section)) {
          if (lowest_[i] >= floor) continue;
          set(lowest_, i, floor);
          witness_[s] = i;
          if (floor + item(i).bytes > capacity_) good = false;
          touch_all(item(i).begin, section);
          touch_all(section + 1, item(i).end);
        }
      }
      if (const int64_t lowest = lowest_of(section); lowest > floor_[s]) set(floor_, section, lowest);
      if (floor_[s] + rest_[s] > capacity_) good = false;
    }
    for (const int section : queue_) queued_[section] = Queued::no;
    queue_.clear();
    return good;
  }

  bool put(int i, int64_t offset, const std::vector<int>& part) {
    set(placed_, i, offset);
    set(lowest_, i, kPlaced);
    for (int s = item(i).begin; s < item(i).end; ++s) {
      set(rest_, s, rest_[s] - item(i).bytes);
      set(left_, s, left_[s] - 1);
      set(floor_, s, offset + item(i).bytes);
      set(top_, s, offset + item(i).bytes);
      touch(s, Queued::floor);
    }
    int s = 0;
    for (const int other : part) {  // offsets only grow
      if (lowest_[other] >= offset) continue;
      for (s = std::max(s, item(other).begin); s < item(other).end; ++s) {
        if (floor_[s] >= offset) continue;
        set(floor_, s, offset);
        touch(s, Queued::floor);
      }
    }
    return settle();
  }

  bool carried(int i, int64_t offset) const {
    if (offset == 0) return true;
    for (int s = item(i).begin; s < item(i).end; ++s)
      if (top_[s] == offset) return true;
    return false;
  }

  double value(Fact fact, int i) const {
    const double noise = noise_[i];
    const auto sections = [&] { return static_cast<double>(item(i).end - item(i).begin) * noise; };
    const auto length = [&] { return static_cast<double>(item(i).length) * noise; };
    switch (fact) {
      case Fact::length:
        return length();
      case Fact::area:
        return length() * static_cast<double>(item(i).bytes);
      case Fact::sections:
        return sections();
      case Fact::section_area:
        return sections() * static_cast<double>(item(i).bytes);
      case Fact::fullest:
        break;
    }
    return static_cast<double>(*std::max_element(rest_.begin() + item(i).begin, rest_.begin() + item(i).end));
  }

  // Ranks the items of a part among themselves.
  void rank(const std::vector<int>& part) {
    std::vector<std::pair<std::array<double, 3>, int>> keys;
    for (const int i : part) {
      std::array<double, 3> key{};
      std::transform(order_.begin(), order_.end(), key.begin(), [&](Fact fact) { return -value(fact, i); });
      keys.emplace_back(key, i);
    }
    work_ -= static_cast<int64_t>(part.size());
    std::ranges::sort(keys);
    ranks_key_ = 0;
    for (size_t place = 0; place < keys.size(); ++place) {
      rank_[keys[place].second] = static_cast<int>(place);
      ranks_key_ = mix(ranks_key_ ^ static_cast<uint64_t>(keys[place].second));
    }
  }

  // `part` is sorted by first section. Splits its unplaced items where none crosses.
  Outcome solve_parts(const std::vector<int>& part, int64_t offset, int rank_before) {
    std::vector<std::vector<int>> pieces;
    int end = 0;
    for (const int i : part) {
      if (placed_[i] >= 0) continue;
      if (pieces.empty() || item(i).begin >= end) pieces.emplace_back();
      pieces.back().push_back(i);
      end = std::max(end, item(i).end);
    }
    if (pieces.size() == 1) return solve(pieces.front(), offset, rank_before);
    const uint64_t key_before = ranks_key_;
    for (const std::vector<int>& piece : pieces) {
      std::vector<int> ranks_before;
      for (const int i : piece) ranks_before.push_back(rank_[i]);
      rank(piece);
      const Outcome outcome = solve(piece, offset, -1);
      for (size_t k = 0; k < piece.size(); ++k) rank_[piece[k]] = ranks_before[k];
      ranks_key_ = key_before;
      if (outcome != Outcome::found) return outcome;
    }
    return Outcome::found;
  }

  // Places the items of one connected part, all unplaced, after `rank_before` at `offset`.
  Outcome solve(const std::vector<int>& part, int64_t offset, int rank_before) {
    work_ -= static_cast<int64_t>(part.size());
    std::optional<uint64_t> key;  // not before a state has failed: it takes as long as all the rest
    if (any_failed_) {
      key = state_key(part, offset);
      const Failed& failed = failed_of(*key);
      if (failed.key == *key && failed.rank <= rank_before) return Outcome::none;
    }
    int64_t fits_below = std::numeric_limits<int64_t>::max();
    for (const int i : part) fits_below = std::min(fits_below, lowest_[i] + item(i).bytes);
    std::vector<int> candidates;
    for (const int i : part) {
      const int64_t at = lowest_[i];
      if (at >= fits_below || (at == offset && rank_[i] < rank_before) || !carried(i, at)) continue;
      candidates.push_back(i);
    }
    // A heap, whose first is next: of most nodes only one candidate is tried.
    const auto later = [&](int a, int b) {
      return std::pair(lowest_[a], rank_[a]) > std::pair(lowest_[b], rank_[b]);
    };
    std::ranges::make_heap(candidates, later);
    while (!candidates.empty()) {
      std::ranges::pop_heap(candidates, later);
      const int i = candidates.back();
      candidates.pop_back();
      const size_t mark = trail_.size();
      const int64_t at = lowest_[i];
      if (put(i, at, part)) {
        const Outcome outcome = solve_parts(part, at, rank_[i]);
        if (outcome != Outcome::none) return outcome;
      }
      undo(mark);
      if (work_ < 0) return Outcome::unknown;
    }
    if (!key) key = state_key(part, offset);
    failed_of(*key) = {*key, rank_before};
    any_failed_ = true;
    return Outcome::none;
  }

  // Returns a key of what decides whether `part` can be completed: its items and their ranks, how low each can still
  // be, what may carry them. Different stacks below often leave the same.
  uint64_t state_key(const std::vector<int>& part, int64_t offset) const {
    uint64_t key = mix(run_ ^ mix(static_cast<uint64_t>(offset) ^ ranks_key_));
    int section = 0;
    for (const int i : part) {
      key = mix(key ^ (static_cast<uint64_t>(lowest_[i]) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(i)));
      for (section = std::max(section, item(i).begin); section < item(i).end; ++section) {
        const int64_t top = top_[section];
        key = mix(key ^ static_cast<uint64_t>(top >= offset ? top : -1));
      }
    }
    return key;
  }
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 29)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
  }

  // A state without completion by items of at least this rank at its offset.
  struct Failed {
    uint64_t key = 0;
    int rank = 0;
  };
  Failed& failed_of(uint64_t key) { return failed_[key & (failed_.size() - 1)]; }
  uint64_t run_ = 0;
  bool any_failed_ = false;  // in this run
  Order order_{};
  std::vector<double> noise_;  // by item
  std::vector<Item> items_;
  int64_t capacity_;
  std::vector<std::vector<int>> members_;  // by section
  std::vector<std::vector<int>> first_here_,
      last_here_;  // those of its members that no section before, or after, has
  std::vector<int64_t> floor_, top_, rest_, left_;  // by section; `left_`: the number of unplaced items
  std::vector<int> witness_;    // by section: an item that was its lowest when last looked at
  std::vector<Queued> queued_;  // by section
  std::vector<int> queue_;
  std::vector<int64_t> lowest_;  // by item: the lowest offset it can still have, or kPlaced
  std::vector<int64_t> placed_;  // by item: its offset, or -1
  std::vector<int> rank_;        // by item, within its part
  uint64_t ranks_key_ = 0;       // tells the ranks of this part from others
  std::vector<Failed> failed_;
  std::vector<Change> trail_;
  int64_t work_ = 0;
};

// The maximal sets of blocks that live together, in order of time: at an instant where blocks begin, closed
// by the next one where some end. Returns their number.
int cut_sections(const std::vector<Block>& blocks, std::vector<Item>& items) {
  int instants = 0;
  for (const Block& block : blocks) instants = std::max(instants, block.last + 2);
  std::vector<char> begins(static_cast<size_t>(instants), 0), ends(static_cast<size_t>(instants), 0);
  for (const Block& block : blocks) {
    if (block.bytes == 0) continue;
    begins[block.first] = 1;
    ends[static_cast<size_t>(block.last) + 1] = 1;
  }
  std::vector<int> section_at(static_cast<size_t>(instants), -1);  // the last section begun at or before t
  int sections = 0;
  bool open = false;  // blocks began since the last end: the set is still growing
  for (int t = 0; t < instants; ++t) {
    if (ends[t] != 0) open = false;
    if (begins[t] != 0 && !open) {
      ++sections;
      open = true;
    }
    section_at[t] = sections - 1;
  }
  items.assign(blocks.size(), {});
  for (size_t i = 0; i < blocks.size(); ++i)
    items[i] = {blocks[i].bytes, section_at[blocks[i].first], section_at[blocks[i].last] + 1,
                length_of(blocks[i])};
  return sections;
}

}  // namespace

Packing search_packing(const std::vector<Block>& blocks, int64_t capacity, int64_t work, int64_t first_run) {
  if (liveness_bound(blocks) > capacity) return {std::nullopt, true};
  std::vector<Block> real;  // blocks of no bytes have no influence: they stand at 0
  std::vector<size_t> origin;
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].bytes > 0) real.push_back(blocks[i]), origin.push_back(i);
  constexpr size_t kMostItems = 8000;  // the search recurses once per block: the stack holds this many
  if (real.size() > kMostItems) return {};
  std::vector<Item> items;
  const int sections = cut_sections(real, items);
  Search search(items, sections, capacity);
  // Rounds: each order as it is, then each with noise and a quarter of the work; twice as long next round.
  constexpr size_t kRound = 2 * kOrders.size();
  std::mt19937 random(1);
  for (size_t attempt = 0; work > 0; ++attempt) {
    const bool plain = attempt % kRound < kOrders.size();
    const int64_t length = first_run << std::min<size_t>(attempt / kRound, 20);
    const int64_t now = std::min(work, plain ? length : length / 4 + 1);
    std::vector<double> noise(items.size(), 1);
    if (!plain)
      for (double& factor : noise) factor = 256 + random() % 256;  // up to a factor of two
    const Outcome outcome = search.run(kOrders[attempt % kOrders.size()], std::move(noise), now);
    if (outcome == Outcome::none) return {std::nullopt, true};
    if (outcome == Outcome::found) {
      Placement placement;
      placement.offsets.assign(blocks.size(), 0);
      for (size_t i = 0; i < real.size(); ++i) {
        placement.offsets[origin[i]] = search.offsets()[i];
        placement.height = std::max(placement.height, search.offsets()[i] + real[i].bytes);
      }
      return {std::move(placement), false};
    }
    work -= now;
  }
  return {};
}

}  // namespace gacc::passes::planner
