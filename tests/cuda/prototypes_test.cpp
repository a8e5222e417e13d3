// The prototypes in runtime/cuda against NVIDIA's own headers, where those are installed: this file compiles
// only if every function, enumeration value and structure agrees. Nothing of CUDA is linked.
#include <cublasLt.h>
#include <cuda.h>
#include <gtest/gtest.h>
#ifdef GACC_NCCL_HEADER
#include <nccl.h>
#endif

#include <type_traits>

#include "runtime/cuda/cublas_lt.h"
#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/nccl.h"

namespace gacc::cuda {
namespace {

// A type of the interface: enumerations are `int`, descriptors of cuBLASLt `void*`, handles are the same
// pointers.
template <class T>
struct Plain {
  using type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <class T>
struct Plain<T*> {
  using type = typename Plain<T>::type*;
};
template <class T>
struct Plain<const T> {
  using type = const typename Plain<T>::type;
};
template <class R, class... A>
struct Plain<R (*)(A...)> {
  using type = typename Plain<R>::type (*)(typename Plain<A>::type...);
};
#define GACC_DESCRIPTOR(name) \
  template <>                 \
  struct Plain<name> {        \
    using type = void;        \
  };
GACC_DESCRIPTOR(cublasLtMatmulDescOpaque_t)
GACC_DESCRIPTOR(cublasLtMatrixLayoutOpaque_t)
GACC_DESCRIPTOR(cublasLtMatmulPreferenceOpaque_t)
#undef GACC_DESCRIPTOR
template <>
struct Plain<cublasLtMatmulAlgo_t> {
  using type = LtAlgorithm;
};
template <>
struct Plain<cublasLtMatmulHeuristicResult_t> {
  using type = LtHeuristic;
};

#define GACC_SAME(member, symbol, parameters)                                                        \
  static_assert(std::is_same_v<typename Plain<decltype(&::symbol)>::type, decltype(Driver::member)>, \
                #symbol " has another prototype");
GACC_CUDA_FUNCTIONS(GACC_SAME)
#undef GACC_SAME
#define GACC_SAME(member, symbol, parameters)                                                           \
  static_assert(std::is_same_v<typename Plain<decltype(&::symbol)>::type, decltype(LtLibrary::member)>, \
                #symbol " has another prototype");
GACC_CUBLAS_LT_FUNCTIONS(GACC_SAME)
#undef GACC_SAME
static_assert(std::is_same_v<decltype(&::cublasLtGetVersion), decltype(LtLibrary::version)>);
static_assert(
    std::is_same_v<Plain<decltype(&::cublasLtGetStatusString)>::type, decltype(LtLibrary::status_string)>);

#ifdef GACC_NCCL_HEADER
template <>
struct Plain<ncclUniqueId> {
  using type = NcclId;
};
#define GACC_SAME(member, symbol, parameters)                                                             \
  static_assert(std::is_same_v<typename Plain<decltype(&::symbol)>::type, decltype(NcclLibrary::member)>, \
                #symbol " has another prototype");
GACC_NCCL_FUNCTIONS(GACC_SAME)
#undef GACC_SAME
static_assert(
    std::is_same_v<Plain<decltype(&::ncclGetErrorString)>::type, decltype(NcclLibrary::error_string)>);
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId) && kNcclUint32 == ncclUint32);
#endif

static_assert(kAttributePciBus == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID &&
              kAttributePciDevice == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID &&
              kAttributePciDomain == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
static_assert(std::is_same_v<Pointer, CUdeviceptr> && std::is_same_v<CUdevice, int>);
static_assert(kErrorOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && kErrorNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kErrorStubLibrary == CUDA_ERROR_STUB_LIBRARY);
static_assert(kAttributeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kAttributeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kAttributeMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kAttributeCooperative == CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
static_assert(kFunctionMaxThreads == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
static_assert(kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING && kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kJitErrorLog == CU_JIT_ERROR_LOG_BUFFER &&
              kJitErrorLogBytes == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);

static_assert(sizeof(LtAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(LtHeuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(LtHeuristic, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(LtHeuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(kCompute32F == CUBLAS_COMPUTE_32F && kReal32F == CUDA_R_32F);
static_assert(kTransposeA == CUBLASLT_MATMUL_DESC_TRANSA && kTransposeB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(kEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE &&
              kBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(kEpilogueNone == CUBLASLT_EPILOGUE_DEFAULT && kEpilogueBias == CUBLASLT_EPILOGUE_BIAS);
static_assert(CUBLAS_OP_N == 0 && CUBLAS_OP_T == 1);
static_assert(kPreferWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kPreferReduction == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(kReduceInF32 == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(kReal16F == CUDA_R_16F && kReal16BF == CUDA_R_16BF);
static_assert(kPreferAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(kPreferAlignmentA + 3 == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

TEST(Prototypes, AgreeWithNvidiasHeaders) {
  RecordProperty("cuda", CUDA_VERSION);
  RecordProperty("cublas", CUBLAS_VERSION);
}

}  // namespace
}  // namespace gacc::cuda
