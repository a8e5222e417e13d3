// A value follows the positions when its first two axes are [B, T] and what it has at a position depends on tokens up
// to that position. Forwards through the ops, by what the table says of them.
#include "ir/positions.h"

#include <algorithm>

#include "ir/op_info.h"

namespace gacc::ir {

namespace {

class Walk {
 public:
  Walk(const Module& module, const Region& region)
      : module_(module), region_(region), of_(region.values.size()) {}

  std::string run(ValueId tokens, ValueId output) {
    length_ = region_[tokens].type.shape[1];
    of_[index(tokens)].follows = true;
    for (const Op& op : region_.ops) visit(op);
    const About& about = of_[index(output)];
    if (about.follows) return "";
    return about.why.empty() ? "the output does not depend on the tokens" : about.why;
  }

 private:
  // The verdict on a value. One that depends on no token neither follows the positions nor has a reason why not.
  struct About {
    bool follows = false;
    std::string why{};
  };

  void visit(const Op& op) {
    bool any = false;
    std::string why;
    for (const Operand& operand : op.operands) {
      const ValueId* value = as_value(operand);
      if (value == nullptr) continue;
      any = any || of_[index(*value)].follows;
      if (why.empty()) why = of_[index(*value)].why;
    }
    for (const ValueId result : op.results) {
      About& about = of_[index(result)];
      if (!why.empty())
        about.why = why;
      else if (any && !(about.follows = keeps(op, result)))
        about.why = fmt::format("`{}` makes `{}` of several positions{}", op.info->name, region_[result].name,
                                find_attr(op, "causal") != nullptr ? ", also of later ones" : "");
    }
  }

  bool follows(const Operand& operand) const {
    const ValueId* value = as_value(operand);
    return value != nullptr && of_[index(*value)].follows;
  }

  bool keeps(const Op& op, ValueId result) const {
    const Shape& shape = region_[result].type.shape;
    if (shape.size() < 2 || !has_batch(shape) || shape[1] != length_) return false;
    const Attr* causal = find_attr(op, "causal");
    if (causal != nullptr) return std::get<bool>(*causal) && result == op.results.front();
    switch (op.info->lowering) {
      case Lowering::pointwise:  // broadcast: axes are aligned at the last
        return std::ranges::all_of(op.operands, [&](const Operand& operand) {
          return !follows(operand) || operand_type(module_, region_, operand).shape.size() == shape.size();
        });
      case Lowering::gemm:
        return !has_flag(op, "ta") && !follows(op.operands[1]) && shape.size() > 2;
      case Lowering::alias:
        return true;
      case Lowering::row_reduce:
        return shape.size() > 2;
      default:
        return op.info->local && shape.size() > 2;
    }
  }

  const Module& module_;
  const Region& region_;
  std::vector<About> of_;
  int64_t length_ = 0;
};

}  // namespace

std::optional<std::string> mixes_positions(const Module& module, const Region& region) {
  const std::vector<ValueId> inputs = token_inputs(region);
  if (inputs.size() != 1 || region.yields.size() != 1) return std::nullopt;
  const ValueId* output = as_value(region.yields.front().what);
  const Type& tokens = region[inputs.front()].type;
  if (output == nullptr || tokens.dtype != DType::i32 || tokens.shape.size() != 2) return std::nullopt;
  const Shape& logits = region[*output].type.shape;
  if (logits.size() != 3 || logits[1] != tokens.shape[1]) return std::nullopt;
  return Walk(module, region).run(inputs.front(), *output);
}

std::vector<ValueId> token_inputs(const Region& region) {
  std::vector<ValueId> inputs = region.inputs;
  for (const Op& op : region.ops)
    if (op.info == &op_documents) std::erase(inputs, *as_value(op.operands.front()));
  return inputs;
}

int64_t cached_positions(const Module& module) {
  for (const Op& op : module.decode.ops)
    if (op.info == &op_cache_scores) return module.decode[op.results.front()].type.shape.back();
  return 0;
}

}  // namespace gacc::ir
