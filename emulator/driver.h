// The driver API over the emulator: the handles and the one device behind the exported functions
// (driver_*.cpp). Signatures follow NVIDIA's public documentation; nothing of the toolkit is included. Work
// is done when it is issued, so streams order themselves and synchronising is free; a capture records
// closures with their values. But a copy on a stream that waits for others is made as late as it may be: when
// something waits for it, or follows it on its stream. So a launch that should have waited for it finds bytes that
// nobody wrote, and one copy that overtakes another is a report.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/emulator.h"

#define GACC_DRIVER_EXPORT extern "C" __attribute__((visibility("default")))

struct CUstream_st;

namespace gacc::emulator {

// Result codes of the driver.
enum Result : int {
#define GACC_DRIVER_ERROR(name, code, symbol, text) name = code,
#include "emulator/driver_errors.def"
};

using Operation = std::function<int()>;
// The number of operations of each stream that were issued, or that ended before what comes next.
using Progress = std::map<const CUstream_st*, size_t>;
struct Capture {
  std::vector<Operation> operations;
  Progress issued;
};

}  // namespace gacc::emulator

struct CUctx_st {
  int unused = 0;
};
struct CUfunc_st;  // a Kernel
struct CUmod_st {
  std::unique_ptr<gacc::emulator::LoadedModule> module;
};
struct CUstream_st {
  // A copy that was issued and is still to be made: number `number` of all of them, of the device's bytes.
  struct Copy {
    gacc::emulator::Operation make;
    uint64_t number = 0, address = 0, bytes = 0;
    bool writes = false;  // those bytes, instead of reading them
  };
  std::vector<Copy> copies;
  size_t made = 0;     // copies that left the list
  bool waits = false;  // has waited for another stream
  std::shared_ptr<gacc::emulator::Capture> capture;
  bool origin = false;
  gacc::emulator::Progress ended;  // while it captures
};
struct CUevent_st {
  std::chrono::steady_clock::time_point time{};
  bool recorded = false;
  std::shared_ptr<gacc::emulator::Capture> capture;
  gacc::emulator::Progress ended;
  CUstream_st* stream = nullptr;
  size_t copies = 0;  // of the stream, made and not, when it was recorded
};
struct CUgraph_st {
  std::vector<gacc::emulator::Operation> operations;
};
struct CUgraphExec_st : CUgraph_st {};

namespace gacc::emulator {

constexpr int64_t kDeviceBytes = int64_t{16} << 30;

struct Device {
  std::recursive_mutex mutex;
  Emulator emulator;
  bool initialised = false;
  CUctx_st context;
  CUstream_st legacy;  // the null stream
  std::vector<CUstream_st*> streams;
  std::string last_error;  // of a refused launch, told by gacc_emu_reports
};
Device& device();

// Writes as much of a text as fits with a final zero.
void copy_text(const std::string& text, char* to, size_t bytes);
// Runs an operation on a stream now, or records it while the stream captures.
int submit(CUstream_st* stream, Operation operation);
// The same for a copy of these bytes of the device.
int submit_copy(CUstream_st* stream, uint64_t address, size_t bytes, bool writes, Operation operation);
// Makes the copies of a stream that were issued, up to that many since it began.
int make_copies(CUstream_st* stream, size_t count = SIZE_MAX);
// A stream of ours: null is the legacy stream; anything unknown gives null.
CUstream_st* stream_of(CUstream_st* stream);

}  // namespace gacc::emulator
