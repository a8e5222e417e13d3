// Ranks' GPUs talk to each other by NCCL, loaded by dlopen with own prototypes (compared with nccl.h by a test
// where that is installed). Only ever loaded where several ranks have a GPU each.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/emulator_link.h"
#include "runtime/device.h"

struct ncclComm;

namespace gacc::cuda {

struct NcclId {
  char bytes[128];
};

// member, exported name, parameters
#define GACC_NCCL_FUNCTIONS(F)                                                                 \
  F(version, ncclGetVersion, (int* version))                                                   \
  F(make_id, ncclGetUniqueId, (NcclId * id))                                                   \
  F(join, ncclCommInitRank, (ncclComm * *communicator, int ranks, NcclId id, int rank))        \
  F(abort, ncclCommAbort, (ncclComm * communicator))                                           \
  F(group_start, ncclGroupStart, ())                                                           \
  F(group_end, ncclGroupEnd, ())                                                               \
  F(send, ncclSend,                                                                            \
    (const void* from, size_t count, int type, int to, ncclComm* communicator, Stream stream)) \
  F(receive, ncclRecv, (void* to, size_t count, int type, int from, ncclComm* communicator, Stream stream))

struct NcclLibrary {
#define GACC_NCCL_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  GACC_NCCL_FUNCTIONS(GACC_NCCL_MEMBER)
#undef GACC_NCCL_MEMBER
  const char* (*error_string)(int error) = nullptr;  // ncclGetErrorString

  // In the emulator, whose addresses mean nothing to a real NCCL, only one that is made for it: it exports
  // gacc_emulated_nccl.
  Status open(bool emulated);
};

inline constexpr const char* kNcclLibrary = "libnccl.so.2";
inline constexpr int kNcclUint32 = 3;

// The link's needs of its device; all must outlive it.
struct NcclPlace {
  const Driver& driver;
  Context context = nullptr;
  Stream stream = nullptr;
  Pointer arena = 0;
  std::string gpu{};                       // tells it from others of this machine
  const EmulatorLink* emulator = nullptr;  // where it is one
  std::function<void()> changes{};         // before every exchange, which writes into the arena
  std::function<Status()> joined{};        // after NCCL has taken its memory
};
Status open_nccl(const NcclPlace& place, std::unique_ptr<DeviceLink>& link);

}  // namespace gacc::cuda
