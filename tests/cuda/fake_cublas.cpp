// A fake cuBLASLt: column-major f32 products in host memory, computed at the call, from the same descriptors
// that the real library takes. It shows that our row-major products arrive as the right column-major ones.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>

#include "runtime/cuda/cublas_lt.h"

using namespace gacc::cuda;

struct cublasLtContext {};

namespace {

struct Operation {
  int32_t transpose_a = 0, transpose_b = 0;
  uint32_t epilogue = kEpilogueNone;
  const float* bias = nullptr;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reduction = 7;  // any, as NVIDIA's has it
};
struct Layout {
  uint64_t rows, columns;
  int64_t leading;
};
constexpr uint64_t kFirst = 42;
constexpr int kAlgorithms = 3;    // all the same; 42, 43 and 44
uint64_t last_algorithm = 0;      // that ran
size_t demand = size_t{2} << 20;  // bytes of workspace that 42 and 43 ask for; 44 asks for none

bool refuses_biases = false;
int zero_operands = 0;  // of all products: elements of A and B

bool known(uint64_t algorithm) { return algorithm >= kFirst && algorithm < kFirst + kAlgorithms; }
size_t workspace_of(uint64_t algorithm) { return algorithm < kFirst + kAlgorithms - 1 ? demand : 0; }

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) int

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 130100; }
extern "C" __attribute__((visibility("default"))) const char* cublasLtGetStatusString(int status) {
  return status == kInvalid ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_INTERNAL_ERROR";
}
// In a file whose name says that it is broken, the library does not start.
FAKE cublasLtCreate(cublasLtContext** handle) {
  Dl_info self = {};
  if (dladdr(reinterpret_cast<void*>(&cublasLtCreate), &self) != 0 &&
      std::strstr(self.dli_fname, "broken") != nullptr)
    return kFailed;
  *handle = new cublasLtContext;
  return 0;
}
FAKE cublasLtDestroy(cublasLtContext* handle) {
  delete handle;
  return 0;
}
FAKE cublasLtMatmulDescCreate(void** operation, int compute, int scale) {
  *operation = new Operation;
  return compute == kCompute32F && scale == kReal32F ? 0 : kInvalid;
}
FAKE cublasLtMatmulDescDestroy(void* operation) {
  delete static_cast<Operation*>(operation);
  return 0;
}
FAKE cublasLtMatmulDescSetAttribute(void* operation, int attribute, const void* value, size_t bytes) {
  if (attribute == kEpilogue && bytes == 4)
    return std::memcpy(&static_cast<Operation*>(operation)->epilogue, value, bytes), 0;
  if (attribute == kBiasPointer && bytes == 8)
    return std::memcpy(&static_cast<Operation*>(operation)->bias, value, bytes), 0;
  if (bytes != 4 || (attribute != kTransposeA && attribute != kTransposeB)) return kInvalid;
  auto& to = *static_cast<Operation*>(operation);
  std::memcpy(attribute == kTransposeA ? &to.transpose_a : &to.transpose_b, value, bytes);
  return 0;
}
FAKE cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = new Layout{rows, columns, leading};
  return type == kReal32F && static_cast<uint64_t>(leading) >= rows ? 0 : kInvalid;
}
FAKE cublasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<Layout*>(layout);
  return 0;
}
FAKE cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new Preference;
  return 0;
}
FAKE cublasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<Preference*>(preference);
  return 0;
}
FAKE cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t bytes) {
  auto& wishes = *static_cast<Preference*>(preference);
  if (attribute == kPreferWorkspace && bytes == 8)
    std::memcpy(&wishes.workspace, value, bytes);
  else if (attribute == kPreferReduction && bytes == 4)
    std::memcpy(&wishes.reduction, value, bytes);
  else if (attribute < kPreferAlignmentA || attribute > kPreferAlignmentA + 3 || bytes != 4)
    return kInvalid;
  return 0;
}
FAKE cublasLtMatmulAlgoGetHeuristic(cublasLtContext*, void*, void*, void*, void*, void*, void* preference,
                                    int wanted, LtHeuristic* results, int* found) {
  *found = 0;
  const auto& wishes = *static_cast<Preference*>(preference);
  if (wishes.reduction != kReduceInF32)
    return kNotSupported;  // else parts of a half sum may be added up as halves
  for (uint64_t algorithm = kFirst; known(algorithm) && *found < wanted; ++algorithm) {
    if (workspace_of(algorithm) > wishes.workspace) continue;
    LtHeuristic& proposal = results[(*found)++] = {};
    proposal.algorithm.data[0] = algorithm;
    proposal.algorithm.data[7] = ~uint64_t{0};
    proposal.workspace_bytes = workspace_of(algorithm);
  }
  return 0;
}
// The last algorithm takes no bias.
FAKE cublasLtMatmulAlgoCheck(cublasLtContext*, void* operation, void*, void*, void*, void*,
                             const LtAlgorithm* algorithm, LtHeuristic* result) {
  *result = {};
  if (!known(algorithm->data[0])) return kInvalid;
  result->workspace_bytes = workspace_of(algorithm->data[0]);
  const bool last = algorithm->data[0] == kFirst + kAlgorithms - 1;
  return last && static_cast<Operation*>(operation)->epilogue == kEpilogueBias ? kInvalid : 0;
}
FAKE fake_demand(size_t bytes) {
  demand = bytes;
  return 0;
}
// From now on products with a bias fail, whatever the check has said.
FAKE fake_refuse_biases(int refuse) {
  refuses_biases = refuse != 0;
  return 0;
}
FAKE fake_zero_operands() { return zero_operands; }
FAKE fake_last_algorithm() { return static_cast<int>(last_algorithm); }
FAKE cublasLtMatmul(cublasLtContext*, void* operation, const void* alpha, const void* a, void* a_layout,
                    const void* b, void* b_layout, const void* beta, const void* c, void* c_layout, void* d,
                    void* d_layout, const LtAlgorithm* algorithm, void* workspace, size_t workspace_bytes,
                    Stream) {
  const auto& op = *static_cast<Operation*>(operation);
  const auto &la = *static_cast<Layout*>(a_layout), &lb = *static_cast<Layout*>(b_layout),
             &lc = *static_cast<Layout*>(c_layout), &ld = *static_cast<Layout*>(d_layout);
  const uint64_t m = op.transpose_a ? la.columns : la.rows, k = op.transpose_a ? la.rows : la.columns;
  const uint64_t n = op.transpose_b ? lb.rows : lb.columns;
  if (k != (op.transpose_b ? lb.columns : lb.rows) || lc.rows != m || lc.columns != n || ld.rows != m ||
      c != d || !known(algorithm->data[0]) || algorithm->data[7] != ~uint64_t{0} ||
      workspace_bytes < workspace_of(algorithm->data[0]) ||
      (refuses_biases && op.epilogue == kEpilogueBias) || (workspace_bytes > 0 && !workspace))
    return kInvalid;
  // Whatever lies in the workspace is lost.
  if (workspace_bytes > 0) std::memset(workspace, 0xff, workspace_bytes);
  last_algorithm = algorithm->data[0];
  const auto at = [](const void* base, const Layout& layout, bool transposed, uint64_t row, uint64_t column) {
    if (transposed) std::swap(row, column);
    return static_cast<const float*>(base)[row + column * static_cast<uint64_t>(layout.leading)];
  };
  for (uint64_t column = 0; column < n; ++column)
    for (uint64_t row = 0; row < m; ++row) {
      float sum = 0;
      for (uint64_t i = 0; i < k; ++i) {
        const float x = at(a, la, op.transpose_a, row, i), y = at(b, lb, op.transpose_b, i, column);
        zero_operands += (x == 0) + (y == 0);
        sum += x * y;
      }
      float& to = static_cast<float*>(d)[row + column * static_cast<uint64_t>(ld.leading)];
      to = *static_cast<const float*>(alpha) * sum + *static_cast<const float*>(beta) * to;
      if (op.epilogue == kEpilogueBias) to += op.bias[row];
    }
  return 0;
}
