// See products.h. The library is column-major: it computes C^T = op(B)^T op(A)^T, as
// runtime/cuda/cublas_lt.cpp has it.
#include "tools/probe/products.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "runtime/data/byte_order.h"
#include "runtime/half.h"

namespace gacc::probe {

namespace {

using cuda::Element;

constexpr size_t kWorkspace = size_t{32} << 20;

double number(const std::byte* data, int64_t index, Element type) {
  const char* at = reinterpret_cast<const char*>(data) + index * cuda::element_bytes(type);
  if (type == Element::f32) return read_little<float>(at);
  float value = 0;
  widen(type == Element::bf16 ? HalfType::bf16 : HalfType::f16, at, &value, 1);
  return value;
}

}  // namespace

struct Products::Call {
  const cuda::LtLibrary* library = nullptr;
  void *operation = nullptr, *layouts[3] = {}, *preference = nullptr;  // layouts of B, A, C
  Pointer a = 0, b = 0, c = 0, workspace = 0;
  float beta = 0;
  std::vector<cuda::LtHeuristic> proposals;

  ~Call() {
    if (operation) library->operation_destroy(operation);
    if (preference) library->preference_destroy(preference);
    for (void* layout : layouts)
      if (layout) library->layout_destroy(layout);
  }
  int run(cublasLtContext* handle, const cuda::LtHeuristic& proposal, cuda::Stream stream) const {
    const float alpha = 1;
    const auto at = [](Pointer pointer) { return reinterpret_cast<void*>(pointer); };
    return library->matmul(handle, operation, &alpha, at(b), layouts[0], at(a), layouts[1], &beta, at(c),
                           layouts[2], at(c), layouts[2], &proposal.algorithm, at(workspace),
                           proposal.workspace_bytes, stream);
  }
};

Products::Products(Machine& machine, const std::vector<std::string>& libraries) : machine_(machine) {
  std::vector<const char*> names;
  for (const std::string& name : libraries) names.push_back(name.c_str());
  need(library_.open(names));
  if (const int error = library_.create(&handle_); error != 0)
    throw Failed{fmt::format("cuBLASLt does not start: {}", library_.status_string(error))};
}

Products::~Products() { library_.destroy(handle_); }

void Products::prepare(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, int proposals,
                       Call& call) {
  call.library = &library_;
  call.beta = accumulate ? 1 : 0;
  const auto check = [&](int error, std::string_view what) {
    if (error != 0) throw Failed{fmt::format("{}: cuBLASLt says {}", what, library_.status_string(error))};
  };
  // 1. Memory, with random numbers in it.
  machine_.wait();
  machine_.release_all();
  uint64_t seed = 1;
  for (const auto& [matrix, at] : {std::pair(&a, &call.a), std::pair(&b, &call.b), std::pair(&c, &call.c)}) {
    *at = machine_.allocate(matrix->bytes());
    machine_.fill(*at, matrix->bytes(), matrix->type, seed++);
  }
  call.workspace = machine_.allocate(kWorkspace);
  // 2. The operation, as the library sees it.
  check(library_.operation_create(&call.operation, cuda::kCompute32F, cuda::kReal32F), "a product");
  const int32_t first = b.transposed, second = a.transposed;
  check(library_.operation_set(call.operation, cuda::kTransposeA, &first, sizeof first), "a product");
  check(library_.operation_set(call.operation, cuda::kTransposeB, &second, sizeof second), "a product");
  int which = 0;
  for (const Matrix* matrix : {&b, &a, &c})
    check(library_.layout_create(&call.layouts[which++], cuda::real_type(matrix->type),
                                 static_cast<uint64_t>(matrix->columns), static_cast<uint64_t>(matrix->rows),
                                 matrix->leading),
          "a matrix");
  // 3. Its proposals. All addresses are multiples of 256, which is what the library takes them for.
  check(library_.preference_create(&call.preference), "a preference");
  const uint64_t bytes = kWorkspace;
  check(library_.preference_set(call.preference, cuda::kPreferWorkspace, &bytes, sizeof bytes),
        "a preference");
  call.proposals.resize(static_cast<size_t>(proposals));
  int found = 0;
  check(library_.heuristic(handle_, call.operation, call.layouts[0], call.layouts[1], call.layouts[2],
                           call.layouts[2], call.preference, proposals, call.proposals.data(), &found),
        "a product's algorithms");
  call.proposals.resize(static_cast<size_t>(std::clamp(found, 0, proposals)));
  std::erase_if(call.proposals, [](const cuda::LtHeuristic& one) { return one.state != 0; });
  if (call.proposals.empty()) throw Failed{"cuBLASLt has no way to compute a product"};
}

Rates Products::measure(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate, int times) {
  Call call;
  prepare(a, b, c, accumulate, 8, call);
  constexpr double kFails = std::numeric_limits<double>::infinity();
  std::vector<double> found(call.proposals.size(), kFails);
  for (int round = 0; round < 2; ++round)  // the clock of an idle GPU still rises in the first
    for (size_t i = 0; i < call.proposals.size(); ++i) {
      const auto run = [&] { return call.run(handle_, call.proposals[i], machine_.stream()); };
      if (run() != 0) continue;
      const double one = machine_.seconds([&] { run(); }, times, 3);
      found[i] = std::min(found[i], one);
    }
  std::erase(found, kFails);
  if (found.empty()) throw Failed{"none of cuBLASLt's algorithms runs"};
  return {found[0], *std::min_element(found.begin(), found.end())};
}

void Products::check(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  Call call;
  prepare(a, b, c, accumulate, 1, call);
  const auto values = [&](const Matrix& matrix, Pointer at) {
    std::vector<std::byte> bytes(matrix.bytes());
    machine_.read(bytes.data(), at, bytes.size());
    std::vector<double> all;
    for (int64_t i = 0; i < matrix.rows * matrix.leading; ++i)
      all.push_back(number(bytes.data(), i, matrix.type));
    return all;
  };
  const std::vector<double> left = values(a, call.a), right = values(b, call.b), before = values(c, call.c);
  if (const int error = call.run(handle_, call.proposals[0], machine_.stream()); error != 0)
    throw Failed{fmt::format("a product: cuBLASLt says {}", library_.status_string(error))};
  const std::vector<double> found = values(c, call.c);
  const auto at = [](const Matrix& matrix, bool transposed, int64_t row, int64_t column) {
    return static_cast<size_t>(transposed ? column * matrix.leading + row : row * matrix.leading + column);
  };
  const int64_t inner = a.transposed ? a.rows : a.columns;
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t column = 0; column < c.columns; ++column) {
      const size_t here = at(c, false, row, column);
      double sum = accumulate ? before[here] : 0, size = 1;
      for (int64_t k = 0; k < inner; ++k) {
        const double term = left[at(a, a.transposed, row, k)] * right[at(b, b.transposed, k, column)];
        sum += term, size += std::abs(term);
      }
      const double bound = size * (c.type == Element::f32 ? 1e-5 : 1e-2);  // bf16 has 8 bits
      if (!(std::abs(found[here] - sum) <= bound))
        throw Failed{fmt::format("a product's element {}, {} is {} where {} was expected", row, column,
                                 found[here], sum)};
    }
}

double Products::sustained(const Matrix& a, const Matrix& b, const Matrix& c, double seconds, int times) {
  Call call;
  prepare(a, b, c, false, 1, call);
  const auto begin = std::chrono::steady_clock::now();
  double last = 0;
  do {
    last = machine_.seconds([&] { call.run(handle_, call.proposals[0], machine_.stream()); }, times, 1);
  } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds);
  return last;
}

}  // namespace gacc::probe
