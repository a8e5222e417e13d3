#include "runtime/cuda/gemm_selection.h"

#include <cstring>
#include <limits>
#include <utility>

#include "runtime/cuda/cublas_lt.h"

namespace gacc::cuda {
namespace {

int64_t ceil_divide(int64_t value, int64_t by) { return value / by + (value % by != 0); }

// The built-in matrix products: launches of `gacc_gemm_*` entries of the artifact, as PlanBuiltin describes
// them.
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

constexpr double kWorthALibrary = 1e9;  // FLOPs

// Returns the FLOPs of the step's products.
double product_flops(const Plan& plan) {
  double flops = 0;
  for (const PlanProgram& program : plan.programs) {
    if (program.name != "step") continue;
    for (const PlanLaunch& launch : program.launches) {
      double one = 2;
      for (const PlanArgument& extent : {launch.m, launch.n, launch.k})
        one *= static_cast<double>(extent.extent * (extent.times_batch ? plan.micro_batch : 1));
      if (launch.kernel.empty() && !launch.copy) flops += one;
    }
  }
  return flops;
}

}  // namespace

Status choose_gemm(const CudaOptions& options, const Driver& driver, const Gpu& gpu, const Plan& plan,
                   std::unique_ptr<GemmEngine>& gemm, std::string& note) {
  // 1. What the plan has.
  bool products = false, all_builtin = true;
  for (const PlanProgram& program : plan.programs)
    for (const PlanLaunch& launch : program.launches) {
      if (!launch.kernel.empty() || launch.copy) continue;
      products = true;
      all_builtin = all_builtin && !launch.builtin.kernel.empty();
    }
  if (!products) return {};
  // 2. cuBLAS, unless somebody asked for something else. The emulator has its own, which it is to be asked
  // for: it is there to check the artifact's kernels.
  std::string reason = "--gemm builtin was asked for";
  if (plan.keeps_bits && options.gemm == GemmChoice::cublas)
    return Status::error(
        "--gemm cublas does not go with train.require = \"bits\": cuBLAS promises no bits for another "
        "micro-batch");
  if (plan.keeps_bits) {
    reason = "train.require = \"bits\" asks for them";
  } else if (options.emulated && options.gemm == GemmChoice::automatic) {
    reason = "the emulator takes the artifact's own, unless --gemm cublas is given";
  } else if (options.gemm != GemmChoice::builtin) {
    const char* const emulator[] = {options.driver.c_str()};
    const Status status = options.emulated ? open_cublas_lt(emulator, gpu.capability, gemm)
                                           : open_cublas_lt(options.cublas, gpu.capability, gemm);
    if (status || options.gemm == GemmChoice::cublas) return status;
    reason = status.text();
    if (product_flops(plan) > kWorthALibrary)
      note = fmt::format("{}: matrix products are the artifact's own, which are slower", reason);
  }
  // 3. The artifact's own.
  if (!all_builtin)
    return Status::error(
        "no matrix products for the GPU: {}, and the artifact has no built-in ones; compile it again",
        reason);
  gemm = std::make_unique<BuiltinGemmEngine>(driver);
  return {};
}

Status use_gemm_choices(const CudaOptions& options, const Gpu& gpu, GemmEngine& gemm, GemmTuning& tuning,
                        std::string& note) {
  if (options.gemm_choices.empty() && !options.tune_gemm) return {};
  if (!gemm.tune(tuning)) return {};
  tuning.choices = {fmt::format("{} (sm_{})", gpu.name, gpu.capability), gemm.name()};
  if (options.gemm_choices.empty()) return {};
  GemmChoices given;
  if (const Status status = parse_gemm_choices(options.gemm_choices, given); !status)
    return Status::error("{} does not hold algorithms of matrix products: {}", options.gemm_choices_from,
                         status.text());
  if (given.gpu == tuning.choices.gpu && given.library == tuning.choices.library) {
    tuning.choices = std::move(given);
    return {};
  }
  const std::string differ =
      fmt::format("the algorithms in {} are for {} with {}, this is {} with {}", options.gemm_choices_from,
                  given.gpu, given.library, tuning.choices.gpu, tuning.choices.library);
  if (options.tune_gemm) return Status::error("{}; name another file", differ);
  note = fmt::format("{}: they are not used, and sums may be in another order", differ);
  return {};
}

std::vector<std::byte> random_operand(DType type, size_t elements, uint64_t seed) {
  std::vector<std::byte> bytes(elements * static_cast<size_t>(dtype_bytes(type)));
  // The upper 16 bits of a number: sign, exponent and what they hold of the fraction. Below them an f32 has
  // 16 more of its fraction.
  const bool f16 = type == DType::f16;
  const uint64_t quarter = f16 ? 0x3400 : 0x3e80, fractions = f16 ? 0x7ff : 0xff;
  for (size_t at = 0; at + 2 <= bytes.size(); at += 2) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    const uint64_t random = seed >> 40;
    const bool upper = type != DType::f32 || at % 4 == 2;
    const auto word =
        static_cast<uint16_t>(upper ? (random & 0x8000) + quarter + (random & fractions) : random & 0xffff);
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
  return bytes;
}

Status time_launch(const Driver& driver, Stream stream, const std::function<Status()>& launch,
                   double& microseconds) {
  constexpr int kRuns = 5;
  Event events[2] = {};
  float milliseconds = 0;
  const auto measure = [&]() -> Status {
    GACC_TRY(launch());
    for (Event& event : events) GACC_TRY(driver.make_event(event, 0));
    GACC_TRY(driver.record(events[0], stream));
    for (int i = 0; i < kRuns; ++i) GACC_TRY(launch());
    GACC_TRY(driver.record(events[1], stream));
    GACC_TRY(driver.wait(events[1]));
    return driver.check(driver.event_elapsed(&milliseconds, events[0], events[1]),
                        "cannot read an event's time");
  };
  Status status = measure();
  for (Event event : events)
    if (event) driver.event_destroy(event);
  microseconds = static_cast<double>(milliseconds) * 1000 / kRuns;
  return status;
}

}  // namespace gacc::cuda
