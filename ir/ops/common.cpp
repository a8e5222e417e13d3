#include "ir/ops/common.h"

#include <algorithm>
#include <cmath>

namespace gacc::ir {

std::string describe(const OpView& op, std::initializer_list<size_t> operands) {
  std::string out;
  for (const size_t i : operands) {
    const Operand& operand = op.op.operands[i];
    out += fmt::format("{}`{}` is {}", out.empty() ? "" : ", ", operand_text(op.module, op.region, operand),
                       as_number(operand) != nullptr ? "a number" : type_text(op.operand(i)));
  }
  return out;
}

void expect_float(const OpView& op, size_t first) {
  for (size_t i = first; i < op.op.operands.size(); ++i)
    if (as_number(op.op.operands[i]) == nullptr && !is_float(op.operand(i).dtype))
      refuse(op, Kind::type_mismatch, {i}, "it takes floats");
}

void expect_dtype(const OpView& op, size_t i, DType dtype) {
  const double* number = as_number(op.op.operands[i]);
  const bool good =
      number != nullptr ? is_float(dtype) || *number == std::trunc(*number) : op.operand(i).dtype == dtype;
  if (!good) refuse(op, Kind::type_mismatch, {i}, "it must be {}", dtype_text(dtype));
}

void expect_scalar(const OpView& op, size_t i) {
  if (!op.operand(i).shape.empty()) refuse(op, Kind::shape_mismatch, {i}, "it must be a scalar");
}

void expect_scalars(const OpView& op, size_t first, size_t count, DType dtype) {
  for (size_t i = first; i < first + count; ++i) {
    expect_dtype(op, i, dtype);
    expect_scalar(op, i);
  }
}

void expect_dropout(const OpView& op, size_t first) {
  expect_scalars(op, first, 4, DType::i32);
  const double p = op.real("p");
  if (!(p >= 0 && p < 1)) refuse(op, Kind::out_of_range, "p is {}, not in [0, 1)", p);
}

Shape common_shape(const OpView& op, size_t first) {
  const size_t count = op.op.operands.size();
  size_t worst = first;
  for (size_t i = first; i < count; ++i) {
    const Shape candidate = op.operand(i).shape;
    bool all = true;
    for (size_t j = first; j < count && all; ++j) {
      all = broadcast(candidate, op.operand(j).shape) == candidate;
      if (!all) worst = j;
    }
    if (all) return candidate;
  }
  const size_t other = worst == first ? first + 1 : first;
  refuse(op, Kind::shape_mismatch, {std::min(worst, other), std::max(worst, other)},
         "the shapes do not agree");
}

DType common_dtype(const OpView& op, size_t first) {
  std::optional<DType> found;
  for (size_t i = first; i < op.op.operands.size(); ++i) {
    if (as_number(op.op.operands[i]) != nullptr) continue;
    const DType dtype = op.operand(i).dtype;
    if (!found) found = dtype;
    if (is_float(*found) && dtype == DType::f32) found = dtype;
  }
  for (size_t i = first; found && i < op.op.operands.size(); ++i) {
    const bool widened = as_number(op.op.operands[i]) == nullptr && is_narrow(op.operand(i).dtype);
    if (!widened || found != DType::f32) expect_dtype(op, i, *found);
  }
  return found.value_or(DType::f32);
}

DType result_dtype(const OpView& op, DType dtype) {
  return is_narrow(dtype) && op.op.info->precision == Precision::f32 ? DType::f32 : dtype;
}

void expect_writable(const OpView& op, size_t i, DType dtype) {
  const bool rounded =
      as_number(op.op.operands[i]) == nullptr && is_float(dtype) && is_float(op.operand(i).dtype);
  if (!rounded) expect_dtype(op, i, dtype);
}

Types infer_float(const OpView& op) {
  expect_float(op, 0);
  return infer_number(op);
}

Types infer_number(const OpView& op) {
  return {{result_dtype(op, common_dtype(op, 0)), common_shape(op, 0)}};
}

Types infer_compare(const OpView& op) {
  Types types = infer_number(op);
  types.front().dtype = DType::i32;
  return types;
}

DType read_as(const OpView& op) {
  const std::optional<DType> to = parse_dtype(op.text("to"));
  if (!to || !is_float(*to) || is_blocks(*to))
    refuse(op, Kind::unknown_value, "`to` is \"{}\", not \"f32\", \"f16\" or \"bf16\"", op.text("to"));
  return *to;
}

void expect_write(const OpView& op, size_t last) {
  if (as_buffer(op.op.operands[0]) == nullptr)
    refuse(op, Kind::invalid_ir, {0}, "it writes its first operand, which must be a buffer");
  const Type target = op.operand(0);
  for (size_t i = 1; i <= last; ++i) {
    expect_writable(op, i, target.dtype);
    if (broadcast(target.shape, op.operand(i).shape) != target.shape)
      refuse(op, Kind::shape_mismatch, {0, i}, "the shapes do not agree");
  }
}

Types infer_write(const OpView& op) {
  expect_write(op, op.op.operands.size() - 1);
  return {};
}

void expect_columns(const OpView& op, size_t i) {
  const Shape shape = op.operand(i).shape;
  if (shape.empty() || shape.back() == kBatch)
    refuse(op, Kind::shape_mismatch, {i}, "it needs a last axis of known extent");
}

Scalar column_of(const FormulaView& view, size_t i) {
  return view.op.operand(i).shape.back() == 1 ? Scalar(0) : view.recorder.column();
}

bool only_first(GradBuilder& g, std::string_view what) {
  for (size_t i = 1; i < g.op().results.size(); ++i) {
    if (!g.d_result(i) || !is_float(g.b.type(g.result(i)).dtype)) continue;
    g.b.diag().error(Kind::no_gradient, g.op().at, "`{}` has no gradient through {}", g.op().info->name,
                     what);
    return false;
  }
  return g.d_result(0).has_value();
}

Exponentials shifted_exponentials(Builder& b, const std::string& name, const std::string& top_name,
                                  const Operand& x) {
  const Operand top = b.make("row_max", top_name, {x});
  const Operand shifted = b.make("sub", name + ".shifted", {x, top});
  const Operand exp = b.make("exp", name + ".exp", {shifted});
  return {top, shifted, exp, b.make("row_sum", name + ".sum", {exp})};
}

std::string take_name(Builder& b, const Op& op, size_t i) {
  std::string& name = b.region()[op.results[i]].name;
  const std::string taken = name;
  name += " (replaced)";  // no other value can be called so
  return taken;
}

std::vector<std::string> take_names(Builder& b, const Op& op) {
  std::vector<std::string> names;
  for (size_t i = 0; i < op.results.size(); ++i) names.push_back(take_name(b, op, i));
  return names;
}

int64_t column_count(const Tensor& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.back(); }

Operand row_mean(Builder& b, const std::string& sum, const std::string& name, const Operand& x) {
  const double inverse = 1.0 / static_cast<double>(b.type(x).shape.back());
  return b.make("mul", name, {b.make("row_sum", sum, {x}), inverse});
}

Operand corrected_variance(Builder& b, const std::string& name, const std::string& variance_name,
                           const Operand& around, const Operand& off) {
  const Operand excess = b.make("square", name + ".excess", {off});
  const Operand difference = b.make("sub", name + ".corrected", {around, excess});
  return b.make("maximum", variance_name, {difference, 0.0});
}

NormalRows normal_rows(Builder& b, const std::string& name, const std::string& mean_name,
                       const std::string& rstd_name, const Operand& x, double eps) {
  const Operand rough = row_mean(b, name + ".sum", name + ".rough", x);
  const Operand near = b.make("sub", name + ".near", {x, rough});
  const Operand off = row_mean(b, name + ".near.sum", name + ".off", near);
  const Operand squares = b.make("square", name + ".squares", {near});
  const Operand around = row_mean(b, name + ".total", name + ".around", squares);
  const Operand mean = b.make("add", mean_name, {rough, off});
  const Operand variance = corrected_variance(b, name, name + ".variance", around, off);
  const Operand centred = b.make("sub", name + ".centred", {x, mean});
  const Operand shifted = b.make("add", name + ".shifted", {variance, eps});
  const Operand deviation = b.make("sqrt", name + ".deviation", {shifted});
  const Operand rstd = b.make("reciprocal", rstd_name, {deviation});
  return {mean, rstd, b.make("mul", name + ".normal", {centred, rstd})};
}

Operand normal_rows_gradient(Builder& b, const std::string& name, const std::string& result, const Operand& k,
                             const Operand& h, const Operand& rstd, bool centred) {
  Operand first = k;
  const Operand mean = centred ? row_mean(b, name + ".sum", name + ".mean", k) : Operand(0.0);
  const Operand product = b.make("mul", name + ".product", {k, h});
  const Operand along = row_mean(b, name + ".dot", name + ".along", product);
  if (centred) first = b.make("sub", name + ".first", {k, mean});
  const Operand second = b.make("mul", name + ".second", {h, along});
  const Operand inner = b.make("sub", name + ".inner", {first, second});
  return b.make("mul", result, {inner, rstd});
}

RowStatistics row_statistics(const double* row, int64_t columns, double eps) {
  const double count = static_cast<double>(columns);
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < columns; ++c) mean += row[c] / count;
  for (int64_t c = 0; c < columns; ++c) variance += (row[c] - mean) * (row[c] - mean) / count;
  return {mean, 1 / std::sqrt(variance + eps)};
}

RowExponentials row_exponentials(const double* row, int64_t columns) {
  double top = row[0], sum = 0;
  for (int64_t c = 1; c < columns; ++c) top = std::isnan(top) || row[c] <= top ? top : row[c];
  for (int64_t c = 0; c < columns; ++c) sum += std::exp(row[c] - top);
  return {top, sum};
}

int64_t row_count(const Tensor& tensor) {
  return static_cast<int64_t>(tensor.data.size()) / std::max<int64_t>(1, column_count(tensor));
}

}  // namespace gacc::ir
