// The schedules of the rate: rate_schedules.def names them, ir/ops/schedule.cpp defines each, its keys beside
// its op.
#pragma once
#include "ir/schema/key.h"

namespace gacc::ir {

namespace rates {
#define X(name) extern const TypeSchema name;
#include "ir/schema/rate_schedules.def"
}  // namespace rates

// Returns true for schedule.total = "run": the runtime writes @run.total and @run.warmup.
bool follows_run(const Settings& settings);

std::vector<const TypeSchema*> all_rate_schedules();  // in the order of rate_schedules.def

}  // namespace gacc::ir
