#include "runtime/cuda/read_window.h"

#include <algorithm>
#include <cstring>

namespace gacc::cuda {

namespace {
constexpr int64_t kWindowBytes = 16384;
constexpr int64_t kSmallRead = kWindowBytes / 4;  // larger ones copy what they want and nothing else
}  // namespace

Status ReadWindow::open(const Driver& driver) {
  driver_ = &driver;
  void* memory = nullptr;
  const Status status =
      driver.check(driver.host_allocate(&memory, kWindowBytes, 0), "cannot allocate page-locked memory");
  memory_ = static_cast<std::byte*>(memory);
  return status;
}

void ReadWindow::close() {
  if (memory_) driver_->host_release(memory_);
  memory_ = nullptr;
}

Status ReadWindow::copy(void* to, Pointer from, size_t bytes, Stream stream) const {
  GACC_TRY(driver_->check(driver_->copy_out(to, from, bytes, stream), "cannot copy from the GPU"));
  return driver_->check(driver_->stream_wait(stream), "the GPU failed");
}

Status ReadWindow::read(Pointer arena, int64_t arena_bytes, int64_t offset, std::span<std::byte> bytes,
                        Stream stream) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > kSmallRead)
    return copy(bytes.data(), arena + static_cast<Pointer>(offset), bytes.size(), stream);
  if (offset < offset_ || offset + size > offset_ + valid_bytes_) {
    const int64_t from = std::max<int64_t>(0, offset - kWindowBytes / 2);
    const int64_t copied = std::min(kWindowBytes, arena_bytes - from);
    valid_bytes_ = 0;
    GACC_TRY(copy(memory_, arena + static_cast<Pointer>(from), static_cast<size_t>(copied), stream));
    offset_ = from;
    valid_bytes_ = copied;
  }
  std::memcpy(bytes.data(), memory_ + (offset - offset_), bytes.size());
  return {};
}

}  // namespace gacc::cuda
