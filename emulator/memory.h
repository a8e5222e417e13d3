// Memory with a shadow: beside each byte whether it may be touched, whether it was written and whether what
// it holds is an older value's, and beside each word who wrote and who read it last. Device
// addresses are made up; nothing here is a host pointer.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/clocks.h"

namespace gacc::emulator {

constexpr uint8_t kLive = 1, kWritten = 2, kStale = 4;
// Bases of the spaces in the generic address space. Addresses of shared, local and param start at 0 in their own space.
constexpr uint64_t kSharedWindow = uint64_t{1} << 40, kLocalWindow = uint64_t{2} << 40;
constexpr uint64_t kWindowSize = uint64_t{1} << 32;
constexpr uint64_t kGlobalBase = uint64_t{0x7f} << 40;

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using Zeroed = std::unique_ptr<T[], FreeDeleter>;  // from calloc: untouched pages cost nothing
template <class T>
Zeroed<T> make_zeroed(int64_t count) {
  return Zeroed<T>(static_cast<T*>(std::calloc(static_cast<size_t>(count > 0 ? count : 1), sizeof(T))));
}

// The conflict of an access with an earlier one.
struct Conflict {
  bool race = false;
  bool with_write = false;  // the other access was a write
  uint32_t warp = 0;        // of the launch, who made it
};

// The actor of `clocks` that accesses memory. Stamps below `base` are ordered before it.
struct Toucher {
  Clocks* clocks = nullptr;  // null: memory that is private to the thread
  int actor = 0;
  Stamp base = 0;
};

class Region {
 public:
  // All bytes may be touched. Null data when the host has no memory left.
  Region(uint64_t base, int64_t bytes, std::string name);

  uint64_t base() const { return base_; }
  int64_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  uint8_t* data() { return data_.get(); }
  uint8_t* shadow() { return shadow_.get(); }
  std::span<uint8_t> shadow(int64_t at, int64_t count) { return {shadow() + at, static_cast<size_t>(count)}; }
  bool ok() const { return data_ && shadow_; }
  int64_t offset(uint64_t address) const { return static_cast<int64_t>(address - base_); }
  bool covers(uint64_t address, int64_t count) const {
    return address >= base_ && address - base_ <= static_cast<uint64_t>(bytes_) &&
           static_cast<uint64_t>(count) <= static_cast<uint64_t>(bytes_) - (address - base_);
  }
  // All `count` bytes have all bits of `want`.
  bool all(int64_t at, int64_t count, uint8_t want) const;
  void mark_written(int64_t at, int64_t count);
  void forget_written(int64_t at, int64_t count);  // a pending asynchronous copy owns these bytes

  // From now on only declared ranges may be touched.
  void declare_live(int64_t at, int64_t count, std::string name);
  std::string range_before(int64_t at) const;  // the declared range that starts last at or before `at`, or ""

  // Notes an access and tells whether it races with an earlier one.
  template <bool write>
  Conflict note(int64_t at, int64_t count, const Toucher& by, bool atomic);
  void clear_accesses() { words_.reset(); }

 private:
  struct Word {
    Stamp writer, reader;
  };
  void prepare(int64_t at, int64_t count);
  struct Range {
    int64_t at, count;
    std::string name;
  };

  uint64_t base_;
  int64_t bytes_;
  std::string name_;
  Zeroed<uint8_t> data_, shadow_;
  Zeroed<Word> words_;
  int shift_ = 2;  // bytes per word: 4, or 1 once something smaller was accessed
  std::vector<Range> ranges_;
};

// Global memory: allocations in order of their addresses, far enough apart that an overrun hits nothing.
class GlobalMemory {
 public:
  Region* allocate(int64_t bytes, std::string name);  // null when out of memory
  bool release(uint64_t address);                     // false when nothing starts there
  Region* find(uint64_t address, int64_t bytes = 1);  // the allocation that holds them, or null
  Region* nearest(uint64_t address);                  // the one that starts last before it, or null
  int64_t allocated() const { return allocated_; }
  std::vector<std::unique_ptr<Region>>& regions() { return regions_; }

 private:
  std::vector<std::unique_ptr<Region>> regions_;
  Region* last_ = nullptr;
  uint64_t next_ = kGlobalBase;
  int64_t allocated_ = 0;
};

// The values that share bytes of global memory one after another. Bytes of a value count as unwritten from
// the beginning of its life until something writes them, and after its end. Time is counted in phases: a
// launch, or in a cooperative launch what lies between two barriers of the grid. A value is written in phase
// `first` and read until phase `last`. One that is there before the first phase has -1; what is still there
// behind the last one a later number than any.
struct ValueLife {
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t first = 0, last = 0;
};

class Lifetimes {
 public:
  explicit Lifetimes(GlobalMemory& memory) : memory_(memory) {}

  // Ends the phase that is running, and with it what was told before; phase 0 of these values begins.
  void begin(std::vector<ValueLife> values);
  // A block of a launch of `blocks` has released what it did at this address. Once all have, the next phase
  // begins: they met at a barrier of the grid.
  void arrive(uint64_t address, int block, int64_t blocks);

 private:
  struct Meeting {
    std::vector<bool> arrived;
    int64_t missing = 0;
  };
  void enter();
  void leave();
  // Changes the shadow of each byte of the values that are chosen.
  template <class Choose, class Change>
  void each(const Choose& choose, const Change& change);

  GlobalMemory& memory_;
  std::vector<ValueLife> values_;
  int64_t phase_ = 0;
  std::unordered_map<uint64_t, Meeting> meetings_;  // by address
};

}  // namespace gacc::emulator
