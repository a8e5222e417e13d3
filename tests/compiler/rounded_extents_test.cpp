// Products over a vocabulary that is no multiple of 8: which extents a library may round up.
#include <fmt/format.h>

#include <algorithm>

#include "ir/product.h"
#include "ir/row_pitch.h"
#include "passes/analysis/check_plan.h"
#include "tests/compiler/compiled.h"

namespace gacc {
namespace {

const std::string kModel = test::classifier(
    "12, 16", test::linear(24, "activation = \"gelu\"") + test::linear(1001, "name = \"head\"\nbias = false"),
    "type = \"adam\"", "micro_batch = 4\n[launch]\nmode = \"graph\"", "12", 1001);

ir::Module model(const std::string& precision) {
  return test::compiled(kModel, {{"precision.compute", precision}});
}

// The rounded extents of each product of the step that has some, sorted.
std::vector<std::string> rounded(const ir::Module& module) {
  std::vector<std::string> all;
  const ir::Facts facts = ir::facts(module, module.step);
  for (const ir::Kernel& kernel : facts->kernels) {
    if (kernel.form != ir::KernelForm::gemm) continue;
    const ir::Op& op = module.step.ops[kernel.members.front().op];
    const ir::Rounded found = ir::rounded_extents(module, module.step, *facts, op);
    for (const auto& [name, extent] : {std::pair("m", found.m), {"n", found.n}, {"k", found.k}})
      if (extent != 0) all.push_back(fmt::format("{} {}", name, extent));
  }
  std::ranges::sort(all);
  return all;
}

TEST(RoundedExtents, LogitsTheirGradientAndTheTablesAreRoundedInHalf) {
  const std::vector<std::string> each = {"k 1008", "m 1008", "n 1008"};
  EXPECT_EQ(rounded(model("f16")), each);
  EXPECT_EQ(rounded(model("bf16")), each);
  EXPECT_TRUE(rounded(model("f32")).empty()) << "no tensor cores that could be slow";
}

TEST(RoundedExtents, AHalfCopyAndAGradientHaveRoomAndNothingElse) {
  const ir::Module module = model("f16");
  for (const ir::Buffer& buffer : module.buffers) {
    const int64_t rows = buffer.name == "head.weight.h" || buffer.name == "head.weight.grad" ? 1008 : 1001;
    if (buffer.name.starts_with("head.weight"))
      EXPECT_EQ(ir::room_bytes(buffer), rows * 24 * ir::dtype_bytes(buffer.type.dtype)) << buffer.name;
    else
      EXPECT_EQ(ir::room_bytes(buffer), ir::type_bytes(buffer.type, 1)) << buffer.name;
  }
}

// Elsewhere the gaps of the gradient's rows hold anything, and a sum over them would, too.
TEST(RoundedExtents, AGradientThatIsNotMadeInPlaceOfTheLogitsIsNotRounded) {
  ir::Module module = model("f16");
  const ir::ValueId gradient = module.step.find("d.head.h").value();
  module.step[gradient].offset = module.arena_bytes.value();
  EXPECT_EQ(rounded(module), std::vector<std::string>{"n 1008"});
}

TEST(RoundedExtents, NothingElseMayLieInTheRoom) {
  ir::Module module = model("f16");
  ASSERT_EQ(passes::check_plan(module), "");
  const auto buffer = [&](std::string_view name) {
    return std::ranges::find(module.buffers, name, &ir::Buffer::name);
  };
  const auto gradient = buffer("head.weight.grad"), other = buffer("lr");
  ASSERT_TRUE(gradient != module.buffers.end() && other != module.buffers.end());
  other->offset = *gradient->offset + ir::aligned(ir::type_bytes(gradient->type, 1), ir::alignment(*other));
  EXPECT_NE(passes::check_plan(module).find("overlaps buffer"), std::string::npos);
}

}  // namespace
}  // namespace gacc
