// The op table's lookups: the list that ops.def makes, the NAME.grad entries that derivatives make, and
// access to operands and attributes for formulas.
#include "ir/op_info.h"

#include <algorithm>
#include <deque>
#include <map>

#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

[[noreturn]] void broken_table(const OpInfo& info, std::string_view what) {
  internal_error(fmt::format("op `{}`: {}", info.name, what));
}

// NAME.grad: operands (saved, dy); dy has the shape of saved or is broadcast to it.
Types infer_gradient(const OpView& op) {
  expect_float(op, 0);
  const Type saved = op.operand(0);
  if (broadcast(saved.shape, op.operand(1).shape) != saved.shape)
    refuse(op, Kind::shape_mismatch, {0, 1}, "the gradient does not fit");
  return {{result_dtype(op, common_dtype(op, 0)), saved.shape}};
}

// NAME.half: NAME's operands, then the buffer for the copy.
Types infer_half(const OpView& op) {
  const size_t last = op.op.operands.size() - 1;
  expect_write(op, 0);
  const Type copy = op.operand(last);
  if (as_buffer(op.op.operands[last]) == nullptr || !is_narrow(copy.dtype) ||
      copy.shape != op.operand(0).shape)
    refuse(op, Kind::type_mismatch, {0, last}, "the copy is a half buffer of that shape");
  return op.op.info->half_of->infer(op);
}

// NAME.kept: the buffer and x as NAME.acc's, and between them the buffer of what additions lose.
Types infer_kept(const OpView& op) {
  const std::string_view name = op.op.info->name;
  Op plain = op.op;
  plain.info = find_op(fmt::format("{}.acc", name.substr(0, name.rfind('.'))));
  plain.operands.erase(plain.operands.begin() + 1);
  plain.attrs.clear();
  Types none = plain.info->infer({op.module, op.region, plain});
  expect_write(op, 1);
  if (op.operand(0).dtype != DType::f32 || op.operand(1) != op.operand(0))
    refuse(op, Kind::type_mismatch, {0, 1}, "both buffers have the same shape, of f32");
  return none;
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
    if (info.name.ends_with(".acc") && has_order(info)) add_kept(info);
    if (info.derivative == nullptr) return;
    add(variants.emplace_back(OpInfo{
        .name = texts.emplace_back(std::string(info.name) + ".grad"),
        .summary =
            texts.emplace_back(fmt::format("the derivative of `{}` times dy; operands: its {}, dy", info.name,
                                           info.saves == Saves::result ? "result" : "operand")),
        .operands = 2,
        .attrs = info.attrs,
        .infer = infer_gradient,
        .formula =
            [](const FormulaView& view) {
              view.result(
                  view.op.op.info->gradient_of->derivative(view.operand(0), view.operand(1), view.op));
            },
        .precision = info.precision,
        .gradient_of = &info,
    }));
  }

  static bool has_order(const OpInfo& info) {
    return std::ranges::count(info.attrs, std::string_view("ordered"), &AttrSpec::name) > 0;
  }
  // A sum in order that keeps its digits, however many terms it has.
  void add_kept(const OpInfo& info) {
    const std::string_view name = info.name.substr(0, info.name.rfind('.'));
    add(variants.emplace_back(OpInfo{
        .name = texts.emplace_back(fmt::format("{}.kept", name)),
        .summary = texts.emplace_back(fmt::format("`{}` of f32, ordered; operands: buffer, low, x. What an "
                                                  "addition loses to rounding is added to the buffer "
                                                  "low, so buffer + low is the sum",
                                                  info.name)),
        .operands = 3,
        .writes = operand_bits({0, 1}),
        .attrs = {{"ordered", true}},
        .infer = infer_kept,
        .lowering = info.lowering,
        .precision = info.precision,
        .accumulates = true}));
  }

  void add_half(const OpInfo& info) {
    OpInfo& made = variants.emplace_back(info);
    made.name = texts.emplace_back(std::string(info.name) + ".half");
    made.summary = texts.emplace_back(fmt::format(
        "as `{}`; operand {}, a half buffer, becomes the new operand 0, rounded", info.name, info.operands));
    made.operands = info.operands + 1;
    const auto copy = static_cast<unsigned>(info.operands);
    made.writes |= operand_bits({copy});
    made.discards |= operand_bits({copy});
    made.infer = infer_half;
    made.formula = [](const FormulaView& view) {
      view.op.op.info->half_of->formula(view);
      view.recorder.repeat(0);
    };
    made.half_copy = false;
    made.blocks = 0;
    made.half_of = &info;
    add(made);
  }

  Table() {
#define X(identifier, name) add(op_##identifier);
#include "ir/ops.def"
  }
};

const Table& table() {
  static const Table the_table;
  return the_table;
}

// Types of a pointwise op's outputs: written buffers in operand order, then results.
DType output_dtype(const OpView& op, size_t output) {
  const std::vector<BufferId> buffers = written(op.op);
  return output < buffers.size() ? op.module[buffers[output]].type.dtype
                                 : op.result(output - buffers.size()).dtype;
}

}  // namespace

const std::vector<const OpInfo*>& all_ops() { return table().ops; }

bool OpInfo::takes_operands(size_t count) const {
  const auto known = static_cast<size_t>(std::abs(operands));
  return operands < 0 ? count >= known : count == known;
}

std::string OpInfo::operand_count_text() const {
  return operands < 0 ? fmt::format("{} or more", -operands) : fmt::to_string(operands);
}

const OpInfo* find_op(std::string_view name) {
  const auto found = table().by_name.find(name);
  return found == table().by_name.end() ? nullptr : found->second;
}

const OpInfo* accumulating(const OpInfo& info) {
  const OpInfo* found = find_op(std::string(info.name) + ".acc");
  return found != nullptr && found->accumulates ? found : nullptr;
}

const Attr* find_attr(const Op& op, std::string_view name) {
  if (const auto own = op.attrs.find(name); own != op.attrs.end()) return &own->second;
  for (const AttrSpec& spec : op.info->attrs)
    if (spec.name == name) return &spec.fallback;
  return nullptr;
}

bool has_flag(const Op& op, std::string_view name) {
  const Attr* attr = find_attr(op, name);
  return attr != nullptr && std::get<bool>(*attr);
}

std::vector<BufferId> written(const Op& op) {
  std::vector<BufferId> buffers;
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (op.info->is_written(i)) buffers.push_back(*as_buffer(op.operands[i]));
  return buffers;
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

std::optional<Types> infer_types(const OpView& op, Diag& diag) {
  try {
    for (size_t i = 0; i < op.op.operands.size(); ++i)
      if (is_blocks(op.operand(i).dtype) && !op.op.info->takes_blocks(i))
        refuse(op, Kind::type_mismatch, {i}, "it reads no blocks; `dequantize` does");
    Types types = op.op.info->infer(op);
    if (op.op.info != &op_host_fetch &&
        std::ranges::any_of(types, [](const Type& type) { return is_blocks(type.dtype); }))
      refuse(op, Kind::type_mismatch, "only frozen parameters are in blocks");
    return types;
  } catch (const WrongOp& wrong) {
    diag.error(wrong.kind, op.op.at, "{}", wrong.text);
    return std::nullopt;
  }
}

const Shape& pointwise_domain(const OpView& op) {
  if (!op.op.results.empty()) return op.result().shape;
  if (op.op.info->writes == 0) broken_table(*op.op.info, "it has neither results nor written buffers");
  return op.module[*as_buffer(op.op.operands.front())].type.shape;
}

ScalarProgram record(const OpView& op) {
  ScalarRecorder recorder;
  op.op.info->formula(FormulaView{recorder, op});
  return recorder.take();
}

}  // namespace gacc::ir
