// The op table's lookups: the list that ops.def makes, the NAME.grad entries that derivatives make, and
// access to operands and attributes for formulas.
#include "ir/op_info.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>

#include "ir/ops/common.h"

namespace gacc::ir {

#define X(identifier, name) extern const OpInfo op_##identifier;
#include "ir/ops.def"
#undef X

namespace {

[[noreturn]] void broken_table(const OpInfo& info, std::string_view what) {
  fmt::print(stderr, "internal error: op `{}`: {}\n", info.name, what);
  std::fflush(stderr);
  std::_Exit(3);
}

// NAME.grad: operands (saved, dy); dy has the shape of saved or is broadcast to it.
std::optional<std::vector<Type>> infer_gradient(const OpView& op, Diag& diag) {
  for (size_t i = 0; i < 2; ++i) {
    if (as_number(op.op.operands[i]) == nullptr && !is_float(op.operand(i).dtype)) {
      diag.error(Kind::type_mismatch, op.op.at, "`{}` takes floats, `{}` is {}", op.op.info->name,
                 operand_text(op.module, op.region, op.op.operands[i]), type_text(op.operand(i)));
      return std::nullopt;
    }
  }
  const Type saved = op.operand(0);
  if (broadcast(saved.shape, op.operand(1).shape) != saved.shape) {
    diag.error(Kind::shape_mismatch, op.op.at, "`{}` has the gradient {} for {}", op.op.info->name,
               type_text(op.operand(1)), type_text(saved));
    return std::nullopt;
  }
  const std::optional<DType> dtype = common_dtype(op, 0, diag);
  if (!dtype) return std::nullopt;
  return std::vector<Type>{{result_dtype(op, *dtype), saved.shape}};
}

// NAME.half: NAME's operands, then the buffer for the copy.
std::optional<std::vector<Type>> infer_half(const OpView& op, Diag& diag) {
  const size_t last = op.op.operands.size() - 1;
  if (!expect_write(op, 0, diag)) return std::nullopt;
  const Type copy = op.operand(last);
  if (as_buffer(op.op.operands[last]) == nullptr || !is_half(copy.dtype) ||
      copy.shape != op.operand(0).shape) {
    return wrong(op, diag, Kind::type_mismatch, "{}, {}; the copy is a half buffer of that shape",
                 describe(op, 0), describe(op, last));
  }
  return op.op.info->half_of->infer(op, diag);
}

struct Table {
  std::deque<std::string> texts;  // of the made names; addresses stay
  std::deque<OpInfo> variants;    // likewise
  std::vector<const OpInfo*> ops;
  std::map<std::string_view, const OpInfo*> by_name;

  void add(const OpInfo& info) {
    ops.push_back(&info);
    by_name.emplace(info.name, &info);
    if (info.half_copy) add_half(info);
    if (info.derivative == nullptr) return;
    OpInfo& made = variants.emplace_back();
    made.name = texts.emplace_back(std::string(info.name) + ".grad");
    made.summary =
        texts.emplace_back(fmt::format("the derivative of `{}` times dy; operands: its {}, dy", info.name,
                                       info.saves == Saves::result ? "result" : "operand"));
    made.operands = 2;
    made.attrs = info.attrs;
    made.infer = infer_gradient;
    made.formula = [](const FormulaView& view) {
      view.result(view.op.op.info->gradient_of->derivative(view.operand(0), view.operand(1), view.op));
    };
    made.precision = info.precision;
    made.differentiable = false;
    made.gradient_of = &info;
    ops.push_back(&made);
    by_name.emplace(made.name, &made);
  }

  void add_half(const OpInfo& info) {
    OpInfo& made = variants.emplace_back(info);
    made.name = texts.emplace_back(std::string(info.name) + ".half");
    made.summary = texts.emplace_back(fmt::format(
        "as `{}`; operand {}, a half buffer, becomes the new operand 0, rounded", info.name, info.operands));
    made.operands = info.operands + 1;
    made.writes |= 1U << info.operands;
    made.discards |= 1U << info.operands;
    made.infer = infer_half;
    made.formula = [](const FormulaView& view) {
      view.op.op.info->half_of->formula(view);
      view.recorder.repeat(0);
    };
    made.half_copy = false;
    made.half_of = &info;
    ops.push_back(&made);
    by_name.emplace(made.name, &made);
  }

  Table() {
#define X(identifier, name) add(op_##identifier);
#include "ir/ops.def"
#undef X
  }
};

const Table& table() {
  static const Table the_table;
  return the_table;
}

// Types of a pointwise op's outputs: written buffers in operand order, then results.
DType output_dtype(const OpView& op, size_t output) {
  for (size_t i = 0; i < op.op.operands.size(); ++i) {
    if ((op.op.info->writes >> i & 1) == 0) continue;
    if (output == 0) return op.operand(i).dtype;
    --output;
  }
  return op.result(output).dtype;
}

}  // namespace

const std::vector<const OpInfo*>& all_ops() { return table().ops; }

const OpInfo* find_op(std::string_view name) {
  const auto found = table().by_name.find(name);
  return found == table().by_name.end() ? nullptr : found->second;
}

const Attr* find_attr(const Op& op, std::string_view name) {
  if (const auto own = op.attrs.find(name); own != op.attrs.end()) return &own->second;
  for (const AttrSpec& spec : op.info->attrs)
    if (spec.name == name) return &spec.fallback;
  return nullptr;
}

const Attr& OpView::attr(std::string_view name) const {
  const Attr* found = find_attr(op, name);
  if (found == nullptr) broken_table(*op.info, fmt::format("there is no attribute `{}`", name));
  return *found;
}

Scalar FormulaView::operand(int i) const {
  const auto index = static_cast<size_t>(i);
  if (const double* number = as_number(op.op.operands[index])) return {*number};
  return recorder.input(i, is_float(op.operand(index).dtype) ? ScalarKind::real : ScalarKind::integer);
}

void FormulaView::result(Scalar value) const {
  const DType dtype = output_dtype(op, recorder.results());
  recorder.result(value, is_float(dtype) ? ScalarKind::real : ScalarKind::integer);
}

const Shape& pointwise_domain(const OpView& op) {
  if (!op.op.results.empty()) return op.result().shape;
  for (size_t i = 0; i < op.op.operands.size(); ++i)
    if (const BufferId* buffer = as_buffer(op.op.operands[i]);
        buffer != nullptr && (op.op.info->writes >> i & 1) != 0)
      return op.module[*buffer].type.shape;
  broken_table(*op.op.info, "it has neither results nor written buffers");
}

ScalarProgram record(const OpView& op) {
  ScalarRecorder recorder;
  op.op.info->formula(FormulaView{recorder, op});
  return recorder.take();
}

}  // namespace gacc::ir
