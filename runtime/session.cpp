// The verbs of a session, as reads, writes and program runs on a device.
#include "runtime/session.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "runtime/data/byte_order.h"
#include "runtime/half.h"
#include "runtime/metrics.h"

namespace gacc {
namespace {

constexpr size_t kZeroBlock = size_t{1} << 20;  // bytes of zeros written at once

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void sort_by_name(std::vector<NamedTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& left, const auto& right) { return left.name < right.name; });
}

// What a window adds up, and ranks would.
bool is_window_sum(const PlanBuffer& buffer) {
  return buffer.role == BufferRole::gradient || buffer.role == BufferRole::squares ||
         buffer.role == BufferRole::total || buffer.role == BufferRole::change;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
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
Status Session::read_scalar(const PlanBuffer* buffer, T& value) {
  return device_.read(buffer->offset, std::as_writable_bytes(std::span(&value, 1)));
}

namespace {

template <class T>
constexpr const char* dtype_of = std::is_same_v<T, float> ? "f32" : "i32";

}  // namespace

template <class T>
Status Session::read_state(std::string_view name, T& value) {
  const PlanBuffer* buffer = nullptr;
  Status status = find_scalar(name, dtype_of<T>, buffer);
  return status ? read_scalar(buffer, value) : status;
}

template <class T>
Status Session::write_state(std::string_view name, T value) {
  const PlanBuffer* buffer = nullptr;
  Status status = find_scalar(name, dtype_of<T>, buffer);
  return status ? write_scalar(buffer, value) : status;
}

template Status Session::read_state(std::string_view, float&);
template Status Session::read_state(std::string_view, int32_t&);
template Status Session::write_state(std::string_view, float);
template Status Session::write_state(std::string_view, int32_t);

Status Session::find_scalar(std::string_view name, const char* dtype, const PlanBuffer*& buffer) {
  buffer = plan_.find(name);
  if (!buffer) return Status::error("the artifact has no state {}", name);
  if (buffer->dtype != dtype || elements_of(buffer->shape) != 1)
    return Status::error("the artifact's state {} is {}{}, not one {}", name, buffer->dtype,
                         shape_text(buffer->shape), dtype);
  return {};
}

Status Session::find_optional(std::string_view name, const PlanBuffer*& buffer) {
  buffer = nullptr;
  return plan_.find(name) ? find_scalar(name, "f32", buffer) : Status();
}

Status Session::find_parameters() {
  parameters_.clear();
  for (const PlanBuffer& buffer : plan_.buffers) {
    if (!is_saved(buffer)) continue;
    const bool is_half = buffer.dtype == "f16" || buffer.dtype == "bf16";
    if (buffer.dtype != "f32" && (!is_half || buffer.trainable))
      return Status::error("the artifact's parameter {} is {}, not f32", buffer.name, buffer.dtype);
    Parameter& parameter = parameters_.emplace_back();
    parameter.buffer = &buffer;
    parameter.elements = elements_of(buffer.shape);
    const PlanBuffer* half = plan_.find(BufferRole::half, buffer.name);
    if (half &&
        (half->dtype == "f32" || half->dtype == "i32" || elements_of(half->shape) != parameter.elements))
      return Status::error("the artifact's half copy of parameter {} does not fit it", buffer.name);
    if (!buffer.trainable || buffer.role != BufferRole::weight) continue;
    parameter.gradient = plan_.find(BufferRole::gradient, buffer.name);
    if (!parameter.gradient) continue;  // the loss does not reach it
    if (parameter.gradient->dtype != "f32" || elements_of(parameter.gradient->shape) != parameter.elements)
      return Status::error("the artifact has no fitting accumulator for parameter {}", buffer.name);
  }
  return {};
}

// The buffers of lanes.h's nodes, and the flags of `close`.
Status Session::find_nodes() {
  nodes_.clear();
  kept_.clear();
  join_.clear();
  keep_.clear();
  if (plan_.lanes == 1) return {};
  for (const PlanBuffer& buffer : plan_.buffers) {
    if (buffer.role != BufferRole::node) continue;
    const PlanBuffer* sum = plan_.find(buffer.of);
    if (!sum || sum->bytes != buffer.bytes || sum->dtype != buffer.dtype)
      return Status::error("the artifact's node {} does not fit the sum {}", buffer.name, buffer.of);
    nodes_[sum].push_back(&buffer);
  }
  const size_t places = nodes_.empty() ? 0 : nodes_.begin()->second.size();
  for (const auto& [sum, nodes] : nodes_)
    if (nodes.size() != places)
      return Status::error("the artifact has {} nodes for {} and {} for {}", nodes.size(), sum->name, places,
                           nodes_.begin()->first->name);
  for (size_t d = 0; d < places; ++d) {
    for (const auto& [name, flags] : {std::pair{"join", &join_}, std::pair{"keep", &keep_}}) {
      Status status = find_scalar(fmt::format("lane.{}.{}", name, d), "i32", flags->emplace_back());
      if (!status) return status;
    }
  }
  for (const auto& [sum, nodes] : nodes_) {
    if (sum->role != BufferRole::change) continue;
    auto& kept = kept_[sum];
    for (size_t d = 0; d < places; ++d) {
      Status status = find_scalar(fmt::format("{}.kept{}", sum->name, d), "f32", kept.emplace_back());
      if (!status) return status;
    }
  }
  if (places > 0)
    if (Status status = find_scalar("lane.rest", "i32", rest_); !status) return status;
  if (LaneStack::places(plan_.lanes, mine_) <= static_cast<int64_t>(places)) return {};
  int64_t ranks = 2;  // the fewest that will do
  const auto fit = [&] {
    for (int64_t rank = 0; rank < ranks; ++rank)
      if (LaneStack::places(plan_.lanes, lanes_of_rank(rank, plan_.lanes, ranks)) >
          static_cast<int64_t>(places))
        return false;
    return true;
  };
  while (!fit()) ++ranks;
  return Status::error(
      "the artifact has room for the lanes of one of {} ranks or more, and this process has {} of its {} "
      "lanes: run it "
      "on {} ranks, or compile it with --set train.ranks=1",
      ranks, mine_.high - mine_.low, plan_.lanes, ranks);
}

Status Session::open(const Artifact& artifact) {
  struct Need {
    std::string_view name;
    const char* dtype;
    const PlanBuffer*& buffer;
  };
  const Need needs[] = {
      {state::lr, "f32", lr_},
      {state::seed_low, "i32", seed_low_},
      {state::seed_high, "i32", seed_high_},
      {state::loss_sum, "f32", loss_sum_},
      {state::loss_count, "i32", loss_count_},
      {state::window_sum, "f32", window_sum_},
      {state::window_count, "i32", window_count_},
      {state::window_loss, "f32", window_loss_},
      {state::window_norm, "f32", window_norm_},
      {state::window_lr, "f32", window_lr_},
      {state::window_ok, "i32", window_ok_},
      {state::eval_loss, "f32", eval_loss_},
      {state::eval_count, "i32", eval_count_},
  };
  for (const Need& need : needs)
    if (Status status = find_scalar(need.name, need.dtype, need.buffer); !status) return status;
  const std::pair<std::string_view, const PlanBuffer*&> optional[] = {
      {state::loss_weight, loss_weight_}, {state::window_weight, window_weight_},
      {state::eval_weight, eval_weight_}, {state::r2_shift, r2_shift_},
      {state::r2_targets, r2_targets_},   {state::r2_squares, r2_squares_}};
  for (const auto& [name, buffer] : optional)
    if (Status status = find_optional(name, buffer); !status) return status;
  eval_metrics_.clear();
  for (const std::string& metric : plan_.metrics) {
    const PlanBuffer*& buffer = eval_metrics_.emplace_back(nullptr);
    std::string name = "eval." + metric;
    if (metric == "perplexity" && !plan_.find(name)) continue;  // exp(mean loss)
    if (Status status = find_scalar(name, "f32", buffer); !status) return status;
  }
  if (Status status = find_parameters(); !status) return status;
  zeros_.assign(kZeroBlock, std::byte{0});
  eval_sums_ = {eval_loss_, eval_count_};
  for (const PlanBuffer* buffer : eval_metrics_)
    if (buffer) eval_sums_.push_back(buffer);
  for (const PlanBuffer* buffer : {eval_weight_, r2_targets_, r2_squares_})
    if (buffer) eval_sums_.push_back(buffer);
  window_sums_ = {loss_sum_, loss_count_};
  if (loss_weight_) window_sums_.push_back(loss_weight_);
  if (Status status = find_shared(); !status) return status;
  if (Status status = find_nodes(); !status) return status;
  return device_.load(artifact);
}

namespace {
bool scale_too_small(const Plan& plan, const WindowReport& report) {
  return plan.seed_rules && plan.seed_rules->dynamic && report.next_scale < kSmallestScale;
}
}  // namespace

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
        "the loss scale would fall to {}, below 2^-14, after {} windows in a row were skipped, the last "
        "because {}",
        report.next_scale, report.skips, what);
  else if (plan.skip_nonfinite)
    what = fmt::format("{} windows in a row were skipped (precision.max_skips), the last because {}",
                       report.skips, what);
  return fmt::format("{} (loss {}); lower the learning rate, or look for wrong values in the data", what,
                     report.loss);
}

// What ranks share (passes/shard.cpp).
Status Session::find_shared() {
  shared_.clear();
  slices_.clear();
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
  std::vector<std::byte> block;
  for (int64_t done = 0; done < from.slice;) {
    const bool is_there = done < there;
    const int64_t count = std::min<int64_t>((is_there ? there : from.slice) - done, kZeroBlock);
    block.assign(static_cast<size_t>(count), std::byte{0});
    if (is_there)
      if (Status status = device_.read(from.offset + begin + done, block); !status) return status;
    if (Status status = device_.write(to + done, block); !status) return status;
    done += count;
  }
  return {};
}

Status Session::read_shared(const PlanBuffer& slice, const PlanBuffer& whole, std::vector<std::byte>& bytes) {
  std::vector<std::byte> mine(static_cast<size_t>(slice.bytes));
  if (Status status = device_.read(slice.offset, mine); !status) return status;
  if (Status status = exchange_->gather_bytes(mine, bytes); !status) return status;
  bytes.resize(static_cast<size_t>(whole_bytes(whole)));
  return {};
}

// The update, cut where ranks have to know of each other's part of a sum.
Status Session::run_update() {
  if (plan_.shard == 0) return device_.run(Program::update, 0);
  std::vector<SharedBytes> parameters = shared_[BufferRole::weight];
  const std::vector<SharedBytes>& halves = shared_[BufferRole::half];
  parameters.insert(parameters.end(), halves.begin(), halves.end());
  for (const SharedBytes& each : parameters)
    if (Status status = copy_own(each, each.offset); !status) return status;
  for (const auto& [role, program] : {std::pair(BufferRole::norm_parts, Program::norms),
                                      std::pair(BufferRole::ratio_parts, Program::ratios)}) {
    if (shared_[role].empty()) continue;
    if (Status status = device_.run(program, 0); !status) return status;
    if (Status status = exchange_->gather_slices(shared_[role]); !status) return status;
  }
  if (Status status = device_.run(Program::update, 0); !status) return status;
  if (Status status = exchange_->gather_slices(parameters); !status) return status;
  int32_t ok = 0;
  if (Status status = read_scalar(window_ok_, ok); !status) return status;
  if (ok == 0 && !plan_.skip_nonfinite) return {};  // the sums tell why
  scattered_ = false;
  return device_.run(Program::clear, 0);
}

Status Session::init(uint64_t seed, float lr) {
  forget_window();
  if (Status status = write_scalar(lr_, lr); !status) return status;
  if (Status status = write_scalar(seed_low_, static_cast<uint32_t>(seed)); !status) return status;
  if (Status status = write_scalar(seed_high_, static_cast<uint32_t>(seed >> 32)); !status) return status;
  for (const PlanBuffer& buffer : plan_.buffers) {
    if (buffer.values.empty()) continue;
    const std::vector<float> values(buffer.values.begin(), buffer.values.end());
    if (Status status = write_buffer(buffer, std::as_bytes(std::span(values))); !status) return status;
  }
  if (Status status = device_.run(Program::init, 0); !status || plan_.shard == 0) return status;
  for (const auto& [whole, slice] : slices_)
    if (slice->role == BufferRole::master)
      if (Status status = copy_own({whole->offset, whole->bytes, slice->bytes}, slice->offset); !status)
        return status;
  return device_.run(Program::clear, 0);
}

Status Session::set_ordinal(int64_t ordinal) {
  if (!plan_.find(state::samples_low)) return {};
  const auto bits = static_cast<uint64_t>(ordinal);
  if (Status status = write_state(state::samples_low, static_cast<int32_t>(bits)); !status) return status;
  return write_state(state::samples_high, static_cast<int32_t>(bits >> 32));
}

Status Session::write_inputs(InputBytes inputs, int64_t samples, Program program) {
  if (inputs.size() != plan_.inputs.size())
    return Status::error("the step takes {} inputs, {} were given", plan_.inputs.size(), inputs.size());
  const int64_t most = plan_.most_samples(program);
  if (samples < 1 || samples > most)
    return Status::error("a launch takes 1 to {} samples, {} were given", most, samples);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlanInput& input = plan_.inputs[i];
    const std::optional<int64_t> offset = input.offset(program);
    if (!offset) continue;
    auto bytes = static_cast<size_t>(elements_of(input.shape) * samples * 4);  // f32 and i32 are 4 bytes
    if (inputs[i].size() != bytes)
      return Status::error("input {} takes {} bytes, {} were given", input.name, bytes, inputs[i].size());
    std::span<const std::byte> stored = inputs[i];
    if (!input.stored.empty()) {
      round_to_half(inputs[i], input.stored, halves_);
      stored = std::as_bytes(std::span(halves_));
    }
    if (Status status = device_.write(*offset, stored); !status) return status;
  }
  return {};
}

void Session::set_lanes(LaneRange mine, LaneExchange* exchange) {
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
      if (Status status = write_scalar(kept[place], kept_after(sum->kept, later)); !status) return status;
    }
  const auto flag = [](bool set) { return int32_t{set}; };
  for (size_t d = 0; d < join_.size(); ++d) {
    const auto place = static_cast<int64_t>(d);
    Status status = write_scalar(join_[d], flag(close.first <= place && place < close.last));
    if (status) status = write_scalar(keep_[d], flag(close.keep && place == close.first));
    if (!status) return status;
  }
  if (Status status = write_scalar(rest_, flag(!close.keep)); !status) return status;
  return device_.run(Program::close, 0);
}

// What a checkpoint within the window will need; and the lane before is closed, if the launch opens another.
Status Session::begin_launch() {
  if (plan_.lanes == 1) return {};
  if (launches_ == 0)
    if (Status status = remember_opening(); !status) return status;
  if (!has_launch(launches_)) return {};
  const std::vector<LaneRange> nodes = stack_.nodes();
  const auto close = stack_.open(lane_of(launches_, plan_.accumulate, plan_.lanes));
  return close ? close_lane(*close, nodes) : Status();
}

// Scalars alone: what is larger moves in updates only, but for the window's sums, which begin at zero.
Status Session::remember_opening() {
  for (const PlanBuffer& buffer : plan_.buffers) {
    if (buffer.role != BufferRole::control || elements_of(buffer.shape) != 1) continue;
    if (Status status = read_buffer(buffer, opening_[&buffer]); !status) return status;
  }
  return {};
}

Status Session::read_for_checkpoint(const PlanBuffer& buffer, std::vector<std::byte>& bytes) {
  const bool inside = plan_.lanes > 1 && launches_ > 0;
  if (inside && buffer.kind == "accum") {
    bytes.assign(static_cast<size_t>(buffer.bytes), std::byte{0});
    return {};
  }
  const auto kept = opening_.find(&buffer);
  if (!inside || kept == opening_.end()) return read_buffer(buffer, bytes);
  bytes = kept->second;
  return {};
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
  if (const auto close = stack_.finish())
    if (Status status = close_lane(*close, nodes); !status) return status;
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
  if (Status status = exchange_->sum(window, stack_.nodes(), sums); !status) return status;
  stack_.hold({0, plan_.lanes});
  scattered_ = plan_.shard > 0;
  return {};
}

Status Session::read_words(std::span<const PlanBuffer* const> buffers, LaneScalars& node, size_t place) {
  node.words.resize(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    const int64_t offset = node_offsets(*buffers[i]).at(place);
    if (Status status = device_.read(offset, std::as_writable_bytes(std::span(&node.words[i], 1))); !status)
      return status;
  }
  return {};
}

// The sums of scalars over the nodes of all ranks; `values` in the order of `buffers`.
Status Session::add_nodes(std::span<const PlanBuffer* const> buffers, std::vector<LaneScalars> nodes,
                          std::vector<double>& values) {
  if (exchange_ != nullptr)
    if (Status status = exchange_->gather(nodes); !status) return status;
  std::vector<LaneRange> lanes;
  for (const LaneScalars& node : nodes) lanes.push_back(node.lanes);
  values.assign(buffers.size(), 0);
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto sum = [&]<class T>(T) {
      std::vector<T> terms;
      for (const LaneScalars& node : nodes) terms.push_back(std::bit_cast<T>(node.words[i]));
      const auto add = [](T left, T right) { return static_cast<T>(left + right); };
      return tree_sum<T>({0, plan_.lanes}, lanes, std::span<T>(terms), add).value_or(T{});
    };
    values[i] = buffers[i]->dtype == "i32" ? static_cast<int32_t>(sum(uint32_t{})) : sum(float{});
  }
  return {};
}

Status Session::skip(int64_t samples, int64_t next_ordinal) {
  if (Status status = begin_launch(); !status) return status;
  ++launches_;
  samples_ += samples;
  return set_ordinal(next_ordinal);
}

Status Session::step(InputBytes inputs, int64_t samples) {
  if (Status status = begin_launch(); !status) return status;
  if (Status status = write_inputs(inputs, samples, Program::step); !status) return status;
  ++launches_;
  samples_ += samples;
  return device_.run(Program::step, samples);
}

// Of an open window the nodes are added here, and stay as they are.
Status Session::sums(WindowSums& sums) {
  std::vector<LaneScalars> nodes;
  const size_t held = std::max<size_t>(stack_.nodes().size(), plan_.lanes == 1);
  for (size_t i = 0; i < held; ++i) {
    LaneScalars& node = nodes.emplace_back();
    if (plan_.lanes > 1) node.lanes = stack_.nodes()[i];
    if (Status status = read_words(window_sums_, node, i); !status) return status;
  }
  std::vector<double> values;
  LaneExchange* const others = std::exchange(exchange_, is_whole() ? nullptr : exchange_);
  const Status status = add_nodes(window_sums_, std::move(nodes), values);
  exchange_ = others;
  if (!status) return status;
  sums = {values[0], values.back()};
  return {};
}

Status Session::update(WindowReport& report) {
  report = {};
  report.launches = launches_;
  report.samples = samples_;
  if (Status status = finish_lanes(); !status) return status;
  if (Status status = run_update(); !status) return status;
  // From here on one wait: what is read lies together (passes/plan_memory.cpp).
  int32_t ok = 0;
  if (Status status = read_scalar(window_ok_, ok); !status) return status;
  if (Status status = read_window_sums(report.sums); !status) return status;
  if (report.sums.count == 0) return drop_window();  // a mean over nothing: the update moved statistics alone
  if (Status status = read_scalar(window_loss_, report.loss); !status) return status;
  if (Status status = read_scalar(window_norm_, report.norm); !status) return status;
  if (Status status = read_scalar(window_lr_, report.lr); !status) return status;
  if (Status status = read_scale(state::window_scale, report.scale); !status) return status;
  if (Status status = read_scale(state::loss_scale, report.next_scale); !status) return status;
  forget_window();
  report.finite = report.applied = ok != 0;
  if (plan_.skip_nonfinite) return read_state(state::skips, report.skips);
  // A failed update leaves the accumulators as they were, so the culprit can still be found.
  return report.finite ? Status() : first_bad_parameter(report.bad_parameter);
}

// What the window's sums were, once the update has cleared them.
Status Session::read_window_sums(WindowSums& sums) {
  float sum = 0, weight = 0;
  int32_t count = 0;
  Status status = read_scalar(window_sum_, sum);
  if (status) status = read_scalar(window_count_, count);
  if (status && window_weight_) status = read_scalar(window_weight_, weight);
  sums = {sum, window_weight_ ? weight : static_cast<double>(count)};
  return status;
}

// 1 where the loss is not scaled.
Status Session::read_scale(std::string_view name, float& scale) {
  scale = 1;
  return plan_.find(name) ? read_state(name, scale) : Status();
}

Status Session::first_bad_parameter(std::string& name) {
  std::vector<float> values;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.gradient) continue;
    if (Status status = read_sum(*parameter.gradient, values); !status) return status;
    if (all_finite(values)) continue;
    name = parameter.buffer->name;
    break;
  }
  return {};
}

Status Session::zero(const PlanBuffer& buffer) {
  for (int64_t done = 0; done < buffer.bytes;) {
    auto block = std::min(buffer.bytes - done, static_cast<int64_t>(zeros_.size()));
    Status status = device_.write(buffer.offset + done, std::span(zeros_).first(static_cast<size_t>(block)));
    if (!status) return status;
    done += block;
  }
  return {};
}

Status Session::drop_window() {
  forget_window();
  scattered_ = false;
  // Every accumulator, the loss's sum and count among them. The moments and counters belong to updates and
  // stay. Nodes count for nothing until `close` has written them.
  for (const PlanBuffer& buffer : plan_.buffers)
    if ((buffer.kind == "accum" && buffer.role != BufferRole::node) || &buffer == loss_sum_ ||
        &buffer == loss_count_)
      if (Status status = zero(buffer); !status) return status;
  return {};
}

Status Session::begin_eval(int64_t launches) {
  eval_samples_ = eval_launches_ = 0;
  eval_expected_ = launches;
  eval_nodes_.clear();
  return clear_eval();
}

Status Session::clear_eval() {
  for (const PlanBuffer* buffer : eval_sums_)
    if (Status status = zero(*buffer); !status) return status;
  return {};
}

int64_t Session::eval_lane(int64_t position) const {
  return eval_expected_ == 0 ? 0 : lane_of(position, eval_expected_, plan_.lanes);
}

// The sums of the lane that has ended, to the host.
Status Session::end_eval_lane() {
  const int64_t lane = eval_lane(eval_launches_ - 1);
  std::vector<uint32_t> words(eval_sums_.size());
  for (size_t i = 0; i < words.size(); ++i)
    if (Status status = device_.read(eval_sums_[i]->offset, std::as_writable_bytes(std::span(&words[i], 1)));
        !status)
      return status;
  eval_nodes_.push_back({{lane, lane + 1}, std::move(words)});
  return {};
}

bool Session::has_eval(int64_t position) const {
  return plan_.lanes == 1 || mine_.contains(eval_lane(position));
}

// Before the next launch, whose ever it is: ends the open lane, unless the launch is one of it.
Status Session::next_eval() {
  const int64_t next = eval_launches_;
  if (next > 0 && has_eval(next - 1) && eval_lane(next) != eval_lane(next - 1)) {
    if (Status status = end_eval_lane(); !status) return status;
    if (Status status = clear_eval(); !status) return status;
  }
  ++eval_launches_;
  return {};
}

Status Session::eval(InputBytes inputs, int64_t samples) {
  if (Status status = next_eval(); !status) return status;
  if (Status status = write_inputs(inputs, samples, Program::eval); !status) return status;
  if (r2_shift_ && eval_samples_ == 0) {
    if (Status status = shift_targets(inputs); !status) return status;
    if (Status status = share_shift(); !status) return status;
  }
  eval_samples_ += samples;
  return device_.run(Program::eval, samples);
}

Status Session::skip_eval(int64_t samples) {
  if (Status status = next_eval(); !status) return status;
  if (r2_shift_ && eval_samples_ == 0)
    if (Status status = share_shift(); !status) return status;
  eval_samples_ += samples;
  return {};
}

// All ranks take that of the one with the first launch.
Status Session::share_shift() {
  if (exchange_ == nullptr) return {};
  std::vector<LaneScalars> nodes;
  float shift = 0;
  if (Status status = read_scalar(r2_shift_, shift); !status) return status;
  if (has_eval(0)) nodes.push_back({{0, 1}, {std::bit_cast<uint32_t>(shift)}});
  if (Status status = exchange_->gather(nodes); !status) return status;
  return write_scalar(r2_shift_, std::bit_cast<float>(nodes.at(0).words.at(0)));
}

Status Session::run_predict(InputBytes inputs, int64_t samples) {
  if (Status status = write_inputs(inputs, samples, Program::predict); !status) return status;
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
    Status status = device_.write(predict.rows_offset, std::as_bytes(std::span(rows)));
    if (status) status = device_.run(Program::answer, 1);
    if (status)
      status = device_.read(predict.offset + begin * kSize, std::as_writable_bytes(outputs.first(some)));
    if (!status) return status;
    first += static_cast<int64_t>(some);
    outputs = outputs.subspan(some);
  }
  return {};
}

Status Session::predict(InputBytes inputs, int64_t samples, std::span<float> outputs) {
  if (Status status = run_predict(inputs, samples); !status) return status;
  return read_outputs(0, outputs);
}

// The mean of the first targets.
Status Session::shift_targets(InputBytes inputs) {
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
  return write_scalar(r2_shift_, std::isfinite(mean) ? static_cast<float>(mean) : 0.0F);
}

Status Session::end_eval(EvalReport& report) {
  if (eval_launches_ > 0 && has_eval(eval_launches_ - 1))
    if (Status status = end_eval_lane(); !status) return status;
  std::vector<double> values;
  if (Status status = add_nodes(eval_sums_, std::move(eval_nodes_), values); !status) return status;
  eval_nodes_.clear();
  // What is left does not tell who had which lanes.
  for (size_t i = 0; plan_.lanes > 1 && i < values.size(); ++i) {
    const PlanBuffer* sum = eval_sums_[i];
    Status status = sum->dtype == "i32" ? write_scalar(sum, static_cast<int32_t>(values[i]))
                                        : write_scalar(sum, static_cast<float>(values[i]));
    if (!status) return status;
  }
  const auto value_of = [&](const PlanBuffer* buffer) {
    const auto found = std::ranges::find(eval_sums_, buffer);
    return found == eval_sums_.end() ? 0 : values[static_cast<size_t>(found - eval_sums_.begin())];
  };
  const double loss = value_of(eval_loss_), count = value_of(eval_count_);
  report = {
      eval_samples_, static_cast<int64_t>(count), loss / (eval_weight_ ? value_of(eval_weight_) : count), {}};
  MetricSums sums{.count = count, .targets = value_of(r2_targets_), .squares = value_of(r2_squares_)};
  for (size_t i = 0; i < eval_metrics_.size(); ++i) {
    if (eval_metrics_[i]) sums.sum = value_of(eval_metrics_[i]);
    report.metrics.push_back(metric_value(plan_.metrics[i], sums, report.loss));
  }
  return {};
}

Status Session::set_lr(float lr) { return write_scalar(lr_, lr); }

Status Session::read_buffer(const PlanBuffer& buffer, std::vector<std::byte>& bytes) {
  if (const PlanBuffer* slice = slice_of(buffer)) return read_shared(*slice, buffer, bytes);
  bytes.resize(static_cast<size_t>(buffer.bytes));
  return device_.read(buffer.offset, bytes);
}

Status Session::write_buffer(const PlanBuffer& buffer, std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) != whole_bytes(buffer))
    return Status::error("{} takes {} bytes, {} were given", buffer.name, whole_bytes(buffer), bytes.size());
  const PlanBuffer* slice = slice_of(buffer);
  if (slice == nullptr) return device_.write(buffer.offset, bytes);
  return write_own(*slice, 0, bytes);
}

// What this rank has of `bytes`, which begin at byte `first` of the whole.
Status Session::write_own(const PlanBuffer& slice, int64_t first, std::span<const std::byte> bytes) {
  const int64_t begin = rank() * slice.bytes, low = std::max(begin, first);
  const int64_t high = std::min(begin + slice.bytes, first + std::ssize(bytes));
  if (low >= high) return {};
  return device_.write(slice.offset + low - begin,
                       bytes.subspan(static_cast<size_t>(low - first), static_cast<size_t>(high - low)));
}

Status Session::read_floats(const PlanBuffer& buffer, std::vector<float>& values) {
  values.resize(static_cast<size_t>(elements_of(buffer.shape)));
  if (const PlanBuffer* slice = slice_of(buffer)) {
    std::vector<std::byte> bytes;
    Status status = read_shared(*slice, buffer, bytes);
    if (status) std::memcpy(values.data(), bytes.data(), bytes.size());
    return status;
  }
  if (buffer.dtype == "f32") return device_.read(buffer.offset, std::as_writable_bytes(std::span(values)));
  std::vector<uint16_t> halves(values.size());  // a frozen parameter
  Status status = device_.read(buffer.offset, std::as_writable_bytes(std::span(halves)));
  std::ranges::transform(halves, values.begin(), buffer.dtype == "f16" ? half_to_float : bf16_to_float);
  return status;
}

// The window's sum of f32, its nodes added as `update` will have it.
Status Session::read_sum(const PlanBuffer& buffer, std::vector<float>& values) {
  if (stack_.nodes().size() < 2) return read_floats(buffer, values);
  std::vector<std::vector<float>> parts;
  for (const int64_t offset : node_offsets(buffer)) {
    parts.emplace_back(static_cast<size_t>(elements_of(buffer.shape)));
    if (Status status = device_.read(offset, std::as_writable_bytes(std::span(parts.back()))); !status)
      return status;
  }
  const auto add = [](std::vector<float> left, const std::vector<float>& right) {
    for (size_t i = 0; i < left.size(); ++i) left[i] += right[i];
    return left;
  };
  values = *tree_sum<std::vector<float>>({0, plan_.lanes}, stack_.nodes(), std::span(parts), add);
  return {};
}

Status Session::mean_gradients(std::vector<NamedTensor>& tensors) {
  tensors.clear();
  WindowSums window;
  if (Status status = sums(window); !status) return status;
  float scale = 1;
  if (Status status = read_scale(state::loss_scale, scale); !status) return status;
  const double unscale = plan_.seed_rules ? static_cast<double>(plan_.seed_rules->elements) / scale : 1;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.gradient) continue;
    NamedTensor& tensor = tensors.emplace_back();
    tensor.name = parameter.buffer->name;
    tensor.shape = parameter.buffer->shape;
    if (Status status = read_sum(*parameter.gradient, tensor.data); !status) return status;
    for (float& value : tensor.data)
      value = window.count ? static_cast<float>(value * unscale / static_cast<double>(window.count)) : 0.0f;
  }
  sort_by_name(tensors);
  return {};
}

Status Session::parameters(std::vector<NamedTensor>& tensors) {
  tensors.clear();
  for (const Parameter& parameter : parameters_) {
    NamedTensor& tensor = tensors.emplace_back();
    tensor.name = parameter.buffer->name;
    tensor.shape = parameter.buffer->shape;
    if (Status status = read_floats(*parameter.buffer, tensor.data); !status) return status;
  }
  sort_by_name(tensors);
  return {};
}

Status Session::write_parameter(const PlanBuffer& parameter, int64_t first, std::span<const float> values) {
  for (const PlanBuffer* buffer : {&parameter, plan_.find(BufferRole::half, parameter.name)}) {
    if (buffer == nullptr) continue;
    std::span<const std::byte> bytes = std::as_bytes(values);
    if (buffer->dtype != "f32") {
      round_to_half(bytes, buffer->dtype, halves_);
      bytes = std::as_bytes(std::span(halves_));
    }
    const int64_t each = static_cast<int64_t>(bytes.size() / std::max<size_t>(values.size(), 1));
    if (const PlanBuffer* slice = slice_of(*buffer)) {
      if (Status status = write_own(*slice, first * each, bytes); !status) return status;
      continue;
    }
    if (Status status = device_.write(buffer->offset + first * each, bytes); !status) return status;
  }
  return {};
}

}  // namespace gacc
