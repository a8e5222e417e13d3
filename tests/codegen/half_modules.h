// Modules of the f32 tests with values of half types, and numbers for them.
#pragma once
#include <algorithm>
#include <optional>
#include <random>

#include "ir/reference.h"
#include "tests/codegen/half_values.h"
#include "tests/numeric/examples.h"

namespace gacc::codegen {

// The module with inputs and parameters of half type but for statistics, and results as the table then infers
// them; nothing where an op does not take them.
inline std::optional<ir::Module> to_half(ir::Module module, ir::DType dtype) {
  const auto is_kept = [&](ir::ValueId input) {
    return std::any_of(module.eval.ops.begin(), module.eval.ops.end(), [&](const ir::Op& op) {
      for (size_t i = 0; i < op.operands.size(); ++i)
        if (op.operands[i] == ir::Operand(input) && op.info->keeps_f32(i)) return true;
      return false;
    });
  };
  for (const ir::ValueId input : module.eval.inputs)
    if (module.eval[input].type.dtype == ir::DType::f32 && !is_kept(input))
      module.eval[input].type.dtype = dtype;
  for (ir::Buffer& buffer : module.buffers)
    if (buffer.kind == ir::BufferKind::param && buffer.type.dtype == ir::DType::f32)
      buffer.type.dtype = dtype;
  for (const ir::Op& op : module.eval.ops) {
    Diag diag;
    const auto types = ir::infer_types({module, module.eval, op}, diag);
    if (!types) return std::nullopt;
    for (size_t r = 0; r < op.results.size(); ++r) module.eval[op.results[r]].type = (*types)[r];
  }
  return module;
}

// Inputs as their types hold them.
inline void as_stored(ir::Tensor& tensor, ir::DType dtype) {
  if (ir::is_blocks(dtype)) return ir::round_blocks(dtype, tensor.data);
  for (double& x : tensor.data) x = is_narrow(dtype) ? nearest_half(x, dtype) : static_cast<float>(x);
}

struct Data {
  std::map<std::string, ir::Tensor> inputs;
  ir::State state;
};
inline Data random_data(const ir::Module& module, int64_t batch, std::mt19937& random, bool positive = true) {
  Data data{ir::random_inputs(module, batch, positive, random), ir::random_state(module, random)};
  for (const ir::ValueId input : module.eval.inputs)
    as_stored(data.inputs.at(module.eval[input].name), module.eval[input].type.dtype);
  for (const ir::Buffer& buffer : module.buffers)
    as_stored(data.state.buffers.at(buffer.name), buffer.type.dtype);
  return data;
}

// Half an ulp of a result, and as much again for operands of a fused op that were themselves rounded.
inline double tolerance(ir::DType dtype) { return dtype == ir::DType::f16 ? 0x1p-9 : 0x1p-6; }

}  // namespace gacc::codegen
