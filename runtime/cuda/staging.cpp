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
  GACC_TRY(driver.check(driver.lock_host(memory_, 2 * half_bytes_),
                        fmt::format("cannot allocate {} bytes of page-locked memory", 2 * half_bytes_)));
  for (Event& event : done_) GACC_TRY(driver.make_event(event, kEventDisableTiming));
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
  GACC_TRY(driver_->record(done_[half_], stream));
  pending_[half_] = true;
  half_ = 1 - half_;
  filled_ = 0;
  if (!pending_[half_]) return {};
  pending_[half_] = false;
  return driver_->wait(done_[half_]);
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
  return driver.check(driver.lock_host(memory_, kWindowBytes), "cannot allocate page-locked memory");
}

void ReadWindow::close() {
  if (memory_) driver_->host_release(memory_);
  memory_ = nullptr;
}

Status ReadWindow::read(Pointer arena, int64_t arena_bytes, int64_t offset, std::span<std::byte> bytes,
                        Stream stream) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > kSmallRead)
    return driver_->read(bytes.data(), arena + static_cast<Pointer>(offset), bytes.size(), stream);
  if (offset < offset_ || offset + size > offset_ + valid_bytes_) {
    const int64_t from = std::max<int64_t>(0, offset - kWindowBytes / 2);
    const int64_t copied = std::min(kWindowBytes, arena_bytes - from);
    valid_bytes_ = 0;
    GACC_TRY(driver_->read(memory_, arena + static_cast<Pointer>(from), static_cast<size_t>(copied), stream));
    offset_ = from;
    valid_bytes_ = copied;
  }
  std::memcpy(bytes.data(), memory_ + (offset - offset_), bytes.size());
  return {};
}

}  // namespace gacc::cuda
