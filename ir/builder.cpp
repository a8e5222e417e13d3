#include "ir/builder.h"

namespace gacc::ir {

namespace {

// Attributes equal to the table's default are left out, so that one op has one spelling.
Attrs without_defaults(const OpInfo& info, Attrs attrs) {
  for (const AttrSpec& spec : info.attrs) {
    const auto found = attrs.find(spec.name);
    if (found != attrs.end() && found->second == spec.fallback) attrs.erase(found);
  }
  return attrs;
}

}  // namespace

std::vector<ValueId> Builder::make_n(std::string_view name, std::vector<std::string> names,
                                     std::vector<Operand> operands, Attrs attrs) {
  const OpInfo* info = find_op(name);
  std::vector<Type> types(names.size());
  if (info == nullptr) {
    diag_.error(Kind::invalid_ir, location, "there is no op `{}`", name);
    info = all_ops().front();
  }
  Op op{.info = info,
        .operands = std::move(operands),
        .attrs = without_defaults(*info, std::move(attrs)),
        .keep_f32 = keep_f32,
        .segment = segment,
        .origin = origin,
        .at = location};
  if (info->writes != 0) op.when = when;
  if (auto inferred = infer_types({module_, region_, op}, diag_);
      inferred && inferred->size() == names.size()) {
    types = std::move(*inferred);
  } else if (inferred) {
    diag_.error(Kind::invalid_ir, location, "`{}` has {} results, {} names were given", name,
                inferred->size(), names.size());
  }
  for (size_t i = 0; i < names.size(); ++i)
    op.results.push_back(region_.add_value(std::move(names[i]), std::move(types[i])));
  std::vector<ValueId> results = op.results;
  if (at)
    region_.ops.insert(region_.ops.begin() + static_cast<std::ptrdiff_t>((*at)++), std::move(op));
  else
    region_.ops.push_back(std::move(op));
  return results;
}

ValueId Builder::make(std::string_view op, std::string name, std::vector<Operand> operands, Attrs attrs) {
  return make_n(op, {std::move(name)}, std::move(operands), std::move(attrs)).front();
}

Operand Builder::reshaped(std::string name, const Operand& x, const Shape& shape) {
  if (type(x).shape == shape) return x;
  return make("reshape", std::move(name), {x}, {{"shape", shape}});
}

void Builder::effect(std::string_view op, std::vector<Operand> operands, Attrs attrs) {
  make_n(op, {}, std::move(operands), std::move(attrs));
}

}  // namespace gacc::ir
