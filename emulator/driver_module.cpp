// Modules and functions: PTX text in, kernels out; a refused text leaves its reason in the caller's JIT log.
#include <algorithm>
#include <cstring>

#include "emulator/driver.h"

using namespace gacc::emulator;

namespace {

constexpr int kErrorLog = 5, kErrorLogBytes = 6;  // CU_JIT_ERROR_LOG_BUFFER and its size

void write_log(const std::string& text, unsigned count, const int* options, void** values) {
  char* log = nullptr;
  size_t bytes = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == kErrorLog) log = static_cast<char*>(values[i]);
    if (options[i] == kErrorLogBytes) bytes = reinterpret_cast<uintptr_t>(values[i]) & 0xffffffffu;
  }
  if (!log || bytes == 0) return;
  const size_t n = std::min(bytes - 1, text.size());
  std::memcpy(log, text.data(), n);
  log[n] = 0;
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
  for (const auto& known : module->functions)
    if (known->kernel == kernel) {
      *function = known.get();
      return kSuccess;
    }
  module->functions.push_back(std::make_unique<CUfunc_st>());
  module->functions.back()->kernel = kernel;
  *function = module->functions.back().get();
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuFuncGetAttribute(int* value, int attribute, CUfunc_st* function) {
  if (!value) return kInvalidValue;
  if (!function) return kInvalidHandle;
  const KernelInfo& info = function->kernel->info;
  const int values[] = {info.max_threads > 0 ? info.max_threads : 1024,
                        static_cast<int>(info.shared_bytes),
                        0,  // constant memory
                        static_cast<int>(info.local_bytes),
                        std::min(info.registers, 255),
                        90,  // PTX and binary version
                        90};
  if (attribute < 0 || attribute >= static_cast<int>(std::size(values))) return kInvalidValue;
  *value = values[attribute];
  return kSuccess;
}
