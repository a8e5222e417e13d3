// What an evaluation can measure besides the loss: its sums come from the program `eval`.
#pragma once
#include <string_view>

namespace gacc {

// Whether a larger value of the metric or the loss is the better one.
bool larger_is_better(std::string_view name);

// What eval has summed: over `count` elements, the metric's own sum, and of r2 also the targets (less a
// number that is the same for all) and their squares.
struct MetricSums {
  double count = 0, sum = 0, targets = 0, squares = 0;
};
// `loss`: the evaluation's mean. Not finite where there is no such number, as r2 of targets that are all the
// same.
double metric_value(std::string_view name, const MetricSums& sums, double loss);

}  // namespace gacc
