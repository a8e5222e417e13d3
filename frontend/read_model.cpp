// Reads [model], [inputs.*] and [loss], and hands the rest to read_layers and read_training.
#include <algorithm>

#include "frontend/model_file.h"
#include "ir/contains.h"

namespace gacc::frontend {

namespace {

constexpr size_t kMaxInputs = 256;

void read_name_and_metrics(const Values& keys, ir::Settings& settings, Diag& diag) {
  const std::string name = keys.text("name");
  if (keys.has("name") && (name.empty() || name.size() > kMaxNameLength))
    diag.error(Kind::out_of_range, keys.at("name"), "`model.name` must have 1 to {} characters",
               kMaxNameLength);
  settings.model.seed = keys.integer("seed");
  if (!keys.nodes("metrics").empty()) settings.model.metrics = keys.get<ir::Texts>("metrics");
}

// `mean` or `std` of normalize: a number, or one for each index of the first axis.
void check_statistic(const Values& statistics, std::string_view key, const InputSpec& input, Diag& diag) {
  const Node* node = statistics[key].node;
  const std::vector<double> values = statistics.reals(key);
  if (node == nullptr || values.empty()) return;
  for (size_t i = 0; i < values.size(); ++i) {
    if (key != "std" || static_cast<float>(values[i]) != 0) continue;
    diag.error(Kind::out_of_range, node->is_list() ? node->items[i].at : node->at,
               "`{}` must not be 0: the data is divided by it", statistics.name(key));
  }
  const ir::Shape shape = input.keys.integers("shape");
  const size_t axis = shape.empty() ? 0 : static_cast<size_t>(shape.front());
  if (!node->is_list() || values.size() == axis || !input.keys["shape"].good) return;
  Report& report =
      diag.error(Kind::shape_mismatch, node->at, "`{}` has {} numbers, the first axis of input `{}` has {}",
                 statistics.name(key), values.size(), input.name, axis);
  if (input.keys.given("shape")) report.note(input.keys.at("shape"), "the shape is set here");
}

// Reports the second of two equal texts.
void check_distinct(const Values& keys, std::string_view key, Diag& diag) {
  const std::span<const Node> texts = keys.nodes(key);
  for (size_t i = 0; i < texts.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (texts[i].text == texts[j].text)
        diag.error(Kind::conflict, texts[i].at, "`{}` has \"{}\" twice", keys.name(key), texts[i].text)
            .note(texts[j].at, "it is here, too");
}

// A list of texts that is not empty, each once.
ir::Texts distinct_texts(const Values& keys, std::string_view key, Diag& diag) {
  if (keys.given(key) && keys[key].good && keys.nodes(key).empty())
    diag.error(Kind::out_of_range, keys.at(key), "`{}` is empty", keys.name(key));
  check_distinct(keys, key, diag);
  return keys.get<ir::Texts>(key);
}

// The texts that stand for the numbers of an i32 input, and the columns of texts of an f32 one.
void read_texts(const InputSpec& input, ir::InputSettings& settings, Diag& diag) {
  const Values& keys = input.keys;
  settings.values = distinct_texts(keys, "values", diag);
  if (keys.has("range") && !settings.values.empty() && keys.integer("range") != std::ssize(settings.values))
    diag.error(Kind::conflict, keys.at("range"), "`{}` is {}, and `{}` are {}", keys.name("range"),
               keys.integer("range"), keys.name("values"), settings.values.size());
  int64_t elements = 0;
  for (const Values& column : keys["columns"].tables) {
    const std::string name = column.text("name");
    if (std::ranges::find(settings.columns, name, &ir::ColumnSettings::name) != settings.columns.end())
      diag.error(Kind::conflict, column.at("name"), "`{}` has \"{}\" twice", keys.name("columns"), name);
    settings.columns.push_back({name, distinct_texts(column, "values", diag)});
    elements += std::ssize(settings.columns.back().values);
  }
  if (!input.valid || elements == 0) return;
  int64_t all = 1;
  for (const int64_t extent : keys.integers("shape")) all *= extent;
  if (elements > all)
    diag.error(Kind::shape_mismatch, keys.at("columns"), "`{}` are {} elements, the input has {}",
               keys.name("columns"), elements, all);
}

InputSpec read_input(const Entry& entry, ir::Settings& all, Diag& diag) {
  InputSpec input{.name = entry.key, .at = entry.key_at, .valid = false};
  if (!entry.value.is_table()) {
    diag.error(Kind::wrong_type, entry.value.at, "`inputs.{}` must be a table, not {}", entry.key,
               form_text(entry.value.form));
    return input;
  }
  if (!is_name(entry.key)) {
    diag.error(Kind::out_of_range, entry.key_at,
               "an input's name has 1 to {} characters, no dots and no control characters", kMaxNameLength);
  }
  const size_t before = diag.reports().size();
  const std::string path = fmt::format("inputs.{}", entry.key);
  ir::InputSettings& settings = all.inputs[entry.key];
  const Values& keys = input.keys =
      read_table(entry.value, tables::input, diag, fmt::format("[{}]", path), path);
  input.valid = keys["shape"].good && keys["dtype"].good;
  if (!ir::fits(keys.integers("shape"), 1)) {
    diag.error(Kind::out_of_range, keys.at("shape"), "input `{}` has too many elements", entry.key);
    input.valid = false;
  }
  // A misspelt `shape` should not be followed by complaints about the default.
  if (!keys.given("shape") && diag.reports().size() != before) input.valid = false;
  for (const auto& [key, dtype] : {std::pair("range", "i32"), std::pair("values", "i32"),
                                   std::pair("normalize", "f32"), std::pair("columns", "f32")})
    if (keys.given(key) && keys["dtype"].good && keys.text("dtype") != dtype)
      diag.error(Kind::conflict, keys.at(key), "`{}` is for {} inputs; `{}` is {}", key, dtype, entry.key,
                 keys.text("dtype"));
  read_texts(input, settings, diag);
  if (input.range() > 0) settings.range = input.range();
  settings.normalize_data = keys.has("normalize");
  if (const Values* statistics = keys.find("normalize"))
    for (const std::string_view key : {"mean", "std"}) {
      check_statistic(*statistics, key, input, diag);
      (key == "mean" ? settings.mean : settings.std) = statistics->reals(key);
    }
  return input;
}

void read_loss(const KeyValue& value, ModelFile& model, Diag& diag) {
  const size_t before = diag.reports().size();
  LossSpec& loss = model.loss;
  loss.keys = value.tables.front();
  if (loss.keys.type != nullptr) {
    loss.type = &type_with(all_losses(), *loss.keys.type);
    if (loss.type->check != nullptr) loss.type->check(loss.keys, diag);
    model.settings.loss.type = std::string(loss.type->schema.name);
  }
  model.settings.loss.target = loss.keys.text("target");
  // Into how many parts the pass chunk-loss cuts it; without the key it chooses.
  if (loss.keys.has("chunks")) model.settings.loss.chunks = loss.keys.integer("chunks");
  loss.valid = value.good && diag.reports().size() == before;
}

// Reads the form of predictions, for a loss that takes logits.
void read_form(const Values& keys, ModelFile& model, Diag& diag) {
  const std::string form = keys.text("form");
  if (form != ir::kOutputForms[0]) model.settings.predict.form = form;
  const ir::Texts takes_logits = {"cross_entropy", "bce_with_logits"};
  const std::string& loss = *model.settings.loss.type;
  if (!model.settings.predict.form.given() || model.loss.type == nullptr) return;
  if (keys.given("layer"))
    diag.error(Kind::conflict, keys.at("form"), "`{}` is of what the loss takes; leave `{}` out",
               keys.name("form"), keys.name("layer"));
  if (contains(takes_logits, loss)) return;
  diag.error(Kind::conflict, keys.at("form"),
             "`{}` is of a loss that takes logits (cross_entropy, bce_with_logits), not of {}",
             keys.name("form"), loss);
}

}  // namespace

ModelFile read_model(const Node& root, const Table& table, Diag& diag) {
  ModelFile model{.file = read_table(root, table, diag, table.title(), "")};
  const Values& file = model.file;
  if (const Values* keys = file.find("model")) read_name_and_metrics(*keys, model.settings, diag);
  if (const KeyValue& inputs = file["inputs"]; inputs.good) {
    for (const Entry& entry : inputs.node->entries) {
      if (model.inputs.size() >= kMaxInputs) {
        diag.error(Kind::out_of_range, entry.key_at, "more than {} inputs", kMaxInputs);
        break;
      }
      model.inputs.push_back(read_input(entry, model.settings, diag));
    }
    if (inputs.node->entries.empty())
      diag.error(Kind::missing_key, inputs.node->at, "a model needs at least one [inputs.NAME]");
  }
  if (const KeyValue& layers = file["layers"]; layers.good && layers.node != nullptr) {
    if (layers.node->items.empty()) diag.error(Kind::missing_key, layers.node->at, "the model has no layers");
    model.layers = read_layers(*layers.node, model.inputs, diag);
  }
  if (file.find("loss") != nullptr) read_loss(file["loss"], model, diag);
  if (const Values* predict = file.find("predict")) read_form(*predict, model, diag);
  model.adapts = adapts(model.layers) || file.given("lora");
  if (const Values* lora = file.find("lora")) check_adapting(*lora, diag);
  read_training(model, diag);
  return model;
}

}  // namespace gacc::frontend
