// The plan's record of recompute.
#pragma once
#include "codegen/plan_writer.h"
#include "passes/recompute.h"

namespace gacc {

inline PlanRecompute plan_recompute(const passes::RecomputeReport& report) {
  return {report.policy, report.recomputed_ops, report.extra_flops, report.overhead,
          report.overhead_lower_bound};
}

}  // namespace gacc
