// Device and host memory of the driver API; the asynchronous calls go through the stream, which may be
// capturing.
#include <cstdlib>

#include "emulator/driver.h"

using namespace gacc::emulator;
using Pointer = unsigned long long;

namespace {
int checked(bool good) { return good ? kSuccess : kInvalidValue; }
int64_t size_of(size_t bytes) { return static_cast<int64_t>(bytes); }
}  // namespace

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
  return submit(stream, [=] { return checked(device().emulator.write(to, from, size_of(bytes))); });
}
GACC_DRIVER_EXPORT int cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, CUstream_st* stream) {
  return submit(stream, [=] { return checked(device().emulator.read(from, to, size_of(bytes))); });
}
GACC_DRIVER_EXPORT int cuMemsetD8Async(Pointer to, unsigned char value, size_t count, CUstream_st* stream) {
  return submit(stream, [=] { return checked(device().emulator.fill(to, value, 1, size_of(count))); });
}
GACC_DRIVER_EXPORT int cuMemsetD32Async(Pointer to, unsigned value, size_t count, CUstream_st* stream) {
  if (to % 4) return kInvalidValue;
  return submit(stream, [=] { return checked(device().emulator.fill(to, value, 4, size_of(count) * 4)); });
}
