// Whether an artifact's plan says what its IR says. A checksum tells of accidents; a plan that was made or
// changed by hand has a right one. The plan is written anew from the IR by the code that gaccc writes it
// with, and the two are compared field by field, so that none is forgotten. No LLVM here: gacc-exec compares,
// whatever the device.
#pragma once
#include <string_view>

#include "ir/module.h"
#include "runtime/artifact.h"

namespace gacc {

// Names the first field of the plan that the IR contradicts, in one sentence that begins with `name`. Of
// `bytes` only the peak is compared, of `target` that the PTX is for it, `passes` not at all.
Status compare_plan(const ir::Module& module, const Artifact& artifact, std::string_view name);

// The same for the programs, which compare_plan leaves out: GPUs and the emulator launch them, the CPU has
// those of the IR. What only saves time may be missing: merged kernels, the bias and the workspace of a
// library. The grid of a merged kernel may be any, as its blocks take turns.
Status compare_programs(const ir::Module& module, const Artifact& artifact, std::string_view name);

// What a checksum does not tell: whether the IR is valid, whether its values have places of their own in the
// arena, and whether the plan says what the IR says. The plan's programs are left to who launches them.
// The artifact's module.
Result<ir::Module> check_artifact(const Artifact& artifact, const std::string& name);

}  // namespace gacc
