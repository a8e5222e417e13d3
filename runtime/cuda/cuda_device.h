// The Device that runs an artifact's PTX through the NVIDIA driver, on a GPU or in the emulator. One context,
// one module, one stream, one arena; `step`, `update` and `eval` are CUDA graphs, so that a run is one call
// of the driver and never waits. docs/gpu.md tells the whole story.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/artifact.h"
#include "runtime/device.h"

namespace gacc::cuda {

struct Options {
  std::string driver = "libcuda.so.1";  // the library with the driver's functions
  int ordinal = -1;                     // which GPU; -1: the first that can run the artifact ...
  int local_rank = 0;                   // ... or so many GPUs after it that can, counted around
  GemmChoice gemm = GemmChoice::automatic;
  std::vector<const char*> cublas = {"libcublasLt.so.13", "libcublasLt.so.12"};
  std::string gemm_choices{}, gemm_choices_from{};  // DeviceOptions
  bool tune_gemm = false;
  bool emulated = false;  // the driver is gacc's emulator: cuBLAS only if asked for, and reports at the end
};

// A device for this artifact. An error is one sentence and says why no GPU (or not this one) can run it: no
// driver, driver too old, no such GPU, GPU below the artifact's target, too little memory, no matrix
// products. `artifact` is only looked at here; `load` gets it again.
Status open_device(const Options& options, const Artifact& artifact, std::unique_ptr<Device>& device);

}  // namespace gacc::cuda
