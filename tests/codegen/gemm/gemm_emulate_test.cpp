// The built-in products' PTX in the emulator: results bit for bit those of sums in order (a product of two
// halves is exact in f32, and the emulator's mma adds in order of the inner dimension), and not one report
// (out of bounds, misaligned, uninitialised, races in shared memory, barriers that not every thread reaches).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "codegen/device_code.h"
#include "emulator/emulator.h"
#include "tests/codegen/gemm/products.h"
#include "tests/codegen/half_values.h"

namespace gacc::codegen {
namespace {

struct Shape {
  int64_t m, n, k;
  int64_t gap = 0;     // from the end of a row's last 8 elements to the next row; needs a kernel with pitches
  uint64_t shift = 0;  // bytes from a multiple of 16 to each matrix
};

// Elements from one row to the next.
int64_t row_of(const Shape& s, int64_t columns) {
  return s.gap == 0 ? columns : (columns + 7) / 8 * 8 + s.gap;
}

// The sum of products in the order in which a tile's threads add it.
class OrderedSum {
 public:
  explicit OrderedSum(const GemmTile& tile) : tile_(tile), sums_(static_cast<size_t>(tile.slices), 0.0F) {}
  // The products come in the order of the inner dimension.
  void add(int64_t inner, float x, float y) {
    float& sum = sums_[static_cast<size_t>(inner % tile_.k / (tile_.k / tile_.slices))];
    sum = std::fma(x, y, sum);
  }
  float sum() const { return std::accumulate(sums_.begin() + 1, sums_.end(), sums_.front()); }

 private:
  const GemmTile& tile_;
  std::vector<float> sums_;
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
    const std::vector<float> a = values(s.m * s.k, kernel.type, random),
                             b = values(s.k * s.n, kernel.type, random),
                             c = values(s.m * s.n, kernel.result, random);
    check(kernel, *entry, s, a, b, c);
  }

  // One element of C, which must come out as `expected`.
  void check(const GemmKernel& kernel, const Shape& s, const std::vector<float>& a,
             const std::vector<float>& b, const std::vector<float>& c, float expected) {
    const emulator::Kernel* entry = module_->find(kernel.name());
    ASSERT_NE(entry, nullptr);
    check(kernel, *entry, s, a, b, c);
    EXPECT_EQ(last_, expected);
  }

  void check(const GemmKernel& kernel, const emulator::Kernel& entry, const Shape& s,
             const std::vector<float>& a, const std::vector<float>& b, const std::vector<float>& c) {
    const int64_t columns[] = {kernel.transpose_a ? s.m : s.k, kernel.transpose_b ? s.k : s.n, s.n};
    // A buffer, to which products add, has no gaps.
    const int64_t rows[] = {row_of(s, columns[0]), row_of(s, columns[1]),
                            kernel.accumulate ? s.n : row_of(s, s.n)};
    const uint64_t at[] = {place(a, kernel.type, true, columns[0], rows[0], s.shift),
                           place(b, kernel.type, true, columns[1], rows[1], s.shift),
                           place(c, kernel.result, kernel.accumulate, s.n, rows[2], s.shift)};
    std::vector<uint64_t> parameters(std::begin(at), std::end(at));
    for (const int64_t extent : {s.m, s.n, s.k}) parameters.push_back(static_cast<uint64_t>(extent));
    for (const int64_t row : rows)
      if (kernel.pitch) parameters.push_back(static_cast<uint64_t>(row));
    const auto* bytes = reinterpret_cast<const uint8_t*>(parameters.data());
    const GemmTile& tile = *kernel.tile;
    const int64_t blocks = ((s.m + tile.m - 1) / tile.m) * ((s.n + tile.n - 1) / tile.n);
    emulator::Dim3 grid, block;
    grid.x = static_cast<uint32_t>(blocks), block.x = static_cast<uint32_t>(tile.threads());
    const Status status =
        emulator_.launch(entry, grid, block, 0, std::vector<uint8_t>(bytes, bytes + 8 * parameters.size()));
    ASSERT_TRUE(status.ok()) << status.text();
    const std::vector<float> got = fetch(at[2], kernel.result, s.m, s.n, rows[2]);
    last_ = got.back();
    for (const uint64_t address : at) emulator_.release(address - s.shift);
    const size_t reports = emulator_.reports().size();
    emulator_.clear_reports();
    if (broken_) {
      EXPECT_GT(reports, 0U) << "not noticed";
      return;
    }
    EXPECT_EQ(reports, 0U);
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        OrderedSum ordered(tile);
        for (int64_t l = 0; l < s.k; ++l)
          ordered.add(l, a[static_cast<size_t>(kernel.transpose_a ? l * s.m + i : i * s.k + l)],
                      b[static_cast<size_t>(kernel.transpose_b ? j * s.k + l : l * s.n + j)]);
        float sum = ordered.sum();
        const auto element = static_cast<size_t>(i * s.n + j);
        if (kernel.accumulate) sum += c[element];
        sum = nearest(sum, kernel.result);
        ASSERT_EQ(got[element], sum) << "at " << i << ", " << j;
      }
    }
  }

 private:
  static float nearest(float value, ir::DType dtype) {
    return ir::dtype_bytes(dtype) == 4 ? value : static_cast<float>(nearest_half(value, dtype));
  }
  static std::vector<float> values(int64_t count, ir::DType dtype, std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> result(static_cast<size_t>(count));
    for (float& value : result) value = nearest(uniform(random), dtype);
    return result;
  }
  // Rows of these values; gaps between them, and what is not initialised, may not be read.
  uint64_t place(const std::vector<float>& values, ir::DType dtype, bool initialised, int64_t columns,
                 int64_t row, uint64_t shift) {
    const int64_t one = ir::dtype_bytes(dtype), rows = static_cast<int64_t>(values.size()) / columns;
    std::vector<uint16_t> halves;
    for (const float value : values)
      if (one == 2) halves.push_back(half_bits(value, dtype));
    const void* data = one == 2 ? static_cast<const void*>(halves.data()) : values.data();
    const uint64_t address = emulator_.allocate(rows * row * one + static_cast<int64_t>(shift)) + shift;
    for (int64_t i = 0; initialised && i < rows; ++i) {
      const char* from = static_cast<const char*>(data) + i * columns * one;
      if (!emulator_.write(address + static_cast<uint64_t>(i * row * one), from, columns * one))
        ADD_FAILURE() << "cannot write";
    }
    return address;
  }
  std::vector<float> fetch(uint64_t address, ir::DType dtype, int64_t rows, int64_t columns, int64_t row) {
    const int64_t one = ir::dtype_bytes(dtype);
    std::vector<float> values(static_cast<size_t>(rows * columns));
    std::vector<uint16_t> halves(values.size());
    void* data = one == 2 ? static_cast<void*>(halves.data()) : values.data();
    for (int64_t i = 0; i < rows; ++i) {
      char* to = static_cast<char*>(data) + i * columns * one;
      if (!emulator_.read(address + static_cast<uint64_t>(i * row * one), to, columns * one))
        ADD_FAILURE() << "cannot read";
    }
    for (size_t i = 0; one == 2 && i < values.size(); ++i)
      values[i] = static_cast<float>(half_value(halves[i], dtype));
    return values;
  }

  bool broken_;
  float last_ = 0;  // element of C
  emulator::Emulator emulator_;
  std::unique_ptr<emulator::LoadedModule> module_;
};

TEST(GemmEmulated, EveryKernelAtTheEdges) {
  Diag diag;
  const auto code = emit_nvptx(every_product(), "sm_75", diag);
  ASSERT_TRUE(code) << diag.render();
  ASSERT_EQ(code->products.size(), 40U);
  Machine machine(code->ptx);
  for (const GemmKernel& kernel : code->products) {
    const GemmTile& t = *kernel.tile;
    const int64_t m = t.m, n = t.n, k = t.k;
    // One element; odd; a tile, one less, one more; multiples of four that are no tiles; several tiles; addresses that
    // are no multiples of 16 bytes, and of 8.
    for (const Shape& s : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{m, n, k}, Shape{m - 1, n + 1, k + 1},
                           Shape{m + 1, n - 1, k + 3}, Shape{m + 4, n - 4, 2 * k + 4}, Shape{8, n + 4, 12},
                           Shape{2, 2 * n + 2, 3}, Shape{1, n, 2 * k}, Shape{m, 1, 10}, Shape{m, n, k, 0, 4},
                           Shape{12, 8, 20, 0, 8}}) {
      machine.check(kernel, s);
      if (HasFatalFailure()) return;
    }
  }
}

// Elements that do not exist are not multiplied: what lies behind an operand may be infinite.
TEST(GemmEmulated, InfiniteInputsStayInTheirRowAndColumn) {
  Diag diag;
  const auto code = emit_nvptx(every_product(), "sm_75", diag);
  ASSERT_TRUE(code) << diag.render();
  Machine machine(code->ptx);
  std::vector<float> a(3 * 5, 1);
  a[1 * 5 + 4] = std::numeric_limits<float>::infinity();
  for (const GemmKernel& kernel : code->products)
    if (!kernel.transpose_a && !kernel.accumulate)
      machine.check(kernel, {3, 2, 5}, a, std::vector<float>(2 * 5, 1), std::vector<float>(3 * 2), 5);
}

TEST(GemmEmulated, TheTileDependsOnTheShapeAlone) {
  const auto name = [](int64_t m, int64_t n, int64_t k = 512) {
    return choose_gemm(m, n, k, true, false, true).name();
  };
  EXPECT_EQ(name(32, 512, 127), "gacc_gemm_f32_tn_acc_16x16");
  EXPECT_EQ(name(32, 512, 128), "gacc_gemm_f32_tn_acc_16x16_sliced");
  EXPECT_EQ(name(160, 160), "gacc_gemm_f32_tn_acc_16x16");
  EXPECT_EQ(name(256, 512), "gacc_gemm_f32_tn_acc_32x32");
  EXPECT_EQ(name(512, 784), "gacc_gemm_f32_tn_acc_64x64");
  EXPECT_EQ(name(4096, 4096), "gacc_gemm_f32_tn_acc_128x128");
  EXPECT_EQ(choose_gemm(1, 1, 1, false, true, false).name(), "gacc_gemm_f32_nt_16x16");
  const auto half = [](const char* target, ir::DType type) {
    return choose_gemm(32, 512, 784, false, true, false, type, type, GpuTarget(target)).name();
  };
  EXPECT_EQ(half("sm_80", ir::DType::f16), "gacc_gemm_f16_nt_32x32_sliced");
  EXPECT_EQ(half("sm_90", ir::DType::f16), "gacc_gemm_f16_nt_32x32_sliced");
  EXPECT_EQ(half("sm_75", ir::DType::bf16), "gacc_gemm_bf16_nt_16x16_sliced");
}

// Rows with gaps: of 8 elements and more they are aligned whatever the extent, and no gap is read.
void check_gaps(ir::DType dtype, const char* target) {
  Diag diag;
  const auto code = emit_nvptx(every_product(dtype, /*gaps=*/true), target, diag);
  ASSERT_TRUE(code) << diag.render();
  Machine machine(code->ptx);
  for (const GemmKernel& kernel : code->products) {
    ASSERT_TRUE(kernel.pitch);
    const GemmTile& t = *kernel.tile;
    for (const Shape& s :
         {Shape{1, 1, 1, 8}, Shape{t.m, t.n, t.k, 64}, Shape{t.m + 1, t.n - 1, 2 * t.k + 3, 8},
          Shape{13, t.n + 5, t.k - 3, 16}, Shape{9, 11, 23, 3}, Shape{8, 16, 24, 0}}) {
      machine.check(kernel, s);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GemmEmulated, RowsWithGaps) { check_gaps(ir::DType::f32, "sm_80"); }

// Tensor cores: copies of 16 bytes and of single elements, edges of tiles, the pipeline's wrapping around; on
// sm_75 f16 without cp.async, and bf16 by multiply-adds.
class HalfGemmEmulated : public testing::TestWithParam<std::pair<ir::DType, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Types, HalfGemmEmulated,
                         testing::Values(std::pair{ir::DType::f16, "sm_80"},
                                         std::pair{ir::DType::bf16, "sm_80"},
                                         std::pair{ir::DType::f16, "sm_75"},
                                         std::pair{ir::DType::bf16, "sm_75"}),
                         [](const auto& info) {
                           return fmt::format("{}_{}", ir::dtype_text(info.param.first), info.param.second);
                         });

TEST_P(HalfGemmEmulated, EveryKernelAtTheEdges) {
  const auto [dtype, target] = GetParam();
  const bool mma = dtype == ir::DType::f16 || GpuTarget(target).bf16;
  Diag diag;
  const auto code = emit_nvptx(every_product(dtype), target, diag);
  ASSERT_TRUE(code) << diag.render();
  ASSERT_EQ(code->products.size(), mma ? 32U : 40U);
  Machine machine(code->ptx);
  for (const GemmKernel& kernel : code->products) {
    const GemmTile& t = *kernel.tile;
    ASSERT_EQ(t.mma(), mma);
    for (const Shape& s :
         {Shape{1, 1, 1}, Shape{t.m, t.n, t.k}, Shape{t.m + 1, t.n - 1, t.k + 3},
          Shape{8, t.n + 8, 5 * t.k + 8}, Shape{t.m + 8, 16, 2 * t.k - 8}, Shape{5, 8, 24}}) {
      machine.check(kernel, s);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(HalfGemmEmulated, RowsWithGaps) { check_gaps(GetParam().first, GetParam().second); }

// The sum of 4,096 ones and eight times 2^-10: in f16 it would stop at 2,048, and small terms would be lost.
TEST_P(HalfGemmEmulated, SumsAreF32) {
  const auto [dtype, target] = GetParam();
  const ir::Module module = ir::parse_module(fmt::format(R"(set train.micro_batch = 32
    accum @c : f32[1,1] total sum
    eval(%x : {0}[1,4104], %y : {0}[1,4104]) {{
      matmul.acc @c, %x, %y {{tb}}
      %f = matmul %x, %y : f32[1,1] {{tb, f32}}
      %h = matmul %x, %y : {0}[1,1] {{tb}}
    }})",
                                                         ir::dtype_text(dtype)));
  Diag diag;
  const auto code = emit_nvptx(module, target, diag);
  ASSERT_TRUE(code) << diag.render();
  std::vector<float> ones(4104, 1.0F), terms = ones;
  for (size_t i = 4096; i < 4104; ++i) terms[i] = 0x1p-10F;
  Machine machine(code->ptx);
  ASSERT_EQ(code->products.size(), 3U);
  machine.check(code->products[0], {1, 1, 4104}, terms, ones, {0.5F}, 4096.5F + 0x1p-7F);
  machine.check(code->products[1], {1, 1, 4104}, terms, ones, {0.0F}, 4096.0F + 0x1p-7F);
  machine.check(code->products[2], {1, 1, 4104}, terms, ones, {0.0F}, 4096.0F);
}

void remove_barriers(const DeviceCode& code) {
  std::string ptx = code.ptx;
  for (size_t at = 0; (at = ptx.find("bar.sync", at)) != std::string::npos;)
    ptx.erase(at, ptx.find(';', at) + 1 - at);
  Machine machine(ptx, /*broken=*/true);
  for (const GemmKernel& kernel : code.products) {
    machine.check(kernel, {kernel.tile->m, kernel.tile->n, 2 * kernel.tile->k});
    if (testing::Test::HasFatalFailure()) return;
  }
}

// The tests above can fail: without barriers every kernel races.
TEST(GemmEmulated, MissingBarriersAreNoticed) {
  Diag diag;
  const auto code = emit_nvptx(every_product(), "sm_75", diag);
  ASSERT_TRUE(code) << diag.render();
  remove_barriers(*code);
  const auto half = emit_nvptx(every_product(ir::DType::f16), "sm_80", diag);
  ASSERT_TRUE(half) << diag.render();
  remove_barriers(*half);
}

// What a block has not waited for is not there.
TEST(GemmEmulated, LaxWaitsAreNoticed) {
  Diag diag;
  const auto code = emit_nvptx(every_product(ir::DType::f16), "sm_80", diag);
  ASSERT_TRUE(code) << diag.render();
  std::string ptx = code->ptx;
  for (size_t at = 0; (at = ptx.find("cp.async.wait_group ", at)) != std::string::npos; ++at)
    ptx[at + std::string("cp.async.wait_group ").size()] = '5';
  Machine machine(ptx, /*broken=*/true);
  for (const GemmKernel& kernel : code->products) {
    machine.check(kernel, {kernel.tile->m, kernel.tile->n, 4 * kernel.tile->k});
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace gacc::codegen
