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

struct CudaOptions : DeviceOptions {
  std::string driver = "libcuda.so.1";  // the library with the driver's functions
  int ordinal =
      -1;  // which GPU; -1: the first that can run the artifact, or `local_rank` GPUs after it that can
  std::vector<const char*> cublas = {"libcublasLt.so.13", "libcublasLt.so.12"};
  bool emulated = false;  // the driver is gacc's emulator: cuBLAS only if asked for, and reports at the end
};

// A device for this artifact. An error is one sentence and says why no GPU (or not this one) can run it: no
// driver, driver too old, no such GPU, GPU below the artifact's target, too little memory, no matrix
// products. `artifact` is only looked at here; `load` gets it again.
Status open_device(const CudaOptions& options, const Artifact& artifact, std::unique_ptr<Device>& device);

}  // namespace gacc::cuda
