// The CUDA device on a machine that really executes PTX: gacc's emulator, or a GPU (GACC_ON_GPU). Skipped
// aloud where that machine is not there.
#include <gtest/gtest.h>

#include <cstdio>

#include <unistd.h>

#include "runtime/cuda/cuda_device.h"
#include "tests/codegen/half_values.h"
#include "tests/cuda/tiny_artifact.h"

namespace gacc::test {
namespace {

class Machine : public testing::Test {
 protected:
  void SetUp() override {
#ifdef GACC_ON_GPU
    std::unique_ptr<Device> device;
    if (Status status = cuda::open_device(options_, tiny_artifact(4, 4), device); !status)
      GTEST_SKIP() << status.text();
#else
    options_.driver = GACC_EMULATOR;
    options_.emulated = true;
    if (access(GACC_EMULATOR, F_OK) != 0) GTEST_SKIP() << GACC_EMULATOR << " is not built";
#endif
  }
  cuda::CudaOptions options_;
};

TEST_F(Machine, TrainsLikeTheHost) {
  const Artifact artifact = tiny_artifact(4, 4);  // 30 samples: a ragged micro-batch in every epoch
  std::unique_ptr<Device> device;
  ASSERT_EQ(cuda::open_device(options_, artifact, device).text(), "");
  expect_host_training(*device, artifact, 30);
  std::string reports;
  EXPECT_EQ(device->finish(reports).text(), "");
  EXPECT_EQ(reports, "");
  EXPECT_GE(device->peak_bytes(), artifact.plan.arena_bytes);
}

// C[4 B, 17] = A[4 B, 24] @ B[17, 24]^T as the program `step` of an otherwise tiny artifact.
Artifact product_artifact(std::vector<float>& a, std::vector<float>& b) {
  Artifact artifact = tiny_artifact(4, 4);
  Plan& plan = artifact.plan;
  const int64_t m = 16, n = 17, k = 24, start = (plan.arena_bytes + 255) / 256 * 256;
  PlanLaunch product;
  product.a = start;
  product.b = start + 4096;
  product.c = start + 8192;
  product.m = {PlanArgument::Kind::extent, 0, 4, true};
  product.n = {PlanArgument::Kind::extent, 0, n, false};
  product.k = {PlanArgument::Kind::extent, 0, k, false};
  product.transpose_b = true;
  product.builtin = {"tiny_gemm_nt", 64, 8, 8};
  plan.arena_bytes = start + 8192 + 4096;
  plan.programs[1].launches = {product};
  for (int64_t i = 0; i < m * k; ++i) a.push_back(static_cast<float>(i % 13) - 6);
  for (int64_t i = 0; i < n * k; ++i) b.push_back(static_cast<float>(i % 11) - 5);
  return artifact;
}

TEST_F(Machine, MatrixProductsOfAllEngines) {
  std::vector<float> a, b;
  const Artifact artifact = product_artifact(a, b);
  const PlanLaunch& product = artifact.plan.programs[1].launches[0];
  const size_t n = 17, k = 24;
  for (GemmChoice gemm : {GemmChoice::builtin, GemmChoice::cublas}) {
    options_.gemm = gemm;
    std::unique_ptr<Device> device;
    const Status opened = cuda::open_device(options_, artifact, device);
    if (gemm == GemmChoice::cublas && !opened) {
      std::printf("cuBLAS is not tried: %s\n", opened.text().c_str());
      continue;
    }
    ASSERT_EQ(opened.text(), "");
    ASSERT_EQ(device->load(artifact).text(), "");
    for (int64_t batch : {4, 3}) {
      const auto m = static_cast<size_t>(4 * batch);
      ASSERT_EQ(device->write(product.a, std::as_bytes(std::span(a))).text(), "");
      ASSERT_EQ(device->write(product.b, std::as_bytes(std::span(b))).text(), "");
      ASSERT_EQ(device->run(Program::step, batch).text(), "");
      std::vector<float> c(m * n);
      ASSERT_EQ(device->read(product.c, std::as_writable_bytes(std::span(c))).text(), "");
      for (size_t row = 0; row < m; ++row)
        for (size_t column = 0; column < n; ++column) {
          float sum = 0;  // small integers: exact in any order
          for (size_t i = 0; i < k; ++i) sum += a[row * k + i] * b[column * k + i];
          ASSERT_EQ(c[row * n + column], sum) << device->name() << " row " << row << " column " << column;
        }
    }
    std::string reports;
    EXPECT_EQ(device->finish(reports).text(), "");
  }
}

// Half operands through cuBLASLt: a half result, and f32 sums added to.
TEST_F(Machine, HalfProductsOfCublas) {
  options_.gemm = GemmChoice::cublas;
  for (const ir::DType dtype : {ir::DType::f16, ir::DType::bf16}) {
    const DType half = dtype == ir::DType::f16 ? DType::f16 : DType::bf16;
    for (const bool accumulate : {false, true}) {
      std::vector<float> a, b;
      Artifact artifact = product_artifact(a, b);
      PlanLaunch& product = artifact.plan.programs[1].launches[0];
      product.type = half;
      product.result = accumulate ? DType::f32 : half;
      product.accumulate = accumulate;
      product.builtin = {};
      std::unique_ptr<Device> device;
      const Status opened = cuda::open_device(options_, artifact, device);
      if (!opened) GTEST_SKIP() << "cuBLAS is not tried: " << opened.text();
      ASSERT_EQ(device->load(artifact).text(), "");
      const auto halves = [&](const std::vector<float>& values) {
        std::vector<uint16_t> bits;
        for (const float value : values) bits.push_back(codegen::half_bits(value, dtype));
        return bits;
      };
      const std::vector<uint16_t> half_a = halves(a), half_b = halves(b);
      const size_t m = 16, n = 17, k = 24;
      const std::vector<float> before(m * n, 0.5F);
      std::vector<float> sums(m * n);
      std::vector<uint16_t> rounded(m * n);
      ASSERT_EQ(device->write(product.a, std::as_bytes(std::span(half_a))).text(), "");
      ASSERT_EQ(device->write(product.b, std::as_bytes(std::span(half_b))).text(), "");
      ASSERT_EQ(device->write(product.c, std::as_bytes(std::span(before))).text(), "");
      ASSERT_EQ(device->run(Program::step, 4).text(), "");
      ASSERT_EQ(device
                    ->read(product.c, accumulate ? std::as_writable_bytes(std::span(sums))
                                                 : std::as_writable_bytes(std::span(rounded)))
                    .text(),
                "");
      for (size_t row = 0; row < m; ++row)
        for (size_t column = 0; column < n; ++column) {
          double sum = accumulate ? 0.5 : 0;
          for (size_t i = 0; i < k; ++i) sum += double{a[row * k + i]} * b[column * k + i];
          const size_t at = row * n + column;
          const double got = accumulate ? sums[at] : codegen::half_value(rounded[at], dtype);
          ASSERT_EQ(got, accumulate ? sum : codegen::nearest_half(sum, dtype))
              << dtype_text(half) << " element " << at;
        }
      std::string reports;
      EXPECT_EQ(device->finish(reports).text(), "");
    }
  }
}

#ifndef GACC_ON_GPU
TEST_F(Machine, AKernelThatReadsTooFarIsReported) {
  Artifact artifact = tiny_artifact(4, 4);
  PlanLaunch& sum = artifact.plan.programs[1].launches[0];
  sum.arguments.back().extent = 1000;  // 1000 B samples where 4 are
  std::unique_ptr<Device> device;
  ASSERT_EQ(cuda::open_device(options_, artifact, device).text(), "");
  ASSERT_EQ(device->load(artifact).text(), "");
  ASSERT_EQ(device->run(Program::step, 4).text(), "");
  std::string reports;
  EXPECT_NE(device->finish(reports).text().find("the emulator has "), std::string::npos);
  EXPECT_NE(reports.find("tiny_sum"), std::string::npos) << reports;
}

TEST_F(Machine, AValueThatNobodyWroteIsReported) {
  std::vector<float> a, b;
  const Artifact artifact = product_artifact(a, b);
  std::unique_ptr<Device> device;
  ASSERT_EQ(cuda::open_device(options_, artifact, device).text(), "");
  ASSERT_EQ(device->load(artifact).text(), "");
  const int64_t first = artifact.plan.programs[1].launches[0].a;
  ASSERT_EQ(device->write(first, std::as_bytes(std::span(a))).text(), "");  // and not b
  ASSERT_EQ(device->run(Program::step, 4).text(), "");
  std::string reports;
  EXPECT_NE(device->finish(reports).text(), "");
  EXPECT_NE(reports.find("tiny_gemm_nt"), std::string::npos) << reports;
  EXPECT_NE(reports.find("uninitialised"), std::string::npos) << reports;
}
#endif

}  // namespace
}  // namespace gacc::test
