// Functions that the op families share: type inference of pointwise ops, and checks.
#pragma once
#include "ir/builder.h"
#include "ir/cost.h"
#include "ir/kernel.h"
#include "ir/reference.h"

namespace gacc::ir {

// Thrown by the inference of an invalid op; infer_types reports it at the op.
struct WrongOp {
  Kind kind;
  std::string text;
};
template <class... A>
[[noreturn]] void refuse(const OpView& op, Kind kind, fmt::format_string<A...> format, A&&... args) {
  throw WrongOp{kind,
                fmt::format("`{}`: {}", op.op.info->name, fmt::format(format, std::forward<A>(args)...))};
}
// "`%x` is f32[B,4], `%y` is f32[3]", of operands.
std::string describe(const OpView& op, std::initializer_list<size_t> operands);
// The same after a description of the operands that are wrong.
template <class... A>
[[noreturn]] void refuse(const OpView& op, Kind kind, std::initializer_list<size_t> operands,
                         fmt::format_string<A...> format, A&&... args) {
  refuse(op, kind, "{}; {}", describe(op, operands), fmt::format(format, std::forward<A>(args)...));
}

// Checks, which refuse the op.
// A number may stand wherever a scalar may; it takes the dtype of what it meets (i32 only when it is whole).
void expect_float(const OpView& op, size_t first);  // operands first, first + 1, ...
void expect_dtype(const OpView& op, size_t i, DType dtype);
void expect_scalar(const OpView& op, size_t i);  // shape []
void expect_scalars(const OpView& op, size_t first, size_t count, DType dtype);
// Operands first .. first + 3 are i32 scalars: the seed's low and high word, and those of the ordinal of the
// micro-batch's first sample. The attribute p is a probability below 1.
void expect_dropout(const OpView& op, size_t first);
// The shape that all operands from `first` on broadcast to, which must be the shape of one of them.
Shape common_shape(const OpView& op, size_t first);

// Returns the type that the operands from `first` on share, but for numbers: i32, or the floats' widest (f16 and bf16
// do not mix). f32 when all are numbers.
DType common_dtype(const OpView& op, size_t first);
// The dtype of a result made of operands that share `dtype`: f32 for floats where the op has Precision::f32.
DType result_dtype(const OpView& op, DType dtype);
// Returns the type of numbers that `to` asks for of an operand in blocks: f32 or a half type.
DType read_as(const OpView& op);
// Refuses an operand i that may not be written or added to a buffer of that dtype; floats are rounded to it.
void expect_writable(const OpView& op, size_t i, DType dtype);

// Inference of pointwise ops. Operands broadcast (docs/ir.md R9).
Types infer_float(const OpView& op);    // floats -> float
Types infer_number(const OpView& op);   // all float or all i32 -> the same
Types infer_compare(const OpView& op);  // all float or all i32 -> i32
// Operand 0 is written; operands up to `last` fit its dtype and broadcast to its shape. No results.
void expect_write(const OpView& op, size_t last);
Types infer_write(const OpView& op);  // the same of all operands

// The last axis has a known extent: reductions and losses need one.
void expect_columns(const OpView& op, size_t i);

// The index along operand i's last axis, for formulas. An axis of extent 1 has only 0, and says so: such an
// op may share a kernel over a wider domain.
Scalar column_of(const FormulaView& view, size_t i);

// Returns true if result 0 has a gradient. One through the other results, `what`, is an error.
bool only_first(GradBuilder& g, std::string_view what);

// The name of result i, which the caller's next value may then bear: the old value, about to be replaced,
// gives it up. For OpInfo::expand.
std::string take_name(Builder& b, const Op& op, size_t i);
std::vector<std::string> take_names(Builder& b, const Op& op);  // of all results

// The stable start of every softmax: top = max(x), shifted = x - top, exp = exp(shifted), sum = sum(exp),
// over the last axis; values TOP_NAME, NAME.shifted, NAME.exp, NAME.sum. For OpInfo::expand.
struct Exponentials {
  Operand top, shifted, exp, sum;
};
Exponentials shifted_exponentials(Builder& b, const std::string& name, const std::string& top_name,
                                  const Operand& x);

// The mean over the last axis, [.., 1], by way of the sum. For OpInfo::expand and gradients.
Operand row_mean(Builder& b, const std::string& sum, const std::string& name, const Operand& x);

// Rows brought to mean 0 and variance 1, over the last axis, as layer_norm and group_norm do:
// rstd = 1 / sqrt(variance + eps). The mean of a row that is far from zero is rounded there, by more than the
// row may vary, so both statistics are corrected by what the deviations from it sum up to (Chan, Golub and
// LeVeque, "Algorithms for computing the sample variance", 1983): a constant row gives 0. For OpInfo::expand.
struct NormalRows {
  Operand mean, rstd, normal;  // [.., 1], [.., 1] and x's shape
};
NormalRows normal_rows(Builder& b, const std::string& name, const std::string& mean_name,
                       const std::string& rstd_name, const Operand& x, double eps);
// The variance, from the mean of the squared deviations from another number, and the mean's distance from it:
// max(around - off^2, 0), which rounding may bring below.
Operand corrected_variance(Builder& b, const std::string& name, const std::string& variance_name,
                           const Operand& around, const Operand& off);
// The gradient to x, called `result`, of h = (x - mean) * rstd, where k is that to h and means are over the row:
//   rstd * (k - mean(k) - h * mean(k * h)); without mean(k) where h = x * rstd is not `centred`
Operand normal_rows_gradient(Builder& b, const std::string& name, const std::string& result, const Operand& k,
                             const Operand& h, const Operand& rstd, bool centred = true);
// The same statistics of one row, for references.
struct RowStatistics {
  double mean = 0, rstd = 0;
};
RowStatistics row_statistics(const double* row, int64_t columns, double eps);

// A row's largest element, NaN where one is, and its sum of exp(x - top).
struct RowExponentials {
  double top, sum;
};
RowExponentials row_exponentials(const double* row, int64_t columns);
// References that walk rows: number of rows and columns of a tensor (a scalar is 1 by 1).
int64_t row_count(const Tensor& tensor);
int64_t column_count(const Tensor& tensor);
// Calls f(r, row, columns) for every row of operand 0.
template <class F>
void each_row(const EvalView& view, F f) {
  const Tensor& x = view.operand(0);
  const int64_t columns = column_count(x);
  for (int64_t r = 0; r < row_count(x); ++r) f(r, x.data.data() + r * columns, columns);
}

}  // namespace gacc::ir
