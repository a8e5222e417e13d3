// Matrix products on the GPU: cuBLASLt where it is installed (cublas_lt.h), else kernels of the artifact's
// PTX.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/gemm_choices.h"
#include "runtime/dtype.h"

namespace gacc::cuda {

// A built-in kernel as loaded; see PlanBuiltin for its parameters and grid.
struct BuiltinGemm {
  Function function = nullptr;
  int64_t block = 0, tile_m = 1, tile_n = 1;
  std::vector<uint64_t> parameters{};  // as builtin_arguments has them
};

// C[m, n] (+)= op(A)[m, k] @ op(B)[k, n], row-major, f32 sums.
struct Product {
  Pointer a = 0, b = 0, c = 0;
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  BuiltinGemm builtin{};
  DType type = DType::f32, result = DType::f32;  // of A and B, and of C; accumulate: C is f32
  Pointer bias = 0;  // of n f32 numbers that are added to each row of C, where adds_bias; 0: none
  // A micro-batch that is not full: its size is known only when it comes, and its algorithm works in no memory besides
  // the operands and the result.
  bool ragged = false;
  Pointer workspace = 0;           // as many bytes as workspace_bytes says, at launch
  std::array<int64_t, 3> pitch{};  // elements from one row of A, B and C to the next; 0: rows without gaps

  int64_t a_row() const { return pitch[0] != 0 ? pitch[0] : transpose_a ? m : k; }
  int64_t b_row() const { return pitch[1] != 0 ? pitch[1] : transpose_b ? k : n; }
  int64_t c_row() const { return pitch[2] != 0 ? pitch[2] : n; }
};

// The choice of an engine among several algorithms for a product.
struct GemmTuning {
  GemmChoices choices{};  // taken where they have the product; what is measured is added
  Pointer workspace = 0;  // where they are measured: most_workspace() bytes
  // Puts random numbers where a product's operands and its result lie, to measure it on. None: it is measured
  // on what is there.
  std::function<Status(Pointer to, int64_t elements, DType type)> fill{};
  // The time of one such launch on the stream, in microseconds; it runs several times. None: of what
  // `choices` lacks the library's first proposal is taken.
  std::function<Status(const std::function<Status()>& launch, double& microseconds)> measure{};
};

class GemmEngine {
 public:
  virtual ~GemmEngine() = default;
  virtual std::string name() const = 0;
  // Before the first prepare; `tuning` must outlive the engine. False when there is nothing to choose among.
  virtual bool tune(GemmTuning& /*tuning*/) { return false; }
  // Chooses how to compute a product: a function of its shape, whether it is ragged, the library and the GPU.
  // Called before anything below, never while the stream is captured. Queues nothing, unless the tuning
  // measures: then launches, and operands and result hold something else afterwards.
  virtual Status prepare(const Product& product, Stream stream) = 0;
  // Device memory that a prepared product works in, and the most that any may ask for.
  virtual int64_t workspace_bytes(const Product& /*product*/) const { return 0; }
  virtual int64_t most_workspace() const { return 0; }
  // Launches a prepared product, where the library has not run its algorithm before and may have code to
  // load.
  virtual Status warm_up(const Product& /*product*/, Stream /*stream*/) { return {}; }
  // True where `launch` adds the bias of a prepared product. If not, it computes the product alone.
  virtual bool adds_bias(const Product& /*product*/) const { return false; }
  // True where products are those of the artifact, which may have epilogues (PlanBuiltin::does).
  virtual bool builtin() const { return false; }
  // Queues a prepared product; the stream may be under capture.
  virtual Status launch(const Product& product, Stream stream) = 0;
};

inline constexpr const char* kBuiltinProducts = "built-in matrix products";

}  // namespace gacc::cuda
