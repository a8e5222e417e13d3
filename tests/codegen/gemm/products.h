// A module that needs every built-in product.
#pragma once
#include <fmt/format.h>

#include <algorithm>

#include "tests/numeric/examples.h"

namespace gacc::codegen {

// Every variant with every tile: squares of 16, 128, 320, 640 and 1280, of this type, accumulating in f32; 128 is
// few tiles, in slices. `gaps`: of operands whose rows have a pitch.
inline ir::Module every_product(ir::DType dtype = ir::DType::f32, bool gaps = false) {
  const std::string type(ir::dtype_text(dtype));
  std::string accumulators, inputs, ops;
  for (const int side : {16, 128, 320, 640, 1280}) {
    inputs += fmt::format("{}%x{} : {}[{},{}]", inputs.empty() ? "" : ", ", side, type, side, side);
    for (const char* flags : {"", "{ta}", "{tb}", "{ta, tb}"}) {
      const std::string name = fmt::format("s{}.{}", side, std::count(ops.begin(), ops.end(), '\n'));
      accumulators += fmt::format("accum @{} : f32[{},{}]\n", name, side, side);
      ops += fmt::format("  %{} = matmul %x{}, %x{} : {}[{},{}] {}\n", name, side, side, type, side, side,
                         flags);
      ops += fmt::format("  matmul.acc @{}, %x{}, %x{} {}\n", name, side, side, flags);
    }
  }
  ir::Module module = ir::parse_module(
      fmt::format("set train.micro_batch = 32\n{}eval({}) {{\n{}}}\n", accumulators, inputs, ops));
  for (const ir::ValueId input : module.eval.inputs)
    if (gaps) module.eval[input].type.pitch = 2048;  // another one in each launch
  return module;
}

}  // namespace gacc::codegen
