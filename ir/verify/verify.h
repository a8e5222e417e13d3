// The verifier: checks the numbered rules of docs/ir.md that hold in the module's phase.
#pragma once
#include "ir/module.h"

namespace gacc::ir {

// Reports every broken rule, as "R7: ...", at the op's location. True when there is none.
[[nodiscard]] bool verify(const Module& module, Diag& diag);

// Checks R17 before it must hold, of a verified module in phase `model` that a user wrote.
[[nodiscard]] bool verify_data(const Module& module, Diag& diag);

}  // namespace gacc::ir
