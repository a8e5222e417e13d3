// cuBLAS is column-major and so sees every matrix transposed: C^T = op(B)^T op(A)^T. Its first operand is
// therefore our B and its second our A, with the same transposes.
#include "runtime/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/cuda/libraries.h"
#include "runtime/no_copy.h"

namespace gacc::cuda {

bool LtLibrary::open(const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded
  if (!library) return false;
  Symbols symbols(library);
#define GACC_CUBLAS_LT_FIND(member, symbol, parameters) symbols.find(member, #symbol);
  GACC_CUBLAS_LT_FUNCTIONS(GACC_CUBLAS_LT_FIND)
#undef GACC_CUBLAS_LT_FIND
  symbols.find(version, "cublasLtGetVersion");
  symbols.find(status_string, "cublasLtGetStatusString");
  return symbols.missing() == nullptr;
}

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr size_t kCandidates = 8;  // measured for a product
constexpr int kRounds = 2;         // each candidate, in turns: a GPU's clock still rises with the first ones

// The largest power of two up to 256 that divides an address: what cuBLAS may assume of it.
uint32_t alignment(Pointer pointer) {
  return pointer == 0 ? 256 : static_cast<uint32_t>(std::min<Pointer>(256, pointer & (~pointer + 1)));
}

class CublasLt final : public GemmEngine {
 public:
  // At most 32 MiB of workspace from Hopper on, 4 MiB before: NVIDIA's recommendation.
  CublasLt(const LtLibrary& library, cublasLtContext* handle, int capability)
      : library_(library), handle_(handle), most_workspace_((capability >= 90 ? 32 : 4) * kMiB) {}
  ~CublasLt() override {
    choices_.clear();
    library_.destroy(handle_);
  }
  std::string name() const override {
    const size_t version = library_.version();  // 130100, or 1301xx: major, then minor of two digits
    return version >= 100000 ? fmt::format("cuBLASLt {}.{}", version / 10000, version % 10000 / 100)
                             : fmt::format("cuBLASLt {}", version);
  }
  int64_t most_workspace() const override { return most_workspace_; }

  bool tune(GemmTuning& tuning) override {
    tuning_ = &tuning;
    return true;
  }

  Status prepare(const Product& product, Stream stream) override {
    if (product.m == 0 || product.n == 0 || product.k == 0) return {};
    if (!find(product)) GACC_TRY(choose_algorithm(product, stream));
    if (product.bias != 0) prepare_bias(product);
    return {};
  }

  // With and without the bias: the one without is there should the other not run.
  int64_t workspace_bytes(const Product& product) const override {
    Choice* choice = find(product);
    if (!choice) return 0;
    const Variant* biased = with_bias(*choice, product);
    return std::max(choice->plain.workspace_bytes, biased ? biased->workspace_bytes : 0);
  }

  bool adds_bias(const Product& product) const override {
    Choice* choice = find(product);
    return choice != nullptr && with_bias(*choice, product) != nullptr;
  }

  Status warm_up(const Product& product, Stream stream) override {
    Choice* choice = find(product);
    if (!choice) return {};  // without elements
    Variant* biased = with_bias(*choice, product);
    Variant& variant = biased ? *biased : choice->plain;
    if (std::exchange(variant.warm, true)) return {};
    Status status = launch(product, stream);
    if (status || !biased) return status;
    choice->forget(*biased);  // the bias stays a launch of its own
    return warm_up(product, stream);
  }

  Status launch(const Product& product, Stream stream) override {
    if (product.m == 0 || product.n == 0 || product.k == 0)
      return Status::error("a matrix product without elements");
    Choice* choice = find(product);
    if (!choice) return Status::error("internal error: a matrix product was not prepared");
    const Variant* biased = with_bias(*choice, product);
    const Variant& variant = biased ? *biased : choice->plain;
    if (variant.workspace_bytes > 0 && product.workspace == 0)
      return Status::error("internal error: a matrix product has no workspace");
    // The library hears of just the workspace that the algorithm asked for, however large the place is.
    const float alpha = 1, beta = product.accumulate ? 1 : 0;
    const auto bytes = static_cast<size_t>(variant.workspace_bytes);
    const auto& layouts = choice->layouts;
    const int error = library_.matmul(handle_, variant.operation, &alpha, address(product.b), layouts[0],
                                      address(product.a), layouts[1], &beta, address(product.c), layouts[2],
                                      address(product.c), layouts[2], &choice->algorithm,
                                      bytes > 0 ? address(product.workspace) : nullptr, bytes, stream);
    return check(error, "cannot launch a matrix product");
  }

 private:
  using Key = ChosenAlgorithm::Key;
  // The product alone, or with a bias.
  struct Variant {
    Pointer bias = 0;
    void* operation = nullptr;  // null: the algorithm cannot
    int64_t workspace_bytes = 0;
    bool warm = false;  // has run
  };
  struct Choice : NoCopy {
    Choice(const LtLibrary& of, const Product& product)
        : library(of), key(key_of(product)), ragged(product.ragged) {}
    ~Choice() {
      forget(plain);
      for (Variant& variant : biased) forget(variant);
      for (void* layout : layouts)
        if (layout) library.layout_destroy(layout);
    }
    void forget(Variant& variant) const {
      if (variant.operation) library.operation_destroy(variant.operation);
      variant.operation = nullptr;
    }

    const LtLibrary& library;
    const Key key;
    const bool ragged;
    void* layouts[3] = {};  // of B, A and C, as cuBLAS sees them
    LtAlgorithm algorithm{};
    Variant plain{};
    std::vector<Variant> biased{};
  };

  // Finds what was chosen before, or the fastest where the tuning measures, or the library's first proposal, which
  // is a fixed function of the product, the library and the GPU. Where its workspace lies plays no part, so
  // a product has the same bits in every plan. A ragged one comes when no memory can be taken any more: it is
  // asked for without a workspace, always, so that what happens to be free plays no part there either.
  Status choose_algorithm(const Product& product, Stream stream) {
    GemmTuning* tuning = product.ragged ? nullptr : tuning_;
    const ChosenAlgorithm* chosen = tuning ? tuning->choices.find(key_of(product)) : nullptr;
    const bool measures = tuning && tuning->measure && !chosen;
    auto choice = std::make_unique<Choice>(library_, product);
    GACC_TRY(describe(product, *choice));
    std::vector<LtHeuristic> proposals(measures ? kCandidates : 1);
    GACC_TRY(chosen ? take(*chosen, product, *choice) : propose(product, *choice, proposals));
    if (!chosen) use(proposals.front(), *choice);
    choices_.push_back(std::move(choice));
    return measures ? choose_fastest(product, *choices_.back(), proposals, stream) : Status();
  }

  static void* address(Pointer pointer) { return reinterpret_cast<void*>(pointer); }
  static Key key_of(const Product& p) {
    return {p.m,
            p.n,
            p.k,
            p.transpose_a,
            p.transpose_b,
            p.accumulate,
            static_cast<int64_t>(p.type),
            static_cast<int64_t>(p.result),
            alignment(p.a),
            alignment(p.b),
            alignment(p.c),
            p.a_row(),
            p.b_row(),
            p.c_row()};
  }
  Choice* find(const Product& product) const {
    const Key wanted = key_of(product);
    for (const auto& choice : choices_)
      if (choice->key == wanted && choice->ragged == product.ragged) return choice.get();
    return nullptr;
  }
  Status check(int error, std::string_view what) const {
    if (error == 0) return {};
    return Status::error("{}: cuBLASLt says {}", what, library_.status_string(error));
  }

  // Null where the product has no bias, or its algorithm cannot add it.
  static Variant* with_bias(Choice& choice, const Product& product) {
    for (Variant& biased : choice.biased)  // none is of 0
      if (biased.bias == product.bias) return biased.operation ? &biased : nullptr;
    return nullptr;
  }

  int64_t most_workspace(bool ragged) const { return ragged ? 0 : most_workspace_; }

  // True where an algorithm can compute an operation here; sets the workspace that it then needs.
  int check_algorithm(const Choice& choice, const LtAlgorithm& algorithm, void* operation,
                      int64_t& workspace_bytes) const {
    LtHeuristic found{};
    int error = library_.algorithm_check(handle_, operation, choice.layouts[0], choice.layouts[1],
                                         choice.layouts[2], choice.layouts[2], &algorithm, &found);
    if (!error) error = found.state;
    if (!error && found.workspace_bytes > static_cast<size_t>(most_workspace(choice.ragged)))
      error = kNotSupported;
    if (!error) workspace_bytes = static_cast<int64_t>(found.workspace_bytes);
    return error;
  }

  // An algorithm out of a file or a checkpoint.
  Status take(const ChosenAlgorithm& chosen, const Product& p, Choice& choice) const {
    choice.algorithm = chosen.algorithm;
    return check(
        check_algorithm(choice, chosen.algorithm, choice.plain.operation, choice.plain.workspace_bytes),
        fmt::format("the stored algorithm of a matrix product of {} x {} x {} is none here", p.m, p.n, p.k));
  }
  static void use(const LtHeuristic& proposal, Choice& choice) {
    choice.algorithm = proposal.algorithm;
    choice.plain.workspace_bytes = static_cast<int64_t>(proposal.workspace_bytes);
  }

  // The product with its bias, by the algorithm of the product alone: the sums are the same, so that a
  // product has one result wherever it is computed. Where that algorithm cannot, the bias stays a launch of
  // its own.
  void prepare_bias(const Product& product) {
    Choice& choice = *find(product);
    for (const Variant& biased : choice.biased)
      if (biased.bias == product.bias) return;
    Variant& biased = choice.biased.emplace_back(Variant{.bias = product.bias});
    int error = create_operation(product, biased.operation);
    const void* vector = address(product.bias);
    if (!error)
      error = library_.operation_set(biased.operation, kEpilogue, &kEpilogueBias, sizeof kEpilogueBias);
    if (!error) error = library_.operation_set(biased.operation, kBiasPointer, &vector, sizeof vector);
    if (!error) error = check_algorithm(choice, choice.algorithm, biased.operation, biased.workspace_bytes);
    if (error) choice.forget(biased);
  }

  // The fastest of the proposals that run, each by the better of its rounds; of equals the first.
  Status choose_fastest(const Product& product, Choice& choice, const std::vector<LtHeuristic>& proposals,
                        Stream stream) {
    GACC_TRY(fill(product));
    Product measured = product;
    measured.workspace = tuning_->workspace;
    constexpr double kFails = std::numeric_limits<double>::infinity();
    std::vector<double> times(proposals.size(), kFails);
    for (int round = 0; round < kRounds; ++round)
      for (size_t i = 0; i < proposals.size(); ++i) {
        const LtHeuristic& proposal = proposals[i];
        if (proposal.state != 0 || proposal.workspace_bytes > static_cast<size_t>(most_workspace_)) continue;
        use(proposal, choice);
        double microseconds = 0;
        if (tuning_->measure([&] { return launch(measured, stream); }, microseconds))
          times[i] = std::min(times[i], microseconds);
      }
    const auto fastest = std::ranges::min_element(times);
    if (*fastest == kFails)
      return Status::error("none of cuBLASLt's {} ways to compute a matrix product of {} x {} x {} runs",
                           proposals.size(), product.m, product.n, product.k);
    use(proposals[static_cast<size_t>(fastest - times.begin())], choice);
    const auto failed = std::ranges::count(times, kFails);
    tuning_->choices.products.push_back({.product = choice.key,
                                         .algorithm = choice.algorithm,
                                         .workspace_bytes = choice.plain.workspace_bytes,
                                         .candidates = static_cast<int64_t>(times.size()) - failed,
                                         .microseconds = *fastest});
    return {};
  }

  // A product of zeros takes less power and is faster than the one of a training step.
  Status fill(const Product& p) const {
    if (!tuning_->fill) return {};
    GACC_TRY(tuning_->fill(p.a, (p.transpose_a ? p.k : p.m) * p.a_row(), p.type));
    GACC_TRY(tuning_->fill(p.b, (p.transpose_b ? p.n : p.k) * p.b_row(), p.type));
    return tuning_->fill(p.c, p.m * p.c_row(), p.result);
  }

  int create_operation(const Product& p, void*& operation) const {
    const int32_t first = p.transpose_b, second = p.transpose_a;
    int error = library_.operation_create(&operation, kCompute32F, kReal32F);
    if (!error) error = library_.operation_set(operation, kTransposeA, &first, sizeof first);
    if (!error) error = library_.operation_set(operation, kTransposeB, &second, sizeof second);
    return error;
  }

  static std::string what(const Product& p) {
    return fmt::format("cannot compute a matrix product of {} x {} x {}", p.m, p.n, p.k);
  }

  // The operation and the matrices as they lie in memory: rows of cuBLAS are our columns.
  Status describe(const Product& p, Choice& choice) const {
    int error = create_operation(p, choice.plain.operation);
    const auto layout = [&](int which, int64_t rows, int64_t columns, int64_t pitch) {
      if (!error)
        error = library_.layout_create(&choice.layouts[which], real_type(which == 2 ? p.result : p.type),
                                       static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), pitch);
    };
    layout(0, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.b_row());
    layout(1, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.a_row());
    layout(2, p.n, p.m, p.c_row());
    return check(error, what(p));
  }

  // Asks for as many proposals as there is room for, the one that the library expects to be fastest first;
  // leaves those given, at least one.
  Status propose(const Product& p, const Choice& choice, std::vector<LtHeuristic>& proposals) const {
    // 1. What the choice may rely on.
    void* preference = nullptr;
    int error = library_.preference_create(&preference);
    const auto bytes = static_cast<uint64_t>(most_workspace(p.ragged));
    if (!error) error = library_.preference_set(preference, kPreferWorkspace, &bytes, sizeof bytes);
    // A sum in parts is rounded once, like any other.
    if (!error)
      error = library_.preference_set(preference, kPreferReduction, &kReduceInF32, sizeof kReduceInF32);
    const Pointer operands[] = {p.b, p.a, p.c, p.c};
    for (int i = 0; i < 4 && !error; ++i) {
      const uint32_t value = alignment(operands[i]);
      error = library_.preference_set(preference, kPreferAlignmentA + i, &value, sizeof value);
    }
    // 2. The proposals.
    int found = 0;
    if (!error)
      error = library_.heuristic(handle_, choice.plain.operation, choice.layouts[0], choice.layouts[1],
                                 choice.layouts[2], choice.layouts[2], preference,
                                 static_cast<int>(proposals.size()), proposals.data(), &found);
    if (preference) library_.preference_destroy(preference);
    proposals.resize(static_cast<size_t>(std::clamp(found, 0, static_cast<int>(proposals.size()))));
    if (!error && found > 0)
      error = proposals.front().workspace_bytes > bytes ? kNotSupported : proposals.front().state;
    if (!error && found > 0) return {};
    return error ? check(error, what(p)) : Status::error("{}: cuBLASLt has no way to", what(p));
  }

  LtLibrary library_;
  cublasLtContext* handle_;
  int64_t most_workspace_;
  GemmTuning* tuning_ = nullptr;
  std::vector<std::unique_ptr<Choice>> choices_;
};

}  // namespace

Status open_cublas_lt(std::span<const char* const> names, int capability,
                      std::unique_ptr<GemmEngine>& engine) {
  std::vector<std::string> failed;
  for (const char* name : names) {
    for (const std::string& place : places_of(name)) {
      LtLibrary library;
      if (!library.open(place)) continue;
      cublasLtContext* handle = nullptr;
      if (const int error = library.create(&handle); error != 0) {
        failed.push_back(fmt::format("{} does not start ({})", place, library.status_string(error)));
        continue;
      }
      engine = std::make_unique<CublasLt>(library, handle, capability);
      return {};
    }
  }
  if (!failed.empty()) return Status::error("{}", fmt::join(failed, ", "));
  return Status::error("cuBLAS is not installed (none of {})", fmt::join(names, ", "));
}

}  // namespace gacc::cuda
