// Matrix products by cuBLASLt with leading dimensions of their own.
#pragma once
#include <string>
#include <vector>

#include "runtime/cuda/cublas_lt.h"
#include "tools/probe/probed_gpu.h"

namespace gacc::probe {

// Row-major, `leading` elements from one row to the next.
struct Matrix {
  int64_t rows = 0, columns = 0, leading = 0;
  cuda::Element type = cuda::Element::f16;
  bool transposed = false;  // as a factor
  size_t bytes() const {
    return static_cast<size_t>(rows * leading * cuda::element_bytes(type) + 255) / 256 * 256;
  }
};

struct Rates {  // seconds of one product, by the first proposal that runs and by the fastest
  double first = 0, best = 0;
};

class Products {
 public:
  Products(Machine& machine, const std::vector<std::string>& libraries);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  // C (+)= op(A) op(B) on random numbers, by the library's first eight proposals.
  Rates measure(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, int times);
  // The same by the first proposal, in every element against double.
  void check(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);
  // By the first proposal, again and again, for so long: the rate in the end.
  double sustained(const Matrix& a, const Matrix& b, const Matrix& c, double seconds, int times);

 private:
  struct Call;
  void prepare(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, int proposals, Call& call);

  Machine& machine_;
  cuda::LtLibrary library_;
  cublasLtContext* handle_ = nullptr;
};

}  // namespace gacc::probe
