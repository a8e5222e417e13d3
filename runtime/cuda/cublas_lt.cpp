// See cublas_lt.h. cuBLAS is column-major and so sees every matrix transposed: C^T = op(B)^T op(A)^T. Its
// first operand is therefore our B and its second our A, with the same transposes.
#include "runtime/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace gacc::cuda {

Status LtLibrary::open(std::span<const char* const> names) {
  for (const char* name : names) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);  // stays loaded
    if (!library) continue;
    bool complete = true;
#define GACC_CUBLAS_LT_FIND(member, symbol, parameters)                 \
  member = reinterpret_cast<decltype(member)>(dlsym(library, #symbol)); \
  complete = complete && member;
    GACC_CUBLAS_LT_FUNCTIONS(GACC_CUBLAS_LT_FIND)
#undef GACC_CUBLAS_LT_FIND
    version = reinterpret_cast<decltype(version)>(dlsym(library, "cublasLtGetVersion"));
    status_string = reinterpret_cast<decltype(status_string)>(dlsym(library, "cublasLtGetStatusString"));
    if (complete && version && status_string) return {};
  }
  return Status::error("cuBLAS is not installed (none of {})", fmt::join(names, ", "));
}

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr size_t kCandidates = 8;  // measured for a product

int real_type(Element element) {
  return element == Element::f16 ? kReal16F : element == Element::bf16 ? kReal16BF : kReal32F;
}

// The largest power of two up to 256 that divides an address: what cuBLAS may assume of it.
uint32_t alignment(Pointer pointer) {
  return pointer == 0 ? 256 : static_cast<uint32_t>(std::min<Pointer>(256, pointer & (~pointer + 1)));
}

class CublasLt final : public GemmEngine {
 public:
  // 32 MiB of workspace from Hopper on, 4 MiB before: NVIDIA's recommendation.
  CublasLt(const LtLibrary& library, cublasLtContext* handle, int capability)
      : library_(library), handle_(handle), workspace_bytes_((capability >= 90 ? 32 : 4) * kMiB) {}
  ~CublasLt() override {
    for (Choice& choice : choices_) destroy(choice);
    library_.destroy(handle_);
  }
  std::string name() const override {
    const size_t version = library_.version();  // 130100, or 1301xx: major, then minor of two digits
    return version >= 100000 ? fmt::format("cuBLASLt {}.{}", version / 10000, version % 10000 / 100)
                             : fmt::format("cuBLASLt {}", version);
  }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  void use_workspace(Pointer workspace) override { workspace_ = workspace; }

  bool tune(GemmTuning& tuning) override {
    tuning_ = &tuning;
    return true;
  }

  Status prepare(const Product& product, Stream stream) override {
    if (product.m == 0 || product.n == 0 || product.k == 0) return {};
    if (!find(product))
      if (Status status = choose_algorithm(product, stream); !status) return status;
    if (product.bias != 0) prepare_bias(product, stream);
    return {};
  }

  bool adds_bias(const Product& product) const override {
    const Choice* choice = find(product);
    return product.bias != 0 && choice != nullptr && operation_with_bias(*choice, product) != nullptr;
  }

  Status launch(const Product& product, Stream stream) override {
    if (product.m == 0 || product.n == 0 || product.k == 0)
      return Status::error("a matrix product without elements");
    const Choice* choice = find(product);
    if (!choice) return Status::error("internal error: a matrix product was not prepared");
    void* with_bias = operation_with_bias(*choice, product);
    return check(multiply(*choice, with_bias ? with_bias : choice->operation, product, product.c,
                          product.accumulate, workspace_, static_cast<size_t>(workspace_bytes_), stream),
                 "cannot launch a matrix product");
  }

 private:
  using Key = ChosenAlgorithm::Key;
  struct Biased {
    Pointer bias = 0;
    void* operation = nullptr;  // null: the algorithm cannot add one
  };
  struct Choice {
    Key key{};
    void* operation = nullptr;
    void* layouts[3] = {};  // of B, A and C, as cuBLAS sees them
    LtAlgorithm algorithm{};
    std::vector<Biased> biased{};
  };

  // Without tuning takes the library's first proposal, which is a fixed function of the product, the library
  // and the GPU.
  Status choose_algorithm(const Product& product, Stream stream) {
    const ChosenAlgorithm* chosen = tuning_ ? tuning_->choices.find(key(product)) : nullptr;
    const bool measures = tuning_ && tuning_->measure && !chosen;
    Choice choice;
    choice.key = key(product);
    std::vector<LtHeuristic> proposals(measures ? kCandidates : 1);
    if (Status status = describe(product, choice, proposals); !status) {
      destroy(choice);
      return status;
    }
    choice.algorithm = chosen ? chosen->algorithm : proposals.front().algorithm;
    choices_.push_back(choice);
    if (measures) return choose(product, choices_.back(), proposals, stream);
    const auto own = static_cast<int64_t>(proposals.front().workspace_bytes);
    return warm_up(product, choice, choice.operation,
                   static_cast<size_t>(chosen ? chosen->workspace_bytes : own), stream);
  }

  static void* address(Pointer pointer) { return reinterpret_cast<void*>(pointer); }
  static Key key(const Product& product) {
    return {product.m,
            product.n,
            product.k,
            product.transpose_a,
            product.transpose_b,
            product.accumulate,
            static_cast<int64_t>(product.type),
            static_cast<int64_t>(product.result),
            alignment(product.a),
            alignment(product.b),
            alignment(product.c)};
  }
  size_t position(const Product& product) const {  // in choices_, or their number
    const Key wanted = key(product);
    size_t at = 0;
    while (at < choices_.size() && !(choices_[at].key == wanted)) ++at;
    return at;
  }
  const Choice* find(const Product& product) const {
    const size_t at = position(product);
    return at < choices_.size() ? &choices_[at] : nullptr;
  }
  Status check(int error, std::string_view what) const {
    if (error == 0) return {};
    return Status::error("{}: cuBLASLt says {}", what, library_.status_string(error));
  }
  void destroy(Choice& choice) const {
    if (choice.operation) library_.operation_destroy(choice.operation);
    for (const Biased& biased : choice.biased)
      if (biased.operation) library_.operation_destroy(biased.operation);
    for (void* layout : choice.layouts)
      if (layout) library_.layout_destroy(layout);
  }

  int multiply(const Choice& choice, void* operation, const Product& product, Pointer result, bool accumulate,
               Pointer workspace, size_t workspace_bytes, Stream stream) const {
    const float alpha = 1, beta = accumulate ? 1 : 0;
    return library_.matmul(handle_, operation, &alpha, address(product.b), choice.layouts[0],
                           address(product.a), choice.layouts[1], &beta, address(result), choice.layouts[2],
                           address(result), choice.layouts[2], &choice.algorithm, address(workspace),
                           workspace_bytes, stream);
  }

  static void* operation_with_bias(const Choice& choice, const Product& product) {
    for (const Biased& biased : choice.biased)
      if (biased.bias == product.bias) return biased.operation;
    return nullptr;
  }

  // The product with its bias, by the algorithm of the product alone: the sums are the same, so that a
  // product has one result wherever it is computed. Where that algorithm cannot, the bias stays a launch of
  // its own.
  void prepare_bias(const Product& product, Stream stream) {
    Choice& choice = choices_[position(product)];
    for (const Biased& biased : choice.biased)
      if (biased.bias == product.bias) return;
    Biased& biased = choice.biased.emplace_back(Biased{product.bias, nullptr});
    void* operation = nullptr;
    int error = create_operation(product, operation);
    const void* vector = address(product.bias);
    if (!error) error = library_.operation_set(operation, kEpilogue, &kEpilogueBias, sizeof kEpilogueBias);
    if (!error) error = library_.operation_set(operation, kBiasPointer, &vector, sizeof vector);
    LtHeuristic found{};
    if (!error)
      error = library_.algorithm_check(handle_, operation, choice.layouts[0], choice.layouts[1],
                                       choice.layouts[2], choice.layouts[2], &choice.algorithm, &found);
    const bool fits =
        !error && found.state == 0 && found.workspace_bytes <= static_cast<size_t>(workspace_bytes_);
    if (fits && warm_up(product, choice, operation, found.workspace_bytes, stream))
      biased.operation = operation;
    else if (operation)
      library_.operation_destroy(operation);
  }

  // The library loads a kernel when it first runs, which should not be while a graph is captured. So it runs
  // once now, with its result in the workspace where that has the room.
  Status warm_up(const Product& product, const Choice& choice, void* operation, size_t workspace_bytes,
                 Stream stream) const {
    const auto result_bytes =
        static_cast<size_t>((product.m * product.n * element_bytes(product.result) + 255) / 256 * 256);
    const auto room = static_cast<size_t>(workspace_bytes_);
    if (workspace_bytes > room || result_bytes > room - workspace_bytes) return {};
    const int error = multiply(choice, operation, product, workspace_, false, workspace_ + result_bytes,
                               room - result_bytes, stream);
    return check(error, "cannot run a matrix product");
  }

  // The fastest of the proposals that run; of equals the first.
  Status choose(const Product& product, Choice& choice, const std::vector<LtHeuristic>& proposals,
                Stream stream) {
    ChosenAlgorithm best{.product = choice.key};
    for (const LtHeuristic& proposal : proposals) {
      choice.algorithm = proposal.algorithm;
      double microseconds = 0;
      const auto run = [&] { return launch(product, stream); };
      if (proposal.state != 0 || !tuning_->measure(run, microseconds)) continue;
      if (++best.candidates > 1 && microseconds >= best.microseconds) continue;
      best.algorithm = proposal.algorithm;
      best.workspace_bytes = static_cast<int64_t>(proposal.workspace_bytes);
      best.microseconds = microseconds;
    }
    if (best.candidates == 0)
      return Status::error("none of cuBLASLt's {} ways to compute a matrix product of {} x {} x {} runs",
                           proposals.size(), product.m, product.n, product.k);
    choice.algorithm = best.algorithm;
    tuning_->choices.products.push_back(best);
    return {};
  }

  int create_operation(const Product& p, void*& operation) const {
    const int32_t first = p.transpose_b, second = p.transpose_a;
    int error = library_.operation_create(&operation, kCompute32F, kReal32F);
    if (!error) error = library_.operation_set(operation, kTransposeA, &first, sizeof first);
    if (!error) error = library_.operation_set(operation, kTransposeB, &second, sizeof second);
    return error;
  }

  // Makes the library's descriptors, and asks for as many proposals as there is room for; leaves those given.
  Status describe(const Product& p, Choice& choice, std::vector<LtHeuristic>& proposals) const {
    void* preference = nullptr;
    const Status status = propose(p, choice, preference, proposals);
    if (preference) library_.preference_destroy(preference);
    return status;
  }

  Status propose(const Product& p, Choice& choice, void*& preference,
                 std::vector<LtHeuristic>& proposals) const {
    // 1. The operation and the matrices as they lie in memory: rows of cuBLAS are our columns.
    int error = create_operation(p, choice.operation);
    const auto layout = [&](int which, int64_t rows, int64_t columns) {
      if (!error)
        error = library_.layout_create(&choice.layouts[which], real_type(which == 2 ? p.result : p.type),
                                       static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
    };
    layout(0, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k);
    layout(1, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m);
    layout(2, p.n, p.m);
    // 2. What the choice may rely on.
    if (!error) error = library_.preference_create(&preference);
    const auto bytes = static_cast<uint64_t>(workspace_bytes_);
    if (!error) error = library_.preference_set(preference, kPreferWorkspace, &bytes, sizeof bytes);
    const Pointer operands[] = {p.b, p.a, p.c, p.c};
    for (int i = 0; i < 4 && !error; ++i) {
      const uint32_t value = alignment(operands[i]);
      error = library_.preference_set(preference, kPreferAlignmentA + i, &value, sizeof value);
    }
    // 3. The proposals, the one that the library expects to be fastest first.
    int found = 0;
    if (!error)
      error = library_.heuristic(handle_, choice.operation, choice.layouts[0], choice.layouts[1],
                                 choice.layouts[2], choice.layouts[2], preference,
                                 static_cast<int>(proposals.size()), proposals.data(), &found);
    proposals.resize(static_cast<size_t>(std::clamp(found, 0, static_cast<int>(proposals.size()))));
    if (!error && found > 0) error = proposals.front().state;
    if (!error && found > 0) return {};
    const std::string what = fmt::format("cannot compute a matrix product of {} x {} x {}", p.m, p.n, p.k);
    return error ? check(error, what) : Status::error("{}: cuBLASLt has no way to", what);
  }

  LtLibrary library_;
  cublasLtContext* handle_;
  int64_t workspace_bytes_;
  Pointer workspace_ = 0;
  GemmTuning* tuning_ = nullptr;
  std::vector<Choice> choices_;
};

}  // namespace

Status open_cublas_lt(std::span<const char* const> names, int capability,
                      std::unique_ptr<GemmEngine>& engine) {
  LtLibrary library;
  if (Status status = library.open(names); !status) return status;
  cublasLtContext* handle = nullptr;
  if (int error = library.create(&handle); error != 0)
    return Status::error("cuBLASLt does not start: {}", library.status_string(error));
  engine = std::make_unique<CublasLt>(library, handle, capability);
  return {};
}

}  // namespace gacc::cuda
