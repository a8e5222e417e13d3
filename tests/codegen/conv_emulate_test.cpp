// Convolutions as implicit products: their PTX in the emulator against the double reference, without a report.
// Operands are small multiples of 1/8, so all sums are exact in f32: f32 results must be the reference's, and half
// results those rounded.
#include <gtest/gtest.h>

#include <iostream>

#include "kernels/gemm.h"
#include "kernels/handwritten/calls.h"
#include "tests/codegen/conv_cases.h"
#include "tests/codegen/emulated.h"
#include "tests/codegen/half_values.h"
#include "tests/codegen/machine.h"
#include "tests/numeric/examples.h"

namespace gacc::codegen {
namespace {

using ir::DType;
using ir::RegionKind;

struct Kind {
  DType dtype;
  const char* target;
};

// Which of the three are products.
std::vector<std::string> products(const DeviceCode& code) {
  std::vector<std::string> names;
  for (const Body& body : code.program.functions) {
    if (body.by_tiles) names.emplace_back(body.op->name);
  }
  return names;
}

void check(const ConvCase& c, const Kind& kind) {
  SCOPED_TRACE(fmt::format("{}, {} on {}", c.text(), ir::dtype_text(kind.dtype), kind.target));
  const ir::Module module = conv_module(c, kind.dtype);
  Diag diag;
  const auto code = emit_nvptx(module, kind.target, diag);
  ASSERT_TRUE(code) << diag.render();
  EXPECT_EQ(products(*code).size(), 3U);
  for (const int64_t batch : c.batches) {
    std::mt19937 random(7);
    auto inputs = ir::random_inputs(module, batch, false, random);
    ir::State state = ir::random_state(module, random);
    const auto fill = [&](ir::Tensor& tensor) {
      for (double& x : tensor.data) x = (static_cast<double>(random() % 9) - 4) / 8;
    };
    for (auto& [name, tensor] : inputs) fill(tensor);
    for (auto& [name, tensor] : state.buffers) fill(tensor);
    ir::State after = state;
    auto values = ir::evaluate(module, RegionKind::eval, batch, inputs, after);
    for (const char* name : {"y", "z"})
      for (double& x : values.at(name).data)
        if (ir::is_narrow(kind.dtype)) x = nearest_half(x, kind.dtype);
    Emulated gpu(*code);
    Machine machine(module, code->program, RegionKind::eval, batch);
    machine.set(inputs, state);
    gpu.run(module, machine, batch);
    ASSERT_TRUE(gpu.emulator.reports().empty()) << gpu.emulator.reports().front().render();
    machine.expect_equal(values, after, 0);
    if (testing::Test::HasFailure()) return;
  }
}

constexpr Kind kKinds[] = {{DType::f16, "sm_75"},
                           {DType::f16, "sm_80"},
                           {DType::bf16, "sm_75"},
                           {DType::bf16, "sm_80"},
                           {DType::f32, "sm_80"}};

class ConvEmulated : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Machines, ConvEmulated, testing::ValuesIn(kKinds), [](const auto& info) {
  return fmt::format("{}_{}", ir::dtype_text(info.param.dtype), info.param.target);
});

// Kernels of 1, 3 and 5, strides of 1 and 2, padding of 0, 1 and 2.
TEST_P(ConvEmulated, WindowsOfEveryKind) {
  const std::map<int64_t, int64_t> channels = {{1, 72}, {3, 17}, {5, 18}};
  for (const auto& [kernel, in] : channels) {
    for (const int64_t stride : {1, 2}) {
      for (const int64_t padding : {0, 1, 2})
        check({in, kernel == 1 ? 72 : 40, 7, 9, {kernel, kernel}, stride, padding, 1, 1, 16, 16, {2}},
              GetParam());
    }
  }
}

// Odd channels, images of one pixel and of odd extents, kernels that are no squares; groups, dilation.
TEST_P(ConvEmulated, OddExtents) {
  for (const ConvCase& c : {ConvCase{17, 65, 5, 7, {3, 3}, 2, 1},
                            {97, 71, 6, 5, {1, 1}, 1, 0},
                            {97, 71, 1, 1, {1, 1}, 1, 0},
                            {16, 40, 1, 1, {3, 3}, 1, 1},
                            {19, 35, 11, 6, {2, 5}, 1, 2},
                            {19, 35, 11, 6, {5, 2}, 3, 2},
                            {24, 40, 12, 13, {3, 2}, 2, 1, 2},
                            {16, 66, 10, 9, {3, 3}, 3, 2, 3},
                            {32, 64, 6, 7, {3, 3}, 1, 1, 1, 2},
                            {16, 16, 24, 24, {16, 16}, 8, 0}})
    check(c, GetParam());
}

// What lies side by side in memory: kernels of one tap, images of whole chunks, channels that fill them.
TEST_P(ConvEmulated, AlignedRuns) {
  for (const ConvCase& c : {ConvCase{80, 72, 4, 8, {1, 1}},
                            {72, 80, 4, 4, {1, 1}},
                            {128, 144, 2, 4, {1, 1}, 1, 0, 1, 2},
                            {16, 64, 8, 8, {3, 3}, 1, 1},
                            {76, 84, 2, 6, {1, 1}}})
    check(c, GetParam());
}

// A full micro-batch, parts of several samples, and ragged ones that have more tiles than blocks.
TEST_P(ConvEmulated, MicroBatches) {
  for (const ConvCase& c : {ConvCase{17, 72, 3, 3, {3, 3}, 1, 1, 1, 1, 20, 20, {20, 13, 1}},
                            {24, 72, 5, 5, {3, 3}, 1, 0, 1, 1, 11, 6, {11, 10, 5}},
                            {80, 256, 4, 4, {1, 1}, 1, 0, 1, 1, 24, 8, {24, 7, 1}}})
    check(c, GetParam());
}

// Every tile occurs: channels and pixels that fill a GPU, of which a few samples are computed.
TEST(ConvProducts, EveryTile) {
  for (const auto& [c, halves, floats] : kConvTiles) {
    for (const DType dtype : {DType::f16, DType::f32}) {
      Diag diag;
      const auto code = emit_nvptx(conv_module(c, dtype), "sm_80", diag);
      const auto& functions = code->program.functions;
      const auto forward = std::find_if(functions.begin(), functions.end(), [](const Body& body) {
        return body.op == &ir::op_conv2d && body.by_tiles;
      });
      ASSERT_NE(forward, functions.end()) << c.text();
      const GemmTile& tile = implicit_tile(forward->shape.as<ConvShape>().product);
      EXPECT_EQ(fmt::format("{}x{}", tile.m, tile.n), dtype == DType::f16 ? halves : floats) << c.text();
      check(c, {dtype, "sm_80"});
    }
  }
}

// A direct convolution has nine loads of global memory for eight multiply-adds. Of a product each loaded element serves
// a row or a column of a tile.
TEST(ConvProducts, LoadLittle) {
  const ConvCase c{64, 128, 16, 16, {3, 3}, 1, 1, 1, 1, 32, 16, {2}};
  for (const DType dtype : {DType::f16, DType::f32}) {
    ir::Module module = conv_module(c, dtype);
    Diag diag;
    const auto code = emit_nvptx(module, "sm_80", diag);
    ASSERT_TRUE(code) << diag.render();
    std::mt19937 random(3);
    const int64_t batch = c.batches.front();
    Emulated gpu(*code);
    Machine machine(module, code->program, RegionKind::eval, batch);
    machine.set(ir::random_inputs(module, batch, false, random), ir::random_state(module, random));
    const double products = static_cast<double>(batch * 16 * 16 * c.out * c.in * 9);
    for (const auto& [kernel, loads] : gpu.run(module, machine, batch)) {
      std::cout << fmt::format("{} in {}: {} loads for {} multiply-adds\n", kernel, ir::dtype_text(dtype),
                               loads, products);
      EXPECT_LT(static_cast<double>(loads), products / (dtype == DType::f16 ? 24 : 12)) << kernel;
    }
  }
}

// Of a group with few channels most of a tile would be empty; few sums are made by many threads.
TEST(ConvProducts, NotOfFewChannels) {
  Diag diag;
  const auto names = [&](const ConvCase& c) {
    return products(*emit_nvptx(conv_module(c, DType::f16), "sm_80", diag));
  };
  EXPECT_EQ(names({8, 8, 6, 6, {3, 3}, 1, 1, 1, 8}), std::vector<std::string>{});
  EXPECT_EQ(names({3, 16, 6, 6, {3, 3}, 1, 1}), std::vector<std::string>{"conv2d"});
  EXPECT_EQ(names({16, 2, 6, 6, {3, 3}, 1, 1}), std::vector<std::string>{"conv2d.grad"});
}

}  // namespace
}  // namespace gacc::codegen
