// Modules, functions and launches: PTX text in, kernels out; a refused text leaves its reason in the caller's
// JIT log. Parameter values are copied when a launch is issued, also while capturing, as the driver does.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "emulator/driver.h"

using namespace gacc::emulator;

namespace {

constexpr int kErrorLog = 5, kErrorLogBytes = 6;  // CU_JIT_ERROR_LOG_BUFFER and its size
constexpr int kMaxThreads = 0;                    // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK

void write_log(const std::string& text, unsigned count, const int* options, void** values) {
  char* log = nullptr;
  size_t bytes = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == kErrorLog) log = static_cast<char*>(values[i]);
    if (options[i] == kErrorLogBytes) bytes = reinterpret_cast<uintptr_t>(values[i]) & 0xffffffffu;
  }
  copy_text(text, log, bytes);
}

const KernelInfo& info_of(CUfunc_st* function) { return reinterpret_cast<const Kernel*>(function)->info; }

// Most dynamic shared memory of a launch, besides what the kernel declares; a kernel could ask for more, none of ours
// does.
constexpr unsigned kDynamicShared = 48 * 1024;

// GACC_EMU_COUNTS=FILE: a line for every launch.
void write_counts(const std::string& kernel, const Dim3& grid, const Dim3& block, const LaunchCounts& of) {
  static const char* path = std::getenv("GACC_EMU_COUNTS");
  if (path == nullptr) return;
  std::ofstream(path, std::ios::app) << fmt::format(
      "{} blocks={} threads={} instructions={} longest={} barriers={} loads={} loaded={} copies={} copied={} "
      "stores={} stored={}\n",
      kernel, grid.count(), block.count(), of.instructions, of.longest_warp, of.barriers, of.loads,
      of.loaded_bytes, of.copies, of.copied_bytes, of.stores, of.stored_bytes);
}

int launch(CUfunc_st* function, Dim3 grid, Dim3 block, unsigned shared, CUstream_st* stream, void** params,
           bool cooperative) {
  if (!function) return kInvalidHandle;
  const Kernel* kernel = reinterpret_cast<const Kernel*>(function);
  std::vector<uint8_t> values(static_cast<size_t>(kernel->info.param_bytes));
  for (size_t i = 0; i < kernel->info.params.size(); ++i) {
    const KernelParam& param = kernel->info.params[i];
    if (!params || !params[i]) return kInvalidValue;
    std::memcpy(values.data() + param.offset, params[i], static_cast<size_t>(param.bytes));
  }
  if (shared > kDynamicShared) return kInvalidValue;
  return submit(stream, [=] {
    Emulator& emulator = device().emulator;
    const gacc::Status status = emulator.launch(*kernel, grid, block, shared, values, cooperative);
    if (!status) {
      device().last_error = status.text();
      return static_cast<int>(cooperative ? kCooperativeTooLarge : kInvalidValue);
    }
    write_counts(kernel->info.name, grid, block, emulator.last());
    for (const Report& report : emulator.reports())  // these end a kernel; it left its work half done
      if (report.defect == Defect::deadlock || report.defect == Defect::endless ||
          report.defect == Defect::trap)
        return static_cast<int>(kLaunchFailed);
    return static_cast<int>(kSuccess);
  });
}

}  // namespace

GACC_DRIVER_EXPORT int cuModuleLoadDataEx(CUmod_st** module, const void* image, unsigned count, int* options,
                                          void** values) {
  const std::lock_guard lock(device().mutex);
  if (!module || !image) return kInvalidValue;
  auto loaded = std::make_unique<CUmod_st>();
  const gacc::Status status = device().emulator.load(static_cast<const char*>(image), loaded->module);
  if (!status) {
    write_log(status.text(), count, options, values);
    return kInvalidPtx;
  }
  *module = loaded.release();
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuModuleUnload(CUmod_st* module) {
  const std::lock_guard lock(device().mutex);
  if (!module) return kInvalidHandle;
  device().emulator.unload(*module->module);
  delete module;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuModuleGetFunction(CUfunc_st** function, CUmod_st* module, const char* name) {
  const std::lock_guard lock(device().mutex);
  if (!function || !name) return kInvalidValue;
  if (!module) return kInvalidHandle;
  const Kernel* kernel = module->module->find(name);
  if (!kernel) return kNotFound;
  *function = reinterpret_cast<CUfunc_st*>(const_cast<Kernel*>(kernel));
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuFuncGetAttribute(int* value, int attribute, CUfunc_st* function) {
  if (!value || attribute != kMaxThreads) return kInvalidValue;
  if (!function) return kInvalidHandle;
  const int most = info_of(function).max_threads;
  *value = most > 0 ? most : int{EmulatedGpu::kThreads};
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuLaunchKernel(CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                      unsigned block_x, unsigned block_y, unsigned block_z,
                                      unsigned shared_bytes, CUstream_st* stream, void** params,
                                      void** extra) {
  if (extra) return kInvalidValue;  // the other way to give parameters
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, params,
                false);
}
GACC_DRIVER_EXPORT int cuLaunchCooperativeKernel(CUfunc_st* function, unsigned grid_x, unsigned grid_y,
                                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                                 unsigned block_z, unsigned shared_bytes, CUstream_st* stream,
                                                 void** params) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, params,
                true);
}
GACC_DRIVER_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunc_st* function,
                                                                   int threads, size_t shared) {
  if (!blocks || threads <= 0 || threads > EmulatedGpu::kThreads) return kInvalidValue;
  if (!function) return kInvalidHandle;
  const KernelInfo& info = info_of(function);
  const int64_t warps = (threads + kLanes - 1) / kLanes;
  const int64_t by_shared = EmulatedGpu::kShared /
                            (info.shared_bytes + static_cast<int64_t>(shared) + EmulatedGpu::kSharedOfSystem);
  // ptxas gives a thread of a kernel with `.maxntid` no more registers than a block of so many threads has.
  const int most =
      info.max_threads > 0 ? std::min(128, int{EmulatedGpu::kRegisters} / info.max_threads) : 128;
  const int64_t by_registers =
      EmulatedGpu::kRegisters / (warps * kLanes * std::clamp(info.registers, 16, most));
  *blocks = static_cast<int>(std::max<int64_t>(
      0, std::min({EmulatedGpu::kBlocks, EmulatedGpu::kWarps / warps, by_shared, by_registers})));
  return kSuccess;
}
