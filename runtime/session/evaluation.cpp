#include "runtime/session/evaluation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace gacc {
namespace {

// Launches after which f32 sums are taken over: a sum of 1,024 terms is right to about 1e-5.
constexpr int64_t kMostUnread = 1024;
// Counts are taken over before they reach this; the last launch may add as much again.
constexpr int64_t kMostCounted = int64_t{1} << 30;

// The launches of full micro-batches after which the sums must be taken over: of windows where it must not show how
// many launches those have.
int64_t most_unread(const Plan& plan) {
  if (plan.keeps_bits) {
    const int64_t samples = plan.micro_batch * plan.accumulate;
    return plan.accumulate * std::max<int64_t>(1, kMostUnread / samples);
  }
  int64_t elements = plan.micro_batch;  // that a launch counts at most
  for (const PlanInput& input : plan.inputs)
    if (input.target) elements = plan.micro_batch * elements_of(input.shape);
  return std::clamp<int64_t>(kMostCounted / elements, 1, kMostUnread);
}

// The sums over `count` elements: the metric's own, and for r2 also those of the targets (less a number that is the
// same for all) and of their squares.
struct MetricSums {
  double count = 0, sum = 0, targets = 0, squares = 0;
};

// `loss` is the evaluation's mean. NaN where there is no such number, as r2 of targets that are all the same.
double metric_value(std::string_view name, const MetricSums& sums, double loss) {
  const double mean = sums.sum / sums.count;
  if (name == "perplexity") return std::exp(loss);
  if (name == "rmse") return std::sqrt(mean);
  // 1 - sum((x - y)^2) / sum((y - mean(y))^2)
  if (name == "r2") {
    const double spread = sums.squares - sums.targets * sums.targets / sums.count;
    return spread > 0 ? 1 - sums.sum / spread : std::numeric_limits<double>::quiet_NaN();
  }
  return mean;
}

}  // namespace

Status Evaluation::open() {
  const Plan& plan = arena_.plan();
  for (const std::string_view name : {state::eval_loss, state::eval_count}) GACC_TRY(arena_.find(name));
  for (const std::string& metric : plan.metrics)
    if (metric != "perplexity" && !Judgement::makes(metric))
      GACC_TRY(arena_.find("eval." + metric));  // that follows from the loss
  for (const PlanBuffer& buffer : plan.buffers)
    if (buffer.role == BufferRole::evaluation) sums_.push_back(&buffer);
  most_unread_ = most_unread(plan);
  return {};
}

Status Evaluation::begin(int64_t launches) {
  samples_ = launches_ = 0;
  expected_ = launches;
  nodes_.clear();
  const Plan& plan = arena_.plan();
  if (plan.answers) judgement_.emplace(*plan.answers, std::ranges::count(plan.metrics, "auc") > 0);
  return clear();
}

Status Evaluation::clear() {
  unread_ = 0;
  taken_.assign(sums_.size(), 0);
  for (const PlanBuffer* buffer : sums_) GACC_TRY(arena_.zero(buffer->offset, buffer->bytes));
  return {};
}

int64_t Evaluation::lane(int64_t position) const {
  if (expected_ == 0) return 0;
  // If the result must not depend on the number of launches in a window, lanes get whole windows.
  const int64_t each = arena_.plan().keeps_bits ? arena_.plan().accumulate : 1;
  return lane_of(position / each, (expected_ + each - 1) / each, arena_.plan().lanes);
}

bool Evaluation::has(int64_t position) const {
  return own_lanes(arena_.plan(), exchange_).contains(lane(position));
}

Status Evaluation::take_over() {
  const std::vector<uint32_t> words = GACC_TRY(arena_.read_words(sums_));
  std::vector<double> taken = taken_;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool integer = sums_[i]->dtype == DType::i32;
    taken[i] +=
        integer ? std::bit_cast<int32_t>(words[i]) : static_cast<double>(std::bit_cast<float>(words[i]));
  }
  GACC_TRY(clear());
  taken_ = std::move(taken);
  return {};
}

// The sums of the lane that has ended go to the host. What is left on the device is added in f32, as the lanes of a
// window are, and what was taken over in double.
Status Evaluation::end_lane() {
  const int64_t ended = lane(launches_ - 1);
  LaneScalars node{{ended, ended + 1}, GACC_TRY(arena_.read_words(sums_))};
  for (const double taken : taken_)
    for (const uint32_t half : std::bit_cast<std::array<uint32_t, 2>>(taken)) node.words.push_back(half);
  nodes_.push_back(std::move(node));
  return {};
}

// Before each launch, whichever rank makes it: ends the open lane, unless the launch is one of it. `inputs` is empty
// where the launch is another rank's.
Status Evaluation::next(InputBytes inputs, int64_t samples) {
  const int64_t next = launches_;
  if (next > 0 && has(next - 1)) {
    if (lane(next) != lane(next - 1)) {
      GACC_TRY(end_lane());
      GACC_TRY(clear());
    } else if (unread_ == most_unread_) {
      GACC_TRY(take_over());
    }
  }
  if (next == 0 && arena_.has(state::r2_shift)) GACC_TRY(set_shift(inputs));
  ++launches_;
  ++unread_;
  samples_ += samples;
  return {};
}

Status Evaluation::add(InputBytes inputs, int64_t samples, Program program) {
  GACC_TRY(arena_.write_inputs(inputs, samples, program));
  GACC_TRY(next(inputs, samples));
  GACC_TRY(arena_.run(program, samples));
  return judgement_ ? judge(inputs, samples, program) : Status();
}

Status Evaluation::judge(InputBytes inputs, int64_t samples, Program program) {
  const Plan& plan = arena_.plan();
  const PlanAnswers& answers = *plan.answers;
  const auto target = std::ranges::find(plan.inputs, true, &PlanInput::target);
  const int64_t offset = program == Program::measure ? answers.measure_offset : answers.eval_offset;
  const std::vector<float> given = GACC_TRY(arena_.read<float>(offset, samples * elements_of(answers.shape)));
  judgement_->add(given, inputs[static_cast<size_t>(target - plan.inputs.begin())], target->dtype);
  return {};
}

// Adds what other ranks have: of each as many words, and the number of those that count before them.
Status Evaluation::judge_all_ranks() {
  const std::vector<int64_t> mine = judgement_->words();
  const auto gather = [&](std::vector<int64_t> words) -> Result<std::vector<int64_t>> {
    const std::vector<std::byte> bytes = GACC_TRY(exchange_->gather_bytes(std::as_bytes(std::span(words))));
    std::vector<int64_t> all(bytes.size() / sizeof(int64_t));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    return all;
  };
  const std::vector<int64_t> counts = GACC_TRY(gather({std::ssize(mine)}));
  const auto most = static_cast<size_t>(std::ranges::max(counts));
  std::vector<int64_t> padded = mine;
  padded.resize(most);
  const std::vector<int64_t> all = GACC_TRY(gather(padded));
  for (size_t rank = 0; rank < counts.size(); ++rank)
    if (static_cast<int>(rank) != exchange_->rank())
      judgement_->add_words(std::span(all).subspan(rank * most, static_cast<size_t>(counts[rank])));
  return {};
}

// The mean of the first targets: all ranks take that of the one with the first launch.
Status Evaluation::set_shift(InputBytes inputs) {
  const Plan& plan = arena_.plan();
  double sum = 0, count = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!plan.inputs[i].target) continue;
    // f32 and i32 are 4 bytes. Of one sample where it must not show how many the launch has.
    const size_t of_sample = 4 * static_cast<size_t>(elements_of(plan.inputs[i].shape));
    const size_t end = plan.keeps_bits ? std::min(of_sample, inputs[i].size()) : inputs[i].size();
    for (size_t at = 0; at < end; at += 4) {
      float real = 0;
      int32_t integer = 0;
      std::memcpy(&real, inputs[i].data() + at, 4);
      std::memcpy(&integer, inputs[i].data() + at, 4);
      sum += plan.inputs[i].dtype == DType::f32 ? static_cast<double>(real) : integer;
      ++count;
    }
  }
  const double mean = count > 0 ? sum / count : 0;
  auto shift = std::bit_cast<uint32_t>(std::isfinite(mean) ? static_cast<float>(mean) : 0.0F);
  if (exchange_ != nullptr) {
    std::vector<LaneScalars> mine;
    if (has(0)) mine.push_back({{0, 1}, {shift}});
    shift = GACC_TRY(exchange_->gather(mine, 1)).at(0).words.at(0);
  }
  return arena_.write_state(state::r2_shift, shift);
}

Result<EvalReport> Evaluation::end() {
  const Plan& plan = arena_.plan();
  if (launches_ > 0 && has(launches_ - 1)) GACC_TRY(end_lane());
  std::vector<LaneScalars> nodes = std::exchange(nodes_, {});
  if (exchange_ != nullptr) nodes = GACC_TRY(exchange_->gather(nodes, 3 * sums_.size()));
  if (plan.lanes > 1) GACC_TRY(clear());  // what is left must not tell who had which lanes
  std::vector<double> values;
  for (size_t i = 0; i < sums_.size(); ++i) {
    values.push_back(sum_words(plan.lanes, nodes, i, sums_[i]->dtype == DType::i32));
    for (const LaneScalars& node : nodes) {  // from left to right
      const size_t at = sums_.size() + 2 * i;
      values[i] += std::bit_cast<double>(std::array{node.words[at], node.words[at + 1]});
    }
  }
  const auto value_of = [&](std::string_view name) {
    const auto found = std::ranges::find(sums_, name, &PlanBuffer::name);
    return found == sums_.end() ? 0 : values[static_cast<size_t>(found - sums_.begin())];
  };
  MetricSums sums{.count = value_of(state::eval_count),
                  .targets = value_of(state::r2_targets),
                  .squares = value_of(state::r2_squares)};
  const double weight = arena_.has(state::eval_weight) ? value_of(state::eval_weight) : sums.count;
  EvalReport report{.samples = std::exchange(samples_, 0),
                    .count = static_cast<int64_t>(sums.count),
                    .loss = value_of(state::eval_loss) / weight};
  if (judgement_ && exchange_ != nullptr) GACC_TRY(judge_all_ranks());
  if (judgement_) report.confusion = judgement_->confusion();
  for (const std::string& metric : plan.metrics) {
    if (Judgement::makes(metric)) {
      report.metrics.push_back(judgement_->value(metric));
      continue;
    }
    sums.sum = value_of("eval." + metric);
    report.metrics.push_back(metric_value(metric, sums, report.loss));
  }
  return report;
}

}  // namespace gacc
