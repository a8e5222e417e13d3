// The choice of a device. Devices but for GPUs are plug-ins, loaded with dlopen.
#include "runtime/run/open_device.h"

#include <dlfcn.h>

#include <charconv>

#include "runtime/cuda/cuda_device.h"
#include "runtime/plugin.h"

namespace gacc {
namespace {

constexpr const char* kEntry = "gacc_create_device";

constexpr Plugin kHost = {"the device plug-in", "libgacc-host.so", "gacc-cpu"};
constexpr Plugin kEmulator = {"the emulator", "libgacc-emu.so", "gacc"};

// Loads `path`, which stays loaded until the process ends, and asks it for a device.
Result<std::unique_ptr<Device>> load_device(const std::string& path, const DeviceOptions& options) {
  // Never closed: a device's code must outlive every object it made, and LLVM does not like to be unloaded.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return Status::error("cannot load the device plug-in {}: {}", path, dlerror());
  auto create = reinterpret_cast<gacc_create_device_fn>(dlsym(library, kEntry));
  if (!create) return Status::error("{} is not a gacc device plug-in: it has no {}", path, kEntry);
  std::unique_ptr<Device> device(create(kDeviceAbi, &options));
  if (!device)
    return Status::error("{} was built for another version of gacc: rebuild or reinstall it", path);
  return device;
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(std::string_view choice, const DeviceOptions& options,
                                            const Artifact& artifact, std::string* note) {
  cuda::Options gpu{options};
  gpu.emulated = choice == "emulate";
  if (gpu.emulated) gpu.driver = GACC_TRY(find_plugin(kEmulator));
  if (choice.starts_with("cuda:")) {
    const char* end = choice.data() + choice.size();
    const auto [stop, bad] = std::from_chars(choice.data() + 5, end, gpu.ordinal);
    if (bad != std::errc() || stop != end || gpu.ordinal < 0)
      return Status::error("--device {}: expected cuda:N", choice);
  }
  if (choice != "cpu") {
    std::unique_ptr<Device> device;
    const Status status = cuda::open_device(gpu, artifact, device);
    if (status) return device;
    if (choice != "auto") return status;
    if (note != nullptr) *note = status.text() + ": using the CPU";
  }
  return load_device(GACC_TRY(find_plugin(kHost)), options);
}

}  // namespace gacc
