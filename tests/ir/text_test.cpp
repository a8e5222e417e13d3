// The textual IR: printing and parsing are exact inverses, and the parser survives anything.
#include <gtest/gtest.h>

#include <random>

#include "ir/builder.h"
#include "ir/text/text.h"
#include "ir/verify/verify.h"

namespace gacc::ir {
namespace {

constexpr std::string_view kText = R"(module @m source("m.toml") phase(model) {
  set inputs.x.normalize.mean = [0.5]
  set "loss.odd key" = "a \"quoted\" text\n"
  set optimizer.lr = 0.001
  set train.micro_batch = 8
  set train.shuffle = true
  param @fc.weight : f32[3,2]
  param @"fc 2.weight" : f32[2,3] frozen

  step(%x : f32[B,2]) {
    %fc = matmul %x, @fc.weight : f32[B,3] {tb}
    %"fc 2" = matmul %fc, @"fc 2.weight" : f32[B,2] {tb}
    %half = mul %"fc 2", 0.5 : f32[B,2]
    %tiny = mul %half, -1e-30 : f32[B,2]
    %low = mul %tiny, -inf : f32[B,2]
    %huge = mul %low, inf : f32[B,2]
    %loss = total_sum %huge : f32[]
    %one = equal %huge, %huge : i32[B,2]
    %n = total_sum %one : i32[]
    yield loss %loss, count %n
  }
}
)";

std::optional<Module> parse_text(std::string_view text, std::string* errors = nullptr) {
  Diag diag("t.gir", std::string(text));
  std::optional<Module> module = parse(text, diag);
  if (module && !verify(*module, diag)) module.reset();
  if (errors != nullptr) *errors = diag.render();
  return module;
}

TEST(Text, PrintsWhatItParsed) {
  std::string errors;
  const auto module = parse_text(kText, &errors);
  ASSERT_TRUE(module) << errors;
  EXPECT_EQ(print(*module), kText);
}

TEST(Text, AYieldOfAnUnknownRoleIsRefused) {
  std::string errors;
  EXPECT_FALSE(
      parse_text("module @m phase(model) {\n  step(%x : f32[B,2]) {\n    yield cuont %x\n  }\n}\n", &errors));
  EXPECT_NE(errors.find("t.gir:3:11: error: there is no yield role `cuont`"), std::string::npos) << errors;
}

// `//` begins a comment: a name that has it is printed in quotes.
TEST(Text, NamesLikeCommentsRoundTrip) {
  for (const char* name : {"//", "a//b", "a/b", "/", "a/"}) {
    Module module{.name = name};
    module.step.inputs = {module.step.add_value(name, {DType::f32, {kBatch, 4}})};
    Diag diag;
    const std::optional<Module> again = parse(print(module), diag);
    ASSERT_TRUE(again.has_value()) << diag.render();
    EXPECT_EQ(again->name, name);
    EXPECT_EQ(print(*again), print(module));
  }
}

TEST(Text, SettingsAreKnownAndOfTheirType) {
  const auto said = [](std::string_view line) {
    std::string errors;
    parse_text(fmt::format("module @m phase(model) {{\n  set {}\n}}\n", line), &errors);
    return errors;
  };
  for (const char* good :
       {"train.epochs = 3", "train.clip_norm = 1", "precision.compute = \"bf16\"",
        "precision.loss_scale = \"dynamic\"", "precision.loss_scale = 8.0", "model.metrics = [\"a\", \"b\"]",
        "model.metrics = []", "inputs.x.normalize = \"data\"", "inputs.x.normalize.std = [1, 2]",
        "inputs.x.columns.0.values = [\"a\"]", "optimizer.groups.1.match = [\"*\"]", "schedule.total = 9",
        "\"loss.of a type\" = [0.5]"})
    EXPECT_EQ(said(good), "") << good;
  for (const auto& [bad, message] :
       {std::pair("train.epoch = 3", "there is no setting `train.epoch`; did you mean \"train.epochs\"?"),
        std::pair("train.epochs = \"3\"", "setting `train.epochs` must be an integer"),
        std::pair("train.shuffle = 1", "setting `train.shuffle` must be true or false"),
        std::pair("precision.compute = \"f8\"", "setting `precision.compute` must be an element type"),
        std::pair("model.metrics = \"accuracy\"", "setting `model.metrics` must be a list of texts"),
        std::pair("load.owner = [\"w\"]", "there is no setting `load.owner`; did you mean \"load.owners\"?"),
        std::pair("load.tied = 3", "setting `load.tied` must be a list of texts"),
        std::pair("inputs.x.scale = 1", "an input has no setting `scale`"),
        std::pair("optimizer.groups.x.lr_factor = 1.0", "does not name a group"),
        std::pair("optimizer.groups.100000.lr_factor = 1.0", "does not name a group"),
        std::pair("optimizer.groups.1.lr = 1.0", "a group has no setting `.lr`")})
    EXPECT_NE(said(bad).find(message), std::string::npos) << bad << ": " << said(bad);
}

TEST(Text, LocationsRoundTrip) {
  std::string errors;
  auto module = parse_text(kText, &errors);
  ASSERT_TRUE(module) << errors;
  module->step.ops[0].at = {.line = 9, .column = 1, .length = 1};
  const std::string text = print(*module, {.locations = true});
  EXPECT_NE(text.find("loc(9:1)"), std::string::npos);
  const auto again = parse_text(text, &errors);
  ASSERT_TRUE(again) << errors;
  EXPECT_EQ(print(*again, {.locations = true}), text);
}

TEST(Text, EveryCutAndEveryFlippedByteIsReadOrRefused) {
  for (size_t n = 0; n < kText.size(); ++n) parse_text(kText.substr(0, n));
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    std::string text(kText);
    text[random() % text.size()] = static_cast<char>(random() % 256);
    std::string errors;
    if (const auto module = parse_text(text, &errors)) {
      const std::string printed = print(*module);
      const auto again = parse_text(printed, &errors);
      ASSERT_TRUE(again) << printed << errors;
      EXPECT_EQ(print(*again), printed);
    } else {
      EXPECT_FALSE(errors.empty()) << text;
    }
  }
}

TEST(Builder, NamesStayUniqueAndDefaultsAreLeftOut) {
  Module module{.name = "m"};
  Diag diag;
  const ValueId x = module.step.add_value("x", {DType::f32, {kBatch, 4}});
  module.step.inputs = {x};
  Builder b(module, module.step, diag);
  const ValueId y = b.make("relu", "x", {x});
  EXPECT_EQ(b.name(y), "x.2");
  EXPECT_EQ(b.name(b.make("relu", "x", {y})), "x.3");
  const ValueId z = b.make("leaky_relu", "z", {y}, {{"slope", 0.01}});
  EXPECT_TRUE(module.step.ops.back().attrs.empty());
  EXPECT_EQ(b.type(z), (Type{DType::f32, {kBatch, 4}}));
  EXPECT_FALSE(diag.failed());
}

TEST(Builder, ReportsWhatDoesNotFitAndGoesOn) {
  Module module{.name = "m"};
  Diag diag;
  const ValueId x = module.step.add_value("x", {DType::f32, {kBatch, 4}});
  const ValueId w = module.step.add_value("w", {DType::f32, {5, 3}});
  module.step.inputs = {x, w};
  Builder b(module, module.step, diag);
  b.make("matmul", "y", {x, w});
  EXPECT_EQ(diag.reports().size(), 1U);
  EXPECT_EQ(diag.reports()[0].kind, Kind::shape_mismatch);
  b.make_n("relu", {"y", "z"}, {x});  // an op has as many results as it has
  ASSERT_EQ(diag.reports().size(), 2U);
  EXPECT_EQ(diag.reports()[1].kind, Kind::invalid_ir);
  EXPECT_NE(diag.reports()[1].text.find("has 1 results, 2 names were given"), std::string::npos);
}

TEST(Module, CompactKeepsMeaning) {
  std::string errors;
  auto module = parse_text(kText, &errors);
  ASSERT_TRUE(module) << errors;
  module->step.values.insert(module->step.values.begin(), Value{"dead", {}});
  for (Op& op : module->step.ops) {
    for (Operand& operand : op.operands) {
      if (auto* id = std::get_if<ValueId>(&operand)) ++id->index;
    }
    for (ValueId& id : op.results) ++id.index;
  }
  for (ValueId& id : module->step.inputs) ++id.index;
  for (Yield& yield : module->step.yields) ++std::get<ValueId>(yield.what).index;
  compact(module->step);
  EXPECT_EQ(print(*module), kText);
}

}  // namespace
}  // namespace gacc::ir
