// Initialisation, device properties, contexts, error texts, memory, and the emulator's own exports: reports
// and live ranges.
#include <algorithm>
#include <cstdlib>

#include "emulator/driver.h"

namespace gacc::emulator {

Device& device() {
  static Device* only = new Device;  // never destroyed: handles may be used by other static destructors
  return *only;
}

void copy_text(const std::string& text, char* to, size_t bytes) {
  if (to && bytes > 0) to[text.copy(to, bytes - 1)] = 0;
}

namespace {

struct ErrorText {
  int code;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
#define GACC_DRIVER_ERROR(name, code, symbol, text) {code, symbol, text},
#include "emulator/driver_errors.def"
};

// Values of CUdevice_attribute; all others are 0.
constexpr int kMultiprocessors = 16, kCapability = 75, kCooperative = 95;

int error_text(int error, const char** to, const char* ErrorText::*which) {
  if (!to) return kInvalidValue;
  const auto known = std::ranges::find(kErrors, error, &ErrorText::code);
  *to = known == std::end(kErrors) ? nullptr : known->*which;
  return *to ? kSuccess : kInvalidValue;
}

int checked(bool good) { return good ? kSuccess : kInvalidValue; }
int64_t size_of(size_t bytes) { return static_cast<int64_t>(bytes); }

}  // namespace
}  // namespace gacc::emulator

using namespace gacc::emulator;
using Pointer = unsigned long long;

GACC_DRIVER_EXPORT int cuInit(unsigned flags) {
  if (flags) return kInvalidValue;
  device().initialised = true;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuDriverGetVersion(int* version) {
  if (!version) return kInvalidValue;
  *version = 13000;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuDeviceGetCount(int* count) {
  if (!device().initialised) return kNotInitialized;
  if (!count) return kInvalidValue;
  *count = 1;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuDeviceGet(int* handle, int ordinal) {
  if (!device().initialised) return kNotInitialized;
  if (!handle) return kInvalidValue;
  if (ordinal != 0) return kInvalidDevice;
  *handle = 0;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuDeviceGetName(char* name, int length, int handle) {
  if (handle != 0) return kInvalidDevice;
  if (!name || length <= 0) return kInvalidValue;
  copy_text("gacc emulator", name, static_cast<size_t>(length));
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int handle) {
  if (handle != 0) return kInvalidDevice;
  if (!value) return kInvalidValue;
  *value = attribute == kMultiprocessors ? int{EmulatedGpu::kMultiprocessors}
           : attribute == kCapability    ? 9
                                         : attribute == kCooperative;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuDevicePrimaryCtxRetain(CUctx_st** context, int handle) {
  if (!device().initialised) return kNotInitialized;
  if (!context) return kInvalidValue;
  if (handle != 0) return kInvalidDevice;
  *context = &device().context;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuDevicePrimaryCtxRelease_v2(int handle) {
  return handle == 0 ? kSuccess : kInvalidDevice;
}
// There is one context, and every thread may use it.
GACC_DRIVER_EXPORT int cuCtxSetCurrent(CUctx_st* context) {
  return !context || context == &device().context ? kSuccess : kInvalidContext;
}
GACC_DRIVER_EXPORT int cuCtxPushCurrent_v2(CUctx_st* context) {
  return context == &device().context ? kSuccess : kInvalidContext;
}
GACC_DRIVER_EXPORT int cuCtxPopCurrent_v2(CUctx_st** context) {
  if (context) *context = &device().context;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuGetErrorName(int error, const char** text) {
  return error_text(error, text, &ErrorText::name);
}
GACC_DRIVER_EXPORT int cuGetErrorString(int error, const char** text) {
  return error_text(error, text, &ErrorText::text);
}

// Memory of the device and of the host; the asynchronous calls go through the stream, which may be capturing.
GACC_DRIVER_EXPORT int cuMemAlloc_v2(Pointer* pointer, size_t bytes) {
  const std::lock_guard lock(device().mutex);
  if (!pointer || bytes == 0) return kInvalidValue;
  if (bytes > static_cast<size_t>(kDeviceBytes - device().emulator.memory().allocated())) return kOutOfMemory;
  *pointer = device().emulator.allocate(size_of(bytes));
  return *pointer ? kSuccess : kOutOfMemory;
}
GACC_DRIVER_EXPORT int cuMemFree_v2(Pointer pointer) {
  const std::lock_guard lock(device().mutex);
  return pointer == 0 ? kSuccess : checked(device().emulator.release(pointer));
}
GACC_DRIVER_EXPORT int cuMemGetInfo_v2(size_t* free, size_t* total) {
  const std::lock_guard lock(device().mutex);
  if (!free || !total) return kInvalidValue;
  *total = kDeviceBytes;
  *free = static_cast<size_t>(kDeviceBytes - device().emulator.memory().allocated());
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (!pointer) return kInvalidValue;
  *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *pointer ? kSuccess : kOutOfMemory;
}
GACC_DRIVER_EXPORT int cuMemFreeHost(void* pointer) {
  std::free(pointer);
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuMemcpyDtoH_v2(void* to, Pointer from, size_t bytes) {
  const std::lock_guard lock(device().mutex);
  return checked(device().emulator.read(from, to, size_of(bytes)));
}
GACC_DRIVER_EXPORT int cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, CUstream_st* stream) {
  return submit_copy(stream, to, bytes, true,
                     [=] { return checked(device().emulator.write(to, from, size_of(bytes))); });
}
GACC_DRIVER_EXPORT int cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, CUstream_st* stream) {
  return submit_copy(stream, from, bytes, false,
                     [=] { return checked(device().emulator.read(from, to, size_of(bytes))); });
}
GACC_DRIVER_EXPORT int cuMemsetD8Async(Pointer to, unsigned char value, size_t count, CUstream_st* stream) {
  return submit(stream, [=] { return checked(device().emulator.fill(to, value, 1, size_of(count))); });
}
GACC_DRIVER_EXPORT int cuMemsetD32Async(Pointer to, unsigned value, size_t count, CUstream_st* stream) {
  if (to % 4) return kInvalidValue;
  return submit(stream, [=] { return checked(device().emulator.fill(to, value, 4, size_of(count) * 4)); });
}

// Warp instructions executed so far, by all kernels: the emulator's measure of time.
GACC_DRIVER_EXPORT uint64_t gacc_emu_executed() {
  const std::lock_guard lock(device().mutex);
  return device().emulator.executed();
}
// The number of different defects found so far.
GACC_DRIVER_EXPORT size_t gacc_emu_report_count() {
  const std::lock_guard lock(device().mutex);
  return device().emulator.reports().size() + !device().last_error.empty();
}
// Writes as much of the reports, a line each, as fits with a final zero; returns the length of all of it.
GACC_DRIVER_EXPORT size_t gacc_emu_reports(char* to, size_t bytes) {
  const std::lock_guard lock(device().mutex);
  std::string text;
  for (const Report& report : device().emulator.reports()) text += report.render() + "\n";
  if (!device().last_error.empty()) text += device().last_error + "\n";
  copy_text(text, to, bytes);
  return text.size();
}
GACC_DRIVER_EXPORT void gacc_emu_declare_live(uint64_t allocation, uint64_t offset, uint64_t bytes,
                                              const char* name) {
  const std::lock_guard lock(device().mutex);
  device().emulator.declare_live(allocation, static_cast<int64_t>(offset), static_cast<int64_t>(bytes),
                                 name ? name : "");
}
// Declares the values that begin and end in the next launch on the stream, from phase 0: four numbers each, the offset
// in the allocation, bytes, and the first and last phase. They hold until the next call.
GACC_DRIVER_EXPORT int gacc_emu_values(CUstream_st* stream, uint64_t allocation, const int64_t* values,
                                       size_t count) {
  std::vector<ValueLife> lives;
  for (size_t i = 0; i < count; ++i, values += 4)
    lives.push_back({allocation + static_cast<uint64_t>(values[0]), values[1], values[2], values[3]});
  const auto begin = [=] {
    device().emulator.begin_values(lives);
    return static_cast<int>(kSuccess);
  };
  const std::lock_guard lock(device().mutex);
  stream = stream_of(stream);
  // It makes no copy of the stream, which may wait on.
  return stream && !stream->capture ? begin() : submit(stream, begin);
}
