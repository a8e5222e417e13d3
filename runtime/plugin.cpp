// Loads device plug-ins with dlopen, and looks for an NVIDIA driver without linking one.
#include "runtime/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>

namespace gacc {
namespace {

constexpr const char* kHostPlugin = "libgacc-host.so";
constexpr const char* kEntry = "gacc_create_device";

// Whether libcuda.so.1 is there and its cuInit succeeds. (The toolkit's stub library fails in cuInit.)
bool nvidia_driver_works() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return false;
  using Init = int (*)(unsigned);
  auto init = reinterpret_cast<Init>(dlsym(library, "cuInit"));
  return init && init(0) == 0;
}

}  // namespace

std::string executable_folder() {
  std::array<char, 4096> path;
  ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return ".";
  std::string_view text(path.data(), static_cast<size_t>(length));
  size_t slash = text.rfind('/');
  return slash == std::string_view::npos ? "." : std::string(text.substr(0, slash));
}

Status load_plugin(const std::string& folder, const std::string& file, const DeviceOptions& options,
                   std::unique_ptr<Device>& device) {
  std::string path = folder + "/" + file;
  if (access(path.c_str(), F_OK) != 0)
    return Status::error("the device plug-in {} is missing: it belongs beside the executable, in {}", file,
                         folder);
  // Never closed: a device's code must outlive every object it made, and LLVM does not like to be unloaded.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return Status::error("cannot load the device plug-in {}: {}", path, dlerror());
  auto create = reinterpret_cast<gacc_create_device_fn>(dlsym(library, kEntry));
  if (!create) return Status::error("{} is not a gacc device plug-in: it has no {}", path, kEntry);
  device.reset(create(kDeviceAbi, &options));
  if (!device)
    return Status::error(
        "{} was built for another version of gacc (its interface is not {}): rebuild or reinstall it", path,
        kDeviceAbi);
  return {};
}

Status open_device(std::string_view choice, const DeviceOptions& options, std::unique_ptr<Device>& device,
                   std::string& note) {
  note.clear();
  if (choice == "emulate") return Status::error("--device emulate is not supported yet");
  if (choice.substr(0, 4) == "cuda")
    return Status::error("--device {} is not supported yet; use --device cpu", choice);
  if (choice == "auto")
    note = nvidia_driver_works() ? "GPUs are not supported yet: using the CPU"
                                 : "no NVIDIA driver: using the CPU";
  return load_plugin(executable_folder(), kHostPlugin, options, device);
}

}  // namespace gacc
