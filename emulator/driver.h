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
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidPtx = 218,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kOutOfResources = 701,
  kLaunchFailed = 719,
  kCooperativeTooLarge = 720,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904
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
struct CUmod_st {
  std::unique_ptr<gacc::emulator::LoadedModule> module;
  std::vector<std::unique_ptr<struct CUfunc_st>> functions;
};
struct CUfunc_st {
  const gacc::emulator::Kernel* kernel = nullptr;
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
struct CUgraphExec_st {
  std::vector<gacc::emulator::Operation> operations;
};

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

// Runs an operation on a stream now, or records it while the stream captures.
int submit(CUstream_st* stream, Operation operation);
// A stream of ours: null is the legacy stream; anything unknown gives null.
CUstream_st* stream_of(CUstream_st* stream);

}  // namespace gacc::emulator
