// A plan's choices fall into slots: the time between two uses of a tensor, and that after its last. What a
// replay does depends on which tensors live when it starts, and that on what earlier replays did in the same
// slots. So each slot keeps the replays that touch it, and what they found there:
//   1. A choice changes: the first replay of its slot that would find something else is stale.
//   2. A stale replay is run again, by itself. Where it touches slots in another way, those are reviewed:
//      again the first replay that would find something else is stale. Changes go forward in time, so this ends.
//   3. Bytes at the start of each operation are a tree of sums over ranges; a replay adds its fullest step.
// A tensor that is held beyond its last use lives until the last replay that reads it: replays before that know
// whether a later one reads it, and are stale where that changes.
#include "passes/planner/incremental.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

namespace gacc::passes::planner {

namespace {

constexpr int kNever = std::numeric_limits<int>::max();

int drops_of(Interval interval) { return static_cast<int>(interval); }
int drops_of_held(int held) { return held == 0 ? kNever : held - 1; }

// Returns the element behind the first `used`. Those of earlier trials stay, with the memory that they have.
template <class Saved>
Saved& next_of(std::vector<Saved>& all, size_t& used) {
  if (used == all.size()) all.emplace_back();
  return all[used++];
}

}  // namespace

Incremental::Incremental(const Graph& graph)
    : graph_(graph),
      plan_(graph),
      base_cost_(graph.base_cost()),
      members_(graph.tensors.size()),
      alive_(graph.tensors.size()),
      replays_(graph.operations.size()),
      is_stale_(graph.operations.size(), 0),
      local_(graph.tensors.size()),
      in_list_(graph.operations.size(), 0),
      counts_(graph.tensors.size(), 0),
      counted_(graph.tensors.size(), 0),
      replay_saved_(graph.operations.size(), 0) {
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[i];
    const auto x = static_cast<int>(i);
    first_slot_.push_back(static_cast<int>(slots_.size()));
    members_[tensor.storage].push_back(x);
    int begin = tensor.producer;
    for (const int use : tensor.uses) {
      slot_of_.push_back(static_cast<int>(slots_.size()));
      slots_.push_back(
          {.tensor = x, .begin = begin, .end = use, .drops = drops_of(plan_.intervals[slot_of_.size() - 1])});
      begin = use;
    }
    slots_.push_back({.tensor = x, .begin = begin, .end = -1, .drops = drops_of_held(plan_.held[i])});
  }
  slot_saved_.assign(slots_.size(), 0);
  while (leaves_ < static_cast<int>(graph.operations.size())) leaves_ *= 2;
  memory_.assign(2 * static_cast<size_t>(leaves_), {});
  costs_.assign(2 * static_cast<size_t>(leaves_), 0);
  for (size_t storage = 0; storage < members_.size(); ++storage)
    if (members_[storage].size() > 1) alive_[storage].assign(graph.operations.size(), 0);
  for (size_t s = 0; s < slots_.size(); ++s) review(static_cast<int>(s));
  for (int t = 0; t <= graph.end(); ++t) make_stale(t);
  follow_all();
  commit();
}

void Incremental::change(const RecomputePlan& plan) {
  for (size_t g = 0; g < plan.intervals.size(); ++g) put_interval(static_cast<int>(g), plan.intervals[g]);
  for (size_t x = 0; x < plan.held.size(); ++x) put_held(static_cast<int>(x), plan.held[x]);
  follow_all();
}

void Incremental::set_interval(int interval, Interval to) {
  put_interval(interval, to);
  follow_all();
}

void Incremental::set_held(int x, int to) {
  put_held(x, to);
  follow_all();
}

void Incremental::put_interval(int interval, Interval to) {
  Interval& now = plan_.intervals[interval];
  if (now == to) return;
  old_intervals_.emplace_back(interval, std::exchange(now, to));
  set_drops(slot_of_[interval], drops_of(to));
}

void Incremental::put_held(int x, int to) {
  auto& now = plan_.held[x];
  if (now == to) return;
  old_held_.emplace_back(x, now);
  now = static_cast<std::remove_reference_t<decltype(now)>>(to);
  set_drops(slot_at(x, graph_.end() + 1), drops_of_held(to));
}

void Incremental::commit() {
  saved_slots_ = saved_replays_ = 0;
  old_intervals_.clear();
  old_held_.clear();
  ++trial_;
}

void Incremental::undo() {
  for (auto& [s, old] : std::span(old_slots_).first(saved_slots_)) {
    Slot& slot = slots_[s];
    cover(slot, old.from, old.to);
    std::swap(slot, old);
  }
  for (auto& [t, old] : std::span(old_replays_).first(saved_replays_)) set_replay(t, old);
  for (auto change = old_intervals_.rbegin(); change != old_intervals_.rend(); ++change)
    plan_.intervals[change->first] = change->second;
  for (auto change = old_held_.rbegin(); change != old_held_.rend(); ++change) {
    auto& held = plan_.held[change->first];
    held = static_cast<std::remove_reference_t<decltype(held)>>(change->second);
  }
  commit();
}

// The slot that operation t stands in or ends.
int Incremental::slot_at(int x, int t) const {
  const std::vector<int>& uses = graph_.tensor(x).uses;
  return first_slot_[x] + static_cast<int>(std::ranges::lower_bound(uses, t) - uses.begin());
}

// Returns whether the slot's tensor lives when the replay at t starts, if that reads it; `made`: how often it was made
// in the slot before.
bool Incremental::lives(const Slot& slot, int t, int& made) {
  made = 0;
  bool live = slot.drops == 0;
  for (const Touch& touch : slot.touches) {
    if (touch.at >= t) break;
    if (!touch.made) continue;
    ++made;
    live = live || (made >= slot.drops && (slot.end >= 0 || touch.read));
  }
  return live;
}

// The tensor in the replay at t: as it is at its start, when it is met first.
Incremental::Local& Incremental::enter(int x, int t) {
  Local& local = local_[x];
  if (local.stamp == stamp_) return local;
  local = {.stamp = stamp_};
  const int producer = graph_.tensor(x).producer;
  if (producer < 0) {
    local.live = true;
    return local;
  }
  local.slot = slot_at(x, t);
  local.touch.at = t;
  if (producer >= t) return local;
  const Slot& slot = slots_[local.slot];
  local.live = local.touch.live = lives(slot, t, local.made_before);
  work_ += static_cast<int64_t>(slot.touches.size());
  entered_.push_back(x);
  return local;
}

// The operation or its replay reads x.
void Incremental::want(int x, int t) {
  Local& local = enter(x, t);
  local.touch.read = true;
  if (local.live) return;
  const int producer = graph_.tensor(x).producer;
  if (in_list_[producer] == stamp_) return;
  in_list_[producer] = stamp_;
  list_.push_back(producer);
}

// The tensor in the replay, once it is known what that reads: held tensors that nothing reads any more are
// gone.
Incremental::Local& Incremental::meet(int x, int t) {
  Local& local = local_[x];
  if (local.stamp == stamp_) return local;
  enter(x, t);
  if (local.live && local.slot >= 0) {
    const Slot& slot = slots_[local.slot];
    local.live = slot.end >= 0 || slot.until > t;
  }
  return local;
}

// The living tensors that share the bytes of storage s.
int& Incremental::sharing(size_t s, int t) {
  if (counted_[s] != stamp_) {
    counted_[s] = stamp_;
    counts_[s] = 0;
    for (const int x : members_[s]) counts_[s] += meet(x, t).live ? 1 : 0;
  }
  return counts_[s];
}

void Incremental::allocate(int x, int t) {
  Local& local = meet(x, t);
  if (local.live) return;
  const auto s = static_cast<size_t>(graph_.tensor(x).storage);
  if (members_[s].size() == 1 || sharing(s, t)++ == 0) bytes_ += graph_.tensor(static_cast<int>(s)).bytes;
  local.live = true;
  local.fresh = step_;
}

void Incremental::release(int x, int t) {
  Local& local = local_[x];
  if (!local.live || graph_.tensor(x).producer < 0) return;
  const auto s = static_cast<size_t>(graph_.tensor(x).storage);
  if (members_[s].size() == 1 || --sharing(s, t) == 0) bytes_ -= graph_.tensor(static_cast<int>(s)).bytes;
  local.live = false;
}

// Returns whether the replay at t leaves the tensor there. A tensor that lives after its last use has to be read again,
// and is only kept by replays that want it.
bool Incremental::stays(const Local& x, int t) const {
  if (x.slot < 0) return true;
  const Slot& slot = slots_[x.slot];
  if (x.made_before + (x.touch.made ? 1 : 0) < slot.drops) return false;
  return slot.end >= 0 || (x.touch.read && slot.until > t);
}

void Incremental::execute(int o, int t) {
  const Operation& operation = graph_.operation(o);
  for (const int x : operation.outputs) allocate(x, t);
  full_ = bytes_;
  work_ += 4 + static_cast<int64_t>(operation.inputs.size());
  if (step_ == stop_) snapshot(o, t);
  ++step_;
}

// After an operation's inputs were released: what died there may have given its bytes to an output.
void Incremental::settle(int o) {
  const int step = step_ - 1;
  for (const auto& [input, output] : graph_.operation(o).in_place) {
    Local &from = local_[input], &to = local_[output];
    if (from.live || to.fresh != step || to.taken == step || from.taken == step) continue;
    from.taken = to.taken = step;
    full_ -= graph_.tensor(output).bytes;
  }
  if (step == 0 || full_ > replay_.most) replay_.most = full_, replay_.fullest = step;
}

void Incremental::snapshot(int o, int t) {
  const auto has = [](const std::vector<int>& list, int x) { return std::ranges::count(list, x) > 0; };
  const Operation& operation = graph_.operation(o);
  for (size_t i = 0; i < graph_.tensors.size(); ++i) {
    const Tensor& tensor = graph_.tensors[i];
    if (tensor.producer < 0 || tensor.producer > t || graph_.tensor(tensor.storage).bytes == 0) continue;
    const auto x = static_cast<int>(i);
    const Local& local = local_[i];
    const bool met = local.stamp == stamp_;
    const int number = met ? local.slot : slot_at(x, t);
    const Slot& slot = slots_[number];
    if (met ? !local.live : t < slot.from || t > slot.to) continue;
    if (met && (local.pending > 0 || has(operation.inputs, x) || has(operation.outputs, x)))
      residents_.push_back({x, Resident::kNeeded, t});
    else if (slot.end >= 0)
      residents_.push_back({x, number - x, slot.end});
    else
      residents_.push_back({x, Resident::kHeld, slot.until});
  }
}

// The replay at t and t itself, by what the slots say of the time before.
void Incremental::run(int t, int stop) {
  ++stamp_;
  entered_.clear();
  list_.clear();
  stop_ = stop;
  step_ = 0;
  bytes_ = 0;
  replay_.cost = 0;
  replay_.most = 0;
  replay_.fullest = 0;
  replay_.touched.clear();
  // 1. What is missing, with what is missing for that.
  const Operation& operation = graph_.operation(t);
  for (const int x : operation.inputs) {
    want(x, t);
    local_[x].pending = 1;  // never freed by the replay
  }
  for (size_t next = 0; next < list_.size(); ++next) {
    for (const int x : graph_.operation(list_[next]).inputs) {
      want(x, t);
      ++local_[x].pending;
    }
  }
  std::ranges::sort(list_);
  // 2. Make it.
  for (const int o : list_) {
    replay_.cost += graph_.operation(o).again_cost();
    execute(o, t);
    for (const int x : graph_.operation(o).outputs) {
      Local& local = local_[x];
      if (local.fresh != step_ - 1) continue;
      local.touch.made = !local.touch.live;  // or it was held, but nothing read it any more
      local.touch.stays = local.made_before + 1 >= slots_[local.slot].drops;
      if (local.pending == 0 && (!stays(local, t) || slots_[local.slot].end < 0)) release(x, t);
    }
    for (const int x : graph_.operation(o).inputs) {
      Local& local = local_[x];
      if (--local.pending == 0 && !stays(local, t)) release(x, t);
    }
    settle(o);
  }
  execute(t, t);
  for (const int x : operation.inputs) {
    Local& local = local_[x];
    if (local.slot < 0) continue;
    const Slot& next = slots_[static_cast<size_t>(local.slot) + 1];
    local.live = next.drops == 0 && (next.end >= 0 || next.until > t);
  }
  settle(t);
}

void Incremental::follow(int t) {
  run(t);
  std::vector<int>& changed = changed_;
  changed.clear();
  for (const int x : entered_) replay_.touched.push_back(local_[x].slot);
  for (const int s : replays_[t].touched) {
    const Local& local = local_[slots_[s].tensor];
    if (local.stamp == stamp_) continue;
    std::vector<Touch>& touches = changing(s).touches;
    touches.erase(std::ranges::find_if(touches, [&](const Touch& a) { return a.at == t; }));
    changed.push_back(s);
  }
  for (const int x : entered_) {
    const Local& local = local_[x];
    const std::vector<Touch>& touches = slots_[local.slot].touches;
    const auto place = std::ranges::lower_bound(touches, t, {}, &Touch::at);
    const bool there = place != touches.end() && place->at == t;
    if (there && *place == local.touch) continue;
    const auto index = place - touches.begin();
    std::vector<Touch>& to = changing(local.slot).touches;
    if (there)
      to[index] = local.touch;
    else
      to.insert(to.begin() + index, local.touch);
    changed.push_back(local.slot);
  }
  if (std::exchange(replay_saved_[t], trial_) != trial_) {
    auto& [at, old] = next_of(old_replays_, saved_replays_);
    at = t;
    std::swap(old, replays_[t]);
  }
  set_replay(t, replay_);
  for (const int s : changed) review(s);
}

void Incremental::follow_all() {
  while (!stale_.empty()) {
    std::ranges::pop_heap(stale_, std::greater());
    const int t = stale_.back();
    stale_.pop_back();
    is_stale_[t] = 0;
    follow(t);
  }
}

void Incremental::make_stale(int t) {
  if (std::exchange(is_stale_[t], 1) != 0) return;
  stale_.push_back(t);
  std::ranges::push_heap(stale_, std::greater());
}

// Applies the slot's choice and its touches: marks the first replay that would find something else as stale, and notes
// where the tensor lives.
void Incremental::review(int s) {
  Slot& slot = changing(s);
  work_ += static_cast<int64_t>(slot.touches.size());
  bool live = slot.drops == 0, agrees = true;
  int made = 0, since = slot.begin, until = -1;
  for (const Touch& touch : slot.touches) {
    if (touch.live && touch.read) until = touch.at;
    if (!agrees) continue;
    if (touch.made) ++made;
    agrees = touch.live == live && (!touch.made || touch.stays == (made >= slot.drops));
    if (!agrees) make_stale(touch.at);
    if (live || !touch.made || made < slot.drops || (slot.end < 0 && !touch.read)) continue;
    live = true;
    since = touch.at;
  }
  if (slot.end < 0 && until != slot.until) {  // replays between the two know whether a later one reads it
    const int low = std::min(until, slot.until), high = std::max(until, slot.until);
    for (const Touch& touch : slot.touches)
      if (touch.at >= low && touch.at < high) make_stale(touch.at);
    if (slot.begin >= low && slot.begin < high && slot.begin >= 0) make_stale(slot.begin);
    slot.until = until;
  }
  const int to = slot.end < 0 ? until : slot.end;
  if (live)
    cover(slot, since + 1, to);
  else
    cover(slot, 0, -1);
}

// The tensor of the slot lives at the start of these operations, and of no other.
void Incremental::cover(Slot& slot, int from, int to) {
  if (from > to) from = 0, to = -1;
  if (from == slot.from && to == slot.to) return;
  const auto s = static_cast<size_t>(graph_.tensor(slot.tensor).storage);
  const int64_t bytes = graph_.tensor(static_cast<int>(s)).bytes;
  const auto add = [&](int a, int b, int sign) {
    if (graph_.tensor(slot.tensor).producer < 0 || a > b || bytes == 0) return;
    if (members_[s].size() == 1) return add_bytes(1, 0, leaves_ - 1, a, b, sign * bytes);
    for (int t = a; t <= b; ++t) {
      int& alive = alive_[s][t];
      if (sign > 0 ? alive++ == 0 : --alive == 0) add_bytes(1, 0, leaves_ - 1, t, t, sign * bytes);
    }
  };
  if (slot.from <= slot.to && from <= to && slot.to == to) {  // only its beginning moves
    if (from < slot.from)
      add(from, slot.from - 1, 1);
    else
      add(slot.from, from - 1, -1);
  } else {
    add(slot.from, slot.to, -1);
    add(from, to, 1);
  }
  slot.from = from;
  slot.to = to;
}

Incremental::Slot& Incremental::changing(int s) {
  Slot& slot = slots_[s];
  if (std::exchange(slot_saved_[s], trial_) != trial_) {
    auto& [at, old] = next_of(old_slots_, saved_slots_);
    at = s;
    old = slot;
  }
  return slot;
}

void Incremental::set_drops(int s, int drops) {
  Slot& slot = changing(s);
  // The operation before it leaves the tensor there or not, and may take its bytes.
  if ((slot.drops == 0) != (drops == 0) && slot.begin >= 0) make_stale(slot.begin);
  slot.drops = drops;
  review(s);
}

void Incremental::add_bytes(size_t node, int low, int high, int from, int to, int64_t bytes) {
  Node& here = memory_[node];
  if (from <= low && high <= to) {
    here.most += bytes;
    here.added += bytes;
    return;
  }
  const int middle = (low + high) / 2;
  if (from <= middle) add_bytes(2 * node, low, middle, from, to, bytes);
  if (to > middle) add_bytes(2 * node + 1, middle + 1, high, from, to, bytes);
  here.most = std::max(memory_[2 * node].most, memory_[2 * node + 1].most) + here.added;
}

// Gives the operation the replay, and takes that which it had.
void Incremental::set_replay(int t, Replay& replay) {
  auto node = static_cast<size_t>(leaves_ + t);
  memory_[node].most = memory_[node].added + replay.most;
  costs_[node] = replay.cost;
  for (node /= 2; node > 0; node /= 2) {
    memory_[node].most = std::max(memory_[2 * node].most, memory_[2 * node + 1].most) + memory_[node].added;
    costs_[node] = costs_[2 * node] + costs_[2 * node + 1];
  }
  std::swap(replays_[t], replay);
}

int Incremental::made_late(int x) const {
  const std::vector<Touch>& touches = slots_[slot_at(x, graph_.end() + 1)].touches;
  return static_cast<int>(std::ranges::count_if(touches, [](const Touch& a) { return a.made; }));
}

std::vector<Resident> Incremental::residents() {
  size_t node = 1;
  while (node < static_cast<size_t>(leaves_))
    node = 2 * node + (memory_[2 * node].most >= memory_[2 * node + 1].most ? 0 : 1);
  const int t = static_cast<int>(node) - leaves_;
  residents_.clear();
  run(t, replays_[t].fullest);
  return std::move(residents_);
}

}  // namespace gacc::passes::planner
