// `gaccc --report FILE.html`: the plan of a model as one page that needs nothing else, for somebody who has
// never read a memory plan.
#pragma once
#include <string>

#include "ir/module.h"
#include "runtime/plan.h"

namespace gacc::report {

// The module is planned, and `plan` is its plan (the programs are not looked at).
std::string report_page(const ir::Module& module, const Plan& plan);

}  // namespace gacc::report
