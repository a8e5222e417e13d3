// The plan as JSON: one list of fields for both directions. Reading trusts nothing: a field that is missing, of
// another type or out of its range ends in one sentence that says where. Beyond that a reader checks what the IR's
// settings may say wrongly, too: all else is compared with a sound IR before anything is done with it
// (compiler/compare_plan.h).
#include <algorithm>
#include <bit>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "runtime/plan.h"

namespace gacc {
namespace {

using nlohmann::json;

constexpr int64_t kMost = int64_t{1} << 48;  // bytes and elements: far beyond any machine
constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

template <class T, class Of>
concept Is = std::same_as<std::remove_const_t<T>, Of>;

// ---- the fields, for a Writer or a Reader, which checks what stands behind the variable: the least and the greatest
// integer. `maybe`: left out where it is nothing, or the value given.

template <Is<PlanInput> T, class Io>
void fields(T& input, Io& io) {
  io.name("name", input.name);
  io("dtype", input.dtype);
  io("shape", input.shape);
  io("step_offset", input.step_offset);
  io("eval_offset", input.eval_offset);
  io.maybe("predict_offset", input.predict_offset);
  io("mean", input.mean);
  io("std", input.std);
  io.maybe("stored", input.stored);
  io.word("normalize", "data", input.normalize_data);
  io.maybe("range", input.range, 1, kMostInt);
  io.maybe("ignore_index", input.ignore_index, -kMostInt - 1, kMostInt);
  io.maybe("target", input.target);
  io.maybe("probability", input.probability);
}

template <Is<PlanBuffer> T, class Io>
void fields(T& buffer, Io& io) {
  io.name("name", buffer.name);
  io("kind", buffer.kind);
  io("role", buffer.role);
  io.maybe("of", buffer.of);
  io("dtype", buffer.dtype);
  io("shape", buffer.shape);
  io("offset", buffer.offset);
  io("bytes", buffer.bytes);
  if (buffer.kind == "param") io("trainable", buffer.trainable);
  io.maybe("kept", buffer.kept, 1.0);
  io.maybe("whole", buffer.whole);
  io.maybe("in", buffer.in);
  io.maybe("values", buffer.values);
}

template <Is<PlanBuiltin> T, class Io>
void fields(T& builtin, Io& io) {
  io("kernel", builtin.kernel);
  io("block", builtin.block, 1, 1024);
  io("tile_m", builtin.tile_m, 1, kMost);
  io("tile_n", builtin.tile_n, 1, kMost);
  io.maybe("arguments", builtin.arguments);
  if (!builtin.arguments.empty()) io("does", builtin.does);
}

template <Is<PlanBias> T, class Io>
void fields(T& bias, Io& io) {
  io("offset", bias.offset);
  io("launch", bias.launch);
}

template <Is<PlanWorkspace> T, class Io>
void fields(T& workspace, Io& io) {
  io("offset", workspace.offset);
  io("bytes", workspace.bytes);
}

template <Is<PlanLaunch> T, class Io>
void fields(T& launch, Io& io) {
  io.maybe("stream", launch.stream);
  io.maybe("after", launch.after, int64_t{-1});
  io.maybe("kernel", launch.kernel);
  if (!launch.kernel.empty()) {
    io("arguments", launch.arguments);
    io("block", launch.block, 1, 1024);
    io("grid", launch.grid);
    io("per_block", launch.per_block, 1, kMost);
    io.maybe("resident", launch.resident);
    io.maybe("cooperative", launch.cooperative);
    io.maybe("touches", launch.touches);
    return;
  }
  io("a", launch.a);
  io("b", launch.b);
  io("c", launch.c);
  io("m", launch.m);
  io("n", launch.n);
  io("k", launch.k);
  io.maybe("pitch", launch.pitch);
  io("transpose_a", launch.transpose_a);
  io("transpose_b", launch.transpose_b);
  io("accumulate", launch.accumulate);
  io("type", launch.type);
  io("result", launch.result);
  io.maybe("bias", launch.bias);
  io.maybe("workspace", launch.workspace);
  io.maybe("builtin", launch.builtin);
}

template <Is<PlanProgram> T, class Io>
void fields(T& program, Io& io) {
  io("name", program.name);
  io("launches", program.launches);
  io.maybe("values", program.values);
  io.maybe("persistent", program.persistent);
  if (!program.persistent) return;
  io("persistent_required", program.persistent_required);
  io.maybe("persistent_values", program.persistent_values);
}

template <Is<PlanBytes> T, class Io>
void fields(T& bytes, Io& io) {
  io("weights", bytes.weights);
  io("half_weights", bytes.half_weights);
  io("gradients", bytes.gradients);
  io("optimizer", bytes.optimizer);
  io("activations", bytes.activations);
  io("workspace", bytes.workspace);
  io("inputs", bytes.inputs);
  io("peak", bytes.peak);
  io("lower_bound", bytes.lower_bound);
}

template <Is<PlanPredict> T, class Io>
void fields(T& predict, Io& io) {
  io("batch", predict.batch);
  io("needs", predict.needs);
  io("offset", predict.offset);
  io("shape", predict.shape);
  io("positions", predict.positions);
  io.maybe("rows", predict.rows);
  if (predict.rows != 0) io("rows_offset", predict.rows_offset);
}

template <Is<PlateauRules> T, class Io>
void fields(T& plateau, Io& io) {
  io("metric", plateau.metric);
  io("patience", plateau.patience, 0, kMostInt);
  io("threshold", plateau.threshold);
}

template <Is<SeedRules> T, class Io>
void fields(T& seed, Io& io) {
  io("elements", seed.elements, 1, kMost);
  io("dynamic", seed.dynamic);
}

template <Is<PlanLoad::Parameter> T, class Io>
void fields(T& parameter, Io& io) {
  io.name("name", parameter.name);
  io("tensors", parameter.tensors);
  io("transpose", parameter.transpose);
  io.maybe("parts", parameter.parts);
}

template <Is<PlanLoad> T, class Io>
void fields(T& load, Io& io) {
  io("parameters", load.parameters);
  io("prefix", load.prefix);
  io("ignore", load.ignore);
  io("part", load.part);
}

template <Is<PlanAdapter> T, class Io>
void fields(T& adapter, Io& io) {
  io.name("name", adapter.name);
  io.name("weight", adapter.weight);
  io("begin", adapter.begin);
  io("alpha", adapter.alpha);
}

template <Is<PlanTie> T, class Io>
void fields(T& tie, Io& io) {
  io.name("name", tie.name);
  io.name("weight", tie.weight);
}

template <Is<Plan> T, class Io>
void fields(T& plan, Io& io) {
  io("model", plan.model);
  io("target", plan.target);
  io("parameters", plan.parameters);
  io("micro_batch", plan.micro_batch, 1, kMostInt);
  io("accumulate", plan.accumulate, 1, kMostInt);
  io.maybe("lanes", plan.lanes, int64_t{1}, 1, plan.accumulate);
  io.maybe("shard", plan.shard, int64_t{0}, 2, plan.lanes);
  io("tail", plan.tail);
  io("epochs", plan.epochs);
  io("shuffle", plan.shuffle);
  io("seed", plan.seed, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  io("lr", plan.lr);
  io("optimizer", plan.optimizer);
  io("precision", plan.precision);
  io("metrics", plan.metrics);
  io("arena_bytes", plan.arena_bytes);
  io("bytes", plan.bytes);
  io("flops_per_launch", plan.flops_per_launch, 0, std::numeric_limits<int64_t>::max());
  io("kernels_per_launch", plan.kernels_per_launch);
  io("passes", plan.passes);
  io("exact", plan.exact);
  io("because", plan.because);
  io("skip_nonfinite", plan.skip_nonfinite);
  io("max_skips", plan.max_skips, 1, kMostInt);
  io.maybe("plateau", plan.plateau);
  io.maybe("seed_rules", plan.seed_rules);
  io("predict", plan.predict);
  io.maybe("load", plan.load);
  io.maybe("adapters", plan.adapters);
  io.maybe("ties", plan.ties);
  io.maybe("presumes", plan.presumes);
  io("inputs", plan.inputs);
  io("buffers", plan.buffers);
  io("programs", plan.programs);
}

// ---- writing

template <class Json>
class Writer {
 public:
  template <class T>
  static Json object(const T& value) {
    Writer writer;
    fields(value, writer);
    return std::move(writer.object_);
  }

  template <class T, class... Range>
  void operator()(const char* key, const T& value, Range...) {
    object_[key] = written(value);
  }
  void name(const char* key, const std::string& value) { object_[key] = value; }
  template <class T, class... Range>
  void maybe(const char* key, const T& value, const T& none = T(), Range...) {
    if (value != none) (*this)(key, value);
  }
  template <class T, class... Range>
  void maybe(const char* key, const std::optional<T>& value, Range...) {
    if (value) (*this)(key, *value);
  }
  void word(const char* key, const char* word, bool given) {
    if (given) object_[key] = word;
  }

 private:
  template <class T>
  static Json written(const T& value) {
    if constexpr (std::is_constructible_v<Json, T>)
      return value;
    else
      return object(value);
  }
  static Json written(BufferRole role) { return buffer_roles[static_cast<size_t>(role)].text; }
  static Json written(const PlanArgument& argument) {
    if (argument.kind == PlanArgument::Kind::address) return argument.offset;
    return {{"extent", argument.extent}, {"times_batch", argument.times_batch}};
  }
  static Json written(const PlanValue& value) { return {value.offset, value.bytes, value.first, value.last}; }
  template <class T>
  static Json written(const std::vector<T>& list) {
    Json array = Json::array();
    for (const T& each : list) array.push_back(written(each));
    return array;
  }
  static Json written(const std::array<PlanArgument, 3>& list) {
    return written(std::vector(list.begin(), list.end()));
  }

  Json object_ = Json::object();
};

// ---- reading

class Reader {
 public:
  // `where` stands before keys in messages: "plan: inputs[2]."; `status` is the first error.
  Reader(const json& object, std::string where, Status& status)
      : object_(object), where_(std::move(where)), status_(status) {}

  template <class T, class... Range>
  void operator()(const char* key, T& value, Range... range) {
    const auto found = object_.find(key);
    if (found != object_.end())
      read(where_ + key, *found, value, range...);
    else
      fail(fmt::format("{}{} is missing", where_, key));
  }
  // Messages show it.
  void name(const char* key, std::string& value) {
    (*this)(key, value);
    const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (status_ && (value.empty() || std::ranges::any_of(value, control)))
      wrong(where_ + key, object_[key], "a name");
  }
  template <class T, class... Range>
  void maybe(const char* key, T& value, const T& /*none*/ = T(), Range... range) {
    if (object_.contains(key)) (*this)(key, value, range...);
  }
  template <class T, class... Range>
  void maybe(const char* key, std::optional<T>& value, Range... range) {
    if (object_.contains(key)) (*this)(key, value.emplace(), range...);
  }
  void word(const char* key, const char* word, bool& given) {
    given = object_.contains(key);
    if (given && object_[key] != word) wrong(where_ + key, object_[key], fmt::format("\"{}\"", word));
  }

 private:
  template <class T>
  void read(const std::string& name, const json& from, T& to) {
    if (!from.is_object()) return wrong(name, from, "an object");
    Reader reader(from, name + ".", status_);
    fields(to, reader);
  }
  void read(const std::string& name, const json& from, std::string& to) {
    if (!from.is_string()) return wrong(name, from, "a string");
    to = from.get<std::string>();
  }
  void read(const std::string& name, const json& from, bool& to) {
    if (!from.is_boolean()) return wrong(name, from, "true or false");
    to = from.get<bool>();
  }
  void read(const std::string& name, const json& from, double& to) {
    if (!from.is_number()) return wrong(name, from, "a number");
    to = from.get<double>();
  }
  void read(const std::string& name, const json& from, int64_t& to, int64_t low = 0, int64_t high = kMost) {
    const bool fits = from.is_number_integer() &&
                      (!from.is_number_unsigned() || std::in_range<int64_t>(from.get<uint64_t>()));
    const int64_t number = fits ? from.get<int64_t>() : 0;
    if (!fits || number < low || number > high)
      return wrong(name, from, fmt::format("an integer from {} to {}", low, high));
    to = number;
  }
  void read(const std::string& name, const json& from, BufferRole& to) {
    const auto role =
        std::ranges::find_if(buffer_roles, [&](const RoleRow& row) { return from == row.text; });
    if (role == std::end(buffer_roles)) return wrong(name, from, "a role");
    to = static_cast<BufferRole>(role - std::begin(buffer_roles));
  }
  void read(const std::string& name, const json& from, PlanArgument& to) {
    to.kind = from.is_object() ? PlanArgument::Kind::extent : PlanArgument::Kind::address;
    if (!from.is_object()) return read(name, from, to.offset);
    Reader reader(from, name + ".", status_);
    reader("extent", to.extent);
    reader("times_batch", to.times_batch);
  }
  void read(const std::string& name, const json& from, PlanValue& to) {
    if (!from.is_array() || from.size() != 4)
      return wrong(name, from, "four numbers: offset, bytes, first, last");
    read(name + "[0]", from[0], to.offset);
    read(name + "[1]", from[1], to.bytes);
    read(name + "[2]", from[2], to.first, -1);
    read(name + "[3]", from[3], to.last);
  }
  void read(const std::string& name, const json& from, std::array<PlanArgument, 3>& to) {
    if (!from.is_array() || from.size() != to.size()) return wrong(name, from, "three extents");
    for (size_t i = 0; i < to.size(); ++i) read(fmt::format("{}[{}]", name, i), from[i], to[i]);
  }
  template <class T>
  void read(const std::string& name, const json& from, std::vector<T>& to) {
    if (!from.is_array()) return wrong(name, from, "an array");
    for (size_t i = 0; i < from.size(); ++i) read(fmt::format("{}[{}]", name, i), from[i], to.emplace_back());
  }

  void wrong(const std::string& name, const json& value, std::string_view expected) {
    constexpr size_t kMost = 60;
    std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (shown.size() > kMost) shown = shown.substr(0, kMost) + "...";
    if (value.is_structured()) shown = value.type_name();
    fail(fmt::format("{} is {}; expected {}", name, shown, expected));
  }
  void fail(std::string text) {
    if (status_) status_ = Status::error(std::move(text));
  }

  const json& object_;
  const std::string where_;
  Status& status_;
};

// ---- what the IR may say, too: its settings are of the right types, and no more is known of them

Status check_inputs(const Plan& plan) {
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const PlanInput& input = plan.inputs[i];
    const auto axis = static_cast<size_t>(input.shape.empty() ? 1 : input.shape[0]);
    for (const auto& [key, list] : {std::pair{"mean", &input.mean}, {"std", &input.std}})
      if (list->size() > 1 && list->size() != axis)
        return Status::error("plan: inputs[{}].{} has {} numbers, the first axis of its shape {}", i, key,
                             list->size(), axis);
    if (std::ranges::count(input.std, 0.0) > 0) return Status::error("plan: inputs[{}].std has a zero", i);
  }
  return {};
}

// [load] of the model file: each entry is a parameter's, which has tensors.
Status check_load(const PlanLoad& load) {
  for (size_t i = 0; i < load.parameters.size(); ++i) {
    const auto& [name, tensors, transpose, parts] = load.parameters[i];
    if (tensors.empty()) return Status::error("plan: load.parameters[{}].tensors is empty", i);
    if (!parts.empty() && parts.size() != tensors.size())
      return Status::error("plan: load.parameters[{}] has {} tensors and {} parts", i, tensors.size(),
                           parts.size());
  }
  return {};
}

// Adapters are matrices that fit the rows of their weight. A tie is to a buffer.
Status check_adapters(const Plan& plan) {
  const auto is_matrix = [](const PlanBuffer* one) { return one != nullptr && one->shape.size() == 2; };
  for (const PlanAdapter& adapter : plan.adapters) {
    const PlanBuffer *a = plan.find(adapter.name + ".lora_A.weight"),
                     *b = plan.find(adapter.name + ".lora_B.weight"), *weight = plan.find(adapter.weight);
    if (!is_matrix(a) || !is_matrix(b) || !is_matrix(weight) || a->shape[0] != b->shape[1] ||
        a->shape[1] != weight->shape[1] || b->shape[0] > weight->shape[0] ||
        adapter.begin > weight->shape[0] - b->shape[0])
      return Status::error("plan: the adapter {} does not fit {}", adapter.name, adapter.weight);
  }
  for (const PlanTie& tie : plan.ties)
    if (plan.find(tie.weight) == nullptr)
      return Status::error("plan: {} is tied to {}, which is no buffer", tie.name, tie.weight);
  return {};
}

}  // namespace

nlohmann::json to_json(const Plan& plan) { return Writer<json>::object(plan); }
nlohmann::ordered_json to_json(const PlanBytes& bytes) {
  return Writer<nlohmann::ordered_json>::object(bytes);
}

Status from_json(const nlohmann::json& object, Plan& result) {
  Plan plan;
  Status status;
  Reader reader(object, "plan: ", status);
  fields(plan, reader);
  GACC_TRY(status);
  if (!std::has_single_bit(static_cast<uint64_t>(plan.lanes)))
    return Status::error("plan: lanes is no power of two");
  GACC_TRY(check_inputs(plan));
  GACC_TRY(plan.load ? check_load(*plan.load) : Status());
  GACC_TRY(check_adapters(plan));
  result = std::move(plan);
  return {};
}

}  // namespace gacc
