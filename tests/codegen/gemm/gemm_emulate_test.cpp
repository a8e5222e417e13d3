// The built-in products' PTX in the emulator: results bit for bit those of sums in order, and not one report
// (out of bounds, misaligned, uninitialised, races in shared memory, barriers that not every thread reaches).
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "codegen/nvptx.h"
#include "runtime/emulator/emulator.h"
#include "tests/codegen/gemm/products.h"

namespace gacc::codegen {
namespace {

struct Shape {
  int64_t m, n, k;
};

class Machine {
 public:
  // Broken PTX must be reported, and only that is looked at.
  explicit Machine(const std::string& ptx, bool broken = false) : broken_(broken) {
    const Status status = emulator_.load(ptx, module_);
    EXPECT_TRUE(status.ok()) << status.text();
  }

  void check(const GemmKernel& kernel, const Shape& s) {
    SCOPED_TRACE(fmt::format("{} {} x {} x {}", kernel.name(), s.m, s.n, s.k));
    const emulator::Kernel* entry = module_->find(kernel.name());
    ASSERT_NE(entry, nullptr);
    std::mt19937 random(7);
    const std::vector<float> a = values(s.m * s.k, random), b = values(s.k * s.n, random),
                             c = values(s.m * s.n, random);
    std::vector<float> got(c.size());
    const uint64_t at[] = {place(a, true), place(b, true), place(c, kernel.accumulate)};
    const uint64_t parameters[] = {at[0],
                                   at[1],
                                   at[2],
                                   static_cast<uint64_t>(s.m),
                                   static_cast<uint64_t>(s.n),
                                   static_cast<uint64_t>(s.k)};
    const auto* bytes = reinterpret_cast<const uint8_t*>(parameters);
    const GemmTile& tile = *kernel.tile;
    const int64_t blocks = ((s.m + tile.m - 1) / tile.m) * ((s.n + tile.n - 1) / tile.n);
    emulator::Dim3 grid, block;
    grid.x = static_cast<uint32_t>(blocks), block.x = static_cast<uint32_t>(tile.threads());
    const Status status =
        emulator_.launch(*entry, grid, block, 0, std::vector<uint8_t>(bytes, bytes + sizeof parameters));
    ASSERT_TRUE(status.ok()) << status.text();
    ASSERT_TRUE(emulator_.read(at[2], got.data(), s.m * s.n * 4));
    for (const uint64_t address : at) emulator_.release(address);
    const size_t reports = emulator_.reports().size();
    emulator_.clear_reports();
    if (broken_) {
      EXPECT_GT(reports, 0U) << "not noticed";
      return;
    }
    EXPECT_EQ(reports, 0U);
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < s.k; ++l)
          sum = std::fma(a[static_cast<size_t>(kernel.transpose_a ? l * s.m + i : i * s.k + l)],
                         b[static_cast<size_t>(kernel.transpose_b ? j * s.k + l : l * s.n + j)], sum);
        const auto element = static_cast<size_t>(i * s.n + j);
        if (kernel.accumulate) sum += c[element];
        ASSERT_EQ(got[element], sum) << "at " << i << ", " << j;
      }
    }
  }

 private:
  static std::vector<float> values(int64_t count, std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> result(static_cast<size_t>(count));
    for (float& value : result) value = uniform(random);
    return result;
  }
  // An allocation of exactly these values, or an uninitialised one of their size.
  uint64_t place(const std::vector<float>& values, bool initialised) {
    const auto bytes = static_cast<int64_t>(values.size() * 4);
    const uint64_t address = emulator_.allocate(bytes);
    if (initialised && !emulator_.write(address, values.data(), bytes)) ADD_FAILURE() << "cannot write";
    return address;
  }

  bool broken_;
  emulator::Emulator emulator_;
  std::unique_ptr<emulator::LoadedModule> module_;
};

TEST(GemmEmulated, EveryKernelAtTheEdges) {
  Diag diag;
  const auto code = emit_nvptx(every_product(), "sm_75", diag);
  ASSERT_TRUE(code) << diag.render();
  ASSERT_EQ(code->products.size(), 32U);
  Machine machine(code->ptx);
  for (const GemmKernel& kernel : code->products) {
    const GemmTile& t = *kernel.tile;
    for (const Shape& s :
         {Shape{1, 1, 1}, Shape{t.m, t.n, t.k}, Shape{t.m + 1, t.n - 1, t.k + 3}, Shape{8, t.n + 4, 12}}) {
      machine.check(kernel, s);
      if (HasFatalFailure()) return;
    }
  }
}

// The test above can fail: without barriers every kernel races.
TEST(GemmEmulated, MissingBarriersAreNoticed) {
  Diag diag;
  const auto code = emit_nvptx(every_product(), "sm_75", diag);
  ASSERT_TRUE(code) << diag.render();
  std::string ptx = code->ptx;
  for (size_t at = 0; (at = ptx.find("bar.sync", at)) != std::string::npos;)
    ptx.erase(at, ptx.find(';', at) + 1 - at);
  Machine machine(ptx, /*broken=*/true);
  for (const GemmKernel& kernel : code->products) {
    machine.check(kernel, {kernel.tile->m, kernel.tile->n, 2 * kernel.tile->k});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace gacc::codegen
