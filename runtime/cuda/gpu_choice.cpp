#include "runtime/cuda/gpu_choice.h"

#include <array>
#include <charconv>
#include <utility>
#include <vector>

namespace gacc::cuda {
namespace {

Status describe(const Driver& driver, int ordinal, Gpu& gpu) {
  gpu.ordinal = ordinal;
  std::array<char, 256> name{};
  int major = 0, minor = 0;
  int error = driver.device_get(&gpu.handle, ordinal);
  if (!error) error = driver.device_name(name.data(), static_cast<int>(name.size()) - 1, gpu.handle);
  if (!error) error = driver.device_attribute(&major, kAttributeMajor, gpu.handle);
  if (!error) error = driver.device_attribute(&minor, kAttributeMinor, gpu.handle);
  gpu.name = name.data();
  gpu.capability = major * 10 + minor;
  return driver.check(error, fmt::format("cannot ask about GPU {}", ordinal));
}

}  // namespace

bool runs_on(std::string_view target, int capability) {
  if (target.substr(0, 3) != "sm_") return false;
  target.remove_prefix(3);
  int wanted = 0;
  const auto [end, bad] = std::from_chars(target.data(), target.data() + target.size(), wanted);
  if (bad != std::errc()) return false;
  const std::string_view letter = target.substr(static_cast<size_t>(end - target.data()));
  if (letter == "a") return capability == wanted;
  if (letter == "f") return capability / 10 == wanted / 10 && capability >= wanted;
  return letter.empty() && capability >= wanted;
}

Status too_little_memory(const Gpu& gpu, int64_t needed, int64_t free) {
  return Status::error("GPU {} ({}) has too little memory: the artifact needs {} bytes, {} are free",
                       gpu.ordinal, gpu.name, needed, free);
}

Status lock_host_memory(const Driver& driver, int64_t bytes, std::byte*& memory) {
  const auto lock = [&](int64_t size) { return driver.lock_host(memory, static_cast<size_t>(size)); };
  const int error = lock(bytes);
  if (error == 0) return {};
  int64_t fits = 0;  // to a sixteenth
  for (int64_t step = bytes / 2; step > bytes / 32; step /= 2) {
    if (lock(fits + step) != 0) continue;
    driver.host_release(std::exchange(memory, nullptr));
    fits += step;
  }
  return Status::error(
      "cannot lock {} bytes of the host's memory for optimizer state{}; {} can be locked: compile it with a "
      "memory.host of at most that, or with a larger memory.budget, with which less lies there",
      bytes, driver.check(error, "").text(), fits);
}

Status choose_gpu(const Driver& driver, int ordinal, int local_rank, bool emulated, const Artifact& artifact,
                  Gpu& gpu) {
  // 1. The driver.
  int version = 0, count = 0;
  GACC_TRY(driver.check(driver.driver_version(&version), "cannot ask for the driver's version"));
  gpu.driver_version = version;
  std::string ptx;
  const int wanted = driver_for_ptx(artifact.ptx, ptx);
  if (version < wanted && !emulated)
    return Status::error(
        "the NVIDIA driver is too old: the artifact is PTX {}, which needs CUDA {}; the driver supports CUDA "
        "{}",
        ptx, version_text(wanted), version_text(version));
  if (const int error = driver.device_count(&count); error != 0 && error != kErrorNoDevice)
    return driver.check(error, "cannot ask for the number of GPUs");
  if (count == 0) return Status::error("the NVIDIA driver finds no GPU");
  // 2. The GPU.
  if (ordinal >= count)
    return Status::error("there is no GPU {}: this machine has {}, numbered from 0", ordinal, count);
  const std::string& target = artifact.plan.target;
  std::string below;
  std::vector<int> able;
  for (int i = ordinal < 0 ? 0 : ordinal; i < (ordinal < 0 ? count : ordinal + 1); ++i) {
    GACC_TRY(describe(driver, i, gpu));
    if (emulated || runs_on(target, gpu.capability)) {
      able.push_back(i);
      if (local_rank < static_cast<int>(able.size())) return {};
      continue;
    }
    if (!below.empty()) below += "; ";
    below += fmt::format("GPU {} ({}) has compute capability {}.{}", i, gpu.name, gpu.capability / 10,
                         gpu.capability % 10);
  }
  if (!able.empty()) return describe(driver, able[static_cast<size_t>(local_rank) % able.size()], gpu);
  return Status::error("{}, which cannot run an artifact for {}; compile it with --target for this GPU",
                       below, target);
}

}  // namespace gacc::cuda
