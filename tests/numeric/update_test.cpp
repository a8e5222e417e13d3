// Ops that write buffers: the optimizers against PyTorch 1.13 in double, accumulation, predicates, initial
// values.
#include <gtest/gtest.h>

#include "tests/numeric/examples.h"

namespace gacc::ir {
namespace {

const std::vector<std::vector<double>> kGradients{{0.1, -0.2}, {0.3, 0.05}, {-0.4, 0.6}};

// w = [1, -2] after an update with each of kGradients, lr 0.1.
std::vector<double> train(const std::string& op) {
  const Module module = parse_module(
      "param @w : f32[2]\nstate @g : f32[2]\nstate @m : f32[2]\nstate @v : f32[2]\nstate @lr : f32[]\nstate "
      "@c1 : f32[]\n"
      "state @c2 : f32[]\nstate @updates : i32[]\nupdate { " +
      op + " }");
  State state;
  state.buffers["w"] = {{2}, {1, -2}};
  state.buffers["lr"] = {{}, {0.1}};
  double c1 = 0, c2 = 0;
  for (size_t t = 0; t < kGradients.size(); ++t) {
    c1 = c1 * 0.9 + (1 - 0.9);
    c2 = c2 * 0.999 + (1 - 0.999);
    state.buffers["g"] = {{2}, kGradients[t]};
    state.buffers["c1"] = {{}, {c1}};
    state.buffers["c2"] = {{}, {c2}};
    state.buffers["updates"] = {{}, {static_cast<double>(t)}};
    evaluate(module, RegionKind::update, 1, {}, state);
  }
  return state.buffers["w"].data;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12);
}

TEST(Optimizers, Sgd) {
  // SGD(lr=.1, weight_decay=.01)
  expect_near(train("sgd @w, @g, @lr {weight_decay = 0.01}"), {0.997052989, -2.039040978});
}

TEST(Optimizers, SgdMomentum) {
  // SGD(lr=.1, momentum=.9, dampening=.1, weight_decay=.01): dampening spares the first update
  expect_near(
      train("sgd_momentum @w, @m, @g, @lr, @updates {dampening = 0.1, momentum = 0.9, weight_decay = 0.01}"),
      {0.95234272109, -1.9977827921799998});
  // SGD(lr=.1, momentum=.9, nesterov=True)
  expect_near(train("sgd_momentum @w, @m, @g, @lr, @updates {momentum = 0.9, nesterov}"),
              {0.96031, -2.05877});
}

TEST(Optimizers, Adam) {
  // Adam(lr=.1, weight_decay=.01), AdamW(lr=.1, weight_decay=.01)
  expect_near(train("adam @w, @m, @v, @g, @lr, @c1, @c2 {weight_decay = 0.01}"),
              {0.810521494626606, -1.8882963194741726});
  expect_near(train("adam @w, @m, @v, @g, @lr, @c1, @c2 {decoupled, weight_decay = 0.01}"),
              {0.8116566790266863, -1.8959448324760602});
}

TEST(Buffers, AccumulationAddsToWhatIsThere) {
  const Module module = parse_module(
      "accum @w.grad : f32[2,3]\naccum @b.grad : f32[3]\naccum @sum : f32[]\naccum @count : i32[]\nstate @n "
      ": i32[]\n"
      "step(%d : f32[B,2], %x : f32[B,3]) { matmul.acc @w.grad, %d, %x {ta}\ncolumn_sum.acc @b.grad, "
      "%x\ntotal_sum.acc @sum, %x\n"
      "%o = ones_like %d : i32[B,2]\ntotal_sum.acc @count, %o\nadd.acc @n, 2.0 }");
  State state;
  const std::map<std::string, Tensor> inputs{{"d", {{2, 2}, {1, 2, 3, 4}}},
                                             {"x", {{2, 3}, {1, 0, 2, 0, 1, 1}}}};
  for (int i = 0; i < 2; ++i) evaluate(module, RegionKind::step, 2, inputs, state);
  EXPECT_EQ(state.buffers["w.grad"].data, (std::vector<double>{2, 6, 10, 4, 8, 16}));
  EXPECT_EQ(state.buffers["b.grad"].data, (std::vector<double>{2, 2, 6}));
  EXPECT_EQ(state.buffers["sum"].data, (std::vector<double>{10}));
  EXPECT_EQ(state.buffers["count"].data, (std::vector<double>{8}));
  EXPECT_EQ(state.buffers["n"].data, (std::vector<double>{4}));
}

TEST(Buffers, AWriteWithoutItsPredicateKeepsTheOld) {
  const Module module = parse_module(
      "state @ok : i32[]\nstate @a : f32[2]\nstate @b : f32[2]\nstate @c : i32[]\n"
      "update { store @a, 5.0 when(@ok)\nadd.acc @b, 1.0 when(@ok)\nfill @c when(@ok) {value = 3.0} }");
  State state;
  state.buffers["a"] = state.buffers["b"] = {{2}, {1, 2}};
  evaluate(module, RegionKind::update, 1, {}, state);
  EXPECT_EQ(state.buffers["a"].data, (std::vector<double>{1, 2}));
  EXPECT_EQ(state.buffers["b"].data, (std::vector<double>{1, 2}));
  EXPECT_EQ(state.buffers["c"].data, (std::vector<double>{0}));
  state.buffers["ok"].data[0] = 1;
  evaluate(module, RegionKind::update, 1, {}, state);
  EXPECT_EQ(state.buffers["a"].data, (std::vector<double>{5, 5}));
  EXPECT_EQ(state.buffers["b"].data, (std::vector<double>{2, 3}));
  EXPECT_EQ(state.buffers["c"].data, (std::vector<double>{3}));
}

// Values depend on seed, stream and element only: not on the shape, nor on what else is filled.
TEST(Buffers, RandomValuesAreAFunctionOfSeedStreamAndElement) {
  const Module module = parse_module(
      "param @a : f32[4]\nparam @b : f32[2,3]\nparam @c : f32[4]\nstate @seed.low : i32[]\nstate @seed.high "
      ": i32[]\n"
      "init { random.uniform @a, @seed.low, @seed.high {bound = 2.0, stream = 5}\n"
      "random.uniform @b, @seed.low, @seed.high {stream = 5}\nrandom.uniform @c, @seed.low, @seed.high "
      "{stream = 6} }");
  State state, other;
  other.buffers["seed.high"] = {{}, {1}};
  evaluate(module, RegionKind::init, 1, {}, state);
  evaluate(module, RegionKind::init, 1, {}, other);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(state.buffers["a"].data[i], 2 * state.buffers["b"].data[i]);
    EXPECT_NE(state.buffers["c"].data[i], state.buffers["b"].data[i]);
    EXPECT_NE(other.buffers["b"].data[i], state.buffers["b"].data[i]);
  }
}

}  // namespace
}  // namespace gacc::ir
