// The reference evaluator. Pointwise ops interpret their formula, reductions follow Lowering and Combine, the
// rest brings its own `reference`; nothing here knows an op by name.
#include "ir/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "ir/kernel.h"

namespace gacc::ir {

namespace {

[[noreturn]] void broken(const Op& op, std::string_view what) {
  internal_error(fmt::format("reference: `{}` at line {}: {}", op.info->name, op.at.line, what));
}

Tensor tensor(const Shape& shape, int64_t batch) {
  Tensor result{shape, std::vector<double>(static_cast<size_t>(elements(shape, batch)), 0.0)};
  if (has_batch(shape)) result.shape.front() = batch;
  return result;
}

size_t element_of(Access access, int64_t period, int64_t inner, int64_t row, int64_t column,
                  int64_t columns) {
  switch (access) {
    case Access::element:
      return static_cast<size_t>(row * columns + column);
    case Access::suffix:
      return static_cast<size_t>(row % period * columns + column);
    case Access::row:
      return static_cast<size_t>(row);
    case Access::scalar:
      return 0;
    case Access::channel:
      return static_cast<size_t>((row * columns + column) / inner % period);
  }
  return 0;
}

double combine(Combine how, double a, double b) {
  if (how == Combine::sum) return a + b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return how == Combine::max ? std::fmax(a, b) : std::fmin(a, b);
}

double neutral(Combine how) {
  if (how == Combine::sum) return 0;
  return how == Combine::max ? -std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::infinity();
}

void pointwise(const OpView& op, int64_t batch, const std::vector<const Tensor*>& operands,
               std::vector<Tensor>& outputs) {
  const Shape& domain = pointwise_domain(op);
  const ScalarProgram program = record(op);
  const int64_t row_total = rows(domain, batch), column_total = columns(domain);
  const size_t count = operands.size();
  std::vector<Access> how(count, Access::scalar);
  std::vector<int64_t> period(count, 1), inner(count, 1);
  for (size_t i = 0; i < count; ++i) {
    const Shape shape = op.operand(i).shape;
    const std::optional<Access> found = access(shape, domain);
    if (!found) broken(op.op, "an operand does not broadcast to the domain");
    how[i] = *found;
    if (*found == Access::suffix) period[i] = rows(shape, 1);
    if (*found == Access::channel) period[i] = elements(shape, 1), inner[i] = channel_inner(shape, domain);
  }
  std::vector<double> inputs(count), results(program.results.size());
  for (int64_t r = 0; r < row_total; ++r) {
    for (int64_t c = 0; c < column_total; ++c) {
      for (size_t i = 0; i < count; ++i)
        inputs[i] = operands[i]->data[element_of(how[i], period[i], inner[i], r, c, column_total)];
      const int64_t element = r * column_total + c;
      evaluate(program, inputs, c, element, results, batch);
      for (size_t i = 0; i < results.size(); ++i) outputs[i].data[element] = results[i];
    }
  }
}

// The last operand is reduced. A result starts at the neutral element, a written buffer (`.acc`, `.kept`) at what it
// holds. `.kept`: the sum takes what its second buffer holds. In double an addition loses nothing that this one would
// have to keep.
void reduce(const OpView& op, int64_t batch, const std::vector<const Tensor*>& operands,
            std::vector<Tensor>& outputs) {
  const Tensor& x = *operands.back();
  const Shape shape = op.operand(operands.size() - 1).shape;
  const int64_t row_total = rows(shape, batch), column_total = columns(shape);
  const Lowering lowering = op.op.info->lowering;
  const Combine how = op.op.info->combine;
  std::vector<double>& out = outputs[0].data;
  if (op.op.info->writes == 0) out.assign(out.size(), neutral(how));
  if (outputs.size() == 2) {
    std::ranges::transform(out, outputs[1].data, out.begin(), std::plus());
    std::ranges::fill(outputs[1].data, 0);
  }
  // total_sum {parts} and column_sum {parts}: rows a part, fixed by the full micro-batch.
  const int64_t parts =
      static_cast<int64_t>(out.size()) / (lowering == Lowering::column_reduce ? column_total : 1);
  const int64_t chunk = ceil_divide(rows(shape, op.module.micro_batch()), parts);
  for (int64_t r = 0; r < row_total; ++r) {
    for (int64_t c = 0; c < column_total; ++c) {
      int64_t to = 0;
      if (lowering == Lowering::row_reduce) to = r;
      if (lowering == Lowering::column_reduce) to = (parts > 1 ? r / chunk * column_total : 0) + c;
      if (lowering == Lowering::total_reduce && parts > 1) to = r / chunk;
      double& sum = out[to];
      sum = combine(how, sum, x.data[r * column_total + c]);
    }
  }
}

void run(const OpView& op, int64_t batch, const std::vector<const Tensor*>& operands,
         std::vector<Tensor>& outputs) {
  switch (op.op.info->lowering) {
    case Lowering::pointwise:
      return pointwise(op, batch, operands, outputs);
    case Lowering::row_reduce:
    case Lowering::column_reduce:
    case Lowering::total_reduce:
      return reduce(op, batch, operands, outputs);
    default:
      if (op.op.info->reference == nullptr) broken(op.op, "the op table has no reference");
      EvalView view(op, operands, outputs);
      op.op.info->reference(view);
  }
}

void round(DType dtype, std::vector<double>& values) {
  if (!is_narrow(dtype)) return;
  if (is_blocks(dtype)) return round_blocks(dtype, values);
  for (double& value : values) value = rounded(dtype, value);
}

}  // namespace

std::map<std::string, Tensor> evaluate(const Module& module, RegionKind kind, int64_t batch,
                                       const std::map<std::string, Tensor>& inputs, State& state) {
  const Region& region = module.region(kind);
  std::map<std::string, Tensor> values = inputs;
  for (const Buffer& buffer : module.buffers)
    if (!state.buffers.contains(buffer.name)) state.buffers[buffer.name] = tensor(buffer.type.shape, batch);
  for (const Op& op : region.ops) {
    const OpView view{module, region, op};
    std::vector<Tensor> numbers(op.operands.size());
    const auto find = [&](const Operand& operand, Tensor& number) -> const Tensor* {
      if (const double* value = as_number(operand)) {
        number = {{}, {*value}};
        return &number;
      }
      if (const BufferId* buffer = as_buffer(operand)) return &state.buffers.at(module[*buffer].name);
      const auto found = values.find(region[*as_value(operand)].name);
      if (found == values.end()) broken(op, "an operand has no value");
      return &found->second;
    };
    // 1. Operands, and outputs: written buffers with what they hold, then results.
    std::vector<const Tensor*> operands;
    std::vector<Tensor> outputs;
    std::vector<DType> dtypes;  // of the outputs
    for (size_t i = 0; i < op.operands.size(); ++i) {
      operands.push_back(find(op.operands[i], numbers[i]));
      if (!op.info->is_written(i)) continue;
      outputs.push_back(*operands.back());
      dtypes.push_back(view.operand(i).dtype);
    }
    for (const ValueId result : op.results) {
      outputs.push_back(tensor(region[result].type.shape, batch));
      dtypes.push_back(region[result].type.dtype);
    }
    run(view, batch, operands, outputs);
    for (size_t i = 0; i < outputs.size(); ++i) round(dtypes[i], outputs[i].data);
    // 2. Buffers take their new contents where the predicate holds; results are always made.
    Tensor number;
    const bool holds = !op.when || find(*op.when, number)->data[0] != 0;
    size_t output = 0;
    for (const BufferId buffer : written(op)) {
      if (holds) state.buffers[module[buffer].name] = std::move(outputs[output]);
      ++output;
    }
    for (const ValueId result : op.results) values[region[result].name] = std::move(outputs[output++]);
  }
  return values;
}

}  // namespace gacc::ir
