// `gacc-exec --profile F.json`: what a device measured, as a Chrome trace (chrome://tracing, Perfetto).
#pragma once
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/plan.h"

namespace gacc {

// One JSON object. `traceEvents`: a complete event ("X") for each launch: `name`, `cat` "kernel", `ts` and
// `dur`, `args` {`program`, `launch`: its number in the program, `samples`}; and one around all launches of a
// program's run, `cat` "program". `kernels`: for each launch of each program, `name`, `program`, `launch`,
// `calls` and the mean `microseconds` of full micro-batches. `otherData`: `model`, `device`, `micro_batch`,
// and `unit`: what ts, dur and microseconds really count, where a device has no clock (the emulator).
std::string profile_text(const Plan& plan, const Device& device, const std::vector<Timing>& timings);

}  // namespace gacc
