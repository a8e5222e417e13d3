// Finds the machine to run on. The CPU is a plug-in (libgacc-host.so) that sits beside the executable and is
// loaded only when chosen, so that gacc-exec itself links no compiler; the CUDA device loads the driver, or
// the emulator beside the executable, in the same way.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/device.h"

namespace gacc {

// Opens `choice`: "auto", "cpu", "cuda", "cuda:N" or "emulate", for `artifact`. auto is the first GPU that
// can run it, else the CPU; `note` then says why, in a line for the user, and is empty otherwise.
Status open_device(std::string_view choice, const DeviceOptions& options, const Artifact& artifact,
                   std::unique_ptr<Device>& device, std::string& note);

// Loads FOLDER/FILE, which stays loaded until the process ends, and asks it for a device.
Status load_plugin(const std::string& folder, const std::string& file, const DeviceOptions& options,
                   std::unique_ptr<Device>& device);

// The folder of the running executable.
std::string executable_folder();

}  // namespace gacc
