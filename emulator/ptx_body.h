// The body of a PTX function. Registers are made at their first use, so `.reg .b32 %r<1000>` costs nothing.
// Names of registers, labels and .param variables are local to their { }.
#pragma once
#include "emulator/ptx_reader.h"

namespace gacc::emulator {

// From `{` to its `}`: adds registers, variables (under names that are unique in the function) and
// statements.
void read_body(PtxReader& in, Function& function);

}  // namespace gacc::emulator
