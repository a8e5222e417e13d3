// A family's tree over a config.json, with the type to compute in and what overrides say, is printed as a model file.
#include "frontend/published.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "frontend/family.h"
#include "frontend/model_file.h"
#include "frontend/toml_text.h"

namespace gacc {

namespace frontend {

namespace {

constexpr std::string_view kDocuments = "documents";

// Lets the attention layers among these name the input of documents.
void name_documents(Node& layers) {
  for (Node& layer : layers.items) {
    if (Node* inner = layer.find("layers")) name_documents(*inner);
    const Node* type = layer.find("type");
    if (type == nullptr || type->text != "attention" || layer.find(kDocuments) != nullptr) continue;
    layer.entries.push_back({std::string(kDocuments), {}, to_node(ConfigValue{std::string(kDocuments)})});
  }
}

// A type to compute in, what says so, and the same as comments have it.
struct Precision {
  std::string compute, because, note;
};

// Returns the type of a published model's own numbers; f32 where it does not say one, or one in which no step computes.
Precision own_precision(const ConfigValues& config, const PublishedOptions& options) {
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {"bfloat16", "bf16"}, {"float16", "f16"}, {"float32", "f32"},
      {"BF16", "bf16"},     {"F16", "f16"},     {"F32", "f32"}};
  const auto ours = [&](std::string_view theirs, std::string_view other) {
    constexpr std::string_view kTorch = "torch.";  // before the names of the first days
    if (theirs.starts_with(kTorch)) theirs.remove_prefix(kTorch.size());
    const auto* found = std::ranges::find(kTypes, theirs, [](const auto& type) { return type.first; });
    return std::string(found == std::end(kTypes) ? other : found->second);
  };
  if (!options.matrices.empty()) {  // blocks are read as numbers of half precision
    const std::string because = fmt::format("its matrices are {}", options.matrices);
    return {ours(options.matrices, "bf16"), because, because};
  }
  for (const char* key : {"dtype", "torch_dtype"}) {  // of both the newer name counts, as in transformers
    const auto said = std::ranges::find(config, key, &ConfigValues::value_type::first);
    const std::string* word = said == config.end() ? nullptr : said->second.get<std::string>();
    if (word != nullptr)
      return {ours(*word, "f32"), fmt::format("{} is {}", key, shown_text({*word})),
              fmt::format("{} = {}", key, shown_text({*word}))};
  }
  return {"f32", "there is no torch_dtype", ""};
}

// Lets the model compute in the type of its own numbers, where neither its family nor an override says another one.
// Returns why it computes in what it does.
std::string choose_precision(Node& model, const ConfigValues& config, const PublishedOptions& options) {
  constexpr std::string_view kTable = "precision", kKey = "compute", kWithoutBf16 = "sm_75";
  const Node* said = model.find(kTable);
  if (said != nullptr && said->find(kKey) != nullptr) return "its family says so";
  Precision own = own_precision(config, options);
  if (std::ranges::count(options.overrides, "precision.compute", &Override::key) > 0)
    return "as set; " + own.because;
  if (own.note.empty()) return own.because;
  if (own.compute == "bf16" && options.target == kWithoutBf16) {
    own.compute = "f16";
    own.because += fmt::format(", which {} does not multiply", kWithoutBf16);
  }
  if (said == nullptr)
    model.entries.push_back({std::string(kTable), {}, {.form = Node::Form::table, .at = {}, .entries = {}}});
  Node compute = to_node(ConfigValue{own.compute});
  compute.notes = {own.note};
  model.find(kTable)->entries.push_back({std::string(kKey), {}, std::move(compute)});
  return own.because;
}

// Adds the input of documents, one number for each token, and names it.
void pack(Node& model) {
  Node* inputs = model.find("inputs");
  Node* layers = model.find("layers");
  if (inputs == nullptr || inputs->entries.empty() || layers == nullptr) return;
  if (inputs->find(kDocuments) == nullptr)
    inputs->entries.push_back({std::string(kDocuments), {}, inputs->entries.front().value});
  name_documents(*layers);
}

// Lets the model file say which family reads it: a built-in one by its name, another one as a whole.
void note_family(Node& model, const Families::Chosen& chosen) {
  constexpr std::string_view kLoad = "load";
  const bool built_in = std::ranges::count(built_in_families(), chosen.family->text, &Family::text) > 0;
  const std::string said = built_in ? std::string(name_of(*chosen.family)) : toml_text(chosen.tree);
  if (model.find(kLoad) == nullptr)
    model.entries.push_back({std::string(kLoad), {}, {.form = Node::Form::table, .at = {}, .entries = {}}});
  std::vector<Entry>& load = model.find(kLoad)->entries;
  load.insert(load.begin(), {"family", {}, to_node(ConfigValue{said})});
}

// Notes the values that a text has of keys of the file; `read`: the text as a tree.
void note_origins(const Node& made, const Node& read, const std::string& file,
                  std::vector<Location>& origins) {
  if (!made.notes.empty()) {
    origins.push_back(read.at);
    origins.back().origin = fmt::format("{}: {}", file, fmt::join(made.notes, ", "));
  }
  for (size_t i = 0; i < made.items.size(); ++i) note_origins(made.items[i], read.items[i], file, origins);
  for (const Entry& entry : made.entries)
    if (const Node* other = read.find(entry.key)) note_origins(entry.value, *other, file, origins);
}

// Sorts the tables of a model file as they are documented.
void sort_tables(Node& model) {
  const auto rank = [](const Entry& entry) {
    return std::ranges::find(tables::file.keys, entry.key, &Key::name) - tables::file.keys.begin();
  };
  std::ranges::stable_sort(model.entries, {}, rank);
}

// Returns the comment that a family begins with.
std::string first_comment(std::string_view text) {
  std::string comment;
  while (text.starts_with('#')) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    comment += text.substr(0, end);
    text.remove_prefix(end);
  }
  return comment;
}

}  // namespace

}  // namespace frontend

std::optional<PublishedModel> published_model(std::string_view config, const std::string& file,
                                              std::span<const Family> families,
                                              const PublishedOptions& options, std::string& problems) {
  using namespace frontend;
  std::string problem;
  const std::optional<ConfigValues> values = parse_config(config, problem);
  if (!values) {
    problems += fmt::format("{}: error: {} [{}]\n", file, problem, kind_text(Kind::syntax));
    return std::nullopt;
  }
  Families all(families, problems);
  const std::optional<Families::Chosen> chosen = all.choose(*values, file, options.gguf);
  if (!chosen) return std::nullopt;
  std::optional<FamilyReading> read = all.read(*chosen, *values, file, options);
  if (!read) return std::nullopt;
  Node& model = read->model;
  if (options.pack) pack(model);
  note_family(model, *chosen);
  PublishedModel made{.text = "", .precision_because = choose_precision(model, *values, options)};
  Diag diag(file, std::string(config));
  apply_overrides(model, options.overrides, diag);
  for (const std::string& told : drop_keys_of_types(model, options.overrides, /*all=*/false))
    made.notes += fmt::format("{}: note: {}\n", file, told);
  problems += diag.render();
  if (diag.failed()) return std::nullopt;
  sort_tables(model);
  made.text = first_comment(chosen->family->text) + toml_text(model);
  // The keys that a model has of a GGUF are none of its file.
  if (const auto root = parse_toml(made.text, diag); root && !options.gguf)
    note_origins(model, *root, file, made.origins);
  return made;
}

std::vector<Override> adapters_of_blocks(std::string_view model, int64_t rank) {
  using namespace frontend;
  std::vector<Override> overrides = {{"lora.rank", fmt::to_string(rank)},
                                     {"lora.alpha", fmt::to_string(2 * rank)}};
  Diag unreported;
  const std::optional<Node> root = parse_toml(model, unreported);
  if (!root || root->find("lora") != nullptr) return overrides;
  std::string blocks;
  if (const Node* layers = root->find("layers")) {
    const std::vector<std::string> names = layer_names(*layers);
    for (size_t i = 0; i < names.size(); ++i)
      if (layers->items[i].find("layers") != nullptr)
        blocks += fmt::format("{}{}", blocks.empty() ? "" : ", ", value_text({names[i] + ".*"}));
  }
  overrides.push_back({"lora.match", fmt::format("[{}]", blocks.empty() ? "\"*\"" : blocks)});
  overrides.push_back({"lora.on", R"(["q", "k", "v", "proj"])"});
  return overrides;
}

}  // namespace gacc
