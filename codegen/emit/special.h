// Kernels of their own (kernels/special.h): their loop nests, by the op's name.
#pragma once
#include "kernels/special.h"

namespace gacc::codegen {

using namespace kernels;

class Target;

// Emits the body of the function between Target::begin and Target::end, by target.body.special. False when
// there is no emitter, which is a bug.
bool emit_special(Target& target);

}  // namespace gacc::codegen
