// Products over a vocabulary that is no multiple of 8: which extents a library may round up.
#include <algorithm>

#include "ir/product.h"
#include "ir/row_pitch.h"
#include "tests/compiler/compiled.h"

namespace gacc {
namespace {

constexpr const char* kModel = R"([model]
name = "m"
[inputs.x]
shape = [12, 16]
[inputs.y]
shape = [12]
dtype = "i32"
range = 1001
[[layers]]
type = "linear"
name = "fc"
features = 24
activation = "gelu"
[[layers]]
type = "linear"
name = "head"
features = 1001
bias = false
[loss]
type = "cross_entropy"
target = "y"
[train]
micro_batch = 4
[optimizer]
type = "adam"
[launch]
mode = "graph"
)";

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
    const std::string text = std::string(found.m ? "m" : "") + (found.n ? "n" : "") + (found.k ? "k" : "");
    if (!text.empty()) all.push_back(text);
  }
  std::ranges::sort(all);
  return all;
}

TEST(RoundedExtents, LogitsTheirGradientAndTheTablesAreRoundedInHalf) {
  const std::vector<std::string> each = {"k", "m", "n"};
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
  EXPECT_EQ(rounded(module), std::vector<std::string>{"n"});
}

}  // namespace
}  // namespace gacc
