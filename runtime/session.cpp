// The verbs of a session, as reads, writes and program runs on a device.
#include "runtime/session.h"

#include <algorithm>
#include <cmath>

#include "runtime/half.h"

namespace gacc {
namespace {

constexpr size_t kZeroBlock = size_t{1} << 20;  // bytes of zeros written at once

int64_t elements_of(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t extent : shape) elements *= extent;
  return elements;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void sort_by_name(std::vector<NamedTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& left, const auto& right) { return left.name < right.name; });
}

// What --save and --load carry: parameters, and the running statistics of batch_norm.
bool is_saved(const PlanBuffer& buffer) {
  const std::string_view name = buffer.name;
  return buffer.kind == "param" ||
         (buffer.kind == "state" && (name.ends_with(".running_mean") || name.ends_with(".running_var")));
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace

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

Status Session::find_parameters() {
  parameters_.clear();
  for (const PlanBuffer& buffer : plan_.buffers) {
    if (!is_saved(buffer)) continue;
    if (buffer.dtype != "f32")
      return Status::error("the artifact's parameter {} is {}, not f32", buffer.name, buffer.dtype);
    Parameter& parameter = parameters_.emplace_back();
    parameter.buffer = &buffer;
    parameter.elements = elements_of(buffer.shape);
    parameter.half = plan_.find(buffer.name + ".h");
    if (parameter.half && (parameter.half->dtype == "f32" || parameter.half->dtype == "i32" ||
                           elements_of(parameter.half->shape) != parameter.elements))
      return Status::error("the artifact's half copy of parameter {} does not fit it", buffer.name);
    if (!buffer.trainable || buffer.kind != "param") continue;
    parameter.gradient = plan_.find(buffer.name + ".grad");
    if (!parameter.gradient) continue;  // the loss does not reach it
    if (parameter.gradient->dtype != "f32" || elements_of(parameter.gradient->shape) != parameter.elements)
      return Status::error("the artifact has no fitting accumulator for parameter {}", buffer.name);
  }
  return {};
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
      {state::window_loss, "f32", window_loss_},
      {state::window_norm, "f32", window_norm_},
      {state::window_lr, "f32", window_lr_},
      {state::window_ok, "i32", window_ok_},
      {state::eval_loss, "f32", eval_loss_},
      {state::eval_count, "i32", eval_count_},
  };
  for (const Need& need : needs)
    if (Status status = find_scalar(need.name, need.dtype, need.buffer); !status) return status;
  eval_metrics_.clear();
  for (const std::string& metric : plan_.metrics) {
    const PlanBuffer*& buffer = eval_metrics_.emplace_back(nullptr);
    std::string name = "eval." + metric;
    if (metric == "perplexity" && !plan_.find(name)) continue;  // exp(mean loss)
    if (Status status = find_scalar(name, "f32", buffer); !status) return status;
  }
  if (Status status = find_parameters(); !status) return status;
  has_statistics_ = std::ranges::any_of(plan_.buffers, [](const PlanBuffer& buffer) {
    return buffer.kind == "accum" && buffer.name.ends_with(".change");
  });
  zeros_.assign(kZeroBlock, std::byte{0});
  return device_.load(artifact);
}

Status Session::init(uint64_t seed, float lr) {
  launches_ = samples_ = 0;
  if (Status status = write_scalar(lr_, lr); !status) return status;
  if (Status status = write_scalar(seed_low_, static_cast<uint32_t>(seed)); !status) return status;
  if (Status status = write_scalar(seed_high_, static_cast<uint32_t>(seed >> 32)); !status) return status;
  return device_.run(Program::init, 0);
}

Status Session::set_ordinal(int64_t ordinal) {
  if (!plan_.find(state::samples_low)) return {};
  const auto bits = static_cast<uint64_t>(ordinal);
  if (Status status = write_state(state::samples_low, static_cast<int32_t>(bits)); !status) return status;
  return write_state(state::samples_high, static_cast<int32_t>(bits >> 32));
}

Status Session::write_inputs(InputBytes inputs, int64_t samples, bool for_eval) {
  if (inputs.size() != plan_.inputs.size())
    return Status::error("the step takes {} inputs, {} were given", plan_.inputs.size(), inputs.size());
  if (samples < 1 || samples > plan_.micro_batch)
    return Status::error("a launch takes 1 to {} samples, {} were given", plan_.micro_batch, samples);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlanInput& input = plan_.inputs[i];
    auto bytes = static_cast<size_t>(elements_of(input.shape) * samples * 4);  // f32 and i32 are 4 bytes
    if (inputs[i].size() != bytes)
      return Status::error("input {} takes {} bytes, {} were given", input.name, bytes, inputs[i].size());
    Status status = device_.write(for_eval ? input.eval_offset : input.step_offset, inputs[i]);
    if (!status) return status;
  }
  return {};
}

Status Session::step(InputBytes inputs, int64_t samples) {
  if (Status status = write_inputs(inputs, samples, false); !status) return status;
  ++launches_;
  samples_ += samples;
  return device_.run(Program::step, samples);
}

Status Session::sums(WindowSums& sums) {
  float loss = 0;
  int32_t count = 0;
  if (Status status = read_scalar(loss_sum_, loss); !status) return status;
  if (Status status = read_scalar(loss_count_, count); !status) return status;
  sums = {loss, count};
  return {};
}

Status Session::update(WindowReport& report) {
  report = {};
  report.launches = launches_;
  report.samples = samples_;
  if (Status status = sums(report.sums); !status) return status;
  if (report.sums.count == 0) {  // a mean over nothing: no update, and update moves the statistics alone
    if (has_statistics_)
      if (Status status = device_.run(Program::update, 0); !status) return status;
    return drop_window();
  }
  if (Status status = device_.run(Program::update, 0); !status) return status;
  int32_t ok = 0;
  if (Status status = read_scalar(window_ok_, ok); !status) return status;
  if (Status status = read_scalar(window_loss_, report.loss); !status) return status;
  if (Status status = read_scalar(window_norm_, report.norm); !status) return status;
  if (Status status = read_scalar(window_lr_, report.lr); !status) return status;
  if (Status status = read_scale(state::window_scale, report.scale); !status) return status;
  if (Status status = read_scale(state::loss_scale, report.next_scale); !status) return status;
  launches_ = samples_ = 0;
  report.finite = report.applied = ok != 0;
  if (plan_.skip_nonfinite) return read_state(state::skips, report.skips);
  // A failed update leaves the accumulators as they were, so the culprit can still be found.
  return report.finite ? Status() : first_bad_parameter(report.bad_parameter);
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
    if (Status status = read_floats(*parameter.gradient, values); !status) return status;
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
  launches_ = samples_ = 0;
  // Every accumulator, the loss's sum and count among them. The moments and counters belong to updates and
  // stay.
  for (const PlanBuffer& buffer : plan_.buffers)
    if (buffer.kind == "accum" || &buffer == loss_sum_ || &buffer == loss_count_)
      if (Status status = zero(buffer); !status) return status;
  return {};
}

Status Session::begin_eval() {
  eval_samples_ = 0;
  if (Status status = zero(*eval_loss_); !status) return status;
  if (Status status = zero(*eval_count_); !status) return status;
  for (const PlanBuffer* buffer : eval_metrics_)
    if (buffer)
      if (Status status = zero(*buffer); !status) return status;
  return {};
}

Status Session::eval(InputBytes inputs, int64_t samples) {
  if (Status status = write_inputs(inputs, samples, true); !status) return status;
  eval_samples_ += samples;
  return device_.run(Program::eval, samples);
}

Status Session::end_eval(EvalReport& report) {
  float loss = 0;
  int32_t count = 0;
  if (Status status = read_scalar(eval_loss_, loss); !status) return status;
  if (Status status = read_scalar(eval_count_, count); !status) return status;
  report = {eval_samples_, count, static_cast<double>(loss) / count, {}};
  for (const PlanBuffer* buffer : eval_metrics_) {
    float sum = 0;
    if (buffer)
      if (Status status = read_scalar(buffer, sum); !status) return status;
    report.metrics.push_back(buffer ? static_cast<double>(sum) / count : std::exp(report.loss));
  }
  return {};
}

Status Session::set_lr(float lr) { return write_scalar(lr_, lr); }

Status Session::read_buffer(const PlanBuffer& buffer, std::vector<std::byte>& bytes) {
  bytes.resize(static_cast<size_t>(buffer.bytes));
  return device_.read(buffer.offset, bytes);
}

Status Session::write_buffer(const PlanBuffer& buffer, std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) != buffer.bytes)
    return Status::error("{} takes {} bytes, {} were given", buffer.name, buffer.bytes, bytes.size());
  return device_.write(buffer.offset, bytes);
}

Status Session::read_floats(const PlanBuffer& buffer, std::vector<float>& values) {
  values.resize(static_cast<size_t>(elements_of(buffer.shape)));
  return device_.read(buffer.offset, std::as_writable_bytes(std::span(values)));
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
    if (Status status = read_floats(*parameter.gradient, tensor.data); !status) return status;
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

Status Session::set_parameters(const std::vector<NamedTensor>& tensors, const std::string& source) {
  constexpr size_t kShown = 8;
  std::vector<std::string> problems;
  auto find = [&](const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(),
                        [&](const NamedTensor& tensor) { return tensor.name == name; });
  };
  for (const Parameter& parameter : parameters_) {
    const PlanBuffer& buffer = *parameter.buffer;
    auto found = find(buffer.name);
    if (found == tensors.end())
      problems.push_back(fmt::format("{} {} is missing", buffer.name, shape_text(buffer.shape)));
    else if (found->shape != buffer.shape)
      problems.push_back(fmt::format("{} is {} in the file, {} in the model", buffer.name,
                                     shape_text(found->shape), shape_text(buffer.shape)));
  }
  for (const NamedTensor& tensor : tensors) {
    const PlanBuffer* buffer = plan_.find(tensor.name);
    if (!buffer || !is_saved(*buffer))
      problems.push_back(fmt::format("the model has no {} {}", tensor.name, shape_text(tensor.shape)));
  }
  if (problems.size() > kShown) {
    size_t more = problems.size() - kShown;
    problems.resize(kShown);
    problems.push_back(fmt::format("and {} more", more));
  }
  if (!problems.empty())
    return Status::error("{} does not fit the model: {}", source, fmt::join(problems, "; "));
  std::vector<uint16_t> halves;
  for (const Parameter& parameter : parameters_) {
    const std::vector<float>& values = find(parameter.buffer->name)->data;
    Status status = device_.write(parameter.buffer->offset, std::as_bytes(std::span(values)));
    if (status && parameter.half) {
      const bool f16 = parameter.half->dtype == "f16";
      halves.resize(values.size());
      std::transform(values.begin(), values.end(), halves.begin(), f16 ? f16_bits : bf16_bits);
      status = device_.write(parameter.half->offset, std::as_bytes(std::span(halves)));
    }
    if (!status) return status;
  }
  return {};
}

}  // namespace gacc
