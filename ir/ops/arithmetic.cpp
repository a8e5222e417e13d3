// Arithmetic: pointwise ops with broadcasting, comparisons, and the index ops that class losses are made of.
#include <functional>

#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

template <Scalar (*f)(Scalar)>
void unary(const FormulaView& view) {
  view.result(f(view.operand(0)));
}

template <class Compare>
OpInfo comparison(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .operands = 2,
          .infer = infer_compare,
          .formula = [](const FormulaView& view) {
            view.result(to_integer(Compare()(view.operand(0), view.operand(1))));
          }};
}

// A function of a float that half precision is too narrow for.
OpInfo function(std::string_view name, std::string_view summary, void (*formula)(const FormulaView& view),
                Saves saves, Scalar (*derivative)(Scalar saved, Scalar dy, const OpView& op)) {
  return {.name = name,
          .summary = summary,
          .infer = infer_float,
          .formula = formula,
          .derivative = derivative,
          .saves = saves,
          .precision = Precision::f32};
}

}  // namespace

extern const OpInfo op_add{
    .name = "add",
    .summary = "x + y; floats or i32",
    .operands = 2,
    .infer = infer_number,
    .formula = [](const FormulaView& view) { view.result(view.operand(0) + view.operand(1)); },
    // d_x = dy    d_y = dy
    .gradient =
        [](GradBuilder& g) {
          g.add(0, *g.d_result());
          g.add(1, *g.d_result());
        },
};

extern const OpInfo op_sub{
    .name = "sub",
    .summary = "x - y; floats or i32",
    .operands = 2,
    .infer = infer_number,
    .formula = [](const FormulaView& view) { view.result(view.operand(0) - view.operand(1)); },
    // d_x = dy    d_y = -dy
    .gradient =
        [](GradBuilder& g) {
          g.add(0, *g.d_result());
          if (g.wanted(1)) g.add(1, g.b.make("neg", g.d_name(1), {*g.d_result()}));
        },
};

extern const OpInfo op_mul{
    .name = "mul",
    .summary = "x * y; floats or i32",
    .operands = 2,
    .infer = infer_number,
    .formula = [](const FormulaView& view) { view.result(view.operand(0) * view.operand(1)); },
    // d_x = dy * y    d_y = dy * x
    .gradient =
        [](GradBuilder& g) {
          if (g.wanted(0)) g.add(0, g.b.make("mul", g.d_name(0), {*g.d_result(), g.operand(1)}));
          if (g.wanted(1)) g.add(1, g.b.make("mul", g.d_name(1), {*g.d_result(), g.operand(0)}));
        },
    .saves = Saves::operands,
};

extern const OpInfo op_div{
    .name = "div",
    .summary = "x / y",
    .operands = 2,
    .infer = infer_float,
    .formula = [](const FormulaView& view) { view.result(view.operand(0) / view.operand(1)); },
    // d_x = dy / y    d_y = -(dy / y) * (x / y)
    .gradient =
        [](GradBuilder& g) {
          const Operand part = g.b.make("div", g.d_name(g.wanted(0) ? 0 : 1), {*g.d_result(), g.operand(1)});
          g.add(0, part);
          if (!g.wanted(1)) return;
          const Operand ratio = g.b.make("div", g.d_name(1) + ".ratio", {g.operand(0), g.operand(1)});
          const Operand product = g.b.make("mul", g.d_name(1) + ".mul", {part, ratio});
          g.add(1, g.b.make("neg", g.d_name(1), {product}));
        },
    .saves = Saves::operands,
};

extern const OpInfo op_maximum{
    .name = "maximum",
    .summary = "the larger of x and y; NaN if either is. Equal operands share the gradient",
    .operands = 2,
    .infer = infer_number,
    .formula = [](const FormulaView& view) { view.result(max(view.operand(0), view.operand(1))); },
    // with r the result and n how many of x, y equal it:
    //   d_x = x == r ? dy / n : 0    d_y = y == r ? dy / n : 0
    .gradient =
        [](GradBuilder& g) {
          const std::string name = g.d_name(g.wanted(0) ? 0 : 1);
          const Operand is_x = g.b.make("equal", name + ".is_x", {g.operand(0), g.result()});
          const Operand is_y = g.b.make("equal", name + ".is_y", {g.operand(1), g.result()});
          const Operand both = g.b.make("add", name + ".both", {is_x, is_y});
          const Operand count = g.b.make("cast", name + ".count", {both});
          const Operand share = g.b.make("div", name + ".share", {*g.d_result(), count});
          if (g.wanted(0)) g.add(0, g.b.make("select", g.d_name(0), {is_x, share, 0.0}));
          if (g.wanted(1)) g.add(1, g.b.make("select", g.d_name(1), {is_y, share, 0.0}));
        },
    .saves = Saves::operands,
};

extern const OpInfo op_neg{
    .name = "neg",
    .summary = "-x; float or i32",
    .infer = infer_number,
    .formula = [](const FormulaView& view) { view.result(-view.operand(0)); },
    // d_x = -dy
    .gradient = [](GradBuilder& g) { g.add(0, g.b.make("neg", g.d_name(0), {*g.d_result()})); },
};

extern const OpInfo op_abs{
    .name = "abs",
    .summary = "|x|; the derivative at 0 is 0",
    .infer = infer_float,
    .formula = unary<abs>,
    .derivative = [](Scalar x, Scalar dy,
                     const OpView&) { return select(x == 0, 0, select(x < 0, -dy, dy)); },
    .saves = Saves::operands,
};

extern const OpInfo op_square{
    .name = "square",
    .summary = "x * x",
    .infer = infer_float,
    .formula = [](const FormulaView& view) { view.result(view.operand(0) * view.operand(0)); },
    .derivative = [](Scalar x, Scalar dy, const OpView&) { return 2.0 * x * dy; },
    .saves = Saves::operands,
};

extern const OpInfo op_sqrt = function("sqrt", "square root of x", unary<sqrt>, Saves::result,
                                       [](Scalar y, Scalar dy, const OpView&) { return 0.5 * dy / y; });

extern const OpInfo op_reciprocal = function(
    "reciprocal", "1 / x", [](const FormulaView& view) { view.result(1.0 / view.operand(0)); }, Saves::result,
    [](Scalar y, Scalar dy, const OpView&) { return -dy * y * y; });

extern const OpInfo op_exp = function("exp", "e to the x", unary<exp>, Saves::result,
                                      [](Scalar y, Scalar dy, const OpView&) { return dy * y; });

extern const OpInfo op_log = function("log", "natural logarithm of x", unary<log>, Saves::operands,
                                      [](Scalar x, Scalar dy, const OpView&) { return dy / x; });

extern const OpInfo op_sin = function(
    "sin",
    "sine of x; in kernels within 2.3 units in the last place to |x| = 1e5, 5 to 4e6, any of [-1, 1] beyond",
    unary<sin>, Saves::operands, [](Scalar x, Scalar dy, const OpView&) { return cos(x) * dy; });

extern const OpInfo op_cos = function("cos", "cosine of x, as `sin`", unary<cos>, Saves::operands,
                                      [](Scalar x, Scalar dy, const OpView&) { return -sin(x) * dy; });

extern const OpInfo op_cast{
    .name = "cast",
    .summary =
        "x as another element type: to a half type it rounds to the nearest, ties to even; floats to i32 "
        "drop the fraction",
    .attrs = {{"to", std::string("f32")}},
    .infer = [](const OpView& op) -> Types {
      const std::optional<DType> to = parse_dtype(op.text("to"));
      if (!to) refuse(op, Kind::unknown_value, "there is no element type \"{}\"", op.text("to"));
      return {{*to, op.operand(0).shape}};
    },
    .formula =
        [](const FormulaView& view) {
          const Scalar x = view.operand(0);
          view.result(is_float(view.op.result().dtype) ? to_real(x) : to_integer(x));
        },
    // d_x = dy, as x's type; nothing flows through integers
    .gradient =
        [](GradBuilder& g) {
          const DType dtype = g.b.type(g.operand(0)).dtype;
          if (!is_float(dtype) || !is_float(g.b.type(g.result()).dtype)) return;
          g.add(0, g.b.make("cast", g.d_name(0), {*g.d_result()}, {{"to", std::string(dtype_text(dtype))}}));
        },
};

extern const OpInfo op_equal =
    comparison<std::equal_to<>>("equal", "1 where x == y, else 0; NaN equals nothing");
extern const OpInfo op_not_equal =
    comparison<std::not_equal_to<>>("not_equal", "1 where x != y, else 0; NaN differs from everything");
extern const OpInfo op_greater =
    comparison<std::greater<>>("greater", "1 where x > y, else 0; NaN is greater than nothing");

extern const OpInfo op_select{
    .name = "select",
    .summary = "a where the i32 condition is not 0, else b; operands: condition, a, b",
    .operands = 3,
    .infer = [](const OpView& op) -> Types {
      expect_dtype(op, 0, DType::i32);
      const DType dtype = common_dtype(op, 1);
      return {{dtype, common_shape(op, 0)}};
    },
    .formula =
        [](const FormulaView& view) {
          view.result(select(view.operand(0) != 0, view.operand(1), view.operand(2)));
        },
    // d_a = condition ? dy : 0    d_b = condition ? 0 : dy
    .gradient =
        [](GradBuilder& g) {
          if (g.wanted(1)) g.add(1, g.b.make("select", g.d_name(1), {g.operand(0), *g.d_result(), 0.0}));
          if (g.wanted(2)) g.add(2, g.b.make("select", g.d_name(2), {g.operand(0), 0.0, *g.d_result()}));
        },
    .saves = Saves::operands,
};

extern const OpInfo op_is_finite{
    .name = "is_finite",
    .summary = "1 where x is neither infinite nor NaN, else 0",
    .infer = [](const OpView& op) -> Types {
      expect_float(op, 0);
      return {{DType::i32, op.operand(0).shape}};
    },
    .formula = [](const FormulaView& view) { view.result(to_integer(is_finite(view.operand(0)))); },
};

extern const OpInfo op_column{
    .name = "column",
    .summary = "the index along the last axis, i32; the operand gives the shape and is not read",
    .infer = [](const OpView& op) -> Types {
      expect_columns(op, 0);
      return {{DType::i32, op.operand(0).shape}};
    },
    .formula = [](const FormulaView& view) { view.result(column_of(view, 0)); },
};

extern const OpInfo op_broadcast{
    .name = "broadcast",
    .summary = "x repeated to a larger shape by the rules of broadcasting; -1 stands for the batch extent B",
    .attrs = {{"shape", std::vector<int64_t>{}}},
    .infer = [](const OpView& op) -> Types {
      const Shape& shape = op.integers("shape");
      if (!fits(shape, op.module.micro_batch()) || broadcast(shape, op.operand(0).shape) != shape)
        refuse(op, Kind::shape_mismatch, {0}, "it does not repeat to {}", shape_text(shape));
      return {{op.operand(0).dtype, shape}};
    },
    .formula = [](const FormulaView& view) { view.result(view.operand(0)); },
    // d_x = dy, summed down
    .gradient = [](GradBuilder& g) { g.add(0, *g.d_result()); },
};

}  // namespace gacc::ir
