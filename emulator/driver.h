// The driver API over the emulator: the handles and the one device behind the exported functions
// (driver_*.cpp). Signatures follow NVIDIA's public documentation; nothing of the toolkit is included. Work
// is done when it is issued, so streams order themselves and synchronising is free; a capture records
// closures with their values.
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
// Of each stream how many operations: issued, or ended before what comes next.
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
  std::shared_ptr<gacc::emulator::Capture> capture;
  bool origin = false;
  gacc::emulator::Progress ended;  // while it captures
};
struct CUevent_st {
  std::chrono::steady_clock::time_point time{};
  bool recorded = false;
  std::shared_ptr<gacc::emulator::Capture> capture;
  gacc::emulator::Progress ended;
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
// A stream of ours: null is the legacy stream; anything unknown gives null.
CUstream_st* stream_of(CUstream_st* stream);

}  // namespace gacc::emulator
