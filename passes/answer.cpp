#include "passes/answer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ir/builder.h"
#include "passes/analysis/by_row.h"
#include "passes/analysis/rewrite.h"

namespace gacc::passes {

namespace {

using namespace ir;

// [B,T,C]: of a sample a matrix, as a table is. With fewer axes the rows would lie along the last one, which
// kernels walk as a whole.
bool is_matrix(const Type& type, int64_t positions) {
  return type.shape.size() == 3 && has_rows(type.shape, positions);
}

// Tells whether it makes the same for all samples and rows: numbers out of a parameter's blocks.
bool is_shared(const OpView& op) {
  return op.op.info->writes == 0 && op.op.results.size() == 1 && !has_batch(op.result().shape) &&
         std::ranges::none_of(op.op.operands, [](const Operand& o) { return as_value(o) != nullptr; });
}

bool may_move(const OpView& op, int64_t positions) {
  if (is_shared(op)) return true;
  return works_by_row(op, positions) && op.op.results.size() == 1 && is_matrix(op.result(), positions);
}

// Tells whether `answer` can read rows of the value by number.
bool is_table(const Value& value, const Op& maker, int64_t positions) {
  return is_matrix(value.type, positions) && value.type.pitch == 0 && is_float(value.type.dtype) &&
         maker.info->lowering != Lowering::alias;
}

}  // namespace

std::vector<RowCut> row_cuts(const Module& module) {
  const Region& region = module.predict;
  std::vector<RowCut> cuts;
  const Operand& output = region.yields.front().what;
  const Shape shape = operand_type(module, region, output).shape;
  if (shape.size() != 3) return cuts;
  std::set<ValueId> read = {*as_value(output)};  // by the ops from i on, or yielded, and not made by them
  for (size_t i = region.ops.size(); i-- > 1;) {
    const Op& op = region.ops[i];
    if (!may_move({module, region, op}, shape[1])) break;
    for (const ValueId result : op.results) read.erase(result);
    for (const Operand& operand : op.operands)
      if (const ValueId* value = as_value(operand)) read.insert(*value);
    if (region.ops[i - 1].kernel == op.kernel || read.size() != 1) continue;
    const size_t made = maker_of(region, *read.begin());
    if (made < region.ops.size() && is_table(region[*read.begin()], region.ops[made], shape[1]))
      cuts.push_back({i, *read.begin()});
  }
  return cuts;
}

void cut_predict(Module& module, const RowCut& cut, int64_t size, Diag& diag) {
  Region& predict = module.predict;
  Region& answer = module.answer = Region{.kind = RegionKind::answer, .at = predict.at};
  const Value& rows = predict[cut.rows];
  const ValueId table =
      answer.add_value(rows.name, {rows.type.dtype, {rows.type.shape[1], rows.type.shape[2]}});
  const ValueId numbers = answer.add_value("answer.rows", {DType::i32, {kBatch, size}});
  answer.inputs = {table, numbers};
  std::vector<ValueId> moved(predict.values.size());  // by value: what stands for it
  moved[index(cut.rows)] = Builder(module, answer, diag)
                               .like(predict.ops[cut.op])
                               .make("embedding", rows.name + ".part", {numbers, table});
  answer.ops.front().kernel = 0;
  int32_t last = -1;  // kernel, of those that are moved
  for (size_t i = cut.op; i < predict.ops.size(); ++i) {
    Op op = predict.ops[i];
    for (Operand& operand : op.operands)
      if (const ValueId* value = as_value(operand)) operand = moved[index(*value)];
    for (ValueId& result : op.results) {
      Type type = predict[result].type;
      if (has_batch(type.shape)) type.shape[1] = size;
      result = moved[index(result)] = answer.add_value(predict[result].name, std::move(type));
    }
    if (const auto shape = op.attrs.find("shape"); shape != op.attrs.end())
      std::get<std::vector<int64_t>>(shape->second)[1] = size;
    const bool continues = op.kernel == std::exchange(last, op.kernel);
    op.kernel = answer.ops.back().kernel + (continues ? 0 : 1);
    answer.ops.push_back(std::move(op));
  }
  const ValueId output = *as_value(predict.yields.front().what);
  answer.yields = {Yield{.role = YieldRole::output, .what = moved[index(output)]},
                   Yield{.role = YieldRole::rows, .what = table}};
  predict.ops.resize(cut.op);
  predict.yields = {Yield{.role = YieldRole::rows, .what = cut.rows}};
  compact(predict);
}

}  // namespace gacc::passes
