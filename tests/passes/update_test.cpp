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
  EXPECT_EQ(run["window.sum"][0], 10) << "what the sums were";
  EXPECT_EQ(run["window.count"][0], 4);
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

// Where windows are skipped: it is none of them, and says nothing about the loss scale, whatever its gradients are.
TEST(Update, AWindowThatCountsNothingIsNotSkipped) {
  Windows run("set optimizer.type = \"sgd\"\nset precision.loss_scale = \"dynamic\"\n");
  run.window({1, std::nan(""), 3, 4}, 4);
  EXPECT_EQ(run["skips"][0], 1);
  const double scale = run["loss.scale"][0];
  for (const double bad : {0.0, std::nan("")}) {
    run.window({0, bad, 0, 0}, 0, 0);
    EXPECT_EQ(run["skips"][0], 1) << bad;
    EXPECT_EQ(run["loss.scale"][0], scale) << bad;
  }
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

TEST(Update, LionFollowsItsFormula) {
  Windows run(
      "set optimizer.type = \"lion\"\nset optimizer.beta1 = 0.8\nset optimizer.beta2 = 0.95\nset "
      "optimizer.weight_decay = 0.1\n");
  std::vector<double> w = run["w"], m(4);
  for (int t = 1; t <= 3; ++t) {
    std::vector<double> gradient = kGradient;
    gradient[t] = -gradient[t];
    run.window(gradient, 4);
    for (size_t i = 0; i < 4; ++i) {
      const double g = gradient[i] / 4, mixed = 0.8 * m[i] + 0.2 * g;
      w[i] = w[i] * (1 - 0.1 * 0.1) - 0.1 * (mixed > 0 ? 1 : mixed < 0 ? -1 : 0);
      m[i] = 0.95 * m[i] + 0.05 * g;
      EXPECT_NEAR(run["w"][i], w[i], 1e-12) << "window " << t;
      EXPECT_NEAR(run["w.m"][i], m[i], 1e-12);
    }
  }
}

// By hand, from the contract: r = m' / (sqrt(v') + eps) + decay w, step lr |w| / |r|, 1 where a norm is 0.
TEST(Update, LambFollowsItsFormula) {
  for (const bool zero : {false, true}) {
    Windows run(
        "set optimizer.type = \"lamb\"\nset optimizer.weight_decay = 0.1\nset optimizer.eps = 0.001\n");
    if (zero) run["w"] = {0, 0, 0, 0};
    std::vector<double> w = run["w"], m(4), v(4);
    for (int t = 1; t <= 3; ++t) {
      run.window(kGradient, 2 * t);
      double w2 = 0, r2 = 0, r[4];
      for (size_t i = 0; i < 4; ++i) {
        const double g = kGradient[i] / (2 * t);
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.999 * v[i] + 0.001 * g * g;
        r[i] = (m[i] / (1 - std::pow(0.9, t))) / (std::sqrt(v[i] / (1 - std::pow(0.999, t))) + 0.001) +
               0.1 * w[i];
        w2 += w[i] * w[i];
        r2 += r[i] * r[i];
      }
      const double ratio = w2 == 0 || r2 == 0 ? 1 : std::sqrt(w2 / r2);
      for (size_t i = 0; i < 4; ++i) {
        w[i] -= 0.1 * ratio * r[i];
        EXPECT_NEAR(run["w"][i], w[i], 1e-12) << "window " << t;
      }
    }
  }
}

// Windows of 3, 1 and 2 launches: v and its correction go by launches, m and its own by updates.
TEST(Update, MicroSecondMomentGoesByLaunches) {
  Windows run(
      "set optimizer.type = \"adam\"\nset optimizer.second_moment = \"micro\"\nset optimizer.beta2 = 0.95\n");
  std::vector<double> w = run["w"], m(4), v(4);
  int launches = 0, t = 0;
  for (const int k : {3, 1, 2}) {
    launches += k, ++t;
    const std::vector<double> squares = {0.5, 2, 0.25, 1.0 / k};
    run["w.grad2"] = squares;
    run["window.launches"] = {static_cast<double>(k)};
    run.window(kGradient, 4);
    for (size_t i = 0; i < 4; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * kGradient[i] / 4;
      v[i] = std::pow(0.95, k) * v[i] + 0.05 * squares[i];
      w[i] -=
          0.1 * (m[i] / (1 - std::pow(0.9, t))) / (std::sqrt(v[i] / (1 - std::pow(0.95, launches))) + 1e-8);
      EXPECT_NEAR(run["w"][i], w[i], 1e-12) << "window " << t;
      EXPECT_NEAR(run["w.v"][i], v[i], 1e-12);
    }
    EXPECT_EQ(run["w.grad2"], std::vector<double>(4, 0.0));
    EXPECT_EQ(run["window.launches"][0], 0);
  }
}

// The squares that `step` adds: of each launch's own mean gradient.
TEST(Update, MicroSquaresAreOfEachLaunch) {
  Module module = compiled(
      one_parameter("set optimizer.type = \"adam\"\nset optimizer.second_moment = \"micro\"\n"), "all");
  State state = random_state(module, 5);
  std::vector<double> squares(4), sums(4);
  int launches = 0;
  for (const int64_t batch : {4, 1}) {
    const Tensors inputs = random_inputs(module, RegionKind::step, batch, 3);
    evaluate(module, RegionKind::step, batch, inputs, state);
    ++launches;
    for (size_t column = 0; column < 2;
         ++column) {  // the loss is the sum of x w^T: d w[o, c] = sum of x[:, c]
      double sum = 0;
      for (size_t row = 0; row < static_cast<size_t>(batch); ++row)
        sum += inputs.at("x").data[row * 2 + column];
      for (size_t o = 0; o < 2; ++o) {
        sums[o * 2 + column] += sum;
        squares[o * 2 + column] +=
            std::pow(sum / (2.0 * static_cast<double>(batch)), 2);  // two elements a sample
      }
    }
  }
  EXPECT_EQ(state.buffers["window.launches"].data[0], launches);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(state.buffers["w.grad"].data[i], sums[i], 1e-12);
    EXPECT_NEAR(state.buffers["w.grad2"].data[i], squares[i], 1e-12);
  }
}

// Pain 13: not the scaled gradient, and not micro-batch by micro-batch.
TEST(Update, Pain13ClippingSeesTheMeanGradientOfTheWindow) {
  Windows run("set optimizer.type = \"sgd\"\nset train.clip_norm = 0.5\n");
  for (const double count : {4.0, 100.0}) {
    const std::vector<double> w = run["w"];
    run.window(kGradient, count);
    const double norm = std::sqrt(30.0) / count, factor = norm > 0.5 ? 0.5 / (norm + 1e-6) : 1;
    EXPECT_DOUBLE_EQ(run["window.norm"][0], norm) << "the log has the norm before clipping";
    for (size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(run["w"][i], w[i] - 0.1 * factor * kGradient[i] / count, 1e-12);
  }
}

// Pains 12 and 28: the schedule reads the good updates, whatever was launched or skipped in between.
TEST(Update, Pain12ASkippedUpdateDoesNotAdvanceTheSchedule) {
  Windows run(
      "set optimizer.type = \"sgd\"\nset schedule.type = \"exponential\"\nset schedule.gamma = 0.5\nset "
      "precision.on_nonfinite = \"skip\"\nset optimizer.lr_scaling = \"linear\"\nset "
      "optimizer.reference_batch = 2\n");
  int skips = 0;
  double rate = 0.2;
  for (const bool good : {true, false, false, true, true}) {
    run.window(good ? kGradient : std::vector<double>{1, std::nan(""), 3, 4}, 4);
    EXPECT_EQ(run["window.lr"][0], rate);
    skips = good ? 0 : skips + 1;
    EXPECT_EQ(run["skips"][0], skips);
    if (good) rate /= 2;
  }
  EXPECT_EQ(run["updates"][0], 3);
}

TEST(Update, AnUnknownOptimizerIsReported) {
  Module module = parse(one_parameter("set optimizer.type = \"adagrad\"\n"));
  Diag diag;
  EXPECT_FALSE(passes::run_pipeline(module, {}, diag));
  EXPECT_NE(diag.render().find("optimizer.type is \"adagrad\""), std::string::npos) << diag.render();
}

}  // namespace
}  // namespace gacc::test
