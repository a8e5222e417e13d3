// Initialisation, device properties, contexts, error texts, and the emulator's own exports: reports and live
// ranges.
#include <algorithm>
#include <cstring>

#include "emulator/driver.h"

namespace gacc::emulator {

Device& device() {
  static Device* only = new Device;  // never destroyed: handles may be used by other static destructors
  return *only;
}

namespace {

struct ErrorText {
  int code;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kInvalidPtx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kCooperativeTooLarge, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "too many blocks in cooperative launch"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {kCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not initiated in this stream"},
    {kCaptureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "another stream of the capture was not joined"}};

// CUdevice_attribute and its value; others are 0.
struct Attribute {
  int number, value;
};
constexpr Attribute kAttributes[] = {
    {1, 1024},         // threads of a block
    {2, 1024},         // block x
    {3, 1024},         // block y
    {4, 64},           // block z
    {5, 0x7fffffff},   // grid x
    {6, 65535},        // grid y
    {7, 65535},        // grid z
    {8, 48 * 1024},    // shared memory of a block
    {9, 64 * 1024},    // constant memory
    {10, kLanes},      // warp size
    {12, 65536},       // registers of a block
    {13, 1'000'000},   // clock, kHz
    {16, 132},         // multiprocessors
    {31, 1},           // concurrent kernels
    {36, 1'000'000},   // memory clock, kHz
    {37, 1024},        // memory bus, bits
    {38, 50 << 20},    // second-level cache
    {39, 2048},        // threads of a multiprocessor
    {40, 1},           // asynchronous copies
    {41, 1},           // unified addressing
    {75, 9},           // compute capability
    {81, 228 * 1024},  // shared memory of a multiprocessor
    {82, 65536},       // registers of a multiprocessor
    {95, 1},           // cooperative launch
    {97, 227 * 1024},  // shared memory of a block that asks for it
    {106, 32},         // blocks of a multiprocessor
};

int error_text(int error, const char** text, bool name) {
  if (!text) return kInvalidValue;
  for (const ErrorText& known : kErrors)
    if (known.code == error) {
      *text = name ? known.name : known.text;
      return kSuccess;
    }
  *text = nullptr;
  return kInvalidValue;
}

}  // namespace
}  // namespace gacc::emulator

using namespace gacc::emulator;

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
  std::strncpy(name, "gacc emulator", static_cast<size_t>(length));
  name[length - 1] = 0;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int handle) {
  if (handle != 0) return kInvalidDevice;
  if (!value) return kInvalidValue;
  const auto known = std::ranges::find(kAttributes, attribute, &Attribute::number);
  *value = known == std::end(kAttributes) ? 0 : known->value;
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
GACC_DRIVER_EXPORT int cuCtxSetCurrent(CUctx_st* context) {
  return !context || context == &device().context ? kSuccess : kInvalidContext;
}
GACC_DRIVER_EXPORT int cuGetErrorName(int error, const char** text) { return error_text(error, text, true); }
GACC_DRIVER_EXPORT int cuGetErrorString(int error, const char** text) {
  return error_text(error, text, false);
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
  if (to && bytes > 0) {
    const size_t count = std::min(bytes - 1, text.size());
    std::memcpy(to, text.data(), count);
    to[count] = 0;
  }
  return text.size();
}
GACC_DRIVER_EXPORT void gacc_emu_declare_live(uint64_t allocation, uint64_t offset, uint64_t bytes,
                                              const char* name) {
  const std::lock_guard lock(device().mutex);
  device().emulator.declare_live(allocation, static_cast<int64_t>(offset), static_cast<int64_t>(bytes),
                                 name ? name : "");
}
// Which values begin and end in the next launch on the stream, the phase 0: four numbers each, the offset in
// the allocation, bytes, and the phases first and last. They hold until the next call.
GACC_DRIVER_EXPORT int gacc_emu_values(CUstream_st* stream, uint64_t allocation, const int64_t* values,
                                       size_t count) {
  std::vector<ValueLife> lives;
  for (size_t i = 0; i < count; ++i, values += 4)
    lives.push_back({allocation + static_cast<uint64_t>(values[0]), values[1], values[2], values[3]});
  return submit(stream, [=] {
    device().emulator.begin_values(lives);
    return static_cast<int>(kSuccess);
  });
}
