// docs/ops.md, printed from the op table.
#pragma once
#include <string>

namespace gacc::ir {

std::string ops_markdown();

}  // namespace gacc::ir
