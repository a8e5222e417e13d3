// Finds the machine to run on. Devices are plug-ins (libgacc-host.so, ...) that sit beside the executable and
// are loaded only when chosen, so that gacc-exec itself links no compiler and no GPU library.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/device.h"

namespace gacc {

// Opens `choice`: "auto", "cpu", "cuda", "cuda:N" or "emulate". `note` is a line for the user when auto had
// to choose something else than a GPU, else empty.
Status open_device(std::string_view choice, const DeviceOptions& options, std::unique_ptr<Device>& device,
                   std::string& note);

// Loads FOLDER/FILE, which stays loaded until the process ends, and asks it for a device.
Status load_plugin(const std::string& folder, const std::string& file, const DeviceOptions& options,
                   std::unique_ptr<Device>& device);

// The folder of the running executable.
std::string executable_folder();

}  // namespace gacc
