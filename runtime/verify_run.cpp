// See verify_run.h.
#include "runtime/verify_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/plugin.h"

namespace gacc {
namespace {

constexpr int kMostTries = 64;  // halvings of a loss scale: from 2^24 down to 2^-40

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

}  // namespace

Status Bench::open() {
  device_ = GACC_TRY(open_device(options_.device, options_.device_options, artifact_));
  session_ = std::make_unique<Session>(*device_, artifact_.plan);
  GACC_TRY(session_->open(artifact_));
  GACC_TRY(session_->init(options_.seed, static_cast<float>(options_.lr)));
  return options_.loaded ? options_.loaded->write(*session_) : Status();
}

Result<WindowOutcome> Bench::window(const Dataset& data, std::span<const int64_t> order,
                                    std::span<const int64_t> sizes) {
  const Plan& plan = artifact_.plan;
  std::vector<std::vector<std::byte>> bytes(plan.inputs.size());
  size_t done = 0;
  for (const int64_t size : sizes) {
    if (options_.interrupted && options_.interrupted()) return Status::error("interrupted");
    const std::span<const int64_t> samples = order.subspan(done, static_cast<size_t>(size));
    std::vector<std::span<const std::byte>> inputs;
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      bytes[i].resize(static_cast<size_t>(size * elements_of(plan.inputs[i].shape)) * 4);  // f32 and i32
      GACC_TRY(data.gather(i, plan.inputs[i], samples, bytes[i]));
      inputs.emplace_back(bytes[i]);
    }
    GACC_TRY(session_->step(inputs, size));
    done += static_cast<size_t>(size);
  }
  WindowOutcome outcome;
  outcome.gradients = GACC_TRY(session_->mean_gradients());
  outcome.report = GACC_TRY(session_->update());
  outcome.parameters = GACC_TRY(session_->parameters());
  return outcome;
}

Status Bench::set_scale(float scale) {
  if (scale == 0) return {};
  return session_->write_state("loss.scale", scale);
}

Result<float> Bench::settle(const Dataset& data, std::span<const int64_t> order,
                            std::span<const int64_t> sizes) {
  if (!artifact_.plan.find("loss.scale")) return 0;
  for (int tries = 0; tries < kMostTries; ++tries) {
    const float scale = GACC_TRY(session_->read_state<float>("loss.scale"));
    GACC_TRY(session_->set_ordinal(0));  // with the same masks each time
    const WindowReport report = GACC_TRY(window(data, order, sizes)).report;
    if (report.applied || report.sums.count == 0) return scale;  // without a count, at any scale
  }
  return Status::error("no loss scale was found with which the gradient is finite");
}

Status Bench::close() {
  std::string reports;
  const Status status = device_->finish(reports);
  return status || reports.empty() ? status : Status::error("{}\n{}", status.text(), reports);
}

std::vector<Deviation> deviations(const std::vector<NamedTensor>& got,
                                  const std::vector<NamedTensor>& reference, double floor) {
  double all = 0;
  for (const NamedTensor& tensor : reference) all += std::pow(norm_of(tensor.data), 2);
  all = std::sqrt(all);
  std::vector<Deviation> result;
  for (size_t t = 0; t < reference.size(); ++t) {
    const std::vector<float>&a = got[t].data, &b = reference[t].data;
    double difference = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const double apart = static_cast<double>(a[i]) - b[i];
      difference += apart * apart;
    }
    difference = std::sqrt(difference);
    const double size = std::max(norm_of(b), floor * all);
    const double relative = difference == 0 ? 0 : difference / size;
    result.push_back(
        {reference[t].name, std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity()});
  }
  return result;
}

void keep_largest(std::vector<Deviation>& so_far, const std::vector<Deviation>& more) {
  if (so_far.empty()) so_far = more;
  for (size_t i = 0; i < std::min(so_far.size(), more.size()); ++i)
    so_far[i].value = std::max(so_far[i].value, more[i].value);
}

}  // namespace gacc
