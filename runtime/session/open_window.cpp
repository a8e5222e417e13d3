#include "runtime/session/open_window.h"

namespace gacc {

Status OpenWindow::open() {
  const Plan& plan = arena_.plan();
  mine_ = own_lanes(plan, exchange_);
  stack_ = LaneStack(plan.lanes, mine_);
  sums_ = {GACC_TRY(arena_.find(state::loss_sum)), GACC_TRY(arena_.find(state::loss_count))};
  if (arena_.has(state::loss_weight)) sums_.push_back(GACC_TRY(arena_.find(state::loss_weight)));
  return plan.lanes == 1 ? Status() : find_nodes();
}

Status OpenWindow::find_nodes() {
  const Plan& plan = arena_.plan();
  for (const PlanBuffer& buffer : plan.buffers)
    if (buffer.role == BufferRole::node) nodes_[plan.find(buffer.of)].push_back(&buffer);
  const size_t places = nodes_.empty() ? 0 : nodes_.begin()->second.size();
  for (const auto& [sum, nodes] : nodes_)
    if (nodes.size() != places)
      return Status::error("the artifact has {} nodes for {} and {} for {}", nodes.size(), sum->name, places,
                           nodes_.begin()->first->name);
  for (size_t d = 0; d < places; ++d) {
    join_.push_back(GACC_TRY(arena_.find(fmt::format("lane.join.{}", d))));
    keep_.push_back(GACC_TRY(arena_.find(fmt::format("lane.keep.{}", d))));
    for (const auto& [sum, nodes] : nodes_)
      if (sum->role == BufferRole::change)
        kept_[sum].push_back(GACC_TRY(arena_.find(fmt::format("{}.kept{}", sum->name, d))));
  }
  if (places > 0) rest_ = GACC_TRY(arena_.find("lane.rest"));
  return check_room(places);
}

Status OpenWindow::check_room(size_t places) const {
  const int64_t lanes = arena_.plan().lanes;
  const auto fit = [&](LaneRange mine) {
    return LaneStack::places(lanes, mine) <= static_cast<int64_t>(places);
  };
  if (fit(mine_)) return {};
  const auto all_fit = [&](int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank)
      if (!fit(lanes_of_rank(rank, lanes, ranks))) return false;
    return true;
  };
  int64_t ranks = 2;  // the fewest that will do
  while (!all_fit(ranks)) ++ranks;
  return Status::error(
      "the artifact has room for the lanes of one of {} ranks or more, and this process has {} of its {} "
      "lanes: run it on {} ranks, or compile it with --set train.ranks=1",
      ranks, mine_.high - mine_.low, lanes, ranks);
}

bool OpenWindow::has_launch(int64_t position) const {
  const Plan& plan = arena_.plan();
  return plan.lanes == 1 || mine_.contains(lane_of(position, plan.accumulate, plan.lanes));
}

Status OpenWindow::begin_launch() {
  const Plan& plan = arena_.plan();
  if (plan.lanes == 1) return {};
  // A checkpoint within the window will need scalars as they are now. What is larger moves in updates only, but for
  // the window's sums, which begin at zero.
  if (launches_ == 0)
    for (const PlanBuffer& buffer : plan.buffers)
      if (buffer.role == BufferRole::control && elements_of(buffer.shape) == 1)
        opening_[&buffer] = GACC_TRY(arena_.read<std::byte>(buffer.offset, buffer.bytes));
  if (!has_launch(launches_)) return {};
  const std::vector<LaneRange> before = stack_.nodes();
  const auto close = stack_.open(lane_of(launches_, plan.accumulate, plan.lanes));
  return close ? close_lane(*close, before) : Status();
}

void OpenWindow::count_launch(int64_t samples) {
  ++launches_;
  samples_ += samples;
}

void OpenWindow::resume(int64_t launches, int64_t samples) {
  launches_ = launches;
  samples_ = samples;
}

// `nodes` are those before the lane is closed.
Status OpenWindow::close_lane(const LaneStack::Close& close, std::span<const LaneRange> nodes) {
  const LaneWindow window{arena_.plan().lanes, arena_.plan().accumulate, launches_};
  for (const auto& [sum, kept] : kept_)
    for (int64_t d = close.first; d < close.last; ++d) {
      const auto place = static_cast<size_t>(d);
      const int64_t later = window.launches_of({nodes[place].high, nodes.back().high});
      GACC_TRY(arena_.write_scalar(kept[place], kept_after(sum->kept, later)));
    }
  const auto flag = [](bool set) { return int32_t{set}; };
  for (size_t d = 0; d < join_.size(); ++d) {
    const auto place = static_cast<int64_t>(d);
    GACC_TRY(arena_.write_scalar(join_[d], flag(close.first <= place && place < close.last)));
    GACC_TRY(arena_.write_scalar(keep_[d], flag(close.keep && place == close.first)));
  }
  GACC_TRY(arena_.write_scalar(rest_, flag(!close.keep)));
  return arena_.run(Program::close);
}

// The addresses of a sum's nodes, from left to right; the last one is in the accumulator.
std::vector<int64_t> OpenWindow::node_offsets(const PlanBuffer& sum) const {
  std::vector<int64_t> offsets;
  const auto places = nodes_.find(&sum);
  const size_t waiting = stack_.nodes().empty() ? 0 : stack_.nodes().size() - 1;
  for (size_t d = 0; d < waiting; ++d) offsets.push_back(places->second.at(d)->offset);
  offsets.push_back(sum.offset);
  return offsets;
}

bool OpenWindow::is_whole() const {
  return arena_.plan().lanes == 1 || stack_.nodes() == std::vector{LaneRange{0, arena_.plan().lanes}};
}

Status OpenWindow::finish_lanes() {
  if (is_whole()) return {};
  const Plan& plan = arena_.plan();
  const std::vector<LaneRange> nodes = stack_.nodes();
  if (const auto close = stack_.finish()) GACC_TRY(close_lane(*close, nodes));
  if (exchange_ == nullptr) return {};
  std::vector<LaneSum> sums;
  for (const PlanBuffer& buffer : plan.buffers)
    if (is_window_sum(buffer)) sums.push_back(update_.sum_of(buffer, node_offsets(buffer)));
  GACC_TRY(exchange_->sum({plan.lanes, plan.accumulate, launches_}, stack_.nodes(), sums));
  stack_.hold({0, plan.lanes});
  update_.set_summed(true);
  return {};
}

Result<WindowSums> OpenWindow::sums() {
  const int64_t lanes = arena_.plan().lanes;
  const std::vector<LaneRange> held = lanes == 1 ? std::vector{LaneRange{0, 1}} : stack_.nodes();
  std::vector<LaneScalars> nodes;
  for (size_t i = 0; i < held.size(); ++i) {
    LaneScalars& node = nodes.emplace_back(LaneScalars{held[i]});
    for (const PlanBuffer* sum : sums_)
      node.words.push_back(GACC_TRY(arena_.read<uint32_t>(node_offsets(*sum).at(i), 1)).front());
  }
  if (exchange_ != nullptr && !is_whole()) nodes = GACC_TRY(exchange_->gather(nodes, sums_.size()));
  const size_t last = sums_.size() - 1;
  return WindowSums{sum_words(lanes, nodes, 0, false),
                    sum_words(lanes, nodes, last, sums_[last]->dtype == DType::i32)};
}

Result<std::vector<float>> OpenWindow::read_sum(const PlanBuffer& buffer) {
  if (stack_.nodes().size() < 2) return update_.read_floats(buffer);
  std::vector<std::vector<float>> parts;
  for (const int64_t offset : node_offsets(buffer))
    parts.push_back(GACC_TRY(arena_.read<float>(offset, elements_of(buffer.shape))));
  const auto add = [](std::vector<float> left, const std::vector<float>& right, LaneRange) {
    for (size_t i = 0; i < left.size(); ++i) left[i] += right[i];
    return left;
  };
  return *tree_sum<std::vector<float>>({0, arena_.plan().lanes}, stack_.nodes(), std::span(parts), add);
}

Result<std::vector<std::byte>> OpenWindow::read_for_checkpoint(const PlanBuffer& buffer) {
  const bool inside = arena_.plan().lanes > 1 && launches_ > 0;
  if (inside && buffer.kind() == BufferKind::accum)
    return std::vector<std::byte>(static_cast<size_t>(buffer.bytes));
  const auto kept = opening_.find(&buffer);
  if (inside && kept != opening_.end()) return kept->second;
  return update_.read(buffer);
}

void OpenWindow::forget() {
  launches_ = samples_ = 0;
  stack_.clear();
}

// The moments and counters belong to updates and stay. Nodes count for nothing until `close` has written them.
Status OpenWindow::drop() {
  forget();
  update_.set_summed(false);
  for (const PlanBuffer& buffer : arena_.plan().buffers)
    if (is_window_sum(buffer)) GACC_TRY(arena_.zero(buffer.offset, buffer.bytes));
  return {};
}

}  // namespace gacc
