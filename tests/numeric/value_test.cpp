// What the ops compute, against the C library and against PyTorch 1.13 in double (the call stands above each
// list).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/numeric/examples.h"

namespace gacc::ir {
namespace {

using Values = std::map<std::string, Tensor>;

Values run(const std::string& body, int64_t batch, const Values& inputs, State state = {}) {
  const Module module = parse_module(body);
  return evaluate(module, RegionKind::eval, batch, inputs, state);
}

void expect_near(const Tensor& got, const std::vector<double>& want, double tolerance = 1e-14) {
  ASSERT_EQ(got.data.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got.data[i], want[i], tolerance) << "element " << i;
}

TEST(Values, UnaryOps) {
  const struct {
    const char* op;
    double (*want)(double);
  } ops[] = {
      {"neg", [](double x) { return -x; }},
      {"abs", [](double x) { return std::fabs(x); }},
      {"square", [](double x) { return x * x; }},
      {"sqrt", [](double x) { return std::sqrt(x); }},
      {"reciprocal", [](double x) { return 1 / x; }},
      {"exp", [](double x) { return std::exp(x); }},
      {"log", [](double x) { return std::log(x); }},
      {"sin", [](double x) { return std::sin(x); }},
      {"cos", [](double x) { return std::cos(x); }},
      {"relu", [](double x) { return x > 0 ? x : 0; }},
      {"tanh", [](double x) { return std::tanh(x); }},
      {"sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
  };
  const std::vector<double> xs{-2, -0.5, 0.25, 3};
  for (const auto& op : ops) {
    SCOPED_TRACE(op.op);
    const Values values =
        run(fmt::format("eval(%x : f32[B]) {{ %y = {} %x : f32[B] }}", op.op), 4, {{"x", {{4}, xs}}});
    for (size_t i = 0; i < xs.size(); ++i) {
      const double want = op.want(xs[i]), got = values.at("y").data[i];
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got));
      } else {
        EXPECT_NEAR(got, want, 1e-15 * (1 + std::fabs(want)));
      }
    }
  }
}

TEST(Values, BinaryOps) {
  const struct {
    const char* op;
    double (*want)(double, double);
  } ops[] = {
      {"add", [](double x, double y) { return x + y; }},
      {"sub", [](double x, double y) { return x - y; }},
      {"mul", [](double x, double y) { return x * y; }},
      {"div", [](double x, double y) { return x / y; }},
      {"maximum", [](double x, double y) { return std::fmax(x, y); }},
      {"squared_error", [](double x, double y) { return (x - y) * (x - y); }},
      {"absolute_error", [](double x, double y) { return std::fabs(x - y); }},
  };
  const std::vector<double> xs{-2, -0.5, 0.25, 3}, ys{1, -4, 0.5, 3};
  for (const auto& op : ops) {
    SCOPED_TRACE(op.op);
    const Values values =
        run(fmt::format("eval(%x : f32[B], %y : f32[B]) {{ %z = {} %x, %y : f32[B] }}", op.op), 4,
            {{"x", {{4}, xs}}, {"y", {{4}, ys}}});
    for (size_t i = 0; i < xs.size(); ++i) EXPECT_EQ(values.at("z").data[i], op.want(xs[i], ys[i]));
  }
}

const std::vector<double> kX{0.5, -1.25, 2, 0, 3, 1, -2, 0.25, -0.5, -0.5, 1.5, 4};
Tensor logits() { return {{3, 4}, kX}; }
Tensor first_row() { return {{1, 4}, {kX.begin(), kX.begin() + 4}}; }

TEST(Values, ActivationsArePyTorchs) {
  const struct {
    const char* op;
    std::vector<double> want;
  } ops[] = {
      // F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), torch.sigmoid(x), F.leaky_relu(x, 0.2)
      {"gelu %x : f32[B,4]", {0.34573123063700656, -0.13206221708356905, 1.9544997361036416, 0}},
      {"gelu_tanh %x : f32[B,4]", {0.34571400982514394, -0.13228579703028542, 1.954597694087775, 0}},
      {"silu %x : f32[B,4]", {0.3112296656009273, -0.27837517353163604, 1.7615941559557646, 0}},
      {"sigmoid %x : f32[B,4]", {0.6224593312018546, 0.22270013882530884, 0.8807970779778823, 0.5}},
      {"leaky_relu %x : f32[B,4] {slope = 0.2}", {0.5, -0.25, 2, 0}},
      // F.softmax(x, 1), F.log_softmax(x, 1)
      {"softmax %x : f32[B,4]",
       {0.15969355003210822, 0.027750577932680404, 0.7156968377823844, 0.09685903425282705}},
      {"log_softmax %x : f32[B,4]",
       {-1.8344986126036624, -3.5844986126036624, -0.33449861260366254, -2.3344986126036624}},
  };
  for (const auto& op : ops) {
    SCOPED_TRACE(op.op);
    expect_near(run(fmt::format("eval(%x : f32[B,4]) {{ %y = {} }}", op.op), 1, {{"x", first_row()}}).at("y"),
                op.want);
  }
}

TEST(Values, LossesArePyTorchs) {
  const Tensor target{{3, 1}, {2, 0, 3}};
  // F.cross_entropy(x, t, reduction="none")
  Values values =
      run("eval(%x : f32[B,4], %t : i32[B,1]) { %l, %m, %s, %c = cross_entropy %x, %t : f32[B,1], f32[B,1], "
          "f32[B,1], i32[B,1] }",
          3, {{"x", logits()}, {"t", target}});
  expect_near(values.at("l"), {0.33449861260366254, 0.18731000331487088, 0.09921435920463552});
  expect_near(values.at("c"), {1, 1, 1});
  // F.cross_entropy(x, t, reduction="none", label_smoothing=0.1, ignore_index=0), and the gradient of its sum
  const std::string attrs = " {ignore_index = 0, label_smoothing = 0.1}";
  values =
      run("eval(%x : f32[B,4], %t : i32[B,1]) { %l, %m, %s, %c = cross_entropy %x, %t : f32[B,1], f32[B,1], "
          "f32[B,1], i32[B,1]" +
              attrs + "\n%g = cross_entropy.grad %x, %m, %s, %t, 1.0 : f32[B,4]" + attrs + " }",
          3, {{"x", logits()}, {"t", target}});
  expect_near(values.at("l"), {0.5032486126036626, 0, 0.3867143592046356});
  expect_near(values.at("c"), {1, 0, 1});
  expect_near(values.at("g"),
              {0.13469355003210826, 0.002750577932680409, -0.2093031622176157, 0.07185903425282705, 0, 0, 0,
               0, -0.01494026402016996, -0.01494026402016996, 0.04933195349539527, -0.019451425455055515});
  // F.binary_cross_entropy_with_logits(x, t, reduction="none")
  values = run("eval(%x : f32[B,4], %t : f32[B,4]) { %l = bce_with_logits %x, %t : f32[B,4] }", 1,
               {{"x", first_row()},
                {"t", {{1, 4}, {0.5866175789173301, 0.29421497216298875, 0.8021838885585817, 0.5}}}});
  expect_near(values.at("l"),
              {0.6807681947214417, 0.6196977965491088, 0.5225602339258092, 0.6931471805599453});
}

TEST(Values, WeightedCrossEntropyIsPyTorchs) {
  State state;
  state.buffers["w"] = {{4}, {0.5, 2, 0, 3}};
  const struct {
    double smoothing;
    std::vector<double> loss, gradient;
  } cases[] = {
      // F.cross_entropy(x, t, weight=w, reduction="none", ignore_index=0, label_smoothing=..), gradient of
      // its sum
      {0,
       {0, 0, 0.29764307761390657},
       {0, 0, 0, 0, 0, 0, 0, 0, 0.030179207939490124, 0.030179207939490124, 0.2229958604861858,
        -0.2833542763651664}},
      {0.1,
       {0.3772435592330036, 0, 0.5627707442431533},
       {0.009457863129414885, -0.046184295534256445, 0.09840831519507785, -0.06168188279023629, 0, 0, 0, 0,
        0.016044500842767748, -0.021455499157232254, 0.2109169180431841, -0.20550591972871993}}};
  for (const auto& each : cases) {
    const std::string attrs = fmt::format(" {{ignore_index = 0, label_smoothing = {:.1f}}}", each.smoothing);
    const Values values =
        run("param @w : f32[4]\neval(%x : f32[B,4], %t : i32[B,1]) { %l, %m, %s, %c, %v, %a = "
            "weighted_cross_entropy %x, %t, @w : f32[B,1], f32[B,1], f32[B,1], i32[B,1], f32[B,1], f32[B,1]" +
                attrs + "\n%g = weighted_cross_entropy.grad %x, %m, %s, %t, @w, %a, 1.0 : f32[B,4]" + attrs +
                " }",
            3, {{"x", logits()}, {"t", {{3, 1}, {2, 0, 3}}}}, state);
    expect_near(values.at("l"), each.loss);
    expect_near(values.at("c"), {1, 0, 1});
    expect_near(values.at("v"), {0, 0, 3});
    expect_near(values.at("g"), each.gradient);
  }
}

TEST(Values, HuberIsPyTorchs) {
  // F.huber_loss(x, 0, delta=0.6, reduction="none"), and the gradient of its sum
  const std::string attrs = " {delta = 0.6}";
  const Values values = run("eval(%x : f32[B,4]) { %l = huber %x : f32[B,4]" + attrs +
                                "\n%g = huber.grad %x, 1.0 : f32[B,4]" + attrs + " }",
                            1, {{"x", first_row()}});
  expect_near(values.at("l"), {0.125, 0.57, 1.02, 0});
  expect_near(values.at("g"), {0.5, -0.6, 0.6, 0});
}

TEST(Values, LayerNormIsPyTorchs) {
  State state;
  state.buffers["w"] = {{4}, {1, 2, -1, 0.5}};
  state.buffers["b"] = {{4}, {0.1, 0.2, 0.3, 0.4}};
  // F.layer_norm(x, (4,), w, b, 0.1)
  const Values values = run(
      "param @w : f32[4]\nparam @b : f32[4]\n"
      "eval(%x : f32[B,4]) { %y, %m, %r = layer_norm %x, @w, @b : f32[B,4], f32[B,1], f32[B,1] {eps = 0.1} }",
      3, {{"x", logits()}}, state);
  expect_near(values.at("y"),
              {0.2554174680400523, -2.3902911340008712, -1.0987572123604707, 0.27048544329995644,
               1.441958447398489, 0.6817286734250985, 1.71077682931636, 0.31397702260266097,
               -0.7658973219374342, -1.5317946438748684, 0.1001775410913614, 1.1659860924831147});
  expect_near(values.at("m"), {0.3125, 0.5625, 1.125});
}

TEST(Values, ReductionsOfARaggedBatch) {
  // A micro-batch of 5 in 2 parts: 3 rows a part, whatever the launch holds.
  const std::string body =
      "set train.micro_batch = 5\neval(%x : f32[B,2]) { %r = row_sum %x : f32[B,1]\n%h = row_max %x : "
      "f32[B,1]\n"
      "%l = row_min %x : f32[B,1]\n%c = column_sum %x : f32[2]\n%t = total_sum %x : f32[]\n%p = total_sum %x "
      ": f32[2] {parts = 2} }";
  const std::vector<double> x{1, -2, 3, 4, 50, 60, 700, 800};
  Values values = run(body, 4, {{"x", {{4, 2}, x}}});
  expect_near(values.at("r"), {-1, 7, 110, 1500});
  expect_near(values.at("h"), {1, 4, 60, 800});
  expect_near(values.at("l"), {-2, 3, 50, 700});
  expect_near(values.at("c"), {754, 862});
  expect_near(values.at("t"), {1616});
  expect_near(values.at("p"), {116, 1500});
  values = run(body, 2, {{"x", {{2, 2}, {x.begin(), x.begin() + 4}}}});
  expect_near(values.at("p"), {6, 0});
}

TEST(Values, ProductsOfAllTransposes) {
  State state;
  state.buffers["a"] = {{2, 3}, {1, 2, 3, 4, 5, 6}};
  state.buffers["at"] = {{3, 2}, {1, 4, 2, 5, 3, 6}};
  state.buffers["b"] = {{3, 2}, {7, 8, 9, 10, 11, 12}};
  state.buffers["bt"] = {{2, 3}, {7, 9, 11, 8, 10, 12}};
  const Values values =
      run("param @a : f32[2,3]\nparam @at : f32[3,2]\nparam @b : f32[3,2]\nparam @bt : f32[2,3]\n"
          "eval { %nn = matmul @a, @b : f32[2,2]\n%nt = matmul @a, @bt : f32[2,2] {tb}\n"
          "%tn = matmul @at, @b : f32[2,2] {ta}\n%tt = matmul @at, @bt : f32[2,2] {ta, tb} }",
          1, {}, state);
  for (const char* name : {"nn", "nt", "tn", "tt"}) expect_near(values.at(name), {58, 64, 139, 154});
}

TEST(Values, IndexAndFlagOps) {
  const Values values = run(
      "eval(%x : f32[B,3], %k : i32[B,1]) { %c = column %x : i32[B,3]\n"
      "%e = equal %c, %k : i32[B,3]\n%n = not_equal %x, 2.0 : i32[B,3]\n%s = select %e, %x, -1.0 : f32[B,3]\n"
      "%i = cast %x : i32[B,3] {to = \"i32\"}\n%f = cast %k : f32[B,1]\n%o = ones_like %k : i32[B,1]\n"
      "%b = broadcast %k : i32[B,3] {shape = [-1, 3]}\n%r = reshape %x : f32[B,3,1] {shape = [-1, 3, 1]} }",
      2, {{"x", {{2, 3}, {1.5, 2, -3.75, 4, 5, 6}}}, {"k", {{2, 1}, {2, 0}}}});
  expect_near(values.at("c"), {0, 1, 2, 0, 1, 2});
  expect_near(values.at("e"), {0, 0, 1, 1, 0, 0});
  expect_near(values.at("n"), {1, 0, 1, 1, 1, 1});
  expect_near(values.at("s"), {-1, -1, -3.75, 4, -1, -1});
  expect_near(values.at("i"), {1, 2, -3, 4, 5, 6});
  expect_near(values.at("f"), {2, 0});
  expect_near(values.at("o"), {1, 1});
  expect_near(values.at("b"), {2, 2, 2, 0, 0, 0});
  expect_near(values.at("r"), {1.5, 2, -3.75, 4, 5, 6});
}

}  // namespace
}  // namespace gacc::ir
