#include "runtime/session/session.h"

#include <algorithm>
#include <cmath>

#include "runtime/half.h"

namespace gacc {
namespace {

bool all_finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

bool scale_too_small(const Plan& plan, const WindowReport& report) {
  return plan.seed_rules && plan.seed_rules->dynamic && report.next_scale < kSmallestScale;
}

}  // namespace

bool is_saved(const PlanBuffer& buffer) {
  return buffer.role == BufferRole::weight || buffer.role == BufferRole::statistic;
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

Status Session::open(const Artifact& artifact) {
  arena_.open();
  for (const PlanBuffer& buffer : plan_.buffers) {
    if (is_saved(buffer)) places_[buffer.name].push_back(&buffer);
    if (buffer.role == BufferRole::half) places_[buffer.of].push_back(&buffer);
  }
  for (const std::string_view name :
       {state::lr, state::seed_low, state::seed_high, state::window_sum, state::window_count,
        state::window_loss, state::window_norm, state::window_lr, state::window_ok})
    GACC_TRY(arena_.find(name));
  GACC_TRY(evaluation_.open());
  GACC_TRY(update_.open());
  GACC_TRY(window_.open());
  return arena_.load(artifact);
}

Status Session::init(uint64_t seed, float lr, std::span<const PlanBuffer* const> given) {
  window_.forget();
  GACC_TRY(evaluation_.begin());
  for (const PlanBuffer& buffer : plan_.buffers)
    if (buffer.offset >= plan_.arena_bytes && std::ranges::count(given, &buffer) == 0)
      GACC_TRY(arena_.zero(buffer.offset, buffer.bytes));
  GACC_TRY(write_state(state::lr, lr));
  GACC_TRY(write_state(state::seed_low, static_cast<int32_t>(seed)));
  GACC_TRY(write_state(state::seed_high, static_cast<int32_t>(seed >> 32)));
  for (const PlanBuffer& buffer : plan_.buffers) {
    if (buffer.values.empty()) continue;
    const std::vector<float> values(buffer.values.begin(), buffer.values.end());
    GACC_TRY(write_buffer(buffer, std::as_bytes(std::span(values))));
  }
  return update_.init(given);
}

Status Session::write_class_weights(std::span<const float> weights) {
  if (weights.empty()) return {};
  return write_buffer(*GACC_TRY(arena_.find("loss.class_weights")), std::as_bytes(weights));
}

Status Session::set_ordinal(int64_t ordinal) {
  if (!arena_.has(state::samples_low)) return {};
  const auto bits = static_cast<uint64_t>(ordinal);
  GACC_TRY(write_state(state::samples_low, static_cast<int32_t>(bits)));
  return write_state(state::samples_high, static_cast<int32_t>(bits >> 32));
}

Status Session::step(InputBytes inputs, int64_t samples) {
  GACC_TRY(window_.begin_launch());
  GACC_TRY(arena_.write_inputs(inputs, samples, Program::step));
  window_.count_launch(samples);
  return arena_.run(Program::step, samples);
}

Status Session::skip(int64_t samples, int64_t next_ordinal) {
  GACC_TRY(window_.begin_launch());
  window_.count_launch(samples);
  arena_.recheck().count(Program::step);
  return set_ordinal(next_ordinal);
}

Result<WindowReport> Session::update() {
  WindowReport report;
  report.launches = window_.launches();
  report.samples = window_.samples();
  GACC_TRY(window_.finish_lanes());
  GACC_TRY(update_.run());
  // From here on one wait: what is read lies together (passes/plan_memory.cpp).
  const int32_t ok = GACC_TRY(read_state<int32_t>(state::window_ok));
  // The window's sums as they were: the update has cleared them.
  report.sums.loss = GACC_TRY(read_state<float>(state::window_sum));
  report.sums.count = GACC_TRY(read_state<int32_t>(state::window_count));
  if (arena_.has(state::window_weight)) report.sums.count = GACC_TRY(read_state<float>(state::window_weight));
  if (report.sums.count == 0) {  // a mean over nothing: the update moved statistics alone
    GACC_TRY(window_.drop());
    return report;
  }
  report.loss = GACC_TRY(read_state<float>(state::window_loss));
  report.norm = GACC_TRY(read_state<float>(state::window_norm));
  report.lr = GACC_TRY(read_state<float>(state::window_lr));
  report.scale = GACC_TRY(read_scale(state::window_scale));
  report.next_scale = GACC_TRY(read_scale(state::loss_scale));
  window_.forget();
  report.finite = report.applied = ok != 0;
  if (plan_.skip_nonfinite)
    report.skips = GACC_TRY(read_state<int32_t>(state::skips));
  else if (!report.finite)  // a failed update leaves the accumulators as they were
    report.bad_parameter = GACC_TRY(first_bad_parameter());
  return report;
}

// 1 where the loss is not scaled.
Result<float> Session::read_scale(std::string_view name) {
  return arena_.has(name) ? read_state<float>(name) : 1;
}

// Over all uses of the parameter; empty where it has none.
Result<std::vector<float>> Session::gradient_sum(const PlanBuffer& parameter) {
  std::vector<float> sum;
  for (const PlanBuffer& buffer : plan_.buffers) {
    const bool adds = buffer.role == BufferRole::gradient || buffer.role == BufferRole::further_use;
    if (!adds || buffer.of != parameter.name) continue;
    const std::vector<float> use = GACC_TRY(window_.read_sum(buffer));
    sum.resize(use.size());
    for (size_t i = 0; i < use.size(); ++i) sum[i] += use[i];
  }
  return sum;
}

Result<std::string> Session::first_bad_parameter() {
  for (const PlanBuffer& buffer : plan_.buffers)
    if (!all_finite(GACC_TRY(gradient_sum(buffer)))) return buffer.name;
  return std::string();
}

Status Session::write_buffer(const PlanBuffer& buffer, std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) != whole_bytes(buffer))
    return Status::error("{} takes {} bytes, {} were given", buffer.name, whole_bytes(buffer), bytes.size());
  return update_.write(buffer, 0, bytes);
}

Result<std::vector<NamedTensor>> Session::mean_gradients() {
  const WindowSums window = GACC_TRY(sums());
  const float scale = GACC_TRY(read_scale(state::loss_scale));
  const double unscale = plan_.seed_rules ? static_cast<double>(plan_.seed_rules->elements) / scale : 1;
  std::vector<NamedTensor> tensors;
  for (const PlanBuffer& buffer : plan_.buffers) {
    std::vector<float> values = GACC_TRY(gradient_sum(buffer));
    if (values.empty()) continue;
    for (float& value : values)
      value = window.count ? static_cast<float>(value * unscale / static_cast<double>(window.count)) : 0.0f;
    tensors.push_back({buffer.name, buffer.shape, std::move(values)});
  }
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  return tensors;
}

Result<std::vector<NamedTensor>> Session::parameters(const std::function<bool(const PlanBuffer&)>& wanted) {
  std::vector<NamedTensor> tensors;
  for (const PlanBuffer& buffer : plan_.buffers)
    if (is_saved(buffer) && (!wanted || wanted(buffer)))
      tensors.push_back({buffer.name, buffer.shape, GACC_TRY(update_.read_floats(buffer))});
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  return tensors;
}

// By its name: it may be another plan's of the same model, where it lies elsewhere and has another type.
const std::vector<const PlanBuffer*>& Session::places(std::string_view parameter) const {
  static const std::vector<const PlanBuffer*> kNone;
  const auto found = places_.find(parameter);
  return found == places_.end() ? kNone : found->second;
}

Status Session::write_parameter(const PlanBuffer& parameter, int64_t first, std::span<const float> values) {
  std::vector<uint16_t> halves;
  std::vector<std::byte> blocks;
  for (const PlanBuffer* buffer : places(parameter.name)) {
    std::span<const std::byte> bytes = std::as_bytes(values);
    if (const BlockFormat* format = block_format(dtype_text(buffer->dtype))) {
      blocks.resize(static_cast<size_t>(dtype_bytes(buffer->dtype, std::ssize(values))));
      GACC_TRY(quantize(*format, values, blocks.data(), parameter.name, first));
      bytes = blocks;
    } else if (buffer->dtype != DType::f32) {
      round_to_half(bytes, half_type(buffer->dtype), halves);
      bytes = std::as_bytes(std::span(halves));
    }
    GACC_TRY(update_.write(*buffer, dtype_bytes(buffer->dtype, first), bytes));
  }
  return {};
}

Result<bool> Session::write_stored(const PlanBuffer& parameter, int64_t first, std::string_view dtype,
                                   std::span<const std::byte> bytes) {
  const std::vector<const PlanBuffer*>& all = places(parameter.name);
  if (all.size() != 1 || stored_dtype(dtype_text(all.front()->dtype)) != dtype) return false;
  GACC_TRY(update_.write(*all.front(), dtype_bytes(all.front()->dtype, first), bytes));
  return true;
}

}  // namespace gacc
