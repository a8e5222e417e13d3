// A GPU as a Target.
#pragma once
#include "codegen/emit/target.h"

namespace gacc::codegen {

// GpuTarget(0), in tests: one without any instruction for half types.
std::unique_ptr<Target> make_nvptx_target(llvm::Module& module, const Body& body, const GpuTarget& gpu);

}  // namespace gacc::codegen
