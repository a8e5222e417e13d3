// The functions of cuBLASLt that the CUDA device calls: f32, f16 and bf16 matrices in column
// order, f32 sums, rounded once. Two algorithms: one adds in order of the inner dimension and needs no
// workspace; the other, proposed first where it may have one, adds halves of the inner dimension apart and
// asks for room for the partial sums. It leaves bytes there that count as never written, so a caller who lends
// it memory that is in use gets a report. Signatures and values follow NVIDIA's public documentation; a
// product that touches memory which is not there fails when it runs.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "emulator/driver.h"
#include "emulator/numbers.h"
#include "runtime/cuda/cublas_lt_values.h"

using namespace gacc::emulator;
using namespace gacc::cuda;

struct cublasLtContext {};

namespace {

constexpr int kPreferences = 8;  // attributes up to this are 8 (workspace) or 4 bytes
constexpr uint64_t kInOrder = 0x67616363, kInHalves = kInOrder + 1;  // our two algorithms; "gacc" in ASCII

struct Matmul {
  uint32_t transpose_a = 0, transpose_b = 0;
  uint32_t epilogue = kEpilogueNone;
  const void* bias = nullptr;  // one f32 for each row of D, in the epilogue's place
};
struct Layout {
  int type = kReal32F;
  uint64_t rows = 0, columns = 0, leading = 0;
  int64_t element() const { return type == kReal32F ? 4 : 2; }
  int64_t bytes() const { return static_cast<int64_t>((columns - 1) * leading + rows) * element(); }
};
struct Preference {
  uint64_t workspace = 0;  // bytes
  uint32_t reduction = 7;  // how parts of a sum may be added up: any way
};
struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

// A matrix on the device.
struct Place {
  Region* region = nullptr;
  int64_t at = 0;
  bool written = false;  // all of it
  uint8_t* data() const { return region->data() + at; }
};
// No region and a reason in the device's last error when it may not be touched.
Place place(const void* address, const Layout& layout) {
  const auto first = reinterpret_cast<uint64_t>(address);
  Region* region = device().emulator.memory().find(first, layout.bytes());
  const int64_t at = region ? region->offset(first) : 0;
  if (!region || !region->all(at, layout.bytes(), kLive)) {
    device().last_error = fmt::format("cublasLtMatmul: {} bytes at 0x{:x} are no live memory of the device",
                                      layout.bytes(), first);
    return {};
  }
  Place found{region, at, true};
  const auto column_bytes = static_cast<int64_t>(layout.rows) * layout.element();
  for (uint64_t column = 0; column < layout.columns && found.written; ++column) {  // gaps may hold nothing
    const int64_t begin = at + static_cast<int64_t>(column * layout.leading) * layout.element();
    found.written = region->all(begin, column_bytes, kLive | kWritten);
  }
  return found;
}

float element(const uint8_t* data, const Layout& layout, uint64_t index) {
  if (layout.type == kReal32F) {
    float value = 0;
    std::memcpy(&value, data + 4 * index, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, data + 2 * index, 2);
  return layout.type == kReal16F ? float_of_half(bits) : float_of_bf16(bits);
}

void put(uint8_t* data, const Layout& layout, uint64_t index, float value) {
  if (layout.type == kReal32F) {
    std::memcpy(data + 4 * index, &value, 4);
    return;
  }
  const uint16_t bits = layout.type == kReal16F ? half_from(value) : bf16_from(value);
  std::memcpy(data + 2 * index, &bits, 2);
}

// That an algorithm needs for a result: one f32 for each element, and up to a multiple of 256.
size_t workspace_of(uint64_t algorithm, const Layout& d) {
  return algorithm == kInHalves ? (d.rows * d.columns * 4 + 255) / 256 * 256 : 0;
}

struct Product {
  Matmul op;
  Layout a_layout, b_layout, d_layout;
  const void *a = nullptr, *b = nullptr;
  void *d = nullptr, *workspace = nullptr;
  float alpha = 0, beta = 0;
  uint64_t algorithm = kInOrder;

  uint64_t m() const { return d_layout.rows; }
  uint64_t n() const { return d_layout.columns; }
  uint64_t k() const { return op.transpose_a ? a_layout.rows : a_layout.columns; }
  bool valid() const {
    const uint64_t a_rows = op.transpose_a ? a_layout.columns : a_layout.rows;
    const uint64_t b_rows = op.transpose_b ? b_layout.columns : b_layout.rows;
    const uint64_t b_columns = op.transpose_b ? b_layout.rows : b_layout.columns;
    return a_rows == m() && b_rows == k() && b_columns == n();
  }

  // NaNs, all over the workspace.
  bool scribble() const {
    const auto bytes = static_cast<int64_t>(workspace_of(algorithm, d_layout));
    if (bytes == 0) return true;
    const Place room = place(workspace, Layout{kReal32F, static_cast<uint64_t>(bytes) / 4, 1, 0});
    if (!room.region) return false;
    std::memset(room.data(), 0xff, static_cast<size_t>(bytes));
    room.region->forget_written(room.at, bytes);
    return true;
  }

  // Computes the product. The workspace's contents are destroyed before the operands are read, and again once the
  // result is there.
  int run() const {
    if (!scribble()) return kIllegalAddress;
    const int done = multiply();
    return scribble() ? done : kIllegalAddress;
  }

  int multiply() const {
    const Place in_a = place(a, a_layout), in_b = place(b, b_layout), out = place(d, d_layout);
    if (!in_a.region || !in_b.region || !out.region) return kIllegalAddress;
    const uint8_t *from_a = in_a.data(), *from_b = in_b.data();
    uint8_t* to = out.data();
    // An unwritten operand makes the result unwritten too: the kernel that reads it is reported.
    bool written = in_a.written && in_b.written && (beta == 0 || out.written);
    Place bias;
    if (op.epilogue == kEpilogueBias) {
      bias = place(op.bias, Layout{kReal32F, m(), 1, m()});
      if (!bias.region) return kIllegalAddress;
      written = written && bias.written;
    }
    // op(A) column by column, so that the inner loop runs along a column of D.
    std::vector<float> left(static_cast<size_t>(m() * k())), sums(static_cast<size_t>(m())), first_half;
    for (uint64_t p = 0; p < k(); ++p)
      for (uint64_t i = 0; i < m(); ++i)
        left[p * m() + i] =
            element(from_a, a_layout, op.transpose_a ? p + i * a_layout.leading : i + p * a_layout.leading);
    for (uint64_t j = 0; j < n(); ++j) {
      std::ranges::fill(sums, 0.0f);
      for (uint64_t p = 0; p < k(); ++p) {
        if (algorithm == kInHalves && p == k() / 2) first_half = std::exchange(sums, std::vector<float>(m()));
        const float y =
            element(from_b, b_layout, op.transpose_b ? j + p * b_layout.leading : p + j * b_layout.leading);
        const float* column = &left[p * m()];
        for (uint64_t i = 0; i < m(); ++i) sums[i] += column[i] * y;
      }
      for (uint64_t i = 0; i < first_half.size(); ++i) sums[i] += first_half[i];
      const uint64_t first = j * d_layout.leading;
      for (uint64_t i = 0; i < m(); ++i) {
        const float held = beta == 0 ? 0 : beta * element(to, d_layout, first + i);
        const float sum = alpha * sums[i] + held;
        put(to, d_layout, first + i, bias.region ? sum + element(bias.data(), Layout{}, i) : sum);
      }
      const int64_t at = out.at + static_cast<int64_t>(first) * d_layout.element();
      const int64_t bytes = static_cast<int64_t>(m()) * d_layout.element();
      if (written)
        out.region->mark_written(at, bytes);
      else
        out.region->forget_written(at, bytes);
    }
    return kSuccess;
  }
};

template <class T>
int destroy(void* descriptor) {
  delete static_cast<T*>(descriptor);
  return kDone;
}

bool known(int type) { return type == kReal32F || type == kReal16F || type == kReal16BF; }

}  // namespace

GACC_DRIVER_EXPORT size_t cublasLtGetVersion() { return 0; }
GACC_DRIVER_EXPORT const char* cublasLtGetStatusString(int status) {
  return status == kDone      ? "CUBLAS_STATUS_SUCCESS"
         : status == kInvalid ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == kFailed  ? "CUBLAS_STATUS_EXECUTION_FAILED"
                              : "CUBLAS_STATUS_NOT_SUPPORTED";
}
GACC_DRIVER_EXPORT int cublasLtCreate(cublasLtContext** handle) {
  if (!handle) return kInvalid;
  *handle = new cublasLtContext;
  return kDone;
}
GACC_DRIVER_EXPORT int cublasLtDestroy(cublasLtContext* handle) {
  delete handle;
  return kDone;
}
GACC_DRIVER_EXPORT int cublasLtMatmulDescCreate(void** operation, int compute, int scale) {
  if (compute != kCompute32F || scale != kReal32F) return kNotSupported;
  *operation = new Matmul;
  return kDone;
}
GACC_DRIVER_EXPORT int cublasLtMatmulDescDestroy(void* operation) { return destroy<Matmul>(operation); }
GACC_DRIVER_EXPORT int cublasLtMatmulDescSetAttribute(void* operation, int attribute, const void* value,
                                                      size_t bytes) {
  auto* to = static_cast<Matmul*>(operation);
  void* field = attribute == kBiasPointer  ? static_cast<void*>(&to->bias)
                : attribute == kEpilogue   ? static_cast<void*>(&to->epilogue)
                : attribute == kTransposeA ? &to->transpose_a
                : attribute == kTransposeB ? &to->transpose_b
                                           : nullptr;
  if (!field || bytes != (attribute == kBiasPointer ? sizeof to->bias : 4)) return kNotSupported;
  std::memcpy(field, value, bytes);
  const bool known = to->epilogue == kEpilogueNone || to->epilogue == kEpilogueBias;
  return known && to->transpose_a <= 1 && to->transpose_b <= 1 ? kDone : kNotSupported;
}
GACC_DRIVER_EXPORT int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns,
                                                  int64_t leading) {
  if (!known(type)) return kNotSupported;
  if (rows == 0 || columns == 0 || leading < 0 || static_cast<uint64_t>(leading) < rows) return kInvalid;
  *layout = new Layout{type, rows, columns, static_cast<uint64_t>(leading)};
  return kDone;
}
GACC_DRIVER_EXPORT int cublasLtMatrixLayoutDestroy(void* layout) { return destroy<Layout>(layout); }
GACC_DRIVER_EXPORT int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new Preference;
  return kDone;
}
GACC_DRIVER_EXPORT int cublasLtMatmulPreferenceDestroy(void* preference) {
  return destroy<Preference>(preference);
}
GACC_DRIVER_EXPORT int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute,
                                                            const void* value, size_t bytes) {
  auto& wishes = *static_cast<Preference*>(preference);
  if (attribute == kPreferWorkspace && bytes == 8) std::memcpy(&wishes.workspace, value, bytes);
  if (attribute == kPreferReduction && bytes == 4) std::memcpy(&wishes.reduction, value, bytes);
  return attribute > 0 && attribute <= kPreferences && (bytes == 4 || bytes == 8) ? kDone : kInvalid;
}
GACC_DRIVER_EXPORT int cublasLtMatmulAlgoGetHeuristic(cublasLtContext*, void*, void* a, void* b, void* c,
                                                      void* d, void* preference, int wanted,
                                                      Heuristic* results, int* found) {
  const Layout& result = *static_cast<Layout*>(d);
  const int from = static_cast<Layout*>(a)->type, to = result.type;
  const bool types = static_cast<Layout*>(b)->type == from && static_cast<Layout*>(c)->type == to &&
                     (to == from || to == kReal32F);
  *found = 0;
  const auto& wishes = *static_cast<Preference*>(preference);
  if (!types || wanted < 1 || wishes.reduction != kReduceInF32) return kNotSupported;
  for (const uint64_t algorithm : {kInHalves, kInOrder}) {
    const size_t bytes = workspace_of(algorithm, result);
    if (*found == wanted || bytes > wishes.workspace) continue;
    Heuristic& proposal = results[(*found)++] = {};
    proposal.algorithm[0] = algorithm;
    proposal.workspace_bytes = bytes;
  }
  return kDone;
}
GACC_DRIVER_EXPORT int cublasLtMatmulAlgoCheck(cublasLtContext*, void* operation, void*, void*, void*,
                                               void* d, const Heuristic* algorithm, Heuristic* result) {
  const uint64_t number = algorithm->algorithm[0];
  if (number != kInOrder && number != kInHalves) return kInvalid;
  const Matmul& op = *static_cast<Matmul*>(operation);
  // The real library has a bias of D's type in all three; only f32 is asked of it.
  if (op.epilogue == kEpilogueBias && (!op.bias || static_cast<Layout*>(d)->type != kReal32F))
    return kNotSupported;
  *result = {};
  result->workspace_bytes = workspace_of(number, *static_cast<Layout*>(d));
  return kDone;
}
GACC_DRIVER_EXPORT int cublasLtMatmul(cublasLtContext* handle, void* operation, const void* alpha,
                                      const void* a, void* a_layout, const void* b, void* b_layout,
                                      const void* beta, const void* c, void* c_layout, void* d,
                                      void* d_layout, const Heuristic* algorithm, void* workspace,
                                      size_t workspace_bytes, CUstream_st* stream) {
  const std::lock_guard lock(device().mutex);
  if (!handle || !operation || !algorithm || c != d) return kInvalid;
  const uint64_t number = algorithm->algorithm[0];
  if (number != kInOrder && number != kInHalves) return kInvalid;
  const auto of = [](void* layout) { return *static_cast<Layout*>(layout); };
  if (workspace_bytes < workspace_of(number, of(d_layout))) return kInvalid;
  // Descriptors may be gone when a captured product runs.
  Product product{*static_cast<Matmul*>(operation), of(a_layout), of(b_layout), of(d_layout)};
  product.a = a, product.b = b, product.d = d, product.workspace = workspace, product.algorithm = number;
  std::memcpy(&product.alpha, alpha, 4), std::memcpy(&product.beta, beta, 4);
  if (!product.valid() || of(c_layout).type != product.d_layout.type) return kInvalid;
  return submit(stream, [product] { return product.run(); }) == kSuccess ? kDone : kFailed;
}
