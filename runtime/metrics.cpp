// See metrics.h.
#include "runtime/metrics.h"

#include <algorithm>
#include <cmath>

namespace gacc {

const Metric* find_metric(std::string_view name) {
  static constexpr Metric metrics[] = {{"accuracy", true}, {"perplexity"}, {"mae"}, {"rmse"}, {"r2", true}};
  const auto* found = std::find_if(std::begin(metrics), std::end(metrics),
                                   [&](const Metric& metric) { return metric.name == name; });
  return found == std::end(metrics) ? nullptr : found;
}

bool larger_is_better(std::string_view name) {
  const Metric* metric = find_metric(name);
  return metric != nullptr && metric->larger_is_better;
}

double metric_value(std::string_view name, const MetricSums& sums, double loss) {
  const double mean = sums.sum / sums.count;
  if (name == "perplexity") return std::exp(loss);
  if (name == "rmse") return std::sqrt(mean);
  // 1 - sum((x - y)^2) / sum((y - mean(y))^2)
  if (name == "r2") return 1 - sums.sum / (sums.squares - sums.targets * sums.targets / sums.count);
  return mean;
}

}  // namespace gacc
