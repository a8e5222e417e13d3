// Rules of a launch that is to fill its GPU. None needs a clock: they compare what a launch asks for with
// what the machine has (docs/gpu.md, "Rules"). C1 to C11 as listed there.
#pragma once
#include <string>
#include <vector>

#include "kernels/launch_work.h"
#include "tests/kernels/scheduled_model.h"

namespace gacc {

struct Break {
  std::string rule;    // "C1"
  std::string kernel;  // the stem of its name, or "product"
  std::string why;     // with figures
};

// What the step's launches break. `doubled`: the same model at twice the micro-batch.
std::vector<Break> broken_rules(const ScheduledModel& model, const ScheduledModel& doubled,
                                const kernels::Machine& machine);

}  // namespace gacc
