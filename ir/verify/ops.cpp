// Rules of values and ops: what is defined, and each op against the table.
#include <algorithm>
#include <set>

#include "ir/verify/rules.h"

namespace gacc::ir {

namespace {

struct OpRules : RegionRules {
  // R1 and R2: names are unique, values are defined once and before their use
  void definitions() {
    std::set<std::string_view> names;
    std::vector<bool> defined(region.values.size(), false);
    const auto define = [&](ValueId id, const Location& at) {
      if (id.index < 0 || index(id) >= region.values.size()) return broken("R2", at, "a result has no value");
      if (defined[index(id)]) broken("R2", at, "value `%{}` is defined twice", region[id].name);
      if (!names.insert(region[id].name).second)
        broken("R1", at, "two values are called `%{}`", region[id].name);
      defined[index(id)] = true;
    };
    const auto use = [&](const Operand& operand, const Location& at) {
      if (const ValueId* id = as_value(operand)) {
        const bool known = id->index >= 0 && index(*id) < region.values.size();
        if (!known)
          broken("R2", at, "an operand has no value");
        else if (!defined[index(*id)])
          broken("R2", at, "`%{}` is used before its definition", region[*id].name);
      }
      if (const BufferId* id = as_buffer(operand);
          id != nullptr && (id->index < 0 || index(*id) >= module.buffers.size())) {
        broken("R2", at, "an operand has no buffer");
      }
    };
    for (const ValueId input : region.inputs) define(input, region.at);
    for (const Op& op : region.ops) {
      op.each_operand([&](const Operand& operand) { use(operand, op.at); });
      for (const ValueId result : op.results) define(result, op.at);
    }
    for (const Yield& yield : region.yields) use(yield.what, region.at);
    if (!is_batched(region.kind) && !region.inputs.empty())
      broken("R8", region.at, "{} takes no inputs", region_text(region.kind));
    for (const ValueId input : region.inputs) {
      verify_name(region.at, region[input].name, broken);
      const Shape& shape = region[input].type.shape;
      const bool table = region.kind == RegionKind::answer ? input == region.inputs.front()
                         : region.kind == RegionKind::decode
                             ? std::ranges::find(region.inputs, input) - region.inputs.begin() >= 2
                             : false;
      if (has_batch(shape) == table)
        broken("R8", region.at, "input `%{}` has {} batch extent B", region[input].name, table ? "a" : "no");
      if (is_blocks(region[input].type.dtype))
        broken("R31", region.at, "input `%{}` is {}; only a frozen parameter is in blocks",
               region[input].name, type_text(region[input].type));
      if (!fits(shape, module.micro_batch()))
        broken("R9", region.at, "input `%{}` of shape {} is empty or too large", region[input].name,
               shape_text(shape));
    }
  }

  void op(const Op& op) {
    const OpInfo& info = *op.info;
    if (!info.takes_operands(op.operands.size()) || op.results.size() != static_cast<size_t>(info.results))
      return broken("R3", op.at, "`{}` takes {} operands and has {} results", info.name,
                    info.operand_count_text(), info.results);
    for (const auto& [key, value] : op.attrs) {
      const auto spec =
          std::ranges::find_if(info.attrs, [&name = key](const AttrSpec& s) { return s.name == name; });
      if (spec == info.attrs.end()) return broken("R3", op.at, "`{}` has no attribute `{}`", info.name, key);
      if (spec->fallback.index() != value.index())
        return broken("R3", op.at, "attribute `{}` of `{}` has another type", key, info.name);
    }
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (op.info->is_written(i) && as_buffer(op.operands[i]) == nullptr)
        return broken("R5", op.at, "operand {} of `{}` is written and must be a buffer", i, info.name);
    if (op.when) {
      const Type type = operand_type(module, region, *op.when);
      if (info.writes == 0) broken("R5", op.at, "`{}` writes no buffer, so it takes no when()", info.name);
      if (as_number(*op.when) != nullptr || type.dtype != DType::i32 || elements(type.shape, 2) != 1)
        broken("R5", op.at, "when() takes one i32, not {}", type_text(type));
    }
    if (at_least(Phase::scaled) && &info == &op_seed) broken("R12", op.at, "the loss scale is not in `seed`");
    if (at_least(Phase::half)) precision(op);
    const auto types = infer_types({module, region, op}, broken.diag());
    if (!types) return;
    const int64_t batch = module.micro_batch();
    for (size_t i = 0; i < op.results.size() && i < types->size(); ++i) {
      const Value& value = region[op.results[i]];
      if (value.type != (*types)[i])
        broken("R4", op.at, "`%{}` is {}, and `{}` gives {}", value.name, type_text(value.type), info.name,
               type_text((*types)[i]));
      if (!fits(value.type.shape, batch))
        broken("R9", op.at, "`%{}` of shape {} is empty or too large", value.name,
               shape_text(value.type.shape));
      if (!is_batched(region.kind) && has_batch(value.type.shape))
        broken("R8", op.at, "`%{}` has the extent B in {}", value.name, region_text(region.kind));
    }
  }

  // R13: from phase half on, an op of half precision has floats of one type, and no op waits for its casts
  void precision(const Op& op) {
    if (op.keep_f32) broken("R13", op.at, "`{}` is marked `keep_f32` after half-casts", op.info->name);
    std::optional<DType> shared;
    for (size_t i = 0; i < op.operands.size() && op.info->precision == Precision::half; ++i) {
      const DType dtype = operand_type(module, region, op.operands[i]).dtype;
      const bool keeps = op.info->keeps_f32(i);
      if (as_number(op.operands[i]) != nullptr || !is_float(dtype) || op.info->is_written(i) || keeps)
        continue;
      if (dtype != shared.value_or(dtype))
        broken("R13", op.at, "`{}` computes in half precision and reads {} and {}", op.info->name,
               dtype_text(*shared), dtype_text(dtype));
      shared = dtype;
    }
  }
};

}  // namespace

void verify_definitions(const Module& module, const Region& region, const Broken& broken) {
  OpRules{{module, region, broken}}.definitions();
}
void verify_ops(const Module& module, const Region& region, const Broken& broken) {
  OpRules rules{{module, region, broken}};
  for (const Op& op : region.ops) rules.op(op);
}

}  // namespace gacc::ir
