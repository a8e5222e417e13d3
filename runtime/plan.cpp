// The plan as JSON. Writing is a plain listing; reading trusts nothing: every field is checked for its type
// and range, every offset against the arena, so that a hostile artifact ends in one sentence and never in a
// bad access.
#include "runtime/plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>

namespace gacc {
namespace {

using nlohmann::json;

constexpr int64_t kMost = int64_t{1} << 48;  // bytes and elements: far beyond any machine, far below overflow
constexpr size_t kMaxRank = 16;
constexpr int64_t kElementBytes = 4;  // of inputs: f32 and i32

json argument_json(const PlanArgument& argument) {
  if (argument.kind == PlanArgument::Kind::address) return argument.offset;
  return {{"extent", argument.extent}, {"times_batch", argument.times_batch}};
}

json launch_json(const PlanLaunch& launch) {
  if (launch.kernel.empty()) {
    json product = {{"a", launch.a},
                    {"b", launch.b},
                    {"c", launch.c},
                    {"m", argument_json(launch.m)},
                    {"n", argument_json(launch.n)},
                    {"k", argument_json(launch.k)},
                    {"transpose_a", launch.transpose_a},
                    {"transpose_b", launch.transpose_b},
                    {"accumulate", launch.accumulate},
                    {"type", launch.type},
                    {"result", launch.result}};
    const PlanBuiltin& builtin = launch.builtin;
    if (!builtin.kernel.empty())
      product["builtin"] = {{"kernel", builtin.kernel},
                            {"block", builtin.block},
                            {"tile_m", builtin.tile_m},
                            {"tile_n", builtin.tile_n}};
    return product;
  }
  json arguments = json::array();
  for (const PlanArgument& argument : launch.arguments) arguments.push_back(argument_json(argument));
  json kernel = {{"kernel", launch.kernel},
                 {"arguments", std::move(arguments)},
                 {"block", launch.block},
                 {"grid", argument_json(launch.grid)},
                 {"per_block", launch.per_block}};
  if (launch.resident) kernel["resident"] = true;
  if (launch.cooperative) kernel["cooperative"] = true;
  if (!launch.touches.empty()) kernel["touches"] = launch.touches;
  return kernel;
}

json input_json(const PlanInput& input) {
  json result = {{"name", input.name},
                 {"dtype", input.dtype},
                 {"shape", input.shape},
                 {"step_offset", input.step_offset},
                 {"eval_offset", input.eval_offset},
                 {"mean", input.mean},
                 {"std", input.std}};
  if (input.range) result["range"] = *input.range;
  if (input.ignore_index) result["ignore_index"] = *input.ignore_index;
  return result;
}

json buffer_json(const PlanBuffer& buffer) {
  json result = {{"name", buffer.name},   {"kind", buffer.kind},     {"dtype", buffer.dtype},
                 {"shape", buffer.shape}, {"offset", buffer.offset}, {"bytes", buffer.bytes}};
  if (buffer.kind == "param") result["trainable"] = buffer.trainable;
  return result;
}

// A value of the file for a message: on one line, in ASCII, and not too long.
std::string shown(const json& value) {
  std::string result = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return result.size() > 60 ? result.substr(0, 60) + "..." : result;
}

// Reads the fields of one JSON object into variables. The first wrong one is kept as the error; later reads
// then do nothing, so a caller reads a whole object and looks at the status once.
class Fields {
 public:
  Fields(const json& object, std::string where, Status& status)
      : object_(object), where_(std::move(where)), status_(status) {
    if (!object.is_object()) wrong("", object, "an object");
  }

  bool has(const char* key) const { return status_.ok() && object_.is_object() && object_.contains(key); }

  void read(const char* key, std::string& to) {
    if (const json* value = find(key)) {
      if (value->is_string())
        to = value->get<std::string>();
      else
        wrong(key, *value, "a string");
    }
  }
  // A name: messages show it, so it is not empty and has no control characters.
  void read_name(const char* key, std::string& to) {
    read(key, to);
    auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (status_ && (to.empty() || std::any_of(to.begin(), to.end(), control)))
      fail(fmt::format("{}{} is {}; expected a name", where_, key, shown(to)));
  }
  void read(const char* key, bool& to) {
    if (const json* value = find(key)) {
      if (value->is_boolean())
        to = value->get<bool>();
      else
        wrong(key, *value, "true or false");
    }
  }
  void read(const char* key, int64_t& to, int64_t low, int64_t high) {
    if (const json* value = find(key)) integer(key, *value, to, low, high);
  }
  void read(const char* key, double& to) {
    if (const json* value = find(key)) real(key, *value, to);
  }
  void read(const char* key, std::vector<std::string>& to) {
    each(key, [&](const json& item, const std::string& name) {
      if (item.is_string())
        to.push_back(item.get<std::string>());
      else
        wrong(name, item, "a string");
    });
  }
  void read(const char* key, std::vector<double>& to) {
    each(key, [&](const json& item, const std::string& name) { real(name, item, to.emplace_back()); });
  }
  // A shape: at most kMaxRank extents of at least 1 whose product stays below kMost.
  void read_shape(const char* key, std::vector<int64_t>& to, int64_t& elements) {
    elements = 1;
    each(key, [&](const json& item, const std::string& name) {
      int64_t extent = 1;
      integer(name, item, extent, 1, kMost);
      if (!status_) return;
      to.push_back(extent);
      if (to.size() > kMaxRank || extent > kMost / elements)
        fail(fmt::format("{}{} is too large a shape", where_, key));
      else
        elements *= extent;
    });
  }
  // An address ("at" as a plain number) or an extent object.
  void read(const char* key, PlanArgument& to, int64_t arena, bool extent_only) {
    if (const json* value = find(key)) argument(key, *value, to, arena, extent_only);
  }
  void argument(const std::string& name, const json& value, PlanArgument& to, int64_t arena,
                bool extent_only) {
    if (value.is_object()) {
      to.kind = PlanArgument::Kind::extent;
      Fields fields(value, where_ + name + ".", status_);
      fields.read("extent", to.extent, 0, kMost);
      fields.read("times_batch", to.times_batch);
    } else if (extent_only) {
      wrong(name, value, "an extent");
    } else {
      to.kind = PlanArgument::Kind::address;
      integer(name, value, to.offset, 0, arena);
    }
  }
  // Calls `body(item, "key[i]")` for the items of an array, until something is wrong.
  template <class Body>
  void each(const char* key, Body body) {
    const json* value = find(key);
    if (!value) return;
    if (!value->is_array()) return wrong(key, *value, "an array");
    for (size_t i = 0; i < value->size() && status_; ++i) body((*value)[i], fmt::format("{}[{}]", key, i));
  }
  // One of a few words.
  void read(const char* key, std::string& to, std::initializer_list<std::string_view> words) {
    read(key, to);
    if (status_ && std::find(words.begin(), words.end(), to) == words.end())
      fail(fmt::format("{}{} is {}; expected {}", where_, key, shown(to), fmt::join(words, ", ")));
  }

  void fail(std::string text) {
    if (status_) status_ = Status::error(std::move(text));
  }

 private:
  const json* find(const char* key) {
    if (!status_) return nullptr;
    auto found = object_.find(key);
    if (found != object_.end()) return &*found;
    fail(fmt::format("{}{} is missing", where_, key));
    return nullptr;
  }
  void integer(const std::string& name, const json& value, int64_t& to, int64_t low, int64_t high) {
    bool fits =
        value.is_number_integer() && !(value.is_number_unsigned() &&
                                       value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
    int64_t number = fits ? value.get<int64_t>() : 0;
    if (fits && number >= low && number <= high)
      to = number;
    else
      wrong(name, value, fmt::format("an integer from {} to {}", low, high));
  }
  void real(const std::string& name, const json& value, double& to) {
    if (value.is_number() && std::isfinite(value.get<double>()))
      to = value.get<double>();
    else
      wrong(name, value, "a number");
  }
  void wrong(const std::string& name, const json& value, std::string_view expected) {
    std::string found = value.is_structured() ? value.type_name() : shown(value);
    fail(fmt::format("{}{} is {}; expected {}", where_, name, found, expected));
  }

  const json& object_;
  std::string where_;
  Status& status_;
};

int64_t element_bytes(std::string_view dtype) { return dtype == "f16" || dtype == "bf16" ? 2 : 4; }

void read_input(const json& value, const std::string& where, const Plan& plan, Status& status,
                PlanInput& input) {
  Fields fields(value, where + ".", status);
  int64_t elements = 1;
  fields.read_name("name", input.name);
  fields.read("dtype", input.dtype, {"f32", "i32"});
  fields.read_shape("shape", input.shape, elements);
  if (!status) return;
  if (elements > kMost / kElementBytes / plan.micro_batch ||
      elements * kElementBytes * plan.micro_batch > plan.arena_bytes)
    return fields.fail(
        fmt::format("{}: a micro-batch of input {} is larger than the arena", where, input.name));
  int64_t last = plan.arena_bytes - elements * kElementBytes * plan.micro_batch;
  fields.read("step_offset", input.step_offset, 0, last);
  fields.read("eval_offset", input.eval_offset, 0, last);
  fields.read("mean", input.mean);
  fields.read("std", input.std);
  if (fields.has("range"))
    fields.read("range", input.range.emplace(), 1, std::numeric_limits<int32_t>::max());
  if (fields.has("ignore_index"))
    fields.read("ignore_index", input.ignore_index.emplace(), std::numeric_limits<int32_t>::min(),
                std::numeric_limits<int32_t>::max());
  if (!status) return;
  size_t axis = input.shape.empty() ? 1 : static_cast<size_t>(std::min<int64_t>(input.shape[0], 1 << 30));
  for (const auto* list : {&input.mean, &input.std})
    if (list->size() > 1 && list->size() != axis)
      fields.fail(fmt::format("{}: normalize has {} numbers, the first axis {}", where, list->size(), axis));
  if (std::find(input.std.begin(), input.std.end(), 0.0) != input.std.end())
    fields.fail(fmt::format("{}.std has a zero", where));
  if (input.step_offset % kElementBytes || input.eval_offset % kElementBytes)
    fields.fail(fmt::format("{}: an offset is not a multiple of {}", where, kElementBytes));
}

void read_buffer(const json& value, const std::string& where, const Plan& plan, Status& status,
                 PlanBuffer& buffer) {
  Fields fields(value, where + ".", status);
  int64_t elements = 1;
  fields.read_name("name", buffer.name);
  fields.read("kind", buffer.kind, {"param", "accum", "state"});
  fields.read("dtype", buffer.dtype, {"f32", "f16", "bf16", "i32"});
  fields.read_shape("shape", buffer.shape, elements);
  fields.read("offset", buffer.offset, 0, plan.arena_bytes);
  fields.read("bytes", buffer.bytes, 0, plan.arena_bytes);
  if (buffer.kind == "param") fields.read("trainable", buffer.trainable);
  if (!status) return;
  int64_t size = element_bytes(buffer.dtype);
  if (elements * size > buffer.bytes || buffer.bytes > plan.arena_bytes - buffer.offset)
    fields.fail(fmt::format("{}: buffer {} of {} elements does not fit its {} bytes at {}", where,
                            buffer.name, elements, buffer.bytes, buffer.offset));
  else if (buffer.offset % size)
    fields.fail(fmt::format("{}: the offset {} is not a multiple of {}", where, buffer.offset, size));
}

void read_launch(const json& value, const std::string& where, int64_t arena, Status& status,
                 PlanLaunch& launch) {
  Fields fields(value, where + ".", status);
  if (!fields.has("kernel")) {
    fields.read("a", launch.a, 0, arena);
    fields.read("b", launch.b, 0, arena);
    fields.read("c", launch.c, 0, arena);
    fields.read("m", launch.m, arena, true);
    fields.read("n", launch.n, arena, true);
    fields.read("k", launch.k, arena, true);
    fields.read("transpose_a", launch.transpose_a);
    fields.read("transpose_b", launch.transpose_b);
    fields.read("accumulate", launch.accumulate);
    fields.read("type", launch.type, {"f32", "f16", "bf16"});
    fields.read("result", launch.result, {"f32", "f16", "bf16"});
    if (status && launch.accumulate && launch.result != "f32")
      fields.fail(fmt::format("{}.result is {}; what is added to is f32", where, launch.result));
    if (!fields.has("builtin")) return;
    Fields builtin(value["builtin"], where + ".builtin.", status);
    builtin.read_name("kernel", launch.builtin.kernel);
    builtin.read("block", launch.builtin.block, 1, 1024);
    builtin.read("tile_m", launch.builtin.tile_m, 1, kMost);
    builtin.read("tile_n", launch.builtin.tile_n, 1, kMost);
    return;
  }
  fields.read_name("kernel", launch.kernel);
  fields.each("arguments", [&](const json& item, const std::string& name) {
    fields.argument(name, item, launch.arguments.emplace_back(), arena, false);
  });
  fields.read("block", launch.block, 1, 1024);
  fields.read("grid", launch.grid, arena, true);
  fields.read("per_block", launch.per_block, 1, kMost);
  if (fields.has("resident")) fields.read("resident", launch.resident);
  if (fields.has("cooperative")) fields.read("cooperative", launch.cooperative);
  if (fields.has("touches")) {
    fields.each("touches", [&](const json& item, const std::string& name) {
      PlanArgument at;
      fields.argument(name, item, at, arena, false);
      launch.touches.push_back(at.offset);
    });
  }
}

// What no single field shows: names are unique, buffers do not overlap.
void check_names(const Plan& plan, Status& status) {
  auto twice = [&](std::vector<std::string> names, const char* what) {
    std::sort(names.begin(), names.end());
    auto found = std::adjacent_find(names.begin(), names.end());
    if (status && found != names.end()) status = Status::error("{} {} stands twice", what, *found);
  };
  std::vector<std::string> inputs, buffers, programs;
  for (const auto& input : plan.inputs) inputs.push_back(input.name);
  for (const auto& buffer : plan.buffers) buffers.push_back(buffer.name);
  for (const auto& program : plan.programs) programs.push_back(program.name);
  twice(std::move(inputs), "input");
  twice(std::move(buffers), "buffer");
  twice(std::move(programs), "program");
  std::vector<const PlanBuffer*> order;
  for (const auto& buffer : plan.buffers) order.push_back(&buffer);
  std::sort(order.begin(), order.end(), [](auto* left, auto* right) { return left->offset < right->offset; });
  for (size_t i = 1; i < order.size() && status; ++i)
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset)
      status = Status::error("buffers {} and {} overlap", order[i - 1]->name, order[i]->name);
}

}  // namespace

const PlanBuffer* Plan::find(std::string_view buffer) const {
  for (const PlanBuffer& candidate : buffers)
    if (candidate.name == buffer) return &candidate;
  return nullptr;
}

nlohmann::json to_json(const Plan& plan) {
  const PlanBytes& bytes = plan.bytes;
  json result = {{"model", plan.model},
                 {"target", plan.target},
                 {"parameters", plan.parameters},
                 {"micro_batch", plan.micro_batch},
                 {"accumulate", plan.accumulate},
                 {"tail", plan.tail},
                 {"epochs", plan.epochs},
                 {"shuffle", plan.shuffle},
                 {"seed", plan.seed},
                 {"lr", plan.lr},
                 {"optimizer", plan.optimizer},
                 {"precision", plan.precision},
                 {"metrics", plan.metrics},
                 {"arena_bytes", plan.arena_bytes},
                 {"bytes",
                  {{"weights", bytes.weights},
                   {"half_weights", bytes.half_weights},
                   {"gradients", bytes.gradients},
                   {"optimizer", bytes.optimizer},
                   {"activations", bytes.activations},
                   {"workspace", bytes.workspace},
                   {"inputs", bytes.inputs},
                   {"peak", bytes.peak},
                   {"lower_bound", bytes.lower_bound}}},
                 {"flops_per_launch", plan.flops_per_launch},
                 {"kernels_per_launch", plan.kernels_per_launch},
                 {"passes", plan.passes},
                 {"exact", plan.exact},
                 {"because", plan.because},
                 {"skip_nonfinite", plan.skip_nonfinite},
                 {"max_skips", plan.max_skips}};
  if (plan.plateau) {
    result["plateau"] = {{"metric", plan.plateau->metric},
                         {"patience", plan.plateau->patience},
                         {"threshold", plan.plateau->threshold}};
  }
  if (plan.seed_rules) {
    result["seed_rules"] = {{"elements", plan.seed_rules->elements}, {"dynamic", plan.seed_rules->dynamic}};
  }
  json inputs = json::array(), buffers = json::array(), programs = json::array();
  for (const PlanInput& input : plan.inputs) inputs.push_back(input_json(input));
  for (const PlanBuffer& buffer : plan.buffers) buffers.push_back(buffer_json(buffer));
  for (const PlanProgram& program : plan.programs) {
    json launches = json::array();
    for (const PlanLaunch& launch : program.launches) launches.push_back(launch_json(launch));
    json& written = programs.emplace_back(json{{"name", program.name}, {"launches", std::move(launches)}});
    if (!program.persistent) continue;
    written["persistent"] = launch_json(*program.persistent);
    written["persistent_required"] = program.persistent_required;
  }
  result["inputs"] = std::move(inputs);
  result["buffers"] = std::move(buffers);
  result["programs"] = std::move(programs);
  return result;
}

Status from_json(const nlohmann::json& object, Plan& result) {
  Plan plan;
  Status status;
  Fields fields(object, "plan: ", status);
  if (!status) return status;
  constexpr int64_t kCount = int64_t{1} << 40;  // samples, launches, epochs
  fields.read("model", plan.model);
  fields.read("target", plan.target);
  fields.read("parameters", plan.parameters, 0, kMost);
  fields.read("micro_batch", plan.micro_batch, 1, std::numeric_limits<int32_t>::max());
  fields.read("accumulate", plan.accumulate, 1, std::numeric_limits<int32_t>::max());
  fields.read("tail", plan.tail, {"flush", "drop", "carry"});
  fields.read("epochs", plan.epochs, 0, kCount);
  fields.read("shuffle", plan.shuffle);
  fields.read("seed", plan.seed, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  fields.read("lr", plan.lr);
  fields.read("optimizer", plan.optimizer);
  fields.read("precision", plan.precision, {"f32", "f16", "bf16"});
  fields.read("metrics", plan.metrics);
  fields.read("arena_bytes", plan.arena_bytes, 0, kMost);
  fields.read("flops_per_launch", plan.flops_per_launch, 0, std::numeric_limits<int64_t>::max());
  fields.read("kernels_per_launch", plan.kernels_per_launch, 0, kCount);
  fields.read("passes", plan.passes);
  fields.read("exact", plan.exact);
  fields.read("because", plan.because);
  fields.read("skip_nonfinite", plan.skip_nonfinite);
  fields.read("max_skips", plan.max_skips, 1, std::numeric_limits<int32_t>::max());
  if (fields.has("plateau")) {
    Fields plateau(object["plateau"], "plan: plateau.", status);
    plan.plateau.emplace();
    plateau.read("metric", plan.plateau->metric, {"loss", "accuracy", "perplexity"});
    plateau.read("patience", plan.plateau->patience, 0, std::numeric_limits<int32_t>::max());
    plateau.read("threshold", plan.plateau->threshold);
  }
  if (fields.has("seed_rules")) {
    Fields seed(object["seed_rules"], "plan: seed_rules.", status);
    plan.seed_rules.emplace();
    seed.read("elements", plan.seed_rules->elements, 1, kMost);
    seed.read("dynamic", plan.seed_rules->dynamic);
  }
  if (!status) return status;
  if (!object.contains("bytes")) return Status::error("plan: bytes is missing");
  Fields bytes(object["bytes"], "plan: bytes.", status);
  bytes.read("weights", plan.bytes.weights, 0, kMost);
  bytes.read("half_weights", plan.bytes.half_weights, 0, kMost);
  bytes.read("gradients", plan.bytes.gradients, 0, kMost);
  bytes.read("optimizer", plan.bytes.optimizer, 0, kMost);
  bytes.read("activations", plan.bytes.activations, 0, kMost);
  bytes.read("workspace", plan.bytes.workspace, 0, kMost);
  bytes.read("inputs", plan.bytes.inputs, 0, kMost);
  bytes.read("peak", plan.bytes.peak, 0, kMost);
  bytes.read("lower_bound", plan.bytes.lower_bound, 0, kMost);
  fields.each("inputs", [&](const json& item, const std::string& name) {
    read_input(item, "plan: " + name, plan, status, plan.inputs.emplace_back());
  });
  fields.each("buffers", [&](const json& item, const std::string& name) {
    read_buffer(item, "plan: " + name, plan, status, plan.buffers.emplace_back());
  });
  fields.each("programs", [&](const json& item, const std::string& name) {
    PlanProgram& program = plan.programs.emplace_back();
    Fields inner(item, "plan: " + name + ".", status);
    inner.read("name", program.name, {"init", "step", "update", "eval"});
    inner.each("launches", [&](const json& launch, const std::string& at) {
      read_launch(launch, "plan: " + name + "." + at, plan.arena_bytes, status,
                  program.launches.emplace_back());
    });
    if (!inner.has("persistent")) return;
    read_launch(item["persistent"], "plan: " + name + ".persistent", plan.arena_bytes, status,
                program.persistent.emplace());
    inner.read("persistent_required", program.persistent_required);
  });
  if (status) check_names(plan, status);
  if (status) result = std::move(plan);
  return status;
}

}  // namespace gacc
