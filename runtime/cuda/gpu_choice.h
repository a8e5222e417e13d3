// Chooses the GPU that runs an artifact, and says why none does.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/artifact.h"
#include "runtime/cuda/cuda_driver.h"

namespace gacc::cuda {

struct Gpu {
  int ordinal = 0, handle = 0;
  int capability = 0;  // 90 for 9.0
  int driver_version = 0;
  std::string name;
};

// GPU `ordinal`, or with -1 the first that can run the artifact's target; rank `local_rank` of this machine
// takes so many after it, counted around. The driver must read the artifact's PTX. An emulated GPU has
// whatever capability the artifact asks for.
Status choose_gpu(const Driver& driver, int ordinal, int local_rank, bool emulated, const Artifact& artifact,
                  Gpu& gpu);

Status too_little_memory(const Gpu& gpu, int64_t needed, int64_t free);

// Locks so many bytes of the host's memory, for the driver to release. Where that is refused, though there may be
// memory, the error says how many can be locked.
Status lock_host_memory(const Driver& driver, int64_t bytes, std::byte*& memory);

// True where PTX for "sm_80" runs on a GPU of a capability. Targets with a letter run on their own kind only.
bool runs_on(std::string_view target, int capability);

}  // namespace gacc::cuda
