// Finds the machine to run on. The CPU is a plug-in (libgacc-host.so) that is loaded only when chosen, so that
// gacc-exec itself links no compiler; the CUDA device loads the driver, or the emulator, in the same way.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/device.h"

namespace gacc {

// Opens `choice`: "auto", "cpu", "cuda", "cuda:N" or "emulate", for `artifact`. auto is the first GPU that
// can run it, else the CPU; `note` then gets the reason, a line for the user.
Result<std::unique_ptr<Device>> open_device(std::string_view choice, const DeviceOptions& options,
                                            const Artifact& artifact, std::string* note = nullptr);

}  // namespace gacc
