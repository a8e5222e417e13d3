#include "runtime/run/open_device.h"

#include <dlfcn.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "runtime/cuda/cuda_device.h"
#include "runtime/plugin.h"

namespace gacc {
namespace {

constexpr Plugin kHost = {"the device plug-in", "libgacc-host.so", "gacc-cpu"};
constexpr Plugin kEmulator = {"the emulator", "libgacc-emu.so", "gacc"};

Result<std::unique_ptr<Device>> open_host(const DeviceOptions& options) {
  const LoadedPlugin plugin = GACC_TRY(load_plugin(kHost, "gacc_create_device", RTLD_LOCAL));
  const auto create = reinterpret_cast<gacc_create_device_fn>(plugin.entry);
  std::unique_ptr<Device> device(create == nullptr ? nullptr : create(kDeviceAbi, &options));
  if (!device) return plugin.outdated();
  return device;
}

// Returns true where a sign of NVIDIA is there, so that a missing driver is news.
bool wants_gpu() {
  return std::getenv("CUDA_VISIBLE_DEVICES") != nullptr || access("/dev/nvidiactl", F_OK) == 0 ||
         access("/proc/driver/nvidia", F_OK) == 0;
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(std::string_view choice, const DeviceOptions& options,
                                            const Artifact& artifact, std::string* note) {
  cuda::CudaOptions gpu{options};
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
    const bool no_driver =
        status.text().starts_with("no NVIDIA driver") && status.text().ends_with(" is not there)");
    if (note != nullptr && (wants_gpu() || !no_driver)) *note = status.text() + ": using the CPU";
  }
  return open_host(options);
}

}  // namespace gacc
