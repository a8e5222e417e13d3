// See metrics.h.
#include "runtime/metrics.h"

#include <cmath>

namespace gacc {

bool larger_is_better(std::string_view name) { return name == "accuracy" || name == "r2"; }

double metric_value(std::string_view name, const MetricSums& sums, double loss) {
  const double mean = sums.sum / sums.count;
  if (name == "perplexity") return std::exp(loss);
  if (name == "rmse") return std::sqrt(mean);
  // 1 - sum((x - y)^2) / sum((y - mean(y))^2)
  if (name == "r2") return 1 - sums.sum / (sums.squares - sums.targets * sums.targets / sums.count);
  return mean;
}

}  // namespace gacc
