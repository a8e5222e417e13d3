// The plan's JSON: it comes back as it was, and nothing hostile gets through or throws.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/runtime/fake_device.h"

namespace gacc {
namespace {

using nlohmann::json;

// With something in every field that may be left out.
Plan full_plan() {
  Plan plan = test::tiny_plan(4, 3, "carry");
  plan.lanes = plan.shard = 2;
  plan.seed = -7;
  plan.lr = 0.1;
  plan.exact = false;
  plan.because = {"batch_norm bn1 takes its statistics per micro-batch"};
  plan.passes = {"autodiff", "fuse"};
  plan.plateau = {"accuracy", 3, 0.5};
  plan.seed_rules = {12, true};
  plan.predict = {
      .batch = 1, .offset = 32, .shape = {6, 4}, .rows = 2, .rows_offset = 64, .positions = "causal"};
  plan.load = {.parameters = {{"w", {"a", "b"}, true, {1, 1}}},
               .prefix = "model.",
               .ignore = {"*.bias"},
               .part = true};
  plan.inputs[0].shape = {2};
  plan.inputs[0].mean = {0.5, 1};
  plan.inputs[0].std = {0.25};
  plan.inputs[0].stored = "bf16";
  plan.inputs[0].predict_offset = plan.inputs[0].step_offset;
  plan.inputs[0].normalize_data = true;
  plan.inputs[1].range = 10;
  plan.inputs[1].target = true;
  PlanBuffer slice{"w.grad.slice", "state", "f32", {1}, 512, 4};
  slice.role = BufferRole::slice;
  slice.kept = 0.5;
  slice.whole = {2};
  slice.in = slice.of = "w.grad";
  plan.buffers.push_back(slice);
  plan.buffers[0].values = {1.5, -2};
  for (const char* name : {"lora_A", "lora_B", "m"}) {
    plan.buffers.push_back({fmt::format("m.{}.weight", name), "param", "f32", {2, 2}, 1024, 16});
    plan.buffers.back().role = BufferRole::weight;
  }
  plan.adapters = {{"m", "m.m.weight", 0, 16}};
  PlanLaunch kernel;
  kernel.kernel = "k0";
  kernel.arguments = {{PlanArgument::Kind::address, 256, 0, false},
                      {PlanArgument::Kind::extent, 0, 12, true}};
  kernel.block = 256;
  kernel.grid.extent = 1000;
  kernel.per_block = 256;
  kernel.resident = kernel.cooperative = true;
  kernel.touches = {0, 256};
  PlanLaunch product;
  product.a = 256;
  product.m = {PlanArgument::Kind::extent, 0, 1, true};
  product.n.extent = 8;
  product.k.extent = 9;
  product.pitch = {product.m, product.n, product.k};
  product.transpose_b = product.accumulate = true;
  product.bias = PlanBias{128, 2};
  product.workspace = PlanWorkspace{512, 256};
  product.stream = 1;
  product.after = 0;
  product.builtin = {"gemm_add", 64, 32, 16, kernel.arguments, 2};
  plan.programs = {{"init", {}}, {"step", {kernel, product, kernel}}};
  plan.programs[1].values = {{768, 64, -1, 1}, {768, 32, 1, 3}};
  plan.programs[1].persistent = kernel;
  plan.programs[1].persistent_required = true;
  plan.programs[1].persistent_values = {{768, 64, -1, 1}};
  plan.bytes.peak = plan.arena_bytes;
  return plan;
}

TEST(Plan, json_round_trip) {
  const Plan plan = full_plan();
  Plan back;
  const Status status = from_json(json::parse(to_json(plan).dump()), back);
  ASSERT_TRUE(status) << status.text();
  EXPECT_EQ(to_json(back).dump(), to_json(plan).dump());
  EXPECT_EQ(back.seed, -7);
  EXPECT_EQ(back.lr, 0.1);
  EXPECT_EQ(back.inputs[1].ignore_index, -1);
  EXPECT_EQ(back.inputs[0].bytes(3), 12);
  EXPECT_EQ(back.inputs[1].bytes(3), 12);
  EXPECT_EQ(back.predict.parts(), 3);
  EXPECT_EQ(back.predict.outputs(), 8);
  EXPECT_EQ(back.buffers[0].values, plan.buffers[0].values);
  EXPECT_FALSE(back.find("frozen")->trainable);
  EXPECT_EQ(back.find("w.grad.slice")->role, BufferRole::slice);
  const PlanProgram& step = back.programs[1];
  EXPECT_EQ(step.values[1].last, 3);
  EXPECT_EQ(step.launches[1].m.extent, 1);
  EXPECT_EQ(step.launches[1].builtin, plan.programs[1].launches[1].builtin);
  EXPECT_EQ(step.launches[1].after, 0);
  EXPECT_EQ(step.launches[2].after, -1);
  EXPECT_EQ(back.find("nothing"), nullptr);
}

// What is as in every plan is not written.
TEST(Plan, says_nothing_of_what_is_not_there) {
  const std::string text = to_json(test::tiny_plan(4, 3, "flush")).dump();
  for (const char* key : {"lanes", "shard", "plateau", "load", "adapters", "rows", "stored", "normalize",
                          "range", "of\":\"\"", "whole", "in\":", "kept", "values"})
    EXPECT_EQ(text.find(fmt::format("\"{}", key)), std::string::npos) << key;
}

std::string reading(const json& object) {
  Plan plan;
  plan.model = "untouched";
  Status status = from_json(object, plan);
  EXPECT_EQ(plan.model, status ? object["model"].get<std::string>() : "untouched");
  return status.text();
}

// What a reader says of a plan that is good but for the value at one place.
struct Changed {
  json good;
  std::string operator()(const char* pointer, json value) const {
    json object = good;
    object[json::json_pointer(pointer)] = std::move(value);
    return reading(object);
  }
};

TEST(Plan, wrong_fields_are_named) {
  const Changed with{to_json(full_plan())};
  EXPECT_EQ(with("/micro_batch", 0), "plan: micro_batch is 0; expected an integer from 1 to 2147483647");
  EXPECT_EQ(with("/micro_batch", "4"),
            "plan: micro_batch is \"4\"; expected an integer from 1 to 2147483647");
  EXPECT_EQ(with("/micro_batch", 4.0), "plan: micro_batch is 4.0; expected an integer from 1 to 2147483647");
  EXPECT_EQ(with("/lanes", 3), "plan: lanes is no power of two");
  EXPECT_EQ(with("/lanes", 4), "plan: lanes is 4; expected an integer from 1 to 3");
  EXPECT_EQ(with("/shard", 3), "plan: shard is 3; expected an integer from 2 to 2");
  EXPECT_EQ(with("/tail", 1), "plan: tail is 1; expected a string");
  EXPECT_EQ(with("/shuffle", 1), "plan: shuffle is 1; expected true or false");
  EXPECT_EQ(with("/lr", nullptr), "plan: lr is null; expected a number");
  EXPECT_EQ(with("/metrics", "accuracy"), "plan: metrics is \"accuracy\"; expected an array");
  EXPECT_EQ(with("/bytes", 3), "plan: bytes is 3; expected an object");
  EXPECT_EQ(with("/buffers/0/offset", uint64_t{1} << 63).substr(0, 24), "plan: buffers[0].offset ");
  EXPECT_EQ(with("/buffers/0/role", "none"), "plan: buffers[0].role is \"none\"; expected a role");
  EXPECT_EQ(with("/inputs/0/mean", {0.0, 1.0, 2.0}),
            "plan: inputs[0].mean has 3 numbers, the first axis of its shape 2");
  EXPECT_EQ(with("/inputs/0/std", {0.0}), "plan: inputs[0].std has a zero");
  EXPECT_EQ(with("/inputs/0/normalize", "x"), "plan: inputs[0].normalize is \"x\"; expected \"data\"");
  EXPECT_EQ(with("/programs/1/launches/0/arguments/0", -1).substr(0, 46),
            "plan: programs[1].launches[0].arguments[0] is ");
  EXPECT_EQ(with("/programs/1/launches/1/pitch", json::array()),
            "plan: programs[1].launches[1].pitch is array; expected three extents");
  EXPECT_EQ(with("/programs/1/values/0", {0, 64, 0}),
            "plan: programs[1].values[0] is array; expected four numbers: offset, bytes, first, last");
  EXPECT_EQ(with("/programs/1/values/0/2", -2).substr(0, 32), "plan: programs[1].values[0][2] i");
  EXPECT_EQ(with("/buffers/0/name", "a\nb"), "plan: buffers[0].name is \"a\\nb\"; expected a name");
  EXPECT_EQ(with("/inputs/0/name", ""), "plan: inputs[0].name is \"\"; expected a name");
  EXPECT_EQ(with("/load/parameters/0/tensors", json::array()), "plan: load.parameters[0].tensors is empty");
  EXPECT_EQ(with("/load/parameters/0/parts", {2}), "plan: load.parameters[0] has 2 tensors and 1 parts");
  EXPECT_EQ(with("/adapters/0/begin", 1), "plan: the adapter m does not fit m.m.weight");
  EXPECT_EQ(with("/adapters/0/weight", "no"), "plan: the adapter m does not fit no");
}

TEST(Plan, every_missing_field_is_an_error) {
  const json whole = to_json(test::tiny_plan(4, 3, "flush"));  // which has no other
  for (const auto& [key, value] : whole.items()) {
    json object = whole;
    object.erase(key);
    EXPECT_EQ(reading(object), "plan: " + key + " is missing");
  }
}

// Puts every kind of nonsense at every place of the tree.
void replace_everywhere(const json& whole, const json::json_pointer& at, int64_t& tried) {
  const json here = whole[at];
  const json values[] = {nullptr,       true,           -1,    1e300, int64_t{1} << 62, ~uint64_t{0}, "", "x",
                         json::array(), json::object(), {{{}}}};
  for (const json& value : values) {
    json object = whole;
    object[at] = value;
    reading(object);  // neither throws nor crashes, whatever it says
    ++tried;
  }
  if (here.is_object())
    for (const auto& [key, value] : here.items()) replace_everywhere(whole, at / key, tried);
  if (here.is_array())
    for (size_t i = 0; i < here.size(); ++i) replace_everywhere(whole, at / i, tried);
}

TEST(Plan, nonsense_anywhere_never_throws) {
  int64_t tried = 0;
  replace_everywhere(to_json(full_plan()), json::json_pointer(), tried);
  EXPECT_GT(tried, 1000);
}

}  // namespace
}  // namespace gacc
