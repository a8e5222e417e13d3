#include "runtime/cuda/staging.h"

#include <algorithm>
#include <cstring>

namespace gacc::cuda {

constexpr size_t kAlignment = 256;  // of every piece: whole cache lines and bursts
constexpr int64_t kWindowBytes = 16384;
constexpr int64_t kSmallRead = kWindowBytes / 4;  // larger ones copy what they want and nothing else

Status Staging::open(const Driver& driver, size_t half_bytes) {
  driver_ = &driver;
  half_bytes_ = (half_bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = nullptr;
  GACC_TRY(driver.check(driver.host_allocate(&memory, 2 * half_bytes_, 0),
                        fmt::format("cannot allocate {} bytes of page-locked memory", 2 * half_bytes_)));
  memory_ = static_cast<std::byte*>(memory);
  for (Event& event : done_)
    GACC_TRY(driver.check(driver.event_create(&event, kEventDisableTiming), "cannot create an event"));
  return {};
}

void Staging::close() {
  if (!driver_) return;
  for (Event& event : done_)
    if (event) driver_->event_destroy(event);
  if (memory_) driver_->host_release(memory_);
  done_ = {};
  memory_ = nullptr;
  driver_ = nullptr;
}

Status Staging::next_half(Stream stream) {
  GACC_TRY(driver_->check(driver_->event_record(done_[half_], stream), "cannot record an event"));
  pending_[half_] = true;
  half_ = 1 - half_;
  filled_ = 0;
  if (!pending_[half_]) return {};
  pending_[half_] = false;
  return driver_->check(driver_->event_wait(done_[half_]), "the GPU failed");
}

Status Staging::write(std::span<const Copy> copies, Stream stream) {
  Pointer to = 0;  // of the copy that is being put together
  std::byte *from = nullptr, *end = nullptr;
  const auto queue = [&] {
    if (from == end) return Status();
    const int error = driver_->copy_in(to, from, static_cast<size_t>(end - from), stream);
    from = end;
    return driver_->check(error, "cannot copy to the GPU");
  };
  for (const Copy& copy : copies) {
    for (size_t done = 0; done < copy.bytes.size();) {
      const size_t piece = std::min(copy.bytes.size() - done, half_bytes_);
      if (piece > half_bytes_ - filled_) {
        GACC_TRY(queue());
        GACC_TRY(next_half(stream));
      }
      std::byte* place = memory_ + half_ * half_bytes_ + filled_;
      if (from != end && copy.to + done == to + static_cast<Pointer>(place - from)) {
        std::fill(end, place, std::byte{0});
      } else {
        GACC_TRY(queue());
        to = copy.to + done;
        from = place;
      }
      std::memcpy(place, copy.bytes.data() + done, piece);
      end = place + piece;
      filled_ += (piece + kAlignment - 1) / kAlignment * kAlignment;
      done += piece;
    }
  }
  return queue();
}

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
