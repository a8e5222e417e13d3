// The rule of what the runtime takes from the settings, R28 of docs/ir.md.
#pragma once
#include "ir/schedule/verify_schedule.h"

namespace gacc::ir {

// Calls broken("R28", place, sentence) for each setting of a planned module that the runtime could not follow. The
// rest of the module is valid.
void verify_settings(const Module& module, const Broken& broken);

}  // namespace gacc::ir
