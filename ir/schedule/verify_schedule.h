// The rules of the schedule, R18 to R24 of docs/ir.md.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "ir/module.h"

namespace gacc::ir {

// Calls broken(rule, place, sentence) for each rule that the schedule of a region breaks. The rest of the
// region is valid, and the module is scheduled.
using Broken = std::function<void(std::string_view rule, const Location& at, const std::string& what)>;
void verify_schedule(const Module& module, const Region& region, const Broken& broken);

}  // namespace gacc::ir
