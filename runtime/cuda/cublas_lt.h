// Matrix products by cuBLASLt, loaded by dlopen with own prototypes (compared with cublasLt.h by a test where
// that is installed). Only ever loaded on a machine with a GPU, for a plan with products: loading costs 150
// MiB.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "runtime/cuda/cublas_lt_values.h"
#include "runtime/cuda/gemm_engine.h"

struct cublasLtContext;

namespace gacc::cuda {

// A proposal of the library, laid out as it has it.
struct LtHeuristic {
  LtAlgorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

// member, exported name, parameters. Descriptors are the library's own structures.
#define GACC_CUBLAS_LT_FUNCTIONS(F)                                                                   \
  F(create, cublasLtCreate, (cublasLtContext * *handle))                                              \
  F(destroy, cublasLtDestroy, (cublasLtContext * handle))                                             \
  F(operation_create, cublasLtMatmulDescCreate, (void** operation, int compute, int scale))           \
  F(operation_destroy, cublasLtMatmulDescDestroy, (void* operation))                                  \
  F(operation_set, cublasLtMatmulDescSetAttribute,                                                    \
    (void* operation, int attribute, const void* value, size_t bytes))                                \
  F(layout_create, cublasLtMatrixLayoutCreate,                                                        \
    (void** layout, int type, uint64_t rows, uint64_t columns, int64_t leading))                      \
  F(layout_destroy, cublasLtMatrixLayoutDestroy, (void* layout))                                      \
  F(preference_create, cublasLtMatmulPreferenceCreate, (void** preference))                           \
  F(preference_destroy, cublasLtMatmulPreferenceDestroy, (void* preference))                          \
  F(preference_set, cublasLtMatmulPreferenceSetAttribute,                                             \
    (void* preference, int attribute, const void* value, size_t bytes))                               \
  F(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                        \
    (cublasLtContext * handle, void* operation, void* a, void* b, void* c, void* d, void* preference, \
     int wanted, LtHeuristic* results, int* found))                                                   \
  F(algorithm_check, cublasLtMatmulAlgoCheck,                                                         \
    (cublasLtContext * handle, void* operation, void* a, void* b, void* c, void* d,                   \
     const LtAlgorithm* algorithm, LtHeuristic* result))                                              \
  F(matmul, cublasLtMatmul,                                                                           \
    (cublasLtContext * handle, void* operation, const void* alpha, const void* a, void* a_layout,     \
     const void* b, void* b_layout, const void* beta, const void* c, void* c_layout, void* d,         \
     void* d_layout, const LtAlgorithm* algorithm, void* workspace, size_t workspace_bytes, Stream stream))

struct LtLibrary {
#define GACC_CUBLAS_LT_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  GACC_CUBLAS_LT_FUNCTIONS(GACC_CUBLAS_LT_MEMBER)
#undef GACC_CUBLAS_LT_MEMBER
  size_t (*version)() = nullptr;                       // cublasLtGetVersion
  const char* (*status_string)(int status) = nullptr;  // cublasLtGetStatusString

  // Returns true if the file, or what the loader finds by the name, is there and has every function.
  bool open(const std::string& file);
};

inline int real_type(DType type) {
  return type == DType::f16 ? kReal16F : type == DType::bf16 ? kReal16BF : kReal32F;
}

// Opens the first library that starts on the current context, by name and by place (libraries.h); `capability` is
// the GPU's, 90 for 9.0. The error says which there are and why they do not start.
Status open_cublas_lt(std::span<const char* const> names, int capability,
                      std::unique_ptr<GemmEngine>& engine);

}  // namespace gacc::cuda
