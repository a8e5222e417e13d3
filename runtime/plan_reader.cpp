// Reads a plan from JSON and trusts nothing: every field is checked for its type and range, every offset
// against the arena, so that a hostile artifact ends in one sentence and never in a bad access.
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "runtime/json_fields.h"
#include "runtime/metrics.h"
#include "runtime/plan.h"

namespace gacc {
namespace {

using nlohmann::json;
using Fields = JsonFields;

constexpr int64_t kMost = JsonFields::kMost;  // bytes and elements: far beyond any machine
constexpr int64_t kElementBytes = 4;          // of f32 and i32

// An address, a plain number up to `arena`, or an extent object.
void read_argument(Fields& fields, const std::string& name, const json& value, PlanArgument& to,
                   int64_t arena) {
  if (!value.is_object()) {
    to.kind = PlanArgument::Kind::address;
    return fields.integer(name, value, to.offset, 0, arena);
  }
  to.kind = PlanArgument::Kind::extent;
  Fields extent(value, fields.where() + name + ".", fields.status());
  extent.read("extent", to.extent, 0, kMost);
  extent.read("times_batch", to.times_batch);
}

void read_extent(Fields& fields, const char* key, PlanArgument& to) {
  const json* value = fields.find(key);
  if (value == nullptr) return;
  if (!value->is_object()) return fields.wrong(key, *value, "an extent");
  read_argument(fields, key, *value, to, 0);
}

int64_t element_bytes(std::string_view dtype) { return dtype == "f16" || dtype == "bf16" ? 2 : 4; }

void read_input(const json& value, const std::string& where, const Plan& plan, Status& status,
                PlanInput& input) {
  Fields fields(value, where + ".", status);
  int64_t elements = 1;
  fields.read_name("name", input.name);
  fields.read("dtype", input.dtype, {"f32", "i32"});
  fields.read_shape("shape", input.shape, elements);
  if (fields.has("stored")) {
    fields.read("stored", input.stored, {"f16", "bf16"});
    if (input.dtype != "f32")
      fields.fail(fmt::format("{}.dtype is {}, and only f32 is stored as half", where, input.dtype));
  }
  if (!status) return;
  if (elements > kMost / kElementBytes / plan.micro_batch || input.bytes(plan.micro_batch) > plan.arena_bytes)
    return fields.fail(
        fmt::format("{}: a micro-batch of input {} is larger than the arena", where, input.name));
  const int64_t last = plan.arena_bytes - input.bytes(plan.micro_batch);
  fields.read("step_offset", input.step_offset, 0, last);
  fields.read("eval_offset", input.eval_offset, 0, last);
  if (fields.has("predict_offset"))
    fields.read("predict_offset", input.predict_offset.emplace(), 0,
                plan.arena_bytes - input.bytes(plan.predict.batch));
  fields.read("mean", input.mean);
  fields.read("std", input.std);
  if (fields.has("normalize")) {
    std::string how;
    fields.read("normalize", how, {"data"});
    input.normalize_data = how == "data";
  }
  if (fields.has("range"))
    fields.read("range", input.range.emplace(), 1, std::numeric_limits<int32_t>::max());
  if (fields.has("ignore_index"))
    fields.read("ignore_index", input.ignore_index.emplace(), std::numeric_limits<int32_t>::min(),
                std::numeric_limits<int32_t>::max());
  if (fields.has("target")) fields.read("target", input.target);
  if (!status) return;
  size_t axis = input.shape.empty() ? 1 : static_cast<size_t>(std::min<int64_t>(input.shape[0], 1 << 30));
  for (const auto& [key, list] : {std::pair{"mean", &input.mean}, {"std", &input.std}})
    if (list->size() > 1 && list->size() != axis)
      fields.fail(fmt::format("{}.{} has {} numbers, the first axis of its shape {}", where, key,
                              list->size(), axis));
  if (std::find(input.std.begin(), input.std.end(), 0.0) != input.std.end())
    fields.fail(fmt::format("{}.std has a zero", where));
  if (input.step_offset % kElementBytes || input.eval_offset % kElementBytes)
    fields.fail(fmt::format("{}: an offset is not a multiple of {}", where, kElementBytes));
}

// The role fits the kind, and says whether the buffer belongs to another.
void read_role(Fields& fields, const std::string& where, PlanBuffer& buffer) {
  std::string text;
  fields.read("role", text);
  if (fields.has("of")) fields.read_name("of", buffer.of);
  if (!fields.status()) return;
  const auto role = std::ranges::find(buffer_roles, text, &RoleRow::text);
  if (role == std::end(buffer_roles)) return fields.fail(fmt::format("{}.role is \"{}\"", where, text));
  if (role->kind != buffer.kind)
    return fields.fail(
        fmt::format("{0}.kind is \"{1}\" and {0}.role \"{2}\", of another kind", where, buffer.kind, text));
  if (role->suffix.empty() != buffer.of.empty())
    return fields.fail(
        fmt::format("{}.of: the role \"{}\" {}", where, text,
                    role->suffix.empty() ? "belongs to no other buffer" : "belongs to another"));
  buffer.role = static_cast<BufferRole>(role - std::begin(buffer_roles));
}

void read_buffer(const json& value, const std::string& where, const Plan& plan, Status& status,
                 PlanBuffer& buffer) {
  Fields fields(value, where + ".", status);
  int64_t elements = 1;
  fields.read_name("name", buffer.name);
  fields.read("kind", buffer.kind, {"param", "accum", "state"});
  read_role(fields, where, buffer);
  fields.read("dtype", buffer.dtype, {"f32", "f16", "bf16", "i32"});
  fields.read_shape("shape", buffer.shape, elements);
  fields.read("offset", buffer.offset, 0, plan.arena_bytes);
  fields.read("bytes", buffer.bytes, 0, plan.arena_bytes);
  if (buffer.kind == "param") fields.read("trainable", buffer.trainable);
  if (fields.has("kept")) fields.read("kept", buffer.kept);
  int64_t whole = 0;
  if (fields.has("whole")) fields.read_shape("whole", buffer.whole, whole);
  if (fields.has("in")) fields.read_name("in", buffer.in);
  if (fields.has("values")) {
    fields.read("values", buffer.values);
    if (status && (buffer.dtype != "f32" || static_cast<int64_t>(buffer.values.size()) != elements))
      fields.fail(fmt::format("{}: {} for {} of {}", where, counted(buffer.values.size(), "value"),
                              counted(elements, "element"), buffer.dtype));
  }
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
    read_extent(fields, "m", launch.m);
    read_extent(fields, "n", launch.n);
    read_extent(fields, "k", launch.k);
    if (fields.has("pitch")) {
      std::vector<PlanArgument> pitch;
      fields.each("pitch", [&](const json& item, const std::string& name) {
        read_argument(fields, name, item, pitch.emplace_back(), arena);
      });
      const bool extents = std::all_of(pitch.begin(), pitch.end(), [](const PlanArgument& each) {
        return each.kind == PlanArgument::Kind::extent;
      });
      if (status && (pitch.size() != 3 || !extents))
        fields.fail(fmt::format("{}.pitch is not three extents", where));
      if (status) launch.pitch = {pitch[0], pitch[1], pitch[2]};
    }
    fields.read("transpose_a", launch.transpose_a);
    fields.read("transpose_b", launch.transpose_b);
    fields.read("accumulate", launch.accumulate);
    fields.read("type", launch.type, {"f32", "f16", "bf16"});
    fields.read("result", launch.result, {"f32", "f16", "bf16"});
    if (status && launch.accumulate && launch.result != "f32")
      fields.fail(fmt::format("{}.result is {}; what is added to is f32", where, launch.result));
    if (fields.has("bias")) {
      PlanBias& bias = launch.bias.emplace();
      Fields adds(value["bias"], where + ".bias.", status);
      adds.read("offset", bias.offset, 0, arena);
      adds.read("launch", bias.launch, 0, kMost);
    }
    if (fields.has("workspace")) {
      PlanWorkspace& workspace = launch.workspace.emplace();
      Fields range(value["workspace"], where + ".workspace.", status);
      range.read("offset", workspace.offset, 0, arena);
      range.read("bytes", workspace.bytes, 1, kMostWorkspace);
    }
    if (!fields.has("builtin")) return;
    Fields builtin(value["builtin"], where + ".builtin.", status);
    builtin.read_name("kernel", launch.builtin.kernel);
    builtin.read("block", launch.builtin.block, 1, 1024);
    builtin.read("tile_m", launch.builtin.tile_m, 1, kMost);
    builtin.read("tile_n", launch.builtin.tile_n, 1, kMost);
    if (!builtin.has("arguments")) return;
    builtin.each("arguments", [&](const json& item, const std::string& name) {
      read_argument(builtin, name, item, launch.builtin.arguments.emplace_back(), arena);
    });
    builtin.read("does", launch.builtin.does, 0, kMost);
    return;
  }
  fields.read_name("kernel", launch.kernel);
  fields.each("arguments", [&](const json& item, const std::string& name) {
    read_argument(fields, name, item, launch.arguments.emplace_back(), arena);
  });
  fields.read("block", launch.block, 1, 1024);
  read_extent(fields, "grid", launch.grid);
  fields.read("per_block", launch.per_block, 1, kMost);
  if (fields.has("resident")) fields.read("resident", launch.resident);
  if (fields.has("cooperative")) fields.read("cooperative", launch.cooperative);
  if (fields.has("touches")) {
    fields.each("touches", [&](const json& item, const std::string& name) {
      fields.integer(name, item, launch.touches.emplace_back(), 0, arena);
    });
  }
}

// Where the last one of `launches` stands among those of two streams.
void read_branch(const json& value, const std::string& where, Status& status,
                 std::vector<PlanLaunch>& launches) {
  Fields fields(value, where + ".", status);
  PlanLaunch& launch = launches.back();
  if (fields.has("stream")) fields.read("stream", launch.stream, 0, 1);
  if (!status || !fields.has("after")) return;
  fields.read("after", launch.after, 0, static_cast<int64_t>(launches.size()) - 2);
  if (status && launches[static_cast<size_t>(launch.after)].stream == launch.stream)
    fields.fail(fmt::format("{}.after: launch {} is of the same stream", where, launch.after));
}

bool kernel_after(const PlanProgram& program, size_t product, int64_t launch) {
  return launch > static_cast<int64_t>(product) && launch < static_cast<int64_t>(program.launches.size()) &&
         !program.launches[static_cast<size_t>(launch)].kernel.empty();
}

// A product's bias: a later kernel of the program stands for it, and its elements lie in the arena.
void check_bias(Fields& fields, const std::string& where, int64_t arena, const PlanProgram& program,
                size_t number) {
  const PlanLaunch& product = program.launches[number];
  const PlanBias& bias = *product.bias;
  if (product.accumulate || product.type != "f32" || product.result != "f32" || product.n.times_batch)
    fields.fail(fmt::format("{}: only plain products of f32 with a fixed n have a bias", where));
  else if (product.n.extent > (arena - bias.offset) / 4)
    fields.fail(
        fmt::format("{}: {} numbers at {} are not in the arena", where, product.n.extent, bias.offset));
  else if (!kernel_after(program, number, bias.launch))
    fields.fail(fmt::format("{}: launch {} is no kernel after the product", where, bias.launch));
}

// Bytes of the product of two extents, at the full micro-batch; kMost where it would be more.
int64_t matrix_bytes(const PlanArgument& rows, const PlanArgument& columns, std::string_view dtype,
                     int64_t micro_batch) {
  int64_t bytes = element_bytes(dtype);
  for (const PlanArgument* extent : {&rows, &columns})
    for (const int64_t factor : {extent->extent, extent->times_batch ? micro_batch : 1}) {
      if (factor != 0 && bytes > kMost / factor) return kMost;
      bytes *= factor;
    }
  return bytes;
}

// A product's workspace is aligned, in the arena, and shares no byte with the product or with a buffer. That
// no other value is there at the time is what the compiler has checked (passes/check_plan.h).
void check_workspace(Fields& fields, const std::string& where, const Plan& plan, int64_t batch,
                     const PlanLaunch& product) {
  const PlanWorkspace& workspace = *product.workspace;
  if (workspace.offset % kWorkspaceAlignment != 0 || workspace.bytes % kWorkspaceAlignment != 0)
    return fields.fail(fmt::format("{}: {} bytes at {} are not in multiples of {}", where, workspace.bytes,
                                   workspace.offset, kWorkspaceAlignment));
  if (workspace.bytes > plan.arena_bytes - workspace.offset)
    return fields.fail(
        fmt::format("{}: {} bytes at {} are not in the arena", where, workspace.bytes, workspace.offset));
  const auto keep_off = [&](int64_t offset, int64_t bytes, std::string_view what) {
    if (bytes == 0 || offset >= workspace.offset + workspace.bytes || offset + bytes <= workspace.offset)
      return;
    fields.fail(fmt::format("{}: {} bytes at {} overlap {} at {}", where, workspace.bytes, workspace.offset,
                            what, offset));
  };
  const auto operand = [&](size_t which, bool transposed, const PlanArgument& rows,
                           const PlanArgument& columns, std::string_view type) {
    const PlanArgument &down = transposed ? columns : rows, &across = transposed ? rows : columns;
    return matrix_bytes(down, product.pitch ? (*product.pitch)[which] : across, type, batch);
  };
  keep_off(product.a, operand(0, product.transpose_a, product.m, product.k, product.type),
           "the first operand");
  keep_off(product.b, operand(1, product.transpose_b, product.k, product.n, product.type),
           "the second operand");
  keep_off(product.c, operand(2, false, product.m, product.n, product.result), "the result");
  if (product.bias) keep_off(product.bias->offset, 4 * product.n.extent, "the bias");
  for (const PlanBuffer& buffer : plan.buffers)
    keep_off(buffer.offset, buffer.bytes, "buffer " + buffer.name);
}

// Of values that share bytes one ends where the other begins or before, and none lies in a buffer. `places`:
// how many launches or phases there are.
void read_values(Fields& fields, const char* key, const Plan& plan, size_t places,
                 std::vector<PlanValue>& values) {
  if (!fields.has(key)) return;
  fields.each(key, [&](const json& item, const std::string& name) {
    if (!item.is_array() || item.size() != 4)
      return fields.wrong(name, item, "four numbers: offset, bytes, first, last");
    PlanValue& value = values.emplace_back();
    fields.integer(name + "[0]", item[0], value.offset, 0, plan.arena_bytes);
    if (fields.status())
      fields.integer(name + "[1]", item[1], value.bytes, 1, plan.arena_bytes - value.offset);
    fields.integer(name + "[2]", item[2], value.first, -1, static_cast<int64_t>(places) - 1);
    if (fields.status())
      fields.integer(name + "[3]", item[3], value.last, std::max<int64_t>(value.first, 0),
                     static_cast<int64_t>(places));
  });
  std::map<int64_t, int64_t> live;       // offsets and ends of what is live
  std::multimap<int64_t, int64_t> ends;  // of values among it: last and offset
  for (const PlanBuffer& buffer : plan.buffers)
    if (buffer.bytes > 0 && buffer.in.empty()) live[buffer.offset] = buffer.offset + buffer.bytes;
  std::vector<PlanValue> order = values;
  std::sort(order.begin(), order.end(), [](const PlanValue& a, const PlanValue& b) {
    return std::tie(a.first, a.last, a.offset) < std::tie(b.first, b.last, b.offset);
  });
  for (const PlanValue& value : order) {
    while (!ends.empty() && ends.begin()->first <= value.first) {
      live.erase(ends.begin()->second);
      ends.erase(ends.begin());
    }
    const auto after = live.lower_bound(value.offset);
    const bool meets = (after != live.end() && after->first < value.offset + value.bytes) ||
                       (after != live.begin() && std::prev(after)->second > value.offset);
    if (meets)
      return fields.fail(fmt::format("{}{}: {} bytes at {} overlap what is live when they begin, at {}",
                                     fields.where(), key, value.bytes, value.offset, value.first));
    live[value.offset] = value.offset + value.bytes;
    ends.emplace(value.last, value.offset);
  }
}

Program program_of(std::string_view name) {
  return kPrograms[std::find(std::begin(kProgramNames), std::end(kProgramNames), name) -
                   std::begin(kProgramNames)];
}

void read_program(const json& value, const std::string& where, const Plan& plan, Status& status,
                  PlanProgram& program) {
  const int64_t arena = plan.arena_bytes;
  Fields fields(value, where + ".", status);
  fields.read("name", program.name, kProgramNames);
  fields.each("launches", [&](const json& launch, const std::string& at) {
    read_launch(launch, where + "." + at, arena, status, program.launches.emplace_back());
    if (status) read_branch(launch, where + "." + at, status, program.launches);
  });
  for (size_t i = 0; i < program.launches.size() && status; ++i) {
    const std::string launch = fmt::format("{}.launches[{}].", where, i);
    if (program.launches[i].bias) check_bias(fields, launch + "bias", arena, program, i);
    if (status && program.launches[i].workspace)
      check_workspace(fields, launch + "workspace", plan, plan.most_samples(program_of(program.name)),
                      program.launches[i]);
    const PlanBuiltin& builtin = program.launches[i].builtin;
    if (!builtin.arguments.empty() && !kernel_after(program, i, builtin.does))
      fields.fail(fmt::format("{}builtin: launch {} is no kernel after the product", launch, builtin.does));
  }
  read_values(fields, "values", plan, program.launches.size(), program.values);
  if (!fields.has("persistent")) return;
  read_launch(value["persistent"], where + ".persistent", arena, status, program.persistent.emplace());
  fields.read("persistent_required", program.persistent_required);
  read_values(fields, "persistent_values", plan, program.launches.size(), program.persistent_values);
}

void read_predict(const json& value, Status& status, const Plan& plan, PlanPredict& predict) {
  Fields fields(value, "plan: predict.", status);
  int64_t elements = 1;
  fields.read("batch", predict.batch, 0, plan.micro_batch);
  fields.read("needs", predict.needs, 0, kMost);
  fields.read("positions", predict.positions);
  fields.read_shape("shape", predict.shape, elements);
  if (status && fields.has("rows")) {
    const int64_t all = predict.shape.empty() ? 1 : predict.shape.front();
    fields.read("rows", predict.rows, 1, std::max<int64_t>(all - 1, 1));
    if (status && (predict.batch != 1 || all == 1 || all % predict.rows != 0))
      fields.fail(fmt::format("plan: predict: the {} rows of {} do not come in parts of {}", all,
                              counted(predict.batch, "sample"), predict.rows));
    if (status) elements = elements / all * predict.rows;
    fields.read("rows_offset", predict.rows_offset, 0, plan.arena_bytes - predict.rows * kElementBytes);
    if (predict.rows_offset % kElementBytes != 0)
      fields.fail(fmt::format("plan: predict.rows_offset is not a multiple of {}", kElementBytes));
  }
  const int64_t most = plan.arena_bytes / kElementBytes;
  if (status && predict.batch > 0 && elements > most / predict.batch)
    fields.fail("plan: predict: the output is larger than the arena");
  if (status)
    fields.read("offset", predict.offset, 0, plan.arena_bytes - elements * kElementBytes * predict.batch);
}

// The fields that are no list of objects.
void read_settings(Fields& fields, Plan& plan) {
  constexpr int64_t kCount = int64_t{1} << 40;  // samples, launches, epochs
  fields.read("model", plan.model);
  fields.read("target", plan.target);
  fields.read("parameters", plan.parameters, 0, kMost);
  fields.read("micro_batch", plan.micro_batch, 1, std::numeric_limits<int32_t>::max());
  fields.read("accumulate", plan.accumulate, 1, std::numeric_limits<int32_t>::max());
  if (fields.has("lanes")) fields.read("lanes", plan.lanes, 1, plan.accumulate);
  if ((plan.lanes & (plan.lanes - 1)) != 0) fields.fail("plan: lanes is no power of two");
  if (fields.has("shard")) fields.read("shard", plan.shard, 2, plan.lanes);
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
  if (const json* object = fields.has("plateau") ? fields.find("plateau") : nullptr) {
    Fields plateau(*object, "plan: plateau.", fields.status());
    PlateauRules& rules = plan.plateau.emplace();
    plateau.read("metric", rules.metric);
    if (fields.status() && rules.metric != "loss" && find_metric(rules.metric) == nullptr)
      fields.fail(fmt::format("plan: plateau.metric is {}, which is no metric", rules.metric));
    plateau.read("patience", rules.patience, 0, std::numeric_limits<int32_t>::max());
    plateau.read("threshold", rules.threshold);
  }
  if (const json* object = fields.has("seed_rules") ? fields.find("seed_rules") : nullptr) {
    Fields seed(*object, "plan: seed_rules.", fields.status());
    SeedRules& rules = plan.seed_rules.emplace();
    seed.read("elements", rules.elements, 1, kMost);
    seed.read("dynamic", rules.dynamic);
  }
}

void read_bytes(const json& value, Status& status, PlanBytes& bytes) {
  Fields fields(value, "plan: bytes.", status);
  fields.read("weights", bytes.weights, 0, kMost);
  fields.read("half_weights", bytes.half_weights, 0, kMost);
  fields.read("gradients", bytes.gradients, 0, kMost);
  fields.read("optimizer", bytes.optimizer, 0, kMost);
  fields.read("activations", bytes.activations, 0, kMost);
  fields.read("workspace", bytes.workspace, 0, kMost);
  fields.read("inputs", bytes.inputs, 0, kMost);
  fields.read("peak", bytes.peak, 0, kMost);
  fields.read("lower_bound", bytes.lower_bound, 0, kMost);
}

// [load] of the model file: each entry is a parameter's, which has tensors.
void read_load(const json& value, Status& status, PlanLoad& load) {
  Fields fields(value, "plan: load.", status);
  fields.each("parameters", [&](const json& item, const std::string& name) {
    Fields entry(item, fmt::format("plan: load.{}.", name), status);
    PlanLoad::Parameter& parameter = load.parameters.emplace_back();
    entry.read_name("name", parameter.name);
    entry.read("tensors", parameter.tensors);
    entry.read("transpose", parameter.transpose);
    int64_t rows = 0;
    if (entry.has("parts")) {
      entry.each("parts", [&](const json& part, const std::string& which) {
        entry.integer(which, part, parameter.parts.emplace_back(), 1, kMost);
        rows += parameter.parts.back();
        if (status && rows > kMost) fields.fail(fmt::format("plan: load.{}.parts are too large", name));
      });
      if (status && parameter.parts.size() != parameter.tensors.size())
        fields.fail(fmt::format("plan: load.{} has {} tensors and {} parts", name, parameter.tensors.size(),
                                parameter.parts.size()));
    }
    if (status && parameter.tensors.empty()) fields.fail(fmt::format("plan: load.{}.tensors is empty", name));
  });
  fields.read("prefix", load.prefix);
  fields.read("ignore", load.ignore);
  fields.read("part", load.part);
}

// Adapters are matrices that fit the rows of their weight.
void read_adapter(const json& value, const std::string& name, Status& status, PlanAdapter& adapter) {
  Fields fields(value, fmt::format("plan: {}.", name), status);
  fields.read_name("name", adapter.name);
  fields.read_name("weight", adapter.weight);
  fields.read("begin", adapter.begin, 0, kMost);
  fields.read("alpha", adapter.alpha);
}
void check_adapters(const Plan& plan, Status& status) {
  for (const PlanAdapter& adapter : plan.adapters) {
    if (!status) return;
    const PlanBuffer *a = plan.find(adapter.name + ".lora_A.weight"),
                     *b = plan.find(adapter.name + ".lora_B.weight"), *weight = plan.find(adapter.weight);
    const auto is_matrix = [](const PlanBuffer* one) { return one != nullptr && one->shape.size() == 2; };
    if (!is_matrix(a) || !is_matrix(b) || !is_matrix(weight) || a->shape[0] != b->shape[1] ||
        a->shape[1] != weight->shape[1] || b->shape[0] > weight->shape[0] ||
        adapter.begin > weight->shape[0] - b->shape[0])
      status = Status::error("plan: the adapter {} does not fit {}", adapter.name, adapter.weight);
  }
}

// What ranks share: a slice or master is rows of the buffer that it belongs to, and a moment of its
// parameter. A slice lies in that buffer's place, and a parameter that has a master in the place of its
// gradient.
void check_shared(const Plan& plan, Status& status) {
  const auto is_exact = [](const PlanBuffer& buffer) {
    return buffer.bytes == elements_of(buffer.shape) * element_bytes(buffer.dtype);
  };
  const auto is_rows = [&](const PlanBuffer& part, const PlanBuffer& whole) {
    return plan.shard > 0 && whole.whole.empty() && part.whole == whole.shape && part.dtype == whole.dtype &&
           is_exact(part) && is_exact(whole) && (whole.bytes - 1) / part.bytes < plan.shard;
  };
  for (const PlanBuffer& buffer : plan.buffers) {
    const bool slice = buffer.role == BufferRole::slice, master = buffer.role == BufferRole::master;
    if (slice || master || !buffer.whole.empty()) {
      const PlanBuffer* whole = plan.find(buffer.of);
      const bool may = slice || master || buffer.role == BufferRole::moment;
      if (whole == nullptr || !may || !is_rows(buffer, *whole))
        status = Status::error("plan: buffer {} is no slice of {}", buffer.name, buffer.of);
      if (!status) return;
    }
    if (slice || !buffer.in.empty()) {
      const PlanBuffer* in = plan.find(buffer.in);
      const auto is_its_gradient = [&] {
        return in->role == BufferRole::gradient && in->of == buffer.name &&
               plan.find(BufferRole::master, buffer.name) != nullptr;
      };
      if (in == nullptr || !(slice ? buffer.in == buffer.of : is_its_gradient()) ||
          in->offset != buffer.offset || in->bytes < buffer.bytes)
        status = Status::error("plan: buffer {} does not lie in the place of {}", buffer.name, buffer.in);
      if (!status) return;
    }
  }
}

// Bytes of the arena, and the field of the plan that puts them there.
struct Place {
  int64_t begin, bytes;
  std::string field;
};

// What no single field shows: names are unique; buffers do not overlap, nor does an input where a program
// reads it.
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
  for (const Program program : {Program::step, Program::eval, Program::predict, Program::answer}) {
    std::vector<Place> places;
    if (program == Program::answer && plan.predict.rows > 0)
      places.push_back({plan.predict.rows_offset, plan.predict.rows * kElementBytes, "predict.rows_offset"});
    for (size_t i = 0; i < plan.buffers.size(); ++i)
      if (plan.buffers[i].in.empty())
        places.push_back({plan.buffers[i].offset, plan.buffers[i].bytes,
                          fmt::format("buffers[{}].offset ({})", i, plan.buffers[i].name)});
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      const PlanInput& input = plan.inputs[i];
      const std::optional<int64_t> offset = input.offset(program);
      if (!offset || program == Program::answer) continue;
      places.push_back({*offset, input.bytes(plan.most_samples(program)),
                        fmt::format("inputs[{}].{}_offset ({})", i,
                                    kProgramNames[static_cast<size_t>(program)], input.name)});
    }
    std::stable_sort(places.begin(), places.end(),
                     [](auto& left, auto& right) { return left.begin < right.begin; });
    for (size_t i = 1; i < places.size() && status; ++i)
      if (places[i - 1].begin + places[i - 1].bytes > places[i].begin)
        status = Status::error("plan: {} and {} overlap", places[i - 1].field, places[i].field);
  }
}

}  // namespace

Status from_json(const nlohmann::json& object, Plan& result) {
  Plan plan;
  Status status;
  Fields fields(object, "plan: ", status);
  read_settings(fields, plan);
  if (const json* bytes = fields.find("bytes")) read_bytes(*bytes, status, plan.bytes);
  if (const json* predict = fields.find("predict")) read_predict(*predict, status, plan, plan.predict);
  if (const json* load = fields.has("load") ? fields.find("load") : nullptr)
    read_load(*load, status, plan.load.emplace());
  fields.each("inputs", [&](const json& item, const std::string& name) {
    read_input(item, "plan: " + name, plan, status, plan.inputs.emplace_back());
  });
  fields.each("buffers", [&](const json& item, const std::string& name) {
    read_buffer(item, "plan: " + name, plan, status, plan.buffers.emplace_back());
  });
  fields.each("programs", [&](const json& item, const std::string& name) {
    read_program(item, "plan: " + name, plan, status, plan.programs.emplace_back());
  });
  if (fields.has("adapters")) {
    fields.each("adapters", [&](const json& item, const std::string& name) {
      read_adapter(item, name, status, plan.adapters.emplace_back());
    });
  }
  if (status) check_shared(plan, status);
  if (status) check_names(plan, status);
  if (status) check_adapters(plan, status);
  if (status) result = std::move(plan);
  return status;
}

}  // namespace gacc
