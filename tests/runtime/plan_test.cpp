// The plan's JSON: it comes back as it was, and nothing hostile gets through or throws.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/runtime/fake_device.h"

namespace gacc {
namespace {

using nlohmann::json;

Plan full_plan() {
  Plan plan = test::tiny_plan(4, 3, "carry");
  plan.seed = -7;
  plan.lr = 0.1;
  plan.exact = false;
  plan.because = {"batch_norm bn1 takes its statistics per micro-batch"};
  plan.passes = {"autodiff", "fuse"};
  plan.inputs[0].mean = {0.5};
  plan.inputs[0].std = {0.25};
  plan.inputs[0].stored = "bf16";
  plan.inputs[1].range = 10;
  PlanLaunch kernel;
  kernel.kernel = "k0";
  kernel.arguments = {{PlanArgument::Kind::address, 256, 0, false},
                      {PlanArgument::Kind::extent, 0, 12, true}};
  kernel.block = 256;
  kernel.grid.extent = 1000;
  kernel.per_block = 256;
  PlanLaunch product;
  product.a = 256;
  product.m = {PlanArgument::Kind::extent, 0, 1, true};
  product.n.extent = 8;
  product.k.extent = 9;
  product.transpose_b = product.accumulate = true;
  plan.programs = {{"init", {}}, {"step", {kernel, product}}};
  // The second takes the place of the first, an input.
  const int64_t at = plan.inputs[0].step_offset;
  plan.programs[1].values = {{at, 64, -1, 1}, {at, 32, 1, 1}};
  plan.bytes.peak = plan.arena_bytes;
  return plan;
}

TEST(Plan, json_round_trip) {
  Plan plan = full_plan(), back;
  Status status = from_json(json::parse(to_json(plan).dump()), back);
  ASSERT_TRUE(status) << status.text();
  EXPECT_EQ(to_json(back).dump(), to_json(plan).dump());
  EXPECT_EQ(back.seed, -7);
  EXPECT_EQ(back.lr, 0.1);
  EXPECT_EQ(back.inputs[1].ignore_index, -1);
  EXPECT_EQ(back.inputs[0].bytes(3), 6);
  EXPECT_EQ(back.inputs[1].bytes(3), 12);
  EXPECT_FALSE(back.find("frozen")->trainable);
  EXPECT_TRUE(back.programs[1].launches[0].arguments[1].times_batch);
  EXPECT_EQ(back.programs[1].launches[1].m.extent, 1);
  EXPECT_EQ(back.find("nothing"), nullptr);
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
  EXPECT_EQ(with("/tail", "flash"), "plan: tail is \"flash\"; expected flush, drop, carry");
  EXPECT_EQ(with("/shuffle", 1), "plan: shuffle is 1; expected true or false");
  EXPECT_EQ(with("/lr", nullptr), "plan: lr is null; expected a number");
  EXPECT_EQ(with("/metrics", "accuracy"), "plan: metrics is \"accuracy\"; expected an array");
  EXPECT_EQ(with("/bytes", 3), "plan: bytes. is 3; expected an object");
  EXPECT_EQ(with("/buffers/0/offset", uint64_t{1} << 63).substr(0, 24), "plan: buffers[0].offset ");
  EXPECT_EQ(with("/buffers/0/offset", 256),
            "plan: buffers[0].offset (w) and buffers[1].offset (frozen) overlap");
  EXPECT_EQ(with("/inputs/1/step_offset", full_plan().inputs[0].step_offset + 4),
            "plan: inputs[0].step_offset (x) and inputs[1].step_offset (mark) overlap");
  EXPECT_EQ(with("/inputs/0/eval_offset", 4),
            "plan: buffers[0].offset (w) and inputs[0].eval_offset (x) overlap");
  EXPECT_EQ(with("/inputs/0/mean", {0.0, 1.0}),
            "plan: inputs[0].mean has 2 numbers, the first axis of its shape 1");
  EXPECT_EQ(with("/buffers/1/values", {1.0, 2.0}), "plan: buffers[1]: 2 values for 1 element of f32");
  EXPECT_EQ(with("/buffers/1/name", "w"), "buffer w stands twice");
  EXPECT_EQ(with("/buffers/0/shape", {int64_t{1} << 40, int64_t{1} << 40}),
            "plan: buffers[0].shape is too large a shape");
  EXPECT_EQ(with("/buffers/0/shape/0", 3),
            "plan: buffers[0]: buffer w of 3 elements does not fit its 8 bytes at 0");
  EXPECT_EQ(with("/buffers/0/offset", 2), "plan: buffers[0]: the offset 2 is not a multiple of 4");
  EXPECT_EQ(with("/inputs/0/shape", {1 << 20}),
            "plan: inputs[0]: a micro-batch of input x is larger than the arena");
  EXPECT_EQ(with("/inputs/0/stored", "f8"), "plan: inputs[0].stored is \"f8\"; expected f16, bf16");
  EXPECT_EQ(with("/inputs/1/stored", "f16"), "plan: inputs[1].dtype is i32, and only f32 is stored as half");
  EXPECT_EQ(with("/inputs/0/std", {0.0}), "plan: inputs[0].std has a zero");
  EXPECT_EQ(with("/programs/1/launches/0/arguments/0", -1).substr(0, 46),
            "plan: programs[1].launches[0].arguments[0] is ");
  EXPECT_EQ(with("/buffers/0/name", "a\nb"), "plan: buffers[0].name is \"a\\nb\"; expected a name");
  EXPECT_EQ(with("/inputs/0/name", ""), "plan: inputs[0].name is \"\"; expected a name");
  EXPECT_EQ(with("/programs/1/name", "init"), "program init stands twice");
}

// One rank's half of a gradient, in its place, and of a parameter, which is whole in the gradient's place.
TEST(Plan, slices_fit) {
  Plan plan = full_plan();
  plan.accumulate = plan.lanes = plan.shard = 2;
  const size_t slice = plan.buffers.size(), master = slice + 1;
  const PlanBuffer gradient = *plan.find("w.grad");
  plan.buffers[0].offset = gradient.offset;
  plan.buffers[0].in = "w.grad";
  for (const auto& [of, role] :
       {std::pair("w.grad", BufferRole::slice), std::pair("w", BufferRole::master)}) {
    PlanBuffer buffer{role == BufferRole::slice ? "w.grad.slice" : "w.master", "state", "f32", {1}};
    buffer.bytes = 4, buffer.role = role, buffer.of = of, buffer.whole = {2};
    plan.buffers.push_back(buffer);  // the master where w was
  }
  plan.buffers[slice].offset = gradient.offset;
  plan.buffers[slice].in = "w.grad";
  const Changed with{to_json(plan)};
  const auto changed = [&](size_t buffer, const char* field, json value) {
    return with(fmt::format("/buffers/{}/{}", buffer, field).c_str(), std::move(value));
  };
  ASSERT_EQ(with("/shard", 2), "");
  const std::string no_slice = "plan: buffer w.grad.slice is no slice of w.grad";
  EXPECT_EQ(with("/shard", 4), "plan: shard is 4; expected an integer from 2 to 2");
  EXPECT_EQ(changed(slice, "whole", {3}), no_slice);
  EXPECT_EQ(changed(slice, "whole", json::array()), no_slice);
  EXPECT_EQ(changed(slice, "dtype", "f16"), no_slice);
  EXPECT_EQ(changed(slice, "bytes", 8), no_slice);
  EXPECT_EQ(changed(slice, "of", "nobody"), "plan: buffer w.grad.slice is no slice of nobody");
  EXPECT_EQ(changed(1, "whole", {2}), "plan: buffer frozen is no slice of ");
  EXPECT_EQ(changed(slice, "in", "w"), "plan: buffer w.grad.slice does not lie in the place of w");
  EXPECT_EQ(changed(slice, "offset", 0), "plan: buffer w.grad.slice does not lie in the place of w.grad");
  EXPECT_EQ(changed(0, "in", "frozen"), "plan: buffer w does not lie in the place of frozen");
  EXPECT_EQ(changed(1, "in", "w.grad"), "plan: buffer frozen does not lie in the place of w.grad");
  EXPECT_EQ(changed(master, "offset", gradient.offset).substr(0, 14), "plan: buffers[");
  json unshared = to_json(plan);
  unshared.erase("shard");
  EXPECT_EQ(reading(unshared), no_slice);
}

TEST(Plan, values_do_not_meet) {
  const Changed with{to_json(full_plan())};
  const auto values = [&](json list) { return with("/programs/1/values", std::move(list)); };
  const int64_t at = full_plan().inputs[0].step_offset;  // all before are buffers
  const auto meets = [](int64_t offset) {
    return fmt::format("plan: programs[1].values: 64 bytes at {} overlap what is live when they begin, at 0",
                       offset);
  };
  EXPECT_EQ(values({{at, 64, 0, 1}, {at + 32, 32, 1, 1}, {0, 64, 0, 0}}), meets(0));
  EXPECT_EQ(values({{at, 64, 0, 1}, {at + 32, 64, 0, 1}}), meets(at + 32));
  EXPECT_EQ(values({{at + 32, 64, -1, 1}, {at, 64, 0, 0}}), meets(at));
  const auto first = [&](json value) { return values(json::array({std::move(value)})); };
  EXPECT_EQ(first({at, 64, 0}),
            "plan: programs[1].values[0] is array; expected four numbers: offset, bytes, first, last");
  EXPECT_EQ(first({at, 64, 0, 2}), "");  // the next run reads it
  EXPECT_EQ(first({at, 64, 0, 3}), "plan: programs[1].values[0][3] is 3; expected an integer from 0 to 2");
  EXPECT_EQ(first({at, 64, 1, 0}), "plan: programs[1].values[0][3] is 0; expected an integer from 1 to 2");
  EXPECT_EQ(first({at, int64_t{1} << 40, 0, 1}).substr(0, 45),
            "plan: programs[1].values[0][1] is 10995116277");
}

// Parts are of one sample, all alike, and its numbers lie in the arena.
TEST(Plan, predictions_in_parts) {
  Plan plan = full_plan(), back;
  plan.predict.batch = 1;
  plan.predict.offset = plan.arena_bytes - 32;
  plan.predict.shape = {6, 4};
  plan.predict.rows = 2;
  plan.predict.rows_offset = plan.inputs[0].step_offset;
  const json object = to_json(plan);
  ASSERT_EQ(reading(object), "");
  ASSERT_TRUE(from_json(object, back));
  EXPECT_EQ(to_json(back).dump(), object.dump());
  EXPECT_EQ(back.predict.parts(), 3);
  EXPECT_EQ(back.predict.outputs(), 8);
  const Changed with{object};
  EXPECT_EQ(with("/predict/rows", 4), "plan: predict: the 6 rows of 1 sample do not come in parts of 4");
  EXPECT_EQ(with("/predict/rows", 6), "plan: predict.rows is 6; expected an integer from 1 to 5");
  EXPECT_EQ(with("/predict/rows", 3).substr(0, 24), "plan: predict.offset is ");
  EXPECT_EQ(with("/predict/batch", 2), "plan: predict: the 6 rows of 2 samples do not come in parts of 2");
  EXPECT_EQ(with("/predict/shape", json::array()),
            "plan: predict.rows is 2; expected an integer from 1 to 1");
  EXPECT_EQ(with("/predict/rows_offset", plan.arena_bytes - 4).substr(0, 29),
            "plan: predict.rows_offset is ");
  EXPECT_EQ(with("/predict/rows_offset", plan.predict.rows_offset + 2),
            "plan: predict.rows_offset is not a multiple of 4");
  EXPECT_EQ(with("/predict/rows_offset", 0), "plan: predict.rows_offset and buffers[0].offset (w) overlap");
}

// Where a product works is aligned, in the arena, and nobody else's: not an operand's, the result's, a
// buffer's.
TEST(Plan, workspace_of_a_product) {
  Plan plan = full_plan();
  plan.arena_bytes = 1 << 20;
  plan.buffers[0].offset = 65536;
  PlanLaunch& product = plan.programs[1].launches[1];
  product.a = 4096;   // m * k: 4 * 9 f32
  product.b = 8192;   // 9 * 8
  product.c = 12288;  // 4 * 8
  product.workspace = PlanWorkspace{16384, 8192};
  const std::string good = to_json(plan).dump();
  Plan back;
  ASSERT_EQ(from_json(json::parse(good), back).text(), "");
  EXPECT_EQ(to_json(back).dump(), good);
  const auto at = [&](int64_t offset, int64_t bytes) {
    json object = json::parse(good);
    object["programs"][1]["launches"][1]["workspace"] = {{"offset", offset}, {"bytes", bytes}};
    return reading(object);
  };
  const std::string where = "plan: programs[1].launches[1].workspace";
  EXPECT_EQ(at(16640, 256), "");
  EXPECT_EQ(at(4608, 3584), "");  // between the operands
  EXPECT_EQ(at(16388, 256), where + ": 256 bytes at 16388 are not in multiples of 256");
  EXPECT_EQ(at(16384, 4), where + ": 4 bytes at 16384 are not in multiples of 256");
  EXPECT_EQ(at((1 << 20) - 256, 256), "");
  EXPECT_EQ(at((1 << 20) - 256, 512), where + ": 512 bytes at 1048320 are not in the arena");
  EXPECT_TRUE(at(-256, 256).starts_with(where + ".offset is "));
  EXPECT_TRUE(at(16384, 0).starts_with(where + ".bytes is "));
  EXPECT_TRUE(at(16384, kMostWorkspace + 256).starts_with(where + ".bytes is "));
  EXPECT_EQ(at(4096, 256), where + ": 256 bytes at 4096 overlap the first operand at 4096");
  EXPECT_EQ(at(0, 4352), where + ": 4352 bytes at 0 overlap the first operand at 4096");
  EXPECT_EQ(at(8448, 256), where + ": 256 bytes at 8448 overlap the second operand at 8192");
  EXPECT_EQ(at(12288, 256), where + ": 256 bytes at 12288 overlap the result at 12288");
  EXPECT_EQ(at(65536, 256), where + ": 256 bytes at 65536 overlap buffer w at 65536");
  // Extents beyond all bounds are no way around it.
  json object = json::parse(good);
  object["programs"][1]["launches"][1]["k"]["extent"] = int64_t{1} << 48;
  EXPECT_EQ(reading(object), where + ": 8192 bytes at 16384 overlap the first operand at 4096");
}

// A launch waits for one before it, of the other stream; of no such field where it waits for none.
TEST(Plan, streams_of_launches) {
  Plan plan = full_plan();
  std::vector<PlanLaunch>& launches = plan.programs[1].launches;
  EXPECT_EQ(to_json(plan).dump().find("\"after\""), std::string::npos);
  launches[1].stream = 1;
  launches[1].after = 0;
  const std::string good = to_json(plan).dump();
  Plan back;
  ASSERT_EQ(from_json(json::parse(good), back).text(), "");
  EXPECT_EQ(to_json(back).dump(), good);
  const auto with = [&](const char* key, int64_t value) {
    json object = json::parse(good);
    object["programs"][1]["launches"][1][key] = value;
    return reading(object);
  };
  const std::string where = "plan: programs[1].launches[1].";
  EXPECT_TRUE(with("stream", 2).starts_with(where + "stream is 2")) << with("stream", 2);
  EXPECT_TRUE(with("after", 1).starts_with(where + "after is 1")) << with("after", 1);
  EXPECT_EQ(with("stream", 0), where + "after: launch 0 is of the same stream");
}

// A product's bias is of f32, in the arena, and stands for a kernel after it.
TEST(Plan, bias_of_a_product) {
  Plan plan = full_plan();
  std::vector<PlanLaunch>& launches = plan.programs[1].launches;
  std::swap(launches[0], launches[1]);
  launches[0].accumulate = false;
  launches[0].bias = PlanBias{plan.arena_bytes - 32, 1};
  const std::string good = to_json(plan).dump();
  Plan back;
  ASSERT_EQ(from_json(json::parse(good), back).text(), "");
  EXPECT_EQ(to_json(back).dump(), good);
  const Changed with{json::parse(good)};
  const char* launch = "/programs/1/launches/0/bias/launch";
  EXPECT_NE(with(launch, 0).find("bias: launch 0 is no kernel after the product"), std::string::npos);
  EXPECT_NE(with(launch, 2).find("bias: launch 2 is no kernel after the product"), std::string::npos);
  EXPECT_NE(with("/programs/1/launches/0/bias/offset", plan.arena_bytes - 28).find("are not in the arena"),
            std::string::npos);
  for (const auto& [field, value] :
       {std::pair<const char*, json>{"accumulate", true}, {"result", "f16"}, {"type", "bf16"}})
    EXPECT_NE(with((std::string("/programs/1/launches/0/") + field).c_str(), value)
                  .find("only plain products of f32"),
              std::string::npos)
        << field;
}

// A built-in product that also does a kernel after it takes arguments of its own.
TEST(Plan, epilogue_of_a_product) {
  Plan plan = full_plan();
  std::vector<PlanLaunch>& launches = plan.programs[1].launches;
  std::swap(launches[0], launches[1]);
  PlanBuiltin& builtin = launches[0].builtin;
  builtin.kernel = "gemm_add";
  builtin.block = 64;
  builtin.arguments = {{PlanArgument::Kind::address, 64}, {PlanArgument::Kind::extent, 0, 3, true}};
  builtin.does = 1;
  const std::string good = to_json(plan).dump();
  Plan back;
  ASSERT_EQ(from_json(json::parse(good), back).text(), "");
  EXPECT_EQ(to_json(back).dump(), good);
  const Changed with{json::parse(good)};
  for (const int launch : {0, 2})
    EXPECT_EQ(with("/programs/1/launches/0/builtin/does", launch),
              fmt::format("plan: programs[1].launches[0].builtin: launch {} is no kernel after the product",
                          launch));
  EXPECT_NE(with("/programs/1/launches/0/builtin/arguments/0", plan.arena_bytes + 1)
                .find("programs[1].launches[0].builtin.arguments[0] is "),
            std::string::npos);
}

TEST(Plan, every_missing_field_is_an_error) {
  json whole = to_json(full_plan());
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
