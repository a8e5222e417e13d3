// The work of each launch of a scheduled region on a GPU: its blocks and threads as the schedule has them,
// bytes by width, instructions and chains as they follow from the function's body. docs/gpu.md says how.
#pragma once
#include <string>
#include <vector>

#include "kernels/launch_cost.h"
#include "kernels/specialisation.h"

namespace gacc::kernels {

// Adds what is not the same for all kernels, for a hand-written one (handwritten_work.cpp). `work` has
// the grid and `moved`.
void handwritten_work(const ir::OpView& op, const Body& body, Work& work);

// A launch of a region with its estimate.
struct LaunchCost {
  std::string name{};  // as a profile has it: "add_gelu_tanh_12", "product 16384x768x3072"
  int64_t blocks = 0, threads = 0;
  int64_t flops = 0;              // as the op table counts them
  double bytes = 0;               // that must be moved
  double seconds = 0, floor = 0;  // seconds: with the gap or the barrier that goes with it
  double own = 0;                 // seconds, where products are computed by the artifact's kernels
  Bound bound = Bound::bandwidth;
  int64_t stream = 0;         // of a graph
  Use use{};                  // of what launches on two streams share
  std::vector<Work> works{};  // of each call: more than one where calls are merged
};

// The estimate of a region, run as one kernel or launch by launch.
struct RegionCost {
  bool persistent = false;
  double uncovered = 0;                // seconds that copies between arena and host add to the kernels
  bool two_streams = false;            // of kernels
  std::vector<LaunchCost> launches{};  // in the schedule's order, one for each ir::Launch
  double seconds = 0, floor = 0;       // of all of it
};

// Estimates a scheduled region at the full micro-batch. `program` is the module's for its target. Copies have `link`
// bytes a second each way, both ways at once.
RegionCost region_cost(const ir::Module& module, const ir::Region& region, const ModuleKernels& program,
                       const Machine& machine, double link = kHostLink);

// Estimates the kernels of a fused region before there is a schedule, each as the launch that `select` would make
// of it, in a graph whose products the library computes, at the full micro-batch.
class KernelEstimator {
 public:
  // `arena`: bytes of the training, as far as they are known. All bytes come from the second-level cache where
  // the arena fits it.
  KernelEstimator(const ir::Module& module, const ir::Region& region, std::string_view target, int64_t arena);
  // Returns the seconds of a launch with the gap behind it; 0 for a reshape.
  double seconds(const ir::Kernel& kernel) const;
  // Returns the seconds of all kernels of the region, one after the other.
  double seconds() const;

 private:
  const ir::Module& module_;
  const ir::Region& region_;
  const Machine& machine_;
  const GpuTarget gpu_;
  const int64_t arena_;
  const Specialiser specialiser_;
};

}  // namespace gacc::kernels
