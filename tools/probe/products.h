// Matrix products by cuBLASLt, as training steps have them, with leading dimensions of their own.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "ir/schedule/schedule.h"
#include "runtime/byte_order.h"
#include "runtime/cuda/cublas_lt.h"
#include "runtime/half.h"
#include "runtime/plan.h"
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

struct Rates {  // seconds of one product, by the library's first proposal and by the fastest of eight
  double first = 0, best = 0;
};

// C (+)= op(A) op(B) on random numbers. Times are of one of `times` in a row.
class Products {
 public:
  Products(Machine& machine, std::span<const char* const> libraries, int times)
      : machine_(machine), times_(times) {
    tuning_.measure = [this](const std::function<Status()>& launch, double& microseconds) {
      GACC_TRY(launch());
      microseconds = machine_.seconds([&] { need(launch()); }, times_, 3) * 1e6;
      return Status();
    };
    for (auto* engine : {&first_, &fastest_})
      need(cuda::open_cublas_lt(libraries, machine.capability(), *engine));
    fastest_->tune(tuning_);
  }

  Rates measure(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate = false) {
    const cuda::Product product = prepare(a, b, c, accumulate);
    const double best = seconds(*fastest_, product), first = seconds(*first_, product);
    return {first, std::min(first, best)};
  }

  // By the first proposal, in every element against double.
  void check(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
    const cuda::Product product = prepare(a, b, c, accumulate);
    const std::vector<double> left = values(a, product.a), right = values(b, product.b),
                              before = values(c, product.c);
    need(first_->prepare(product, machine_.stream()));
    need(first_->launch(product, machine_.stream()));
    const std::vector<double> found = values(c, product.c);
    const auto at = [](const Matrix& matrix, bool transposed, int64_t row, int64_t column) {
      return static_cast<size_t>(transposed ? column * matrix.leading + row : row * matrix.leading + column);
    };
    for (int64_t row = 0; row < c.rows; ++row)
      for (int64_t column = 0; column < c.columns; ++column) {
        const size_t here = at(c, false, row, column);
        double sum = accumulate ? before[here] : 0, size = 1;
        for (int64_t k = 0; k < product.k; ++k) {
          const double term = left[at(a, a.transposed, row, k)] * right[at(b, b.transposed, k, column)];
          sum += term, size += std::abs(term);
        }
        const double bound = size * (c.type == cuda::Element::f32 ? 1e-5 : 1e-2);  // bf16 has 8 bits
        if (!(std::abs(found[here] - sum) <= bound))
          throw Failed{fmt::format("a product's element {}, {} is {} where {} was expected", row, column,
                                   found[here], sum)};
      }
  }

  // By the first proposal, again and again, for so long: the time in the end.
  double sustained(const Matrix& a, const Matrix& b, const Matrix& c, double duration) {
    const cuda::Product product = prepare(a, b, c, false);
    const auto begin = std::chrono::steady_clock::now();
    double last = 0;
    do {
      last = seconds(*first_, product, 1);
    } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < duration);
    return last;
  }

 private:
  cuda::Product prepare(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
    machine_.wait();
    machine_.release_all();
    unsigned seed = 1;
    const auto filled = [&](const Matrix& matrix) {
      const Pointer memory = machine_.allocate(matrix.bytes());
      machine_.fill(memory, matrix.bytes(), matrix.type, seed++);
      return memory;
    };
    cuda::Product product{.a = filled(a), .b = filled(b), .c = filled(c), .m = c.rows, .n = c.columns};
    product.k = a.transposed ? a.rows : a.columns;
    product.transpose_a = a.transposed;
    product.transpose_b = b.transposed;
    product.accumulate = accumulate;
    product.type = a.type;
    product.result = c.type;
    product.workspace = tuning_.workspace = machine_.allocate(ir::kMostWorkspace);
    product.pitch = {a.leading, b.leading, c.leading};
    return product;
  }

  double seconds(cuda::GemmEngine& engine, const cuda::Product& product, int rounds = 5) {
    need(engine.prepare(product, machine_.stream()));
    return machine_.seconds([&] { need(engine.launch(product, machine_.stream())); }, times_, rounds);
  }

  std::vector<double> values(const Matrix& matrix, Pointer from) const {
    std::vector<char> bytes(matrix.bytes());
    machine_.read(bytes.data(), from, bytes.size());
    std::vector<double> all;
    for (int64_t i = 0; i < matrix.rows * matrix.leading; ++i) {
      const char* at = bytes.data() + i * cuda::element_bytes(matrix.type);
      float value = 0;
      if (matrix.type == cuda::Element::f32)
        value = read_little<float>(at);
      else
        widen(matrix.type == cuda::Element::bf16 ? HalfType::bf16 : HalfType::f16, at, &value, 1);
      all.push_back(value);
    }
    return all;
  }

  Machine& machine_;
  int times_;
  cuda::GemmTuning tuning_;
  std::unique_ptr<cuda::GemmEngine> first_, fastest_;  // one takes first proposals, one measures
};

}  // namespace gacc::probe
