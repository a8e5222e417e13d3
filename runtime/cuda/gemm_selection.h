// The matrix products that a run computes with: cuBLASLt's or the artifact's own, by which algorithms of the library,
// and how long one takes.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/gemm_engine.h"
#include "runtime/cuda/gpu_choice.h"
#include "runtime/plan.h"

namespace gacc::cuda {

// Leaves `gemm` null when the plan has no products. `note` says why a large step, for which nobody asked for built-in
// products, has them. `driver` must outlive the engine.
Status choose_gemm(const CudaOptions& options, const Driver& driver, const Gpu& gpu, const Plan& plan,
                   std::unique_ptr<GemmEngine>& gemm, std::string& note);

// Takes the algorithms that the options bring along, unless they are another machine's: with --tune-gemm an
// error, else said in `note`. `tuning` must outlive the engine.
Status use_gemm_choices(const CudaOptions& options, const Gpu& gpu, GemmEngine& gemm, GemmTuning& tuning,
                        std::string& note);

// Bytes of random numbers of a type, from 1/4 to 1 and of either sign: sums of products of them stay far from
// the type's ends.
std::vector<std::byte> random_operand(DType type, size_t elements, uint64_t seed);

// The time of one launch: several between two events, after one that loads the code.
Status time_launch(const Driver& driver, Stream stream, const std::function<Status()>& launch,
                   double& microseconds);

}  // namespace gacc::cuda
