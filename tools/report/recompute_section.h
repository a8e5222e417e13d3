// What the plan computes twice to save memory, and what other budgets would cost.
#pragma once
#include <string>

#include "ir/module.h"

namespace gacc::report {

std::string recompute_html(const ir::Module& module);

}  // namespace gacc::report
