// The verbs of a session, as reads, writes and program runs on a device.
#include "runtime/session/session.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "runtime/half.h"
#include "runtime/ranks/rank_sums.h"

namespace gacc {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;  // bytes copied or written at once

// What a window adds up, and ranks would.
bool is_window_sum(const PlanBuffer& buffer) {
  return buffer.kind == "accum" && buffer.role != BufferRole::node;
}

bool all_finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

// What eval has summed: over `count` elements, the metric's own sum, and of r2 also the targets (less a
// number that is the same for all) and their squares.
struct MetricSums {
  double count = 0, sum = 0, targets = 0, squares = 0;
};

// `loss`: the evaluation's mean. Not finite where there is no such number, as r2 of targets that are all the
// same.
double metric_value(std::string_view name, const MetricSums& sums, double loss) {
  const double mean = sums.sum / sums.count;
  if (name == "perplexity") return std::exp(loss);
  if (name == "rmse") return std::sqrt(mean);
  // 1 - sum((x - y)^2) / sum((y - mean(y))^2)
  if (name == "r2") return 1 - sums.sum / (sums.squares - sums.targets * sums.targets / sums.count);
  return mean;
}

bool scale_too_small(const Plan& plan, const WindowReport& report) {
  return plan.seed_rules && plan.seed_rules->dynamic && report.next_scale < kSmallestScale;
}

}  // namespace

bool is_saved(const PlanBuffer& buffer) {
  return buffer.role == BufferRole::weight || buffer.role == BufferRole::statistic;
}

template <class T>
Status Session::write_scalar(const PlanBuffer* buffer, T value) {
  return device_.write(buffer->offset, std::as_bytes(std::span(&value, 1)));
}

template <class T>
Result<std::vector<T>> Session::read_all(int64_t offset, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  GACC_TRY(device_.read(offset, std::as_writable_bytes(std::span(values))));
  return values;
}

template <class T>
Result<T> Session::read_state(std::string_view name) {
  const PlanBuffer* buffer = GACC_TRY(find_state(name));
  return GACC_TRY(read_all<T>(buffer->offset, 1)).front();
}

template <class T>
Status Session::write_state(std::string_view name, T value) {
  return write_scalar(GACC_TRY(find_state(name)), value);
}

template Result<float> Session::read_state(std::string_view);
template Result<int32_t> Session::read_state(std::string_view);
template Status Session::write_state(std::string_view, float);
template Status Session::write_state(std::string_view, int32_t);

// What it must be the IR's verifier knows (R11).
Result<const PlanBuffer*> Session::find_state(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return Status::error("the artifact has no state {}", name);
  return found->second;
}

// The buffers of lanes.h's nodes, and the flags of `close`.
Status Session::find_nodes() {
  if (plan_.lanes == 1) return {};
  for (const PlanBuffer& buffer : plan_.buffers)
    if (buffer.role == BufferRole::node) nodes_[plan_.find(buffer.of)].push_back(&buffer);
  const size_t places = nodes_.empty() ? 0 : nodes_.begin()->second.size();
  for (const auto& [sum, nodes] : nodes_)
    if (nodes.size() != places)
      return Status::error("the artifact has {} nodes for {} and {} for {}", nodes.size(), sum->name, places,
                           nodes_.begin()->first->name);
  for (size_t d = 0; d < places; ++d) {
    join_.push_back(GACC_TRY(find_state(fmt::format("lane.join.{}", d))));
    keep_.push_back(GACC_TRY(find_state(fmt::format("lane.keep.{}", d))));
    for (const auto& [sum, nodes] : nodes_)
      if (sum->role == BufferRole::change)
        kept_[sum].push_back(GACC_TRY(find_state(fmt::format("{}.kept{}", sum->name, d))));
  }
  if (places > 0) rest_ = GACC_TRY(find_state("lane.rest"));
  const auto fit = [&](LaneRange mine) {
    return LaneStack::places(plan_.lanes, mine) <= static_cast<int64_t>(places);
  };
  if (fit(mine_)) return {};
  const auto all_fit = [&](int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank)
      if (!fit(lanes_of_rank(rank, plan_.lanes, ranks))) return false;
    return true;
  };
  int64_t ranks = 2;  // the fewest that will do
  while (!all_fit(ranks)) ++ranks;
  return Status::error(
      "the artifact has room for the lanes of one of {} ranks or more, and this process has {} of its {} "
      "lanes: run it "
      "on {} ranks, or compile it with --set train.ranks=1",
      ranks, mine_.high - mine_.low, plan_.lanes, ranks);
}

Status Session::open(const Artifact& artifact) {
  for (const PlanBuffer& buffer : plan_.buffers) {
    by_name_.emplace(buffer.name, &buffer);
    if (buffer.role == BufferRole::evaluation) eval_sums_.push_back(&buffer);
  }
  for (const std::string_view name :
       {state::lr, state::seed_low, state::seed_high, state::loss_sum, state::loss_count, state::window_sum,
        state::window_count, state::window_loss, state::window_norm, state::window_lr, state::window_ok,
        state::eval_loss, state::eval_count})
    GACC_TRY(find_state(name));
  for (const std::string& metric : plan_.metrics)
    if (metric != "perplexity") GACC_TRY(find_state("eval." + metric));  // that follows from the loss
  window_sums_ = {by_name_[state::loss_sum], by_name_[state::loss_count]};
  if (by_name_.contains(state::loss_weight)) window_sums_.push_back(by_name_[state::loss_weight]);
  GACC_TRY(find_shared());
  GACC_TRY(find_nodes());
  return device_.load(artifact);
}

bool ends_training(const Plan& plan, const WindowReport& report) {
  return !report.finite &&
         (!plan.skip_nonfinite || report.skips >= plan.max_skips || scale_too_small(plan, report));
}

std::string why_training_ends(const Plan& plan, const WindowReport& report, std::string what) {
  if (what.empty())
    what = report.bad_parameter.empty()
               ? "the global norm of the gradient overflows, though every gradient is finite"
               : fmt::format("the gradient of {} is not finite", report.bad_parameter);
  if (scale_too_small(plan, report))
    what = fmt::format(
        "the loss scale would fall to {}, below 2^-14, after {} in a row {} skipped, the last "
        "because {}",
        report.next_scale, counted(report.skips, "window"), report.skips == 1 ? "was" : "were", what);
  else if (plan.skip_nonfinite)
    what = fmt::format("{} in a row {} skipped (precision.max_skips), the last because {}",
                       counted(report.skips, "window"), report.skips == 1 ? "was" : "were", what);
  return fmt::format("{} (loss {}); lower the learning rate, or look for wrong values in the data", what,
                     report.loss);
}

// What ranks share (passes/shard.cpp).
Status Session::find_shared() {
  if (plan_.shard == 0) return {};
  if (exchange_ == nullptr || exchange_->ranks() != plan_.shard)
    return Status::error(
        "the artifact is for exactly {0} ranks, which share the optimizer's state (memory.shard), and this "
        "run has {1}: start {0}, or compile it with --set train.ranks={1} (alone: --set memory.shard=none)",
        plan_.shard, exchange_ == nullptr ? 1 : exchange_->ranks());
  for (const PlanBuffer& buffer : plan_.buffers) {
    const PlanBuffer* whole = plan_.find(buffer.of);
    const bool master = buffer.role == BufferRole::master;
    if (!master && buffer.role != BufferRole::slice) continue;
    slices_[whole] = &buffer;
    if (!master) shared_[whole->role].push_back({whole->offset, whole->bytes, buffer.bytes});
  }
  return {};
}

// The buffer that has this rank's rows of it; null where every rank has it whole.
const PlanBuffer* Session::slice_of(const PlanBuffer& buffer) const {
  if (buffer.role == BufferRole::moment && !buffer.whole.empty()) return &buffer;
  const auto found = slices_.find(&buffer);
  if (found == slices_.end()) return nullptr;
  const bool master = found->second->role == BufferRole::master;
  return master || (scattered_ && is_window_sum(buffer)) ? found->second : nullptr;
}

// This rank's slice of it to another place, or to its own beginning; zeros behind the last one's end.
Status Session::copy_own(const SharedBytes& from, int64_t to) {
  if (to == from.offset && rank() == 0) return {};
  const int64_t begin = rank() * from.slice;
  const int64_t there = std::clamp<int64_t>(from.bytes - begin, 0, from.slice);
  for (int64_t done = 0; done < there; done += kBlock) {
    const int64_t count = std::min(there - done, kBlock);
    const std::vector<std::byte> block = GACC_TRY(read_all<std::byte>(from.offset + begin + done, count));
    GACC_TRY(device_.write(to + done, block));
  }
  return zero(to + there, from.slice - there);
}

// The update, cut where ranks have to know of each other's part of a sum.
Status Session::run_update() {
  if (plan_.shard == 0) return device_.run(Program::update, 0);
  std::vector<SharedBytes> parameters = shared_[BufferRole::weight];
  const std::vector<SharedBytes>& halves = shared_[BufferRole::half];
  parameters.insert(parameters.end(), halves.begin(), halves.end());
  for (const SharedBytes& each : parameters) GACC_TRY(copy_own(each, each.offset));
  for (const auto& [role, program] : {std::pair(BufferRole::norm_parts, Program::norms),
                                      std::pair(BufferRole::ratio_parts, Program::ratios)}) {
    if (shared_[role].empty()) continue;
    GACC_TRY(device_.run(program, 0));
    GACC_TRY(exchange_->gather_slices(shared_[role]));
  }
  GACC_TRY(device_.run(Program::update, 0));
  GACC_TRY(exchange_->gather_slices(parameters));
  const int32_t ok = GACC_TRY(read_state<int32_t>(state::window_ok));
  if (ok == 0 && !plan_.skip_nonfinite) return {};  // the sums tell why
  scattered_ = false;
  return device_.run(Program::clear, 0);
}

Status Session::init(uint64_t seed, float lr) {
  forget_window();
  eval_samples_ = 0;
  GACC_TRY(write_state(state::lr, lr));
  GACC_TRY(write_state(state::seed_low, static_cast<int32_t>(seed)));
  GACC_TRY(write_state(state::seed_high, static_cast<int32_t>(seed >> 32)));
  for (const PlanBuffer& buffer : plan_.buffers) {
    if (buffer.values.empty()) continue;
    const std::vector<float> values(buffer.values.begin(), buffer.values.end());
    GACC_TRY(write_buffer(buffer, std::as_bytes(std::span(values))));
  }
  if (Status status = device_.run(Program::init, 0); !status || plan_.shard == 0) return status;
  for (const auto& [whole, slice] : slices_)
    if (slice->role == BufferRole::master)
      GACC_TRY(copy_own({whole->offset, whole->bytes, slice->bytes}, slice->offset));
  return device_.run(Program::clear, 0);
}

Status Session::set_ordinal(int64_t ordinal) {
  if (!by_name_.contains(state::samples_low)) return {};
  const auto bits = static_cast<uint64_t>(ordinal);
  GACC_TRY(write_state(state::samples_low, static_cast<int32_t>(bits)));
  return write_state(state::samples_high, static_cast<int32_t>(bits >> 32));
}

Status Session::write_inputs(InputBytes inputs, int64_t samples, Program program) {
  if (inputs.size() != plan_.inputs.size())
    return Status::error("the step takes {}, {} were given", counted(plan_.inputs.size(), "input"),
                         inputs.size());
  const int64_t most = plan_.most_samples(program);
  if (samples < 1 || samples > most)
    return Status::error("a launch takes 1 to {} samples, {} were given", most, samples);
  std::vector<ArenaWrite> writes;
  halves_.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlanInput& input = plan_.inputs[i];
    const std::optional<int64_t> offset = input.offset(program);
    if (!offset) continue;
    auto bytes = static_cast<size_t>(elements_of(input.shape) * samples * 4);  // f32 and i32 are 4 bytes
    if (inputs[i].size() != bytes)
      return Status::error("input {} takes {} bytes, {} were given", input.name, bytes, inputs[i].size());
    writes.push_back({*offset, inputs[i]});
    if (input.stored.empty()) continue;
    round_to_half(inputs[i], input.stored, halves_[i]);
    writes.back().bytes = std::as_bytes(std::span(halves_[i]));
  }
  return device_.write_all(writes);
}

int64_t Session::rank() const { return exchange_ == nullptr ? 0 : exchange_->rank(); }

void Session::set_lanes(LaneRange mine, RankExchange* exchange) {
  mine_ = mine;
  exchange_ = exchange;
  stack_ = LaneStack(plan_.lanes, mine);
}

bool Session::has_launch(int64_t position) const {
  return plan_.lanes == 1 || mine_.contains(lane_of(position, plan_.accumulate, plan_.lanes));
}

void Session::forget_window() {
  launches_ = samples_ = 0;
  stack_.clear();
}

// `nodes`: as they were before.
Status Session::close_lane(const LaneStack::Close& close, std::span<const LaneRange> nodes) {
  const LaneWindow window{plan_.lanes, plan_.accumulate, launches_};
  for (const auto& [sum, kept] : kept_)
    for (int64_t d = close.first; d < close.last; ++d) {
      const auto place = static_cast<size_t>(d);
      const int64_t later = window.launches_of({nodes[place].high, nodes.back().high});
      GACC_TRY(write_scalar(kept[place], kept_after(sum->kept, later)));
    }
  const auto flag = [](bool set) { return int32_t{set}; };
  for (size_t d = 0; d < join_.size(); ++d) {
    const auto place = static_cast<int64_t>(d);
    GACC_TRY(write_scalar(join_[d], flag(close.first <= place && place < close.last)));
    GACC_TRY(write_scalar(keep_[d], flag(close.keep && place == close.first)));
  }
  GACC_TRY(write_scalar(rest_, flag(!close.keep)));
  return device_.run(Program::close, 0);
}

// What a checkpoint within the window will need; and the lane before is closed, if the launch opens another.
Status Session::begin_launch() {
  if (plan_.lanes == 1) return {};
  // Scalars alone: what is larger moves in updates only, but for the window's sums, which begin at zero.
  if (launches_ == 0)
    for (const PlanBuffer& buffer : plan_.buffers)
      if (buffer.role == BufferRole::control && elements_of(buffer.shape) == 1)
        opening_[&buffer] = GACC_TRY(read_buffer(buffer));
  if (!has_launch(launches_)) return {};
  const std::vector<LaneRange> nodes = stack_.nodes();
  const auto close = stack_.open(lane_of(launches_, plan_.accumulate, plan_.lanes));
  return close ? close_lane(*close, nodes) : Status();
}

Result<std::vector<std::byte>> Session::read_for_checkpoint(const PlanBuffer& buffer) {
  const bool inside = plan_.lanes > 1 && launches_ > 0;
  if (inside && buffer.kind == "accum") return std::vector<std::byte>(static_cast<size_t>(buffer.bytes));
  const auto kept = opening_.find(&buffer);
  if (inside && kept != opening_.end()) return kept->second;
  return read_buffer(buffer);
}

std::vector<int64_t> Session::node_offsets(const PlanBuffer& sum) const {
  std::vector<int64_t> offsets;
  const auto places = nodes_.find(&sum);
  const size_t waiting = stack_.nodes().empty() ? 0 : stack_.nodes().size() - 1;
  for (size_t d = 0; d < waiting; ++d) offsets.push_back(places->second.at(d)->offset);
  offsets.push_back(sum.offset);
  return offsets;
}

bool Session::is_whole() const {
  return plan_.lanes > 1 && stack_.nodes() == std::vector{LaneRange{0, plan_.lanes}};
}

Status Session::finish_lanes() {
  if (plan_.lanes == 1 || is_whole()) return {};
  const std::vector<LaneRange> nodes = stack_.nodes();
  if (const auto close = stack_.finish()) GACC_TRY(close_lane(*close, nodes));
  if (exchange_ == nullptr) return {};
  std::vector<LaneSum> sums;
  for (const PlanBuffer& buffer : plan_.buffers)
    if (is_window_sum(buffer)) {
      const auto slice = slices_.find(&buffer);
      const bool shared = slice != slices_.end();
      const int64_t all = elements_of(buffer.shape);
      sums.push_back({shared ? elements_of(slice->second->shape) : all, buffer.dtype == "i32", buffer.kept,
                      node_offsets(buffer), buffer.offset, shared ? all : 0});
    }
  const LaneWindow window{plan_.lanes, plan_.accumulate, launches_};
  GACC_TRY(exchange_->sum(window, stack_.nodes(), sums));
  stack_.hold({0, plan_.lanes});
  scattered_ = plan_.shard > 0;
  return {};
}

// The sums of scalars over the nodes of all ranks, or without `exchange` over these; in the order of `buffers`.
Result<std::vector<double>> Session::add_nodes(std::span<const PlanBuffer* const> buffers,
                                               std::vector<LaneScalars> nodes, RankExchange* exchange) {
  if (exchange != nullptr) nodes = GACC_TRY(exchange->gather(nodes, buffers.size()));
  std::vector<LaneRange> lanes;
  for (const LaneScalars& node : nodes) lanes.push_back(node.lanes);
  std::vector<double> values;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto sum = [&]<class T>(T) {
      std::vector<T> terms;
      for (const LaneScalars& node : nodes) terms.push_back(std::bit_cast<T>(node.words[i]));
      const auto add = [](T left, T right, LaneRange) { return static_cast<T>(left + right); };
      return tree_sum<T>({0, plan_.lanes}, lanes, std::span<T>(terms), add).value_or(T{});
    };
    values.push_back(buffers[i]->dtype == "i32" ? static_cast<int32_t>(sum(uint32_t{})) : sum(float{}));
  }
  return values;
}

Status Session::skip(int64_t samples, int64_t next_ordinal) {
  GACC_TRY(begin_launch());
  ++launches_;
  samples_ += samples;
  return set_ordinal(next_ordinal);
}

Status Session::step(InputBytes inputs, int64_t samples) {
  GACC_TRY(begin_launch());
  GACC_TRY(write_inputs(inputs, samples, Program::step));
  ++launches_;
  samples_ += samples;
  return device_.run(Program::step, samples);
}

// Of an open window the nodes are added here, and stay as they are.
Result<WindowSums> Session::sums() {
  std::vector<LaneScalars> nodes(std::max<size_t>(stack_.nodes().size(), plan_.lanes == 1));
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (plan_.lanes > 1) nodes[i].lanes = stack_.nodes()[i];
    for (const PlanBuffer* sum : window_sums_)
      nodes[i].words.push_back(GACC_TRY(read_all<uint32_t>(node_offsets(*sum).at(i), 1)).front());
  }
  const std::vector<double> values =
      GACC_TRY(add_nodes(window_sums_, std::move(nodes), is_whole() ? nullptr : exchange_));
  return WindowSums{values[0], values.back()};
}

Result<WindowReport> Session::update() {
  WindowReport report;
  report.launches = launches_;
  report.samples = samples_;
  GACC_TRY(finish_lanes());
  GACC_TRY(run_update());
  // From here on one wait: what is read lies together (passes/plan_memory.cpp).
  const int32_t ok = GACC_TRY(read_state<int32_t>(state::window_ok));
  // What the window's sums were: the update has cleared them.
  report.sums.loss = GACC_TRY(read_state<float>(state::window_sum));
  report.sums.count = GACC_TRY(read_state<int32_t>(state::window_count));
  if (by_name_.contains(state::window_weight))
    report.sums.count = GACC_TRY(read_state<float>(state::window_weight));
  if (report.sums.count == 0) {  // a mean over nothing: the update moved statistics alone
    GACC_TRY(drop_window());
    return report;
  }
  report.loss = GACC_TRY(read_state<float>(state::window_loss));
  report.norm = GACC_TRY(read_state<float>(state::window_norm));
  report.lr = GACC_TRY(read_state<float>(state::window_lr));
  report.scale = GACC_TRY(read_scale(state::window_scale));
  report.next_scale = GACC_TRY(read_scale(state::loss_scale));
  forget_window();
  report.finite = report.applied = ok != 0;
  if (plan_.skip_nonfinite)
    report.skips = GACC_TRY(read_state<int32_t>(state::skips));
  else if (!report.finite)  // a failed update leaves the accumulators as they were
    report.bad_parameter = GACC_TRY(first_bad_parameter());
  return report;
}

// 1 where the loss is not scaled.
Result<float> Session::read_scale(std::string_view name) {
  return by_name_.contains(name) ? read_state<float>(name) : 1;
}

Result<std::string> Session::first_bad_parameter() {
  for (const PlanBuffer& buffer : plan_.buffers) {
    const PlanBuffer* gradient = plan_.find(BufferRole::gradient, buffer.name);
    if (gradient && !all_finite(GACC_TRY(read_sum(*gradient)))) return buffer.name;
  }
  return std::string();
}

Status Session::zero(int64_t offset, int64_t bytes) {
  static const std::vector<std::byte> zeros(kBlock);
  for (int64_t done = 0; done < bytes; done += kBlock)
    GACC_TRY(device_.write(offset + done,
                           std::span(zeros).first(static_cast<size_t>(std::min(bytes - done, kBlock)))));
  return {};
}

Status Session::drop_window() {
  forget_window();
  scattered_ = false;
  // The moments and counters belong to updates and stay. Nodes count for nothing until `close` has written them.
  for (const PlanBuffer& buffer : plan_.buffers)
    if (is_window_sum(buffer)) GACC_TRY(zero(buffer.offset, buffer.bytes));
  return {};
}

Status Session::begin_eval(int64_t launches) {
  eval_samples_ = eval_launches_ = 0;
  eval_expected_ = launches;
  eval_nodes_.clear();
  return clear_eval();
}

Status Session::clear_eval() {
  for (const PlanBuffer* buffer : eval_sums_) GACC_TRY(zero(buffer->offset, buffer->bytes));
  return {};
}

int64_t Session::eval_lane(int64_t position) const {
  return eval_expected_ == 0 ? 0 : lane_of(position, eval_expected_, plan_.lanes);
}

// The sums of the lane that has ended, to the host.
Status Session::end_eval_lane() {
  const int64_t lane = eval_lane(eval_launches_ - 1);
  std::vector<uint32_t> words;
  for (const PlanBuffer* sum : eval_sums_)
    words.push_back(GACC_TRY(read_all<uint32_t>(sum->offset, 1)).front());
  eval_nodes_.push_back({{lane, lane + 1}, std::move(words)});
  return {};
}

bool Session::has_eval(int64_t position) const {
  return plan_.lanes == 1 || mine_.contains(eval_lane(position));
}

// Before the next launch, whose ever it is: ends the open lane, unless the launch is one of it. `inputs`: nothing,
// where it is another rank's.
Status Session::next_eval(InputBytes inputs, int64_t samples) {
  const int64_t next = eval_launches_;
  if (next > 0 && has_eval(next - 1) && eval_lane(next) != eval_lane(next - 1)) {
    GACC_TRY(end_eval_lane());
    GACC_TRY(clear_eval());
  }
  if (next == 0 && by_name_.contains(state::r2_shift)) GACC_TRY(set_shift(inputs));
  ++eval_launches_;
  eval_samples_ += samples;
  return {};
}

Status Session::eval(InputBytes inputs, int64_t samples) {
  GACC_TRY(write_inputs(inputs, samples, Program::eval));
  GACC_TRY(next_eval(inputs, samples));
  return device_.run(Program::eval, samples);
}

Status Session::skip_eval(int64_t samples) { return next_eval({}, samples); }

Status Session::run_predict(InputBytes inputs, int64_t samples) {
  GACC_TRY(write_inputs(inputs, samples, Program::predict));
  return device_.run(Program::predict, samples);
}

Status Session::read_outputs(int64_t first, std::span<float> outputs) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(float));
  const PlanPredict& predict = plan_.predict;
  if (predict.rows == 0) return device_.read(predict.offset + first * kSize, std::as_writable_bytes(outputs));
  const int64_t each = predict.outputs();
  std::vector<int32_t> rows(static_cast<size_t>(predict.rows));
  while (!outputs.empty()) {
    const int64_t part = first / each, begin = first % each;
    const auto some = std::min(static_cast<size_t>(each - begin), outputs.size());
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(part * predict.rows));
    GACC_TRY(device_.write(predict.rows_offset, std::as_bytes(std::span(rows))));
    GACC_TRY(device_.run(Program::answer, 1));
    GACC_TRY(device_.read(predict.offset + begin * kSize, std::as_writable_bytes(outputs.first(some))));
    first += static_cast<int64_t>(some);
    outputs = outputs.subspan(some);
  }
  return {};
}

// The mean of the first targets: all ranks take that of the one with the first launch.
Status Session::set_shift(InputBytes inputs) {
  double sum = 0, count = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!plan_.inputs[i].target) continue;
    for (size_t at = 0; at < inputs[i].size(); at += 4) {  // f32 and i32 are 4 bytes
      float real = 0;
      int32_t integer = 0;
      std::memcpy(&real, inputs[i].data() + at, 4);
      std::memcpy(&integer, inputs[i].data() + at, 4);
      sum += plan_.inputs[i].dtype == "f32" ? static_cast<double>(real) : integer;
      ++count;
    }
  }
  const double mean = count > 0 ? sum / count : 0;
  auto shift = std::bit_cast<uint32_t>(std::isfinite(mean) ? static_cast<float>(mean) : 0.0F);
  if (exchange_ != nullptr) {
    std::vector<LaneScalars> mine;
    if (has_eval(0)) mine.push_back({{0, 1}, {shift}});
    shift = GACC_TRY(exchange_->gather(mine, 1)).at(0).words.at(0);
  }
  return write_state(state::r2_shift, shift);
}

Result<EvalReport> Session::end_eval() {
  if (eval_launches_ > 0 && has_eval(eval_launches_ - 1)) GACC_TRY(end_eval_lane());
  const std::vector<double> values =
      GACC_TRY(add_nodes(eval_sums_, std::exchange(eval_nodes_, {}), exchange_));
  // What is left does not tell who had which lanes.
  for (size_t i = 0; plan_.lanes > 1 && i < values.size(); ++i) {
    const PlanBuffer* sum = eval_sums_[i];
    GACC_TRY(sum->dtype == "i32" ? write_scalar(sum, static_cast<int32_t>(values[i]))
                                 : write_scalar(sum, static_cast<float>(values[i])));
  }
  const auto value_of = [&](std::string_view name) {
    const auto found = std::ranges::find(eval_sums_, name, &PlanBuffer::name);
    return found == eval_sums_.end() ? 0 : values[static_cast<size_t>(found - eval_sums_.begin())];
  };
  MetricSums sums{.count = value_of(state::eval_count),
                  .targets = value_of(state::r2_targets),
                  .squares = value_of(state::r2_squares)};
  const double weight = by_name_.contains(state::eval_weight) ? value_of(state::eval_weight) : sums.count;
  EvalReport report{std::exchange(eval_samples_, 0),
                    static_cast<int64_t>(sums.count),
                    value_of(state::eval_loss) / weight,
                    {}};
  for (const std::string& metric : plan_.metrics) {
    sums.sum = value_of("eval." + metric);
    report.metrics.push_back(metric_value(metric, sums, report.loss));
  }
  return report;
}

Result<std::vector<std::byte>> Session::read_buffer(const PlanBuffer& buffer) {
  const PlanBuffer* slice = slice_of(buffer);
  if (slice == nullptr) return read_all<std::byte>(buffer.offset, buffer.bytes);
  const std::vector<std::byte> mine = GACC_TRY(read_all<std::byte>(slice->offset, slice->bytes));
  std::vector<std::byte> bytes = GACC_TRY(exchange_->gather_bytes(mine));
  bytes.resize(static_cast<size_t>(whole_bytes(buffer)));
  return bytes;
}

Status Session::write_buffer(const PlanBuffer& buffer, std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) != whole_bytes(buffer))
    return Status::error("{} takes {} bytes, {} were given", buffer.name, whole_bytes(buffer), bytes.size());
  return write_part(buffer, 0, bytes);
}

// What this rank has of `bytes`, which begin at byte `first` of the whole.
Status Session::write_part(const PlanBuffer& buffer, int64_t first, std::span<const std::byte> bytes) {
  const PlanBuffer* slice = slice_of(buffer);
  if (slice == nullptr) return device_.write(buffer.offset + first, bytes);
  const int64_t begin = rank() * slice->bytes, low = std::max(begin, first);
  const int64_t high = std::min(begin + slice->bytes, first + std::ssize(bytes));
  if (low >= high) return {};
  return device_.write(slice->offset + low - begin,
                       bytes.subspan(static_cast<size_t>(low - first), static_cast<size_t>(high - low)));
}

Result<std::vector<float>> Session::read_floats(const PlanBuffer& buffer) {
  const int64_t elements = elements_of(buffer.shape);
  if (slice_of(buffer) == nullptr && buffer.dtype == "f32") return read_all<float>(buffer.offset, elements);
  const std::vector<std::byte> bytes = GACC_TRY(read_buffer(buffer));
  std::vector<float> values(static_cast<size_t>(elements));
  if (buffer.dtype == "f32")
    std::memcpy(values.data(), bytes.data(), bytes.size());
  else  // a frozen parameter
    widen(half_type(buffer.dtype), bytes.data(), values.data(), elements);
  return values;
}

// The window's sum of f32, its nodes added as `update` will have it.
Result<std::vector<float>> Session::read_sum(const PlanBuffer& buffer) {
  if (stack_.nodes().size() < 2) return read_floats(buffer);
  std::vector<std::vector<float>> parts;
  for (const int64_t offset : node_offsets(buffer))
    parts.push_back(GACC_TRY(read_all<float>(offset, elements_of(buffer.shape))));
  const auto add = [](std::vector<float> left, const std::vector<float>& right, LaneRange) {
    for (size_t i = 0; i < left.size(); ++i) left[i] += right[i];
    return left;
  };
  return *tree_sum<std::vector<float>>({0, plan_.lanes}, stack_.nodes(), std::span(parts), add);
}

Result<std::vector<NamedTensor>> Session::mean_gradients() {
  const WindowSums window = GACC_TRY(sums());
  const float scale = GACC_TRY(read_scale(state::loss_scale));
  const double unscale = plan_.seed_rules ? static_cast<double>(plan_.seed_rules->elements) / scale : 1;
  std::vector<NamedTensor> tensors;
  for (const PlanBuffer& buffer : plan_.buffers) {
    const PlanBuffer* gradient = plan_.find(BufferRole::gradient, buffer.name);
    if (!gradient) continue;
    std::vector<float> values = GACC_TRY(read_sum(*gradient));
    for (float& value : values)
      value = window.count ? static_cast<float>(value * unscale / static_cast<double>(window.count)) : 0.0f;
    tensors.push_back({buffer.name, buffer.shape, std::move(values)});
  }
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  return tensors;
}

Result<std::vector<NamedTensor>> Session::parameters() {
  std::vector<NamedTensor> tensors;
  for (const PlanBuffer& buffer : plan_.buffers)
    if (is_saved(buffer)) tensors.push_back({buffer.name, buffer.shape, GACC_TRY(read_floats(buffer))});
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  return tensors;
}

Status Session::write_parameter(const PlanBuffer& parameter, int64_t first, std::span<const float> values) {
  std::vector<uint16_t> halves;
  for (const PlanBuffer* buffer : {&parameter, plan_.find(BufferRole::half, parameter.name)}) {
    if (buffer == nullptr) continue;
    std::span<const std::byte> bytes = std::as_bytes(values);
    if (buffer->dtype != "f32") {
      round_to_half(bytes, buffer->dtype, halves);
      bytes = std::as_bytes(std::span(halves));
    }
    const int64_t each = static_cast<int64_t>(bytes.size() / std::max<size_t>(values.size(), 1));
    GACC_TRY(write_part(*buffer, first * each, bytes));
  }
  return {};
}

}  // namespace gacc
