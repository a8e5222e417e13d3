// Values of cuBLASLt's enumerations, for who calls the library and for the emulator, which has its functions. A test
// compares them with NVIDIA's headers where those are installed.
#pragma once
#include <cstdint>

namespace gacc::cuda {

inline constexpr int kCompute32F = 68;  // f32 throughout: no TF32
inline constexpr int kReal32F = 0, kReal16F = 2, kReal16BF = 14;
inline constexpr int kTransposeA = 3, kTransposeB = 4;  // attributes of an operation
inline constexpr int kEpilogue = 7, kBiasPointer = 8;
inline constexpr uint32_t kEpilogueNone = 1, kEpilogueBias = 4;
inline constexpr int kPreferWorkspace = 1, kPreferReduction = 3, kPreferAlignmentA = 5;  // then B, C, D
inline constexpr uint32_t kReduceInF32 =
    2;  // COMPUTE_TYPE: parts of a sum are added up in the type of the sums
inline constexpr int kDone = 0, kInvalid = 7, kFailed = 13, kNotSupported = 15;  // statuses

}  // namespace gacc::cuda
