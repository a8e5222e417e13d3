// Rows of a table by number, and the gradient: every row's sum of what its uses contributed, in the order of
// the uses, so that the bits depend on nothing but the data.
#include <algorithm>

#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

// Operand `tokens` is a tensor of row numbers, i32 [..].
void expect_tokens(const OpView& op, size_t tokens) {
  if (as_number(op.op.operands[tokens]) != nullptr)
    refuse(op, Kind::type_mismatch, "a number is no tensor of row numbers");
  expect_dtype(op, tokens, DType::i32);
}

// Refuses a `padding` that is no row of a table of so many rows; -1 is none.
void expect_padding(const OpView& op, int64_t rows) {
  const int64_t padding = op.integer("padding");
  if (padding < -1 || padding >= rows)
    refuse(op, Kind::out_of_range, "`padding` is {}, and the table has {} rows", padding, rows);
}

Types infer_embedding(const OpView& op) {
  expect_tokens(op, 0);
  expect_float(op, 1);
  const Type table = op.operand(1);
  if (table.shape.size() != 2 || has_batch(table.shape))
    refuse(op, Kind::shape_mismatch, {1}, "a table is a matrix [rows, features]");
  Shape shape = op.operand(0).shape;
  shape.push_back(table.shape.back());
  if (!is_blocks(table.dtype) && op.op.attrs.contains("to"))
    refuse(op, Kind::type_mismatch, {1}, "`to` is for a table in blocks");
  expect_padding(op, table.shape.front());
  return {{is_blocks(table.dtype) ? read_as(op) : table.dtype, std::move(shape)}};
}

// dy [.., C] at operand i belongs to the tokens [..] at operand i - 1.
void expect_rows(const OpView& op, size_t i) {
  expect_tokens(op, i - 1);
  expect_columns(op, i);
  expect_float(op, i);
  Shape shape = op.operand(i - 1).shape;
  shape.push_back(op.operand(i).shape.back());
  if (op.operand(i).shape != shape)
    refuse(op, Kind::shape_mismatch, {i - 1, i}, "there must be one row a number");
}

void embedding_reference(EvalView& view) {
  const Tensor &tokens = view.operand(0), &table = view.operand(1);
  const int64_t columns = column_count(table);
  auto to = view.result().data.begin();
  for (const double token : tokens.data)
    to = std::copy_n(table.data.begin() + static_cast<int64_t>(token) * columns, columns, to);
}

// result[token] += dy where the token is not `padding`; the evaluator clears a fresh result, and a buffer holds what it
// held.
void scatter(EvalView& view, size_t tokens) {
  const Tensor& dy = view.operand(tokens + 1);
  const int64_t columns = column_count(dy), padding = view.op.integer("padding");
  for (int64_t row = 0; row < row_count(dy); ++row) {
    const auto token = static_cast<int64_t>(view.operand(tokens).data[row]);
    if (token == padding) continue;
    for (int64_t c = 0; c < columns; ++c)
      view.result().data[token * columns + c] += dy.data[row * columns + c];
  }
}

int64_t table_rows(const OpView& op) { return op.integer("rows"); }

// Every row that is used is loaded and stored with its contributions; a fresh table is cleared before.
Cost scatter_cost(const OpView& op, size_t tokens) {
  const int64_t batch = op.module.micro_batch();
  const Type dy = op.operand(tokens + 1);
  const int64_t rows = 3 * type_bytes({DType::f32, dy.shape}, batch);
  return {.flops = elements(dy.shape, batch),
          .bytes = type_bytes(op.operand(tokens), batch) + rows +
                   (op.op.results.empty() ? 0 : type_bytes(op.result(), batch))};
}

}  // namespace

extern const OpInfo op_embedding{
    .name = "embedding",
    .summary =
        "row token of a table [rows, C] for every token: [..] to [.., C]; operands: tokens i32, table. "
        "Tokens outside of 0 .. rows - 1 must not occur: the runtime checks the data. Of a table in "
        "blocks the rows are read as `to`. No gradient reaches the row `padding`",
    .operands = 2,
    .blocks = operand_bits({1}),
    .local = true,
    .numbers = 0,
    .numbered = [](const OpView& op) { return op.operand(1).shape.front(); },
    .attrs = {{"to", std::string("f32")}, {"padding", int64_t{-1}}},
    .infer = infer_embedding,
    // d_table[r] = sum of dy over the tokens that are r; of the row `padding` 0
    .gradient =
        [](GradBuilder& g) {
          const int64_t rows = g.b.type(g.operand(1)).shape.front();
          if (g.wanted(1))
            g.add(1, g.b.make("embedding.grad", g.d_name(1), {g.operand(0), *g.d_result()},
                              {{"rows", rows}, {"padding", g.view().integer("padding")}}));
        },
    .reference = embedding_reference,
    .cost =
        [](const OpView& op) {
          const int64_t batch = op.module.micro_batch();
          const Type rows{op.operand(1).dtype, op.result().shape};
          return Cost{.flops = 0,
                      .bytes = type_bytes(op.operand(0), batch) + type_bytes(rows, batch) +
                               type_bytes(op.result(), batch)};
        },
    .saves = Saves::operands,
    .precision = Precision::half,
};

extern const OpInfo op_embedding_grad{
    .name = "embedding.grad",
    .summary =
        "f32 [rows, C]: row r is the sum of dy over the tokens that are r, in their order; operands: tokens "
        "i32 [..], dy [.., C]. The row `padding` is 0",
    .operands = 2,
    .numbers = 0,
    .numbered = table_rows,
    .attrs = {{"rows", int64_t{1}}, {"padding", int64_t{-1}}},
    .infer = [](const OpView& op) -> Types {
      expect_rows(op, 1);
      const int64_t rows = op.integer("rows");
      Shape shape{rows, op.operand(1).shape.back()};
      if (rows < 1 || !fits(shape, 1)) refuse(op, Kind::out_of_range, "a table has no {} rows", rows);
      expect_padding(op, rows);
      return {{DType::f32, std::move(shape)}};
    },
    .reference = [](EvalView& view) { scatter(view, 0); },
    .cost = [](const OpView& op) { return scatter_cost(op, 0); },
    .precision = Precision::half,
    .gradient_of = &op_embedding,
};

extern const OpInfo op_embedding_grad_acc{
    .name = "embedding.grad.acc",
    .summary =
        "row r of a buffer [rows, C] += dy of the tokens that are r, one after the other; operands: buffer, "
        "tokens i32 [..], dy [.., C]. The row `padding` stays",
    .operands = 3,
    .writes = operand_bits({0}),
    .numbers = 1,
    .numbered = table_rows,
    .attrs = {{"rows", int64_t{1}}, {"padding", int64_t{-1}}},
    .infer = [](const OpView& op) -> Types {
      expect_rows(op, 2);
      expect_dtype(op, 0, DType::f32);
      const Shape shape{op.integer("rows"), op.operand(2).shape.back()};
      if (op.operand(0).shape != shape)
        refuse(op, Kind::shape_mismatch, {0}, "the sums are {}", shape_text(shape));
      expect_padding(op, shape.front());
      return {};
    },
    .reference = [](EvalView& view) { scatter(view, 1); },
    .cost = [](const OpView& op) { return scatter_cost(op, 1); },
    .precision = Precision::half,
    .accumulates = true,
    .gradient_of = &op_embedding,
};

}  // namespace gacc::ir
