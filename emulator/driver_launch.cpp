// Launches. The parameter values are copied when the launch is issued, also while capturing, as the driver
// does.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "emulator/driver.h"

using namespace gacc::emulator;

namespace {

// Of a launch, beside what the kernel declares; a kernel could ask for more, and none of ours does.
constexpr unsigned kDynamicShared = 48 * 1024;

int gather(const KernelInfo& info, void** params, std::vector<uint8_t>& block) {
  block.assign(static_cast<size_t>(info.param_bytes), 0);
  for (size_t i = 0; i < info.params.size(); ++i) {
    if (!params || !params[i]) return kInvalidValue;
    std::memcpy(block.data() + info.params[i].offset, params[i], static_cast<size_t>(info.params[i].bytes));
  }
  return kSuccess;
}

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
  const Kernel* kernel = function->kernel;
  std::vector<uint8_t> values;
  if (const int error = gather(kernel->info, params, values)) return error;
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
  if (!blocks || threads <= 0 || threads > 1024) return kInvalidValue;
  if (!function) return kInvalidHandle;
  const KernelInfo& info = function->kernel->info;
  const int64_t warps = (threads + kLanes - 1) / kLanes;
  const int64_t by_shared =
      (228 * 1024) / std::max<int64_t>(1, info.shared_bytes + static_cast<int64_t>(shared) + 1024);
  const int64_t by_registers = 65536 / (warps * kLanes * std::clamp(info.registers, 16, 128));
  *blocks =
      static_cast<int>(std::max<int64_t>(0, std::min({int64_t{32}, 64 / warps, by_shared, by_registers})));
  return kSuccess;
}
