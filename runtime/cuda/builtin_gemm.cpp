// The built-in matrix products: launches of `gacc_gemm_*` entries of the artifact, as PlanBuiltin describes
// them.
#include <limits>

#include "runtime/cuda/gemm_engine.h"

namespace gacc::cuda {
namespace {

int64_t ceil_divide(int64_t value, int64_t by) { return value / by + (value % by != 0); }

class BuiltinGemmEngine final : public GemmEngine {
 public:
  explicit BuiltinGemmEngine(const Driver& driver) : driver_(driver) {}
  std::string name() const override { return kBuiltinProducts; }
  bool builtin() const override { return true; }

  Status prepare(const Product& product, Stream) override {
    const int64_t rows = ceil_divide(product.m, product.builtin.tile_m);
    const int64_t columns = ceil_divide(product.n, product.builtin.tile_n);
    if (columns == 0 || rows <= std::numeric_limits<int32_t>::max() / columns) return {};
    return Status::error("a matrix product of {} x {} x {} is too large for one launch", product.m, product.n,
                         product.k);
  }

  Status launch(const Product& product, Stream stream) override {
    const BuiltinGemm& kernel = product.builtin;
    const int64_t blocks = ceil_divide(product.m, kernel.tile_m) * ceil_divide(product.n, kernel.tile_n);
    if (blocks == 0) return {};
    std::vector<uint64_t> values = kernel.parameters;
    std::vector<void*> parameters;
    for (uint64_t& value : values) parameters.push_back(&value);
    return driver_.check(
        driver_.launch(kernel.function, static_cast<unsigned>(blocks), 1, 1,
                       static_cast<unsigned>(kernel.block), 1, 1, 0, stream, parameters.data(), nullptr),
        "cannot launch a built-in matrix product");
  }

 private:
  const Driver& driver_;
};

}  // namespace

std::unique_ptr<GemmEngine> make_builtin_gemm(const Driver& driver) {
  return std::make_unique<BuiltinGemmEngine>(driver);
}

}  // namespace gacc::cuda
