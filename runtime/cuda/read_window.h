// Reads of the arena. State lies close together and is read in a row, so a small read copies what lies around
// it as well, and the next ones may find theirs there.
#pragma once
#include <span>

#include "runtime/cuda/cuda_driver.h"

namespace gacc::cuda {

class ReadWindow {
 public:
  // Takes page-locked memory. `driver` must outlive this, the context must be current.
  Status open(const Driver& driver);
  void close();
  // What was copied is no longer what the arena holds: after every write and every run.
  void forget() { valid_bytes_ = 0; }
  // [offset, offset + bytes.size()) of an arena, which lies inside its `arena_bytes`. Waits for the stream.
  Status read(Pointer arena, int64_t arena_bytes, int64_t offset, std::span<std::byte> bytes, Stream stream);

 private:
  Status copy(void* to, Pointer from, size_t bytes, Stream stream) const;

  const Driver* driver_ = nullptr;
  std::byte* memory_ = nullptr;
  int64_t offset_ = 0, valid_bytes_ = 0;  // of the arena; 0 bytes: nothing valid
};

}  // namespace gacc::cuda
