// Half precision and loss scaling in the double reference, which rounds where a value is half. Each test is
// named after what it claims; Pain numbers are those of the notes on what users of other systems suffer.
#include <algorithm>
#include <cmath>

#include "passes/plan_memory.h"
#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;

std::string with(std::string text, const std::string& settings) {
  return text.insert(text.find("{\n") + 2, settings);
}

const std::string kDynamic =
    "set precision.compute = \"f16\"\nset precision.loss_scale = \"dynamic\"\nset precision.scale_initial = "
    "1024.0\n";

// Every model in f16 with a dynamic scale, and in bf16.
std::vector<std::string> half_models() {
  std::vector<std::string> all;
  for (std::string text : models()) {
    // Without decay: "micro" divides what decays alone by epsilon, beyond what half holds.
    const std::string decay = "set optimizer.weight_decay = 0.01\n";
    if (const size_t at = text.find(decay); at != std::string::npos) text.erase(at, decay.size());
    all.push_back(with(text, kDynamic));
    all.push_back(with(text, "set precision.compute = \"bf16\"\n"));
  }
  return all;
}

struct Trial {
  explicit Trial(const std::string& text, uint32_t seed = 7)
      : module(compiled(text, "all")), state(random_state(module, seed)) {
    const auto scale = module.find_buffer("loss.scale");
    const auto& initial = module.settings.precision.scale_initial;
    if (scale) (*this)["loss.scale"] = {initial.given() ? *initial : 1};
    for (const Buffer& buffer : module.buffers) {  // as Session::write_parameter does
      if (!is_narrow(buffer.type.dtype)) continue;
      if (buffer.of) (*this)[buffer.name] = (*this)[module[*buffer.of].name];
      for (double& value : (*this)[buffer.name]) value = rounded(buffer.type.dtype, value);
    }
  }
  std::vector<double>& operator[](const std::string& name) { return state.buffers[name].data; }
  Tensors step(int64_t batch, uint32_t seed, double factor = 1) {
    Tensors inputs = random_inputs(module, RegionKind::step, batch, seed);
    for (double& x : inputs.at("x").data) x *= factor;
    for (const ValueId id : module.step.inputs)  // as Session::write_inputs does
      for (double& x : inputs.at(module.step[id].name).data)
        if (is_narrow(module.step[id].type.dtype)) x = rounded(module.step[id].type.dtype, x);
    return evaluate(module, RegionKind::step, batch, inputs, state);
  }
  void update() { evaluate(module, RegionKind::update, 1, {}, state); }
  Module module;
  State state;
};

TEST(Half, EveryPassKeepsTheMeaningOfHalfCasts) {
  for (const std::string& text : half_models()) {
    std::map<std::string, State> after;
    for (const char* last : {"half-casts", "dce", "all"}) {
      Trial run(text);
      run.module = compiled(text, last);
      run.step(3, 11);
      run.step(8, 12);
      run.update();
      run.step(2, 13);
      after[last] = run.state;
    }
    for (const auto& [name, tensor] : after["half-casts"].buffers) {
      // Sums reordered in double may fall on the other side of a tie: one half rounding.
      EXPECT_LT(largest_difference(tensor, after["dce"].buffers[name]), 2e-3) << name;
      EXPECT_LT(largest_difference(tensor, after["all"].buffers[name]), 2e-3) << name;
    }
  }
}

// One window of four micro-batches, the last a ragged one, against the same in unrounded double.
TEST(Half, GradientsOfAWindowAreWithin3e3OfF32) {
  for (const std::string& text : models()) {
    Trial half(with(text, kDynamic)), full(text);
    const double unscale = static_cast<double>(*half.module.results.seed_elements) / 1024;
    int64_t batches[] = {8, 8, 8, 5};
    for (uint32_t launch = 0; launch < 4; ++launch) {
      half.step(batches[launch], 20 + launch);
      full.step(batches[launch], 20 + launch);
    }
    int compared = 0;
    for (const Buffer& buffer : full.module.buffers) {
      if (buffer.kind != BufferKind::accum || !buffer.name.ends_with(".grad")) continue;
      double difference = 0, norm = 0;
      for (size_t i = 0; i < full[buffer.name].size(); ++i) {
        difference += std::pow(half[buffer.name][i] * unscale - full[buffer.name][i], 2);
        norm += std::pow(full[buffer.name][i], 2);
      }
      EXPECT_LT(std::sqrt(difference / norm), 3e-3) << half.module.name << " " << buffer.name;
      ++compared;
    }
    EXPECT_GT(compared, 0);
  }
}

// K is in no half gradient: whatever it is, the launches compute the same, down to the smallest.
TEST(Half, KLaunchesDoNotShrinkHalfGradients) {
  Trial one(with(mlp(), kDynamic)), many(with(mlp(), kDynamic + "set train.accumulate = 64\n"));
  const Tensors a = one.step(8, 3), b = many.step(8, 3);
  int halves = 0;
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(tensor.data, b.at(name).data) << name;
    halves += is_narrow(one.module.step[*one.module.step.find(name)].type.dtype);
  }
  EXPECT_GT(halves, 4);
}

TEST(Half, BetweenLayersEverythingIsHalf) {
  const Module module = compiled(with(mlp(), kDynamic), "all");
  for (const char* name : {"fc1", "d.fc1.sum", "fc2"}) {
    const auto value = module.step.find(name);
    if (value) {
      EXPECT_EQ(module.step[*value].type.dtype, DType::f16) << name;
    }
  }
  for (const Buffer& buffer : module.buffers) {
    if (is_float(buffer.type.dtype)) {
      EXPECT_EQ(is_narrow(buffer.type.dtype), buffer.name.ends_with(".h")) << buffer.name;
    }
  }
}

TEST(Half, WeightCopiesAndActivationsTakeHalfTheBytes) {
  const auto report = [](const std::string& text) { return passes::memory_report(compiled(text, "all")); };
  const passes::MemoryReport full = report(mlp()), half = report(with(mlp(), kDynamic));
  EXPECT_EQ(half.weights, full.weights);
  EXPECT_EQ(2 * half.half_weights, full.weights);  // every parameter of this model is read as half
  EXPECT_EQ(full.half_weights, 0);
}

// Pain 12, 15: a window with an overflow leaves everything as it was, but for the scale; the next one works.
TEST(Half, Pain15AnOverflowSkipsItsWindowAndHalvesTheScale) {
  for (const std::string& text : models()) {
    Trial run(with(text, kDynamic), 9), same = run;
    run.step(8, 1);
    run.step(8, 2, text == residual() ? INFINITY : 1e6);  // beyond f16; a norm bears that
    run.step(8, 3);
    run.update();
    EXPECT_EQ(run["window.ok"], (std::vector<double>{0}));
    EXPECT_EQ(run["window.scale"], (std::vector<double>{1024}));
    EXPECT_EQ(run["loss.scale"], (std::vector<double>{512}));
    EXPECT_EQ(run["skips"], (std::vector<double>{1}));
    for (const Buffer& buffer : run.module.buffers) {
      const bool moves =
          buffer.name.starts_with("window.") || buffer.name == "loss.scale" || buffer.name == "skips";
      if (!moves) {
        EXPECT_EQ(run[buffer.name], same[buffer.name]) << buffer.name;  // accumulators: zero again
      }
    }
    run.step(8, 4);
    run.update();
    EXPECT_EQ(run["window.ok"], (std::vector<double>{1}));
    EXPECT_EQ(run["skips"], (std::vector<double>{0}));
    EXPECT_EQ(run["updates"], (std::vector<double>{1}));
    EXPECT_EQ(run["scale.good"], (std::vector<double>{1}));
  }
}

// Pain 17: the scale grows by good updates in a row, counted by updates, and never over 2^24.
TEST(Half, Pain17TheScaleGrowsByGoodUpdatesUpToItsCeiling) {
  Trial run(with(mlp(),
                 "set precision.loss_scale = \"dynamic\"\nset precision.scale_interval = 2\n"
                 "set precision.scale_growth = 4.0\nset precision.scale_backoff = 0.25\n"));
  run["loss.scale"] = {0x1p22};
  const auto window = [&](bool good) {
    run.step(8, 1, good ? 1 : INFINITY);
    run.step(8, 2);
    run.update();
    return run["loss.scale"][0];
  };
  EXPECT_EQ(window(true), 0x1p22);
  EXPECT_EQ(window(true), 0x1p24);
  EXPECT_EQ(window(true), 0x1p24);
  EXPECT_EQ(window(true), 0x1p24);  // not 2^26
  EXPECT_EQ(window(true), 0x1p24);
  EXPECT_EQ(window(false), 0x1p22);
  EXPECT_EQ(window(true), 0x1p22);  // the row begins anew
  EXPECT_EQ(window(true), 0x1p24);
}

// In f32 the scale goes in and out again exactly; so does what the second moment "micro" squares.
TEST(Half, APowerOfTwoScaleChangesNoBitInF32) {
  for (const std::string& text : models()) {
    Trial plain(text);
    for (const char* scale : {"64.0", "0.0078125", "16777216.0"}) {
      Trial scaled(with(
          text, fmt::format("set precision.loss_scale = {0}\nset precision.scale_initial = {0}\n", scale)));
      Trial again = plain;
      for (Trial* run : {&again, &scaled}) {
        for (uint32_t window = 0; window < 2; ++window) {
          run->step(8, 30 + window);
          run->step(3, 40 + window);
          run->update();
        }
      }
      for (const auto& [name, tensor] : again.state.buffers)
        EXPECT_EQ(tensor.data, scaled[name]) << plain.module.name << " " << scale << " " << name;
    }
  }
}

// Pain 13: the norm, and so the clipping, is of the unscaled mean gradient.
TEST(Half, Pain13TheNormIsUnscaled) {
  Trial half(with(residual(), kDynamic)), full(residual());
  for (Trial* run : {&half, &full}) {
    run->step(8, 5);
    run->step(4, 6);
    run->update();
  }
  EXPECT_NEAR(half["window.norm"][0] / full["window.norm"][0], 1, 3e-3);
  for (size_t i = 0; i < full["fc.weight"].size(); ++i)
    EXPECT_NEAR(half["fc.weight"][i], full["fc.weight"][i], 1e-4);
}

// A gradient of about 1e-9 of a mean loss: in f16 it is zero, scaled it is there.
TEST(Half, ScalingKeepsSmallGradients) {
  const std::string tiny =
      "module @tiny phase(model) {\nset train.micro_batch = 4\nset optimizer.type = \"sgd\"\nparam @w : "
      "f32[1,2]\n"
      "param @v : f32[2,2]\nstate @lr : f32[]\n"
      "step(%x : f32[B,2], %y : f32[B,1]) {\n%h = matmul %x, @v : f32[B,2]\n%mm = matmul %h, @w : f32[B,1] "
      "{tb}\n"
      "%small = mul %mm, 1e-05 : f32[B,1]\n"
      "%error = squared_error %small, %y : f32[B,1]\n%loss = total_sum %error : f32[]\n"
      "%ones = ones_like %error : i32[B,1]\n%count = total_sum %ones : i32[]\nyield loss %loss, count "
      "%count\n}\n}\n";
  Trial none(with(tiny, "set precision.compute = \"f16\"\n")), scaled(with(tiny, kDynamic));
  for (Trial* run : {&none, &scaled}) {
    Tensors inputs = random_inputs(run->module, RegionKind::step, 4, 8);
    for (double& y : inputs.at("y").data) y *= 1e-3;
    evaluate(run->module, RegionKind::step, 4, inputs, run->state);
  }
  for (const double g : none["v.grad"]) EXPECT_EQ(g, 0);
  double largest = 0;
  for (const double g : scaled["v.grad"]) largest = std::max(largest, std::fabs(g));
  EXPECT_GT(largest, 0);
}

}  // namespace
}  // namespace gacc::test
