// `gaccc --report FILE.html`: the plan of a model as one page that needs nothing else, for somebody who has
// never read a memory plan.
#pragma once
#include <string>
#include <vector>

#include "ir/module.h"
#include "passes/recompute.h"
#include "runtime/plan.h"

namespace gacc::report {

// The module is planned, and `plan` is its plan (the programs are not looked at). `curve`: what other budgets
// would cost; may be empty.
std::string report_page(const ir::Module& module, const Plan& plan, const passes::RecomputeReport& recompute,
                        const std::vector<passes::TradeOff>& curve);

}  // namespace gacc::report
