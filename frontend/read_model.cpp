// Reads [model], [inputs.*] and [loss], and hands the rest to read_layers and read_training.
#include <algorithm>
#include <cmath>

#include "frontend/model_file.h"
#include "frontend/schema.h"

namespace gacc::frontend {

namespace {

constexpr size_t kMaxRank = 8;  // axes of an input, per sample
constexpr size_t kMaxInputs = 256;

}  // namespace

const std::vector<MetricSpec>& known_metrics() {
  static const std::vector<std::string_view> differences = {"mse", "l1", "huber"};
  static const std::vector<MetricSpec> metrics = {{"accuracy", {"cross_entropy", "bce_with_logits"}},
                                                  {"perplexity", {"cross_entropy"}},
                                                  {"mae", differences},
                                                  {"rmse", differences},
                                                  {"r2", differences}};
  return metrics;
}

std::vector<std::string_view> metric_names() {
  std::vector<std::string_view> names;
  for (const MetricSpec& metric : known_metrics()) names.push_back(metric.name);
  return names;
}

namespace {

void read_name_and_metrics(const Node& node, ModelFile& model, Diag& diag) {
  TableReader table(node, "[model]", "model.", diag);
  if (table.require("name")) {
    if (const auto name = table.text("name")) {
      if (name->empty() || name->size() > kMaxNameLength) {
        diag.error(Kind::out_of_range, table.at("name"), "`model.name` must have 1 to {} characters",
                   kMaxNameLength);
      }
      model.name = *name;
    }
  }
  model.settings["model.seed"] = table.integer("seed", at_least(0)).value_or(0);
  if (const Node* metrics = table.list("metrics")) {
    for (const Node& item : metrics->items) {
      const auto metric = table.choice(item, "metric", metric_names());
      if (!metric) continue;
      const auto same = [&](const Named& other) { return other.name == *metric; };
      if (std::any_of(model.metrics.begin(), model.metrics.end(), same)) {
        diag.error(Kind::duplicate_name, item.at, "metric \"{}\" is listed twice", *metric);
      } else {
        model.metrics.push_back({*metric, item.at});
      }
    }
  }
  table.finish();
}

// `mean` or `std` of normalize: a number, or an array along the first axis.
std::vector<double> read_statistic(TableReader& table, std::string_view key, const InputSpec& input,
                                   bool shape_known) {
  const Node* node = table.find(key);
  if (node == nullptr) {
    table.require(key);
    return {};
  }
  std::vector<double> values;
  const auto read = [&](const Node& item) {
    const auto value = table.real(item, table.path(key), any_number);
    if (value && key == "std" && static_cast<float>(*value) == 0) {
      table.diag().error(Kind::out_of_range, item.at, "`{}` must not be 0: the data is divided by it",
                         table.path(key));
    }
    values.push_back(value.value_or(1));
  };
  if (!node->is_list()) {
    read(*node);
    return values;
  }
  for (const Node& item : node->items) read(item);
  const size_t axis = input.shape.empty() ? 0 : static_cast<size_t>(input.shape.front());
  if (shape_known && values.size() != axis) {
    Report& report = table.diag().error(Kind::shape_mismatch, node->at,
                                        "`{}` has {} numbers, the first axis of input `{}` has {}",
                                        table.path(key), values.size(), input.name, axis);
    if (input.shape_at.line > 0) report.note(input.shape_at, "the shape is set here");
  }
  return values;
}

InputSpec read_input(const Entry& entry, Diag& diag) {
  InputSpec input{.name = entry.key, .at = entry.key_at};
  const std::string what = fmt::format("[inputs.{}]", entry.key);
  if (!entry.value.is_table()) {
    diag.error(Kind::wrong_type, entry.value.at, "`inputs.{}` must be a table, not {}", entry.key,
               form_text(entry.value.form));
    input.sound = false;
    return input;
  }
  if (!is_name(entry.key)) {
    diag.error(Kind::out_of_range, entry.key_at,
               "an input's name has 1 to {} characters, no dots and no control characters", kMaxNameLength);
  }
  TableReader table(entry.value, what, fmt::format("inputs.{}.", entry.key), diag);
  input.shape_at = table.at("shape");
  bool shape_known = true;
  if (table.find("shape") != nullptr) {
    const auto shape = table.integers("shape", extent, kMaxRank);
    shape_known = shape.has_value();
    input.shape = shape.value_or(ir::Shape{});
    if (!ir::fits(input.shape, 1)) {
      diag.error(Kind::out_of_range, input.shape_at, "input `{}` has too many elements", entry.key);
      shape_known = false;
    }
  }
  const size_t before_dtype = diag.reports().size();
  static constexpr std::string_view dtypes[] = {"f32", "i32"};
  input.dtype =
      table.choice("dtype", "dtype", dtypes).value_or("f32") == "i32" ? ir::DType::i32 : ir::DType::f32;
  input.sound = shape_known && diag.reports().size() == before_dtype;
  input.range = table.integer("range", extent);
  input.range_at = table.at("range");
  if (table.find("range") != nullptr && input.dtype != ir::DType::i32) {
    diag.error(Kind::conflict, input.range_at, "`range` is for i32 inputs; `{}` is f32", entry.key);
    input.range.reset();
  }
  const Node* normalize = table.find("normalize");
  if (normalize != nullptr && input.dtype != ir::DType::f32) {
    diag.error(Kind::conflict, normalize->at, "`normalize` is for f32 inputs; `{}` is i32", entry.key);
  }
  if (normalize != nullptr && normalize->form == Node::Form::text) {
    static constexpr std::string_view ways[] = {"data"};
    input.normalize_data = table.choice(*normalize, "normalisation", ways).has_value();
  } else if (normalize != nullptr && table.table("normalize") != nullptr) {
    TableReader inner(*normalize, "`normalize`", fmt::format("inputs.{}.normalize.", entry.key), diag);
    input.mean = read_statistic(inner, "mean", input, shape_known);
    input.std = read_statistic(inner, "std", input, shape_known);
    inner.finish();
  }
  const size_t before_unknown = diag.reports().size();
  table.finish();
  // A misspelt `shape` or `dtype` should not be followed by complaints about the default.
  if (diag.reports().size() != before_unknown && entry.value.find("shape") == nullptr) input.sound = false;
  return input;
}

// One number, or a list of them.
std::vector<double> read_weights(TableReader& table, std::string_view key) {
  const Node* node = table.find(key);
  std::vector<double> values;
  if (node == nullptr) return values;
  const auto read = [&](const Node& item) {
    values.push_back(table.real(item, table.path(key), at_least(0)).value_or(1));
  };
  if (node->is_list())
    std::for_each(node->items.begin(), node->items.end(), read);
  else
    read(*node);
  if (values.empty()) table.diag().error(Kind::out_of_range, node->at, "`{}` is empty", table.path(key));
  return values;
}

std::vector<double> read_class_weights(TableReader& table) {
  const Node* node = table.list("class_weights");
  if (node == nullptr) return {};
  std::vector<double> weights = read_weights(table, "class_weights");
  const auto nothing = [](double weight) { return static_cast<float>(weight) == 0; };
  if (!weights.empty() && std::all_of(weights.begin(), weights.end(), nothing))
    table.diag().error(Kind::out_of_range, node->at, "`loss.class_weights` are all 0: nothing would count");
  return weights;
}

// The keys that only some losses have.
void refuse_other_keys(TableReader& table, const std::string& type) {
  static constexpr std::pair<std::string_view, std::string_view> keys[] = {
      {"ignore_index", "cross_entropy"},
      {"label_smoothing", "cross_entropy"},
      {"class_weights", "cross_entropy"},
      {"pos_weight", "bce_with_logits"},
      {"delta", "huber"}};
  for (const auto& [key, owner] : keys) {
    if (table.find(key) == nullptr || type.empty() || type == owner) continue;
    table.diag().error(Kind::conflict, table.at(key), "`{}` is for {}; this loss is {}", key, owner, type);
  }
}

void read_loss(const Node& node, ModelFile& model, Diag& diag) {
  LossSpec& loss = model.loss;
  TableReader table(node, "[loss]", "loss.", diag);
  const size_t before = diag.reports().size();
  static constexpr std::string_view types[] = {"cross_entropy", "mse", "l1", "huber", "bce_with_logits"};
  loss.at = table.at("type");
  if (table.require("type")) loss.type = table.choice("type", "loss", types).value_or("");
  if (table.require("target")) loss.target = {table.text("target").value_or(""), table.at("target")};
  if (const auto input = table.text("input")) loss.input = Named{*input, table.at("input")};
  // Into how many parts the pass chunk-loss cuts it; without the key it chooses.
  if (const auto chunks = table.integer("chunks", extent)) model.settings["loss.chunks"] = *chunks;
  refuse_other_keys(table, loss.type);
  loss.ignore_index = table.integer("ignore_index", between(-2147483648.0, 2147483647.0)).value_or(-100);
  loss.label_smoothing = table.real("label_smoothing", fraction).value_or(0);
  loss.delta = table.real("delta", above(0)).value_or(1);
  loss.class_weights = read_class_weights(table);
  loss.pos_weight = read_weights(table, "pos_weight");
  loss.weights_at = table.at(loss.pos_weight.empty() ? "class_weights" : "pos_weight");
  table.finish();
  loss.sound = diag.reports().size() == before;
}

// The target of a class loss: which values are valid is a fact of the data, so the runtime needs it.
void input_settings(const InputSpec& input, ir::Attrs& settings) {
  const std::string prefix = fmt::format("inputs.{}.", input.name);
  if (input.range) settings[prefix + "range"] = *input.range;
  if (input.normalize_data) settings[prefix + "normalize"] = "data";
  if (!input.mean.empty()) settings[prefix + "normalize.mean"] = input.mean;
  if (!input.std.empty()) settings[prefix + "normalize.std"] = input.std;
}

}  // namespace

ModelFile read_model(const Node& root, Diag& diag) {
  ModelFile model;
  TableReader file(root, "a model file", "", diag);
  const auto section = [&](std::string_view key) -> const Node* {
    if (file.find(key) != nullptr) return file.table(key);
    diag.error(Kind::missing_key, {}, "the table [{}] is missing", key);
    return nullptr;
  };
  if (const Node* node = section("model")) read_name_and_metrics(*node, model, diag);

  if (const Node* inputs = section("inputs")) {
    model.inputs_at = inputs->at;
    for (const Entry& entry : inputs->entries) {
      if (model.inputs.size() >= kMaxInputs) {
        diag.error(Kind::out_of_range, entry.key_at, "more than {} inputs", kMaxInputs);
        break;
      }
      model.inputs.push_back(read_input(entry, diag));
      input_settings(model.inputs.back(), model.settings);
    }
    if (inputs->entries.empty())
      diag.error(Kind::missing_key, inputs->at, "a model needs at least one [inputs.NAME]");
  }

  if (file.find("layers") == nullptr) {
    diag.error(Kind::missing_key, {}, "the model has no [[layers]]");
  } else if (const Node* layers = file.list("layers")) {
    model.layers_at = layers->at;
    if (layers->items.empty()) diag.error(Kind::missing_key, layers->at, "the model has no layers");
    model.layers = read_layers(*layers, model.inputs, diag);
  }

  if (const Node* node = section("loss"))
    read_loss(*node, model, diag);
  else
    model.loss.sound = false;
  for (const std::string_view key :
       {"train", "optimizer", "schedule", "precision", "recompute", "launch", "memory"})
    file.table(key);
  read_training(root, model, diag);
  file.finish();
  return model;
}

}  // namespace gacc::frontend
