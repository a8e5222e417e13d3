// The update region against the formulas it claims, and its gates.
#include <cmath>

#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;

std::string one_parameter(const std::string& settings) {
  return "module @one phase(model) {\n" + settings +
         "set train.micro_batch = 4\nparam @w : f32[2,2]\nparam @b : f32[2]\nstate @lr : f32[]\nstep(%x : "
         "f32[B,2]) {\n%mm = matmul %x, @w : f32[B,2] {tb}\n"
         "%y = add %mm, @b : f32[B,2]\n%loss = total_sum %y : f32[]\n%ones = ones_like %y : i32[B,2]\n%count "
         "= total_sum %ones : i32[]\nyield loss %loss, count %count\n}\n}\n";
}

struct Windows {
  explicit Windows(const std::string& settings)
      : module(compiled(one_parameter(settings), "all")), state(random_state(module, 5)) {
    evaluate(module, RegionKind::init, 1, {}, state);
  }
  std::vector<double>& operator[](const std::string& name) { return state.buffers[name].data; }
  // A window with these gradient sums of @w and this count.
  void window(std::vector<double> gradient, double count, double loss = 1) {
    (*this)["w.grad"] = std::move(gradient);
    (*this)["loss.count"] = {count};
    (*this)["loss.sum"] = {loss};
    evaluate(module, RegionKind::update, 1, {}, state);
  }
  Module module;
  State state;
};

const std::vector<double> kGradient = {1, -2, 3, 4};

TEST(Update, AdamFollowsItsFormula) {
  for (const bool decoupled : {false, true}) {
    Windows run(
        fmt::format("set optimizer.type = \"{}\"\nset optimizer.beta1 = 0.8\nset optimizer.beta2 = 0.95\nset "
                    "optimizer.eps = 0.001\nset optimizer.weight_decay = 0.1\n",
                    decoupled ? "adamw" : "adam"));
    std::vector<double> w = run["w"], m(4), v(4);
    for (int t = 1; t <= 3; ++t) {
      run.window(kGradient, 2 * t);
      for (size_t i = 0; i < 4; ++i) {
        double g = kGradient[i] / (2 * t);
        if (decoupled)
          w[i] -= 0.1 * 0.1 * w[i];
        else
          g += 0.1 * w[i];
        m[i] = 0.8 * m[i] + 0.2 * g;
        v[i] = 0.95 * v[i] + 0.05 * g * g;
        w[i] -= 0.1 * (m[i] / (1 - std::pow(0.8, t))) / (std::sqrt(v[i] / (1 - std::pow(0.95, t))) + 0.001);
        EXPECT_NEAR(run["w"][i], w[i], 1e-12) << "window " << t;
        EXPECT_NEAR(run["w.m"][i], m[i], 1e-12);
        EXPECT_NEAR(run["w.v"][i], v[i], 1e-12);
      }
      EXPECT_EQ(run["updates"][0], t);
    }
  }
}

TEST(Update, MomentumStartsWithTheGradient) {
  for (const bool nesterov : {false, true}) {
    Windows run(
        fmt::format("set optimizer.type = \"sgd\"\nset optimizer.momentum = 0.9\nset optimizer.dampening = "
                    "{}\nset optimizer.nesterov = {}\n",
                    nesterov ? "0.0" : "0.5", nesterov));
    std::vector<double> w = run["w"], m(4);
    for (int t = 1; t <= 3; ++t) {
      run.window(kGradient, 4);
      for (size_t i = 0; i < 4; ++i) {
        const double g = kGradient[i] / 4;
        m[i] = t == 1 ? g : 0.9 * m[i] + (nesterov ? 1 : 0.5) * g;
        w[i] -= 0.1 * (nesterov ? g + 0.9 * m[i] : m[i]);
        EXPECT_NEAR(run["w"][i], w[i], 1e-12) << "window " << t;
      }
    }
  }
}

TEST(Update, PlainSgdHasNoMoments) {
  Windows run("set optimizer.type = \"sgd\"\nset optimizer.weight_decay = 0.5\n");
  const std::vector<double> w = run["w"];
  run.window(kGradient, 4);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(run["w"][i], w[i] - 0.1 * (kGradient[i] / 4 + 0.5 * w[i]), 1e-12);
  EXPECT_FALSE(run.module.find_buffer("w.m"));
}

TEST(Update, SaysWhatTheWindowWas) {
  Windows run("set optimizer.type = \"sgd\"\n");
  run.window(kGradient, 4, 10);
  EXPECT_EQ(run["window.ok"][0], 1);
  EXPECT_DOUBLE_EQ(run["window.loss"][0], 2.5);
  EXPECT_DOUBLE_EQ(run["window.norm"][0], std::sqrt(30.0) / 4);
  EXPECT_EQ(run["window.lr"][0], 0.1);
  EXPECT_EQ(run["w.grad"], std::vector<double>(4, 0.0));
  EXPECT_EQ(run["loss.sum"][0], 0);
  EXPECT_EQ(run["loss.count"][0], 0);
}

TEST(Update, ANonFiniteGradientChangesNothing) {
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
    Windows run("set optimizer.type = \"adam\"\n");
    run.window(kGradient, 4);
    const State before = run.state;
    run.window({1, bad, 3, 4}, 4);
    EXPECT_EQ(run["window.ok"][0], 0);
    for (const char* name : {"w", "b", "w.m", "w.v", "adam.c1", "adam.c2", "updates"})
      EXPECT_EQ(run.state.buffers[name].data, before.buffers.at(name).data) << name;
    EXPECT_EQ(run["w.grad"][2], 3) << "the accumulators stay, for the report to name one";
    EXPECT_EQ(run["loss.count"][0], 4);
  }
}

TEST(Update, AWindowThatCountsNothingMakesNoUpdate) {
  Windows run("set optimizer.type = \"adam\"\n");
  const State before = run.state;
  run.window({0, 0, 0, 0}, 0, 0);
  EXPECT_EQ(run["window.ok"][0], 1) << "it is no error";
  EXPECT_TRUE(std::isnan(run["window.loss"][0]));
  for (const char* name : {"w", "w.m", "w.v", "adam.c1", "updates"})
    EXPECT_EQ(run.state.buffers[name].data, before.buffers.at(name).data) << name;
}

TEST(Update, InitClearsAllButWhatTheRuntimeWrites) {
  const Module module = compiled(one_parameter("set optimizer.type = \"adam\"\n"), "all");
  State state = random_state(module, 1);
  for (auto& [name, tensor] : state.buffers) tensor.data.assign(tensor.data.size(), 7);
  evaluate(module, RegionKind::init, 1, {}, state);
  for (const Buffer& buffer : module.buffers) {
    const bool kept = buffer.kind == BufferKind::param || buffer.name == "lr";
    EXPECT_EQ(state.buffers[buffer.name].data[0], kept ? 7 : 0) << buffer.name;
  }
}

TEST(Update, AnUnknownOptimizerIsReported) {
  Module module = parse(one_parameter("set optimizer.type = \"lion\"\n"));
  Diag diag;
  EXPECT_FALSE(passes::run_pipeline(module, {}, diag));
  EXPECT_NE(diag.render().find("optimizer.type = \"lion\" is not supported yet"), std::string::npos)
      << diag.render();
}

}  // namespace
}  // namespace gacc::test
