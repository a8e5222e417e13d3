// The plug-in libgacc-host.so: the Device interface over the host engine. Programs run on the caller's thread
// and the pool before `run` returns; an error of a run is kept for the next `read`, as the interface says.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <exception>

#include "codegen/host/engine.h"
#include "codegen/host/primitive.h"

namespace gacc::host {

namespace {

// Identifies this build of the plug-in: version, and size and time of the file this code was loaded from.
std::string build_id() {
  Dl_info info{};
  struct stat file {};
  if (dladdr(reinterpret_cast<const void*>(&build_id), &info) == 0 || info.dli_fname == nullptr ||
      stat(info.dli_fname, &file) != 0)
    return GACC_VERSION;
  return fmt::format("{} {} {}.{}", GACC_VERSION, file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
}

// Returns what a half type costs that this CPU does not multiply; else "".
std::string precision_note(gacc::DType type) {
  if (type == gacc::DType::f32 || (type == gacc::DType::bf16 && multiplies_bf16())) return "";
  return fmt::format(
      "this CPU multiplies no {0}: what the step keeps in {0} is converted to f32 for products and back, "
      "which takes about 1.3 times as long as f32 alone (gaccc --set precision.compute=f32, of more memory)",
      gacc::dtype_text(type));
}

class HostDevice final : public Device {
 public:
  explicit HostDevice(int threads) : engine_(threads) {}

  std::string name() const override {
    return fmt::format("cpu ({}, {})", counted(engine_.threads(), "thread"), codegen::host_vectors());
  }

  std::string alike() const override { return fmt::format("a CPU with {}", codegen::host_vectors()); }
  std::span<std::byte> host_memory(int64_t offset, int64_t bytes) override {
    return std::as_writable_bytes(engine_.memory(offset, bytes));
  }
  void run_tasks(int64_t tasks, void (*task)(const void*, int64_t), const void* context) override {
    engine_.run_tasks(tasks, task, context);
  }
  bool takes_every_core() const override { return engine_.threads() >= usable_cores(); }

  Status load(const Artifact& artifact) override {
    try {
      if (Status status = engine_.load(artifact.ir, Cache::open(), build_id()); !status) return status;
    } catch (const std::exception& error) {  // out of memory, threads or file handles: nothing of ours throws
      return Status::error("the host device cannot load the artifact: {}", error.what());
    }
    note_ = precision_note(artifact.plan.precision);
    return {};
  }
  std::string load_note() const override { return note_; }

  Status run(Program program, int64_t batch) override {
    if (engine_.arena().data() == nullptr) return Status::error("internal error: run before load");
    if (const Status status = engine_.run(program, batch); !status && failure_) failure_ = status;
    return {};
  }

  Status run_init(std::span<const PlanBuffer* const> given) override {
    if (engine_.arena().data() == nullptr) return Status::error("internal error: run before load");
    if (const Status status = engine_.run_init(given); !status && failure_) failure_ = status;
    return {};
  }

  Status write(int64_t offset, std::span<const std::byte> bytes) override {
    const std::span<std::byte> to = host_memory(offset, std::ssize(bytes));
    if (to.data() == nullptr) return outside(offset, bytes.size());
    std::copy_n(bytes.data(), bytes.size(), to.data());  // of pointers: ranges::copy would go byte by byte
    return {};
  }

  Status read(int64_t offset, std::span<std::byte> bytes) override {
    if (!failure_) return failure_;
    const std::span<std::byte> from = host_memory(offset, std::ssize(bytes));
    if (from.data() == nullptr) return outside(offset, bytes.size());
    std::copy_n(from.data(), from.size(), bytes.data());
    return {};
  }

  Status start_profile() override {
    engine_.start_profile();
    return {};
  }
  Status read_profile(std::vector<Timing>& timings) override {
    timings = engine_.timings();
    return failure_;
  }

  int64_t peak_bytes() const override { return engine_.arena().bytes(); }

 private:
  Status outside(int64_t offset, size_t bytes) const {
    return Status::error("internal error: {} bytes at {} are outside the arena of {}", bytes, offset,
                         engine_.arena().bytes());
  }

  HostEngine engine_;
  Status failure_;
  std::string note_;
};

}  // namespace
}  // namespace gacc::host

extern "C" __attribute__((visibility("default"))) gacc::Device* gacc_create_device(
    int abi, const gacc::DeviceOptions* options) {
  if (abi != gacc::kDeviceAbi || options == nullptr) return nullptr;
  try {
    return new gacc::host::HostDevice(options->threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}
