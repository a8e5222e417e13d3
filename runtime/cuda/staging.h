// Page-locked memory through which the host writes to the GPU and reads from it.
#pragma once
#include <array>
#include <span>

#include "runtime/cuda/cuda_driver.h"
#include "runtime/no_copy.h"

namespace gacc::cuda {

// Writes through two halves, filled in turn. A half is used again once the copies out of it are done; only
// then, and only when the host is a whole half ahead of the GPU, does a write wait.
class Staging : NoCopy {
 public:
  ~Staging() { close(); }

  // Allocates two halves of `half_bytes`. `driver` must outlive this, the context must be current.
  Status open(const Driver& driver, size_t half_bytes);
  void close();
  // Queues copies, whose bytes may be reused on return; larger ones than a half go in pieces. Where one ends and
  // the next begins at the next multiple of 256 bytes from the first's begin, they are one copy, zeros between.
  struct Copy {
    Pointer to = 0;
    std::span<const std::byte> bytes{};
  };
  Status write(std::span<const Copy> copies, Stream stream);
  Status write(Pointer to, std::span<const std::byte> bytes, Stream stream) {
    const Copy copy{to, bytes};
    return write(std::span(&copy, 1), stream);
  }

 private:
  Status next_half(Stream stream);

  const Driver* driver_ = nullptr;
  std::byte* memory_ = nullptr;  // both halves
  size_t half_bytes_ = 0;
  std::array<Event, 2> done_{};    // recorded after the last copy out of a half ...
  std::array<bool, 2> pending_{};  // ... since it was last waited for
  size_t half_ = 0, filled_ = 0;   // the one being filled, and its bytes in use
};

// Reads of the arena. State lies close together and is read in a row, so a small read copies what lies around
// it as well, and the next ones may find theirs there.
class ReadWindow {
 public:
  // Takes page-locked memory. `driver` must outlive this, the context must be current.
  Status open(const Driver& driver);
  void close();
  // Forgets what was copied, which the arena no longer holds: after every write and every run.
  void forget() { valid_bytes_ = 0; }
  // [offset, offset + bytes.size()) of an arena, which lies inside its `arena_bytes`. Waits for the stream.
  Status read(Pointer arena, int64_t arena_bytes, int64_t offset, std::span<std::byte> bytes, Stream stream);

 private:
  const Driver* driver_ = nullptr;
  std::byte* memory_ = nullptr;
  int64_t offset_ = 0, valid_bytes_ = 0;  // of the arena; 0 bytes: nothing valid
};

}  // namespace gacc::cuda
