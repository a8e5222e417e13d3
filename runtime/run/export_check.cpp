#include "runtime/run/export_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/run/begin.h"
#include "runtime/run/predict.h"
#include "runtime/weights/adapters.h"

namespace gacc {
namespace {

constexpr double kFullBound = 1e-6, kHalfBound = 0x1p-7;
constexpr uint64_t kOtherSeed = 0x9e3779b97f4a7c15;  // what a file lacks must not be what the run began with

// Returns whether numbers of the files were rounded when they were written.
bool is_rounded(const std::vector<StoredTensor>& tensors) {
  return std::ranges::any_of(tensors, [](const StoredTensor& tensor) { return tensor.dtype != "F32"; });
}

double relative_difference(const std::vector<float>& ours, const std::vector<float>& theirs) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double each = std::abs(static_cast<double>(ours[i]) - theirs[i]);
    if (!std::isfinite(each)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, each);
    largest = std::max(largest, std::abs(static_cast<double>(ours[i])));
  }
  return difference == 0 ? 0 : difference / largest;
}

}  // namespace

Result<std::vector<float>> first_outputs(Session& session, const Plan& plan, const Dataset& data,
                                         int64_t most) {
  std::vector<float> outputs;
  GACC_TRY(each_output(session, plan, data, std::min(most, data.samples),
                       [&](int64_t, std::span<float> some) -> Result<bool> {
                         outputs.insert(outputs.end(), some.begin(), some.end());
                         return true;
                       }));
  return outputs;
}

Result<ExportCheck> check_export(Session& session, const Plan& plan, const Dataset& data,
                                 const SaveForm& written, const Weights* base,
                                 const std::vector<float>& outputs) {
  Weights weights;
  Adapter adapter;
  if (written.adapter)
    GACC_TRY(adapter.open(written.path, plan));
  else
    GACC_TRY(weights.open(written.path, plan));
  const Weights* const from = written.adapter ? base : &weights;
  const uint64_t seed =
      static_cast<uint64_t>(plan.seed) ^ (written.adapter && base == nullptr ? 0 : kOtherSeed);
  GACC_TRY(
      begin(session, plan,
            {.seed = seed, .lr = plan.lr, .weights = from, .adapter = written.adapter ? &adapter : nullptr}));
  const int64_t samples = std::ssize(outputs) / std::max<int64_t>(elements_of(plan.predict.shape), 1);
  const std::vector<float> theirs = GACC_TRY(first_outputs(session, plan, data, samples));
  const bool half =
      plan.precision != DType::f32 || is_rounded(written.adapter ? adapter.tensors() : weights.tensors());
  return ExportCheck{.file = written.path,
                     .samples = samples,
                     .difference = relative_difference(outputs, theirs),
                     .bound = half ? kHalfBound : kFullBound};
}

}  // namespace gacc
