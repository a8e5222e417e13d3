#include "runtime/cuda/cuda_driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "runtime/cuda/libraries.h"

namespace gacc::cuda {

Status Driver::open(const std::string& path) {
  // Never closed: the driver starts threads and handlers of its own.
  library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    if (path.find('/') == std::string::npos) return Status::error("no NVIDIA driver ({} is not there)", path);
    return Status::error("cannot load {}: {}", path, dlerror());
  }
  Symbols symbols(library);
#define GACC_CUDA_FIND(member, symbol, parameters) symbols.find(member, #symbol);
  GACC_CUDA_FUNCTIONS(GACC_CUDA_FIND)
#undef GACC_CUDA_FIND
  if (!init) return Status::error("{} is no NVIDIA driver: it has no cuInit", path);
  if (const int error = init(0); error != 0) {
    if (error == kErrorNoDevice || !error_name || !error_string)
      return Status::error("the NVIDIA driver finds no GPU");
    if (error == kErrorStubLibrary)
      return Status::error("no NVIDIA driver ({} is the CUDA toolkit's stub library)", path);
    return check(error, "the NVIDIA driver does not start");
  }
  if (symbols.missing() == nullptr) return {};
  int version = 0;
  if (driver_version) driver_version(&version);
  return Status::error(
      "the NVIDIA driver is too old: it supports CUDA {} and has no {}; gacc needs 11.4 or newer",
      version_text(version), symbols.missing());
}

Status Driver::check(int error, std::string_view what) const {
  if (error == 0) return {};
  const char *name = nullptr, *text = nullptr;
  if (error_name(error, &name) != 0 || !name) return Status::error("{}: error {} of the driver", what, error);
  if (error_string(error, &text) != 0 || !text) return Status::error("{}: {}", what, name);
  return Status::error("{}: {} ({})", what, name, text);
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

int driver_for_ptx(std::string_view ptx, std::string& shown) {
  // The ISA versions and the CUDA release that brought each, from the release notes of the PTX ISA.
  using Release = std::pair<std::string_view, int>;
  static constexpr Release kReleases[] = {
      {"6.0", 9000},  {"6.1", 9010},  {"6.2", 9020},  {"6.3", 10000}, {"6.4", 10010},
      {"6.5", 10020}, {"7.0", 11000}, {"7.1", 11010}, {"7.2", 11020}, {"7.3", 11030},
      {"7.4", 11040}, {"7.5", 11050}, {"7.6", 11060}, {"7.7", 11070}, {"7.8", 11080},
      {"8.0", 12000}, {"8.1", 12010}, {"8.2", 12020}, {"8.3", 12030}, {"8.4", 12040},
      {"8.5", 12050}, {"8.6", 12070}, {"8.7", 12080}, {"8.8", 12090}, {"9.0", 13000}};
  const size_t line = ptx.starts_with(".version") ? 0 : ptx.find("\n.version");
  if (line == std::string_view::npos) return 0;
  ptx.remove_prefix(std::min(ptx.find_first_of("0123456789", line), ptx.size()));
  shown = ptx.substr(0, ptx.find_first_not_of("0123456789."));
  const auto* const release = std::ranges::find(kReleases, shown, &Release::first);
  return release == std::end(kReleases) ? 0 : release->second;
}

}  // namespace gacc::cuda
