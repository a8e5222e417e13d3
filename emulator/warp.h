// A running warp, its block and its launch: the state that handlers work on, and the handlers.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <unordered_map>

#include "emulator/memory.h"
#include "emulator/program.h"
#include "emulator/report.h"

namespace gacc::emulator {

struct Block;

constexpr int kStarving = 20000;  // backward branches of a group before the lanes ahead get a turn

struct Launch {
  const Kernel& kernel;
  GlobalMemory& memory;
  Lifetimes& lifetimes;
  Reports& reports;
  Clocks& clocks;
  Dim3 grid, block;
  bool cooperative = false;  // all blocks are resident and take turns
  int64_t shared_bytes = 0;  // static and dynamic
  std::vector<uint8_t> params = {};
  std::unordered_map<uint64_t, Clocks::Known> published = {};  // by address: what releases made known there
  uint64_t executed = 0;                                       // warp instructions
  LaunchCounts counts = {};                                    // but for the instructions
  uint64_t progress_at = 0;  // `executed` when something last changed that another warp could see
  bool stopped = false;      // a trap, a deadlock or the limit ended the launch
  uint64_t limit = 0;        // instructions of a warp

  int warps() const { return static_cast<int>((block.count() + kLanes - 1) / kLanes); }  // of a block
};

// A cp.async that was issued and not yet waited for.
struct PendingCopy {
  int64_t to = 0;  // shared address
  uint8_t bytes[16] = {};
  uint8_t count = 0;
  uint8_t lane = 0;
};

struct Warp {
  enum class State : uint8_t { ready, blocked, done };
  Launch* launch = nullptr;
  Block* block = nullptr;
  int index = 0;
  uint8_t* file = nullptr;
  uint32_t* defined = nullptr;  // per register: lanes that were written
  std::unique_ptr<Region> local{};
  // The warp's state in its block.
  State state = State::ready;
  uint32_t live = 0;      // lanes that have not exited
  uint32_t waiting = 0;   // lanes at a barrier
  uint32_t held = 0;      // lanes before what they do with others of the warp, which are on their way to it
  bool all_came = false;  // nobody is on the way any more: who was held goes on
  uint32_t group = 0;     // lanes at `pc`
  uint32_t active = 0;    // of these, lanes whose guard holds
  uint32_t pc = 0;
  uint32_t parked_from = ~0u;  // the least pc of the other lanes
  uint32_t pcs[kLanes] = {};   // of lanes outside the group
  int backward = 0;            // backward branches while others were parked
  int polls = 0;               // acquiring loads in this slice
  uint64_t executed = 0;
  bool fenced = false;                // a fence was executed: relaxed writes publish
  Clocks::Known seen{};               // read by relaxed loads, known after a fence
  std::vector<PendingCopy> copies{};  // not yet committed
  std::deque<std::vector<PendingCopy>> copy_groups{};
  int barrier = 0;  // the barrier that `waiting` lanes are in
  const Instr* waits_at = nullptr;

  // Runs until it blocks, ends, or `budget` instructions are done.
  void run(int64_t budget);
  // Sends the group's lanes to where `pcs` says and picks the lanes with the least pc.
  void reconverge();
  // Holds the active lanes at an instruction that lanes execute together, until those of `others` have come, wait
  // elsewhere or have exited; returns true while they wait. A compiler may put code behind the place where lanes meet
  // again; then some lanes arrive first.
  bool hold(uint32_t others);
  void start(uint32_t lanes);

  template <class T>
  T* lanes(uint32_t at) {
    return reinterpret_cast<T*>(file + at);
  }
  int actor() const;  // of the launch's clocks
  uint32_t thread_of(int lane) const { return static_cast<uint32_t>(index * kLanes + lane); }
  // Reports a defect of the lane, unless it is known already.
  template <class... A>
  void report(Defect defect, const Instr& in, int lane, fmt::format_string<A...> text, A&&... values) {
    if (Report* r = new_report(defect, in, lane)) r->text = fmt::format(text, std::forward<A>(values)...);
  }
  // Reports sources not yet written by the active lanes.
  void check_defined(int reg, const Instr& in);
  void fill_specials();

 private:
  Report* new_report(Defect defect, const Instr& in, int lane);  // null when it is known already
};

struct Barrier {
  int arrived = 0;   // threads, exited ones of an arriving warp included
  int expected = 0;  // 0: all threads of the block
  int lanes = 0;     // threads that arrived
  Clocks::Gathered gathered;
};

struct Block {
  Launch* launch = nullptr;
  Dim3 id;
  int index = 0;
  int place = 0;    // among the blocks that run at once
  Stamp begun = 0;  // its first stamp
  std::unique_ptr<Region> shared;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::vector<uint8_t> files;
  std::vector<uint32_t> defined;
  int threads = 0;

  void prepare(Launch& launch, int place);  // once, allocates
  void start(int index);                    // for each block it runs
  bool done() const;
  void release_barriers();  // those that are complete
};

inline int Warp::actor() const { return block->place * static_cast<int>(block->warps.size()) + index; }

inline int first_lane(uint32_t mask) { return __builtin_ctz(mask); }
// The numbers of a mask's lanes, from the lowest on: for (const int l : LanesOf{mask}).
struct LanesOf {
  struct Iterator {
    uint32_t left;
    int operator*() const { return first_lane(left); }
    Iterator& operator++() { return left &= left - 1, *this; }
    bool operator==(const Iterator&) const = default;
  };
  uint32_t mask;
  Iterator begin() const { return {mask}; }
  Iterator end() const { return {0}; }
};
inline const Extra& extra_of(const Warp& warp, const Instr& in) {
  return warp.launch->kernel.extras[in.extra];
}
inline const Slot& slot_of(const Warp& warp, int reg) { return warp.launch->kernel.slots[reg]; }
// The lanes of a register of 32 bits, or the mask of a predicate.
inline uint32_t* words_of(Warp& warp, int reg) { return warp.lanes<uint32_t>(slot_of(warp, reg).at); }
// The bits of a lane, 8 bytes at most.
inline uint64_t load_lane(const Warp& warp, const Slot& slot, int l) {
  uint64_t bits = 0;
  std::memcpy(&bits, warp.file + slot.at + static_cast<size_t>(l) * slot.bytes, slot.bytes);
  return bits;
}
inline void store_lane(Warp& warp, const Slot& slot, int l, uint64_t bits) {
  std::memcpy(warp.file + slot.at + static_cast<size_t>(l) * slot.bytes, &bits, slot.bytes);
}
// Takes the bits that `lanes` name.
inline void set_mask(uint32_t& to, uint32_t from, uint32_t lanes) { to = (to & ~lanes) | (from & lanes); }
// An integer of so many bytes with its sign in all upper bits.
inline uint64_t extended(uint64_t bits, int bytes) {
  return bytes < 8 && bits >> (8 * bytes - 1) & 1 ? bits | ~uint64_t{0} << (8 * bytes) : bits;
}

// An access of global memory that orders: releases before, acquires after.
void publish(Warp& warp, uint64_t address);
void learn(Warp& warp, uint64_t address, bool acquire);

struct Place {
  Region* region = nullptr;
  int64_t at = 0;
  uint64_t address = 0;  // in its space, for messages
  Toucher by;
  Space space = Space::global;
};
// Finds where an access goes, after checks of bounds and alignment; reports and returns false if it must not
// happen.
bool locate(Warp& warp, const Instr& in, Space space, uint64_t address, int bytes, int lane, Place& place);
void note(Warp& warp, const Instr& in, const Place& place, int bytes, int lane, bool write, bool atomic);
void check_written(Warp& warp, const Instr& in, const Place& place, int bytes, int lane);
// Returns the addresses of all lanes.
std::array<uint64_t, kLanes> addresses_of(Warp& warp, const Instr& in, const Address& address);

// The handlers that the decoder picks from, by family.
// exec_memory.cpp
void run_load(Warp&, const Instr&);
void run_store(Warp&, const Instr&);
void run_copy_async(Warp&, const Instr&);
void run_copy_commit(Warp&, const Instr&);
void run_copy_wait(Warp&, const Instr&);
// exec_atomic.cpp
void run_atomic(Warp&, const Instr&);
void run_fence(Warp&, const Instr&);
// exec_scalar.cpp
template <int sources>
void run_lanes(Warp&, const Instr&);  // of 1 to 4
void run_divide(Warp&, const Instr&);
void run_move(Warp&, const Instr&);    // copies whether a lane was written, too
void run_resize(Warp&, const Instr&);  // value: 1 extends the sign
void run_pack(Warp&, const Instr&);
void run_unpack(Warp&, const Instr&);
void run_branch(Warp&, const Instr&);
void run_exit(Warp&, const Instr&);
void run_trap(Warp&, const Instr&);
// exec_collective.cpp; Extra::mode is one of these
enum Mode { up, down, bfly, idx, bar_sync, bar_arrive };
void run_shuffle(Warp&, const Instr&);
void run_ballot(Warp&, const Instr&);
void run_warp_barrier(Warp&, const Instr&);
void run_barrier(Warp&, const Instr&);
// exec_matrix.cpp
void run_load_matrix(Warp&, const Instr&);
void run_mma(Warp&, const Instr&);

// Runs a launch to its end.
void run_launch(Launch& launch);

}  // namespace gacc::emulator
