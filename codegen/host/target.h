// The host as a Target.
#pragma once
#include "codegen/emit/target.h"

namespace gacc::codegen {

// `lanes` floats a vector; `f16c`: the CPU converts f16.
std::unique_ptr<Target> make_host_target(llvm::Module& module, const Body& body, unsigned lanes, bool fma,
                                         bool f16c);

}  // namespace gacc::codegen
