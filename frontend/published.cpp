// A family is read as TOML, together with what it is based on. Its expressions are replaced by their values, and the
// tree is printed. What no expression reads of a config.json, and the family does not ignore, is an error.
#include "frontend/published.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>

#include "frontend/expression.h"
#include "frontend/model_file.h"
#include "frontend/toml_text.h"

namespace gacc {

namespace frontend {

namespace {

constexpr std::string_view kOpen = "${";
// Keys of a family that are no model file's.
constexpr std::string_view kMatch = "match", kBase = "base", kIgnored = "ignored", kRequire = "require",
                           kPositions = "positions", kLet = "let", kArchitectures = "architectures",
                           kMetadata = "metadata";
constexpr std::string_view kOwn[] = {kMatch,     kBase, kIgnored,       kRequire,
                                     kPositions, kLet,  kArchitectures, kMetadata};
constexpr std::string_view kArchitecture = "general.architecture";
constexpr std::string_view kNeutral[] = {
#define GACC_NEUTRAL_KEY(name) name,
#include "ir/config_keys.def"
};
// Keys that change none at one value, and that value.
constexpr std::pair<std::string_view, std::string_view> kNeutralValues[] = {
#define GACC_NEUTRAL_VALUE(name, value) {name, value},
#include "ir/config_keys.def"
};
constexpr std::string_view kDocuments = "documents";
constexpr std::string_view kWhen = "when";  // of any table: false leaves it out

// Returns the texts of a list, or the one text.
std::vector<std::string> texts_of(const Node* node) {
  std::vector<std::string> texts;
  if (node != nullptr && node->form == Node::Form::text) texts.push_back(node->text);
  if (node != nullptr)
    for (const Node& item : node->items) texts.push_back(item.text);
  return texts;
}

class Reading {
 public:
  Reading(const std::string& file, const ConfigValues& config, const PublishedOptions& options,
          const std::string& family)
      : file_(file), config_(config), options_(options), family_(family) {
    read_.insert("model_type");
  }

  // The family's tree with values in the place of expressions.
  Node run(const Node& family) {
    name_expressions(family.find(kLet));
    choose_context(family.find(kPositions));
    for (const std::string& condition : texts_of(family.find(kRequire)))
      require(condition, family.find(kRequire)->at);
    Node model = family;
    std::erase_if(model.entries, [](const Entry& entry) { return std::ranges::count(kOwn, entry.key) > 0; });
    fill(model);
    if (!options_.gguf) {  // else what it says was read before, as a config.json
      std::vector<std::string> ignored = texts_of(family.find(kIgnored));
      ignored.insert(ignored.end(), std::begin(kNeutral), std::end(kNeutral));
      refuse_unread(ignored);
    }
    return model;
  }

  // Reads what a GGUF says of itself as a config.json.
  ConfigValues read_metadata(const Node& family) {
    const Node* metadata = family.find(kMetadata);
    if (metadata == nullptr) {
      error(Kind::unsupported, "{} does not say what the metadata of a GGUF are; it needs [{}]", family_,
            kMetadata);
      return {};
    }
    for (const std::string& condition : texts_of(metadata->find(kRequire)))
      require(condition, metadata->find(kRequire)->at);
    Node config = *metadata;
    std::erase_if(config.entries,
                  [](const Entry& entry) { return entry.key == kRequire || entry.key == kIgnored; });
    fill(config);
    std::vector<std::string> ignored = texts_of(metadata->find(kIgnored));
    ignored.insert(ignored.end(), {"tensors", std::string(kArchitecture)});
    refuse_unread(ignored);
    ConfigValues values;
    add("", config, values);
    return values;
  }

  const std::string& problems() const { return problems_; }

 private:
  static void add(const std::string& prefix, const Node& table, ConfigValues& values) {
    for (const Entry& entry : table.entries)
      if (entry.value.is_table())
        add(prefix + entry.key + ".", entry.value, values);
      else
        values.emplace_back(prefix + entry.key, to_value(entry.value));
  }

  template <class... A>
  void error(Kind kind, fmt::format_string<A...> format, A&&... args) {
    problems_ += fmt::format("{}: error: {} [{}]\n", file_, fmt::format(format, std::forward<A>(args)...),
                             kind_text(kind));
  }

  bool is_object(const std::string& name) const {
    return std::ranges::any_of(config_,
                               [&](const auto& entry) { return entry.first.starts_with(name + "."); });
  }
  std::optional<ConfigValue> value_of(const std::string& name) const {
    const auto found = std::ranges::find(config_, name, &ConfigValues::value_type::first);
    if (found != config_.end()) return found->second;
    return is_object(name) ? std::optional(ConfigValue{std::string("{...}")}) : std::nullopt;
  }
  std::optional<ConfigValue> lookup(const std::string& name) const {
    if (name == "folder") return ConfigValue{options_.folder};
    if (name == "context") return ConfigValue{context_};
    if (name == "lora") return options_.lora ? ConfigValue{*options_.lora} : ConfigValue();
    return value_of(name);
  }
  // "llama.toml:12", also of what a family has of another one.
  std::string place(const Location& at) const {
    return fmt::format("{}:{}", at.origin.empty() ? family_ : at.origin, at.line);
  }

  Evaluated value(std::string_view expression, const Location& at) {
    Evaluated result = evaluate(expression, look_, named_);
    const bool unnamed = result.of_values && !result.read.empty();
    const std::string problem = (unnamed ? said_of(result.read, look_) + ": " : "") + result.problem;
    if (!result.problem.empty() && told_.insert(problem).second)
      error(result.missing ? Kind::missing_key : Kind::unsupported, "{}; {} has `{}`", problem, place(at),
            expression);
    read_.insert(result.read.begin(), result.read.end());
    return result;
  }

  // Evaluates what the family gives names to; an expression may use the names before it. A table stays as it is until
  // it is put somewhere.
  void name_expressions(const Node* let) {
    if (let == nullptr) return;
    for (const Entry& entry : let->entries)
      if (entry.value.is_table())
        tables_.insert_or_assign(entry.key, entry.value);
      else
        named_.insert_or_assign(entry.key, value(inner(entry.value.text), entry.value.at));
  }

  // The window: what was asked for, else the smaller of 1024 and the model's positions.
  void choose_context(const Node* positions) {
    constexpr int64_t kUsual = 1024;
    int64_t most = std::numeric_limits<int64_t>::max();
    if (positions != nullptr && positions->form == Node::Form::text) {
      const Evaluated result = value(inner(positions->text), positions->at);
      const int64_t* number = result.value.get<int64_t>();
      if (number != nullptr && *number > 0)
        most = *number;
      else if (result.problem.empty() && !result.broken && !result.value.is_null())
        error(Kind::wrong_type, "{} is no number of positions", said_of(result.read, look_));
      positions_ = result.read;
    }
    context_ = options_.context.value_or(std::min(kUsual, most));
    if (context_ > most)
      error(Kind::out_of_range, "--context {} is more than the {} positions of the model", context_, most);
  }

  void require(const std::string& condition, const Location& at) {
    const Evaluated result = value(inner(condition), at);
    const bool* holds = result.value.get<bool>();
    if (!result.problem.empty() || result.broken || (holds != nullptr && *holds)) return;
    error(Kind::unsupported, "{} cannot be expressed; {} needs `{}`", said_of(result.read, look_), family_,
          inner(condition));
  }

  // Returns the contents of ${...} when that is all of the text; else the text.
  static std::string_view inner(std::string_view text) {
    const bool all = text.starts_with(kOpen) && closing(text, kOpen.size()) + 1 == text.size();
    return all ? text.substr(kOpen.size(), text.size() - kOpen.size() - 1) : text;
  }

  // The brace that closes an expression, past those in quotes; the text's size when there is none.
  static size_t closing(std::string_view text, size_t at) {
    char quote = '\0';
    for (; at < text.size(); ++at) {
      if (quote != '\0')
        quote = text[at] == quote ? '\0' : quote;
      else if (text[at] == '"' || text[at] == '\'')
        quote = text[at];
      else if (text[at] == '}')
        return at;
    }
    return text.size();
  }

  // The names that a value comes from; of one alone that has another value, that too.
  std::vector<std::string> notes_of(std::set<std::string> names, const std::string& said) const {
    constexpr size_t kShort = 40;
    if (names.contains("context")) names.insert(positions_.begin(), positions_.end());
    std::erase_if(names, [&](const std::string& name) {
      return is_object(name) || value_of(name).value_or(ConfigValue()).is_null();
    });
    std::vector<std::string> notes;
    for (const std::string& name : names) {
      const std::string theirs = value_text(lookup(name).value_or(ConfigValue()));
      const bool other = names.size() == 1 && theirs != said && theirs.size() <= kShort;
      notes.push_back(other ? fmt::format("{} = {}", name, theirs) : name);
    }
    return notes;
  }

  // Puts values in the place of expressions. False when the node is to be left out.
  bool fill(Node& node) {
    if (node.form == Node::Form::text) return fill_text(node);
    std::erase_if(node.items, [&](Node& item) { return !fill(item); });
    if (!node.is_table()) return true;
    if (const Node* when = node.find(kWhen); when != nullptr && when->text.find(kOpen) != std::string::npos) {
      const Evaluated result = value(inner(when->text), when->at);
      const bool* holds = result.value.get<bool>();
      if (holds == nullptr && result.problem.empty() && !result.broken)
        error(Kind::wrong_type, "`when` of {} is neither true nor false", place(when->at));
      if (holds == nullptr || !*holds) return false;
      std::erase_if(node.entries, [](const Entry& entry) { return entry.key == kWhen; });
    }
    const bool empty = node.entries.empty();
    std::erase_if(node.entries, [&](Entry& entry) { return !fill(entry.value); });
    return empty || !node.entries.empty();
  }

  bool fill_text(Node& node) {
    const std::string text = node.text;
    if (const std::string_view whole = inner(text); whole.size() != text.size()) {
      if (const auto table = tables_.find(whole); table != tables_.end()) {
        const std::string name(whole);
        if (!filling_.insert(name).second) {
          error(Kind::conflict, "`let` names {} in itself, at {}", name, place(node.at));
          return false;
        }
        node = table->second;
        const bool kept = fill(node);
        filling_.erase(name);
        return kept;
      }
      const Evaluated result = value(whole, node.at);
      // A value with a problem does not count as missing as well.
      if (result.value.is_null()) return result.broken || !result.problem.empty();
      Node made = to_node(result.value);
      made.at = node.at;
      made.notes = notes_of(result.read, value_text(result.value));
      node = std::move(made);
      return true;
    }
    std::set<std::string> names;
    node.text.clear();
    for (size_t at = 0; at < text.size();) {
      const size_t open = std::min(text.find(kOpen, at), text.size());
      node.text += text.substr(at, open - at);
      if (open == text.size()) break;
      const size_t close = closing(text, open + kOpen.size());
      const Evaluated result =
          value(std::string_view(text).substr(open + kOpen.size(), close - open - kOpen.size()), node.at);
      const std::string* word = result.value.get<std::string>();
      node.text += word != nullptr ? *word : value_text(result.value);
      names.insert(result.read.begin(), result.read.end());
      at = close + 1;
    }
    node.notes = notes_of(names, "");
    return true;
  }

  void refuse_unread(const std::vector<std::string>& ignored) {
    const auto is_ignored = [&](std::string_view name) {
      for (size_t end = name.find('.');; end = name.find('.', end + 1)) {
        const std::string part(name.substr(0, end));
        if (std::ranges::any_of(ignored, [&](const std::string& each) { return matches_glob(each, part); }))
          return true;
        if (end == name.npos) return false;
      }
    };
    const auto is_neutral = [](const std::string& name, const ConfigValue& value) {
      const std::string text = value_text(value.number() == 1 ? ConfigValue{int64_t{1}} : value);
      return std::ranges::count(kNeutralValues, std::pair<std::string_view, std::string_view>(name, text)) >
             0;
    };
    // Returns whether some expression reads keys of it, as of an object.
    const auto has_keys = [&](const std::string& name) {
      const auto next = read_.lower_bound(name + ".");
      return next != read_.end() && next->starts_with(name + ".");
    };
    for (const auto& [name, value] : config_) {
      const bool is_known = read_.contains(name) && !has_keys(name);
      if (!value.is_null() && !is_known && !is_ignored(name) && !is_neutral(name, value)) {
        const std::string text = value_text({name});  // without control characters, in quotes
        error(Kind::unknown_key, "`{}` = {}: {} does not say what that means",
              text.substr(1, text.size() - 2), shown_text(value), family_);
      }
    }
  }

  const Lookup look_ = [this](const std::string& name) { return lookup(name); };
  const std::string& file_;
  const ConfigValues& config_;
  const PublishedOptions& options_;
  const std::string& family_;
  int64_t context_ = 0;
  std::map<std::string, Evaluated> named_;           // by `let`
  std::map<std::string, Node, std::less<>> tables_;  // likewise
  std::set<std::string> filling_;                    // tables that are being put in
  std::set<std::string> positions_;                  // the names that bound the window
  std::set<std::string> read_, told_;                // told: problems
  std::string problems_;
};

// Notes in every node of a family where it stands.
void set_origin(Node& node, const std::string& file) {
  node.at.origin = file;
  for (Node& item : node.items) set_origin(item, file);
  for (Entry& entry : node.entries) set_origin(entry.value, file);
}

// Puts what a family says over its base: names of `let` one by one, lists of `ignored` and `require` behind the
// base's, all else in the place of it. New names come first, so that the base's may use them.
Node over(Node base, const Node& own) {
  std::vector<Entry> added;
  for (const Entry& entry : own.entries) {
    Node* before = base.find(entry.key);
    if (before == nullptr)
      added.push_back(entry);
    else if (entry.key == kLet)
      *before = over(*before, entry.value);
    else if ((entry.key == kIgnored || entry.key == kRequire) && before->is_list() && entry.value.is_list())
      before->items.insert(before->items.end(), entry.value.items.begin(), entry.value.items.end());
    else
      *before = entry.value;
  }
  base.entries.insert(base.entries.begin(), added.begin(), added.end());
  return base;
}

// Returns the name of a family, by which others are based on it.
std::string_view name_of(const Family& family) {
  const std::string_view file = std::string_view(family.file).substr(family.file.rfind('/') + 1);
  return file.substr(0, file.rfind('.'));
}

// Reads the families from which one is chosen.
class Families {
 public:
  Families(std::span<const Family> all, std::string& problems) : all_(all), problems_(problems) {}

  // Returns the tree of a family by itself; nothing and its problems where it is none.
  std::optional<Node> read(const Family& family) {
    Diag diag(family.file, family.text);
    std::optional<Node> root = parse_toml(family.text, diag);
    if (root && root->find(kMatch) == nullptr)
      diag.error(Kind::missing_key, {}, "a family needs `match`, a list of values of `model_type`");
    problems_ += diag.render();
    if (diag.failed()) return std::nullopt;
    set_origin(*root, family.file);
    return root;
  }

  // Returns the tree with those that it is based on. A family is no base of its own: one of that name comes later.
  std::optional<Node> with_bases(const Family& family, Node root, std::vector<const Family*> seen = {}) {
    const Node* base = root.find(kBase);
    if (base == nullptr) return root;
    seen.push_back(&family);
    for (const Family& other : all_) {
      if (name_of(other) != base->text || std::ranges::count(seen, &other) > 0) continue;
      std::optional<Node> under = read(other);
      if (under) under = with_bases(other, std::move(*under), seen);
      return under ? std::optional(over(std::move(*under), root)) : std::nullopt;
    }
    problems_ += fmt::format("{}:{}: error: there is no other family `{}` to be its base [{}]\n", family.file,
                             base->at.line, base->text, kind_text(Kind::unknown_name));
    return std::nullopt;
  }

 private:
  std::span<const Family> all_;
  std::string& problems_;
};

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
  const auto fail = [&](Kind kind, const std::string& text) {
    problems += fmt::format("{}: error: {} [{}]\n", file, text, kind_text(kind));
    return std::nullopt;
  };
  std::string problem;
  const std::optional<ConfigValues> values = parse_config(config, problem);
  if (!values) return fail(Kind::syntax, problem);
  const std::string_view key = options.gguf ? kArchitecture : "model_type";
  const auto type = std::ranges::find(*values, key, &ConfigValues::value_type::first);
  const std::string* name = type != values->end() ? type->second.get<std::string>() : nullptr;
  if (name == nullptr)
    return fail(Kind::missing_key, fmt::format("it has no `{}`: which family is the model of?", key));
  std::vector<std::string> known;
  Families all(families, problems);
  for (const Family& family : families) {
    std::optional<Node> root = all.read(family);
    if (!root) return std::nullopt;
    const Node* architectures = options.gguf ? root->find(kArchitectures) : nullptr;
    const std::vector<std::string> match =
        texts_of(architectures != nullptr ? architectures : root->find(kMatch));
    known.insert(known.end(), match.begin(), match.end());
    if (std::ranges::count(match, *name) == 0) continue;
    root = all.with_bases(family, std::move(*root));
    if (!root) return std::nullopt;
    ConfigValues said = *values;
    if (options.gguf) {
      Reading reading(file, *values, options, family.file);
      said = reading.read_metadata(*root);
      problems += reading.problems();
      if (!reading.problems().empty()) return std::nullopt;
    }
    Reading reading(file, said, options, family.file);
    Node model = reading.run(*root);
    problems += reading.problems();
    if (!reading.problems().empty()) return std::nullopt;
    if (options.pack) pack(model);
    PublishedModel made{.text = "", .precision_because = choose_precision(model, *values, options)};
    Diag diag(file, std::string(config));
    // gacc-exec knows the types of the built-in families. For another one its family answers.
    if (!options.gguf && std::ranges::count(built_in_families(), family.text, &Family::text) == 0)
      apply_overrides(model, {{"load.config.model_type", value_text(type->second)}}, diag);
    apply_overrides(model, options.overrides, diag);
    drop_keys_of_types(model, options.overrides, /*all=*/false);
    problems += diag.render();
    if (diag.failed()) return std::nullopt;
    sort_tables(model);
    made.text = first_comment(family.text) + toml_text(model);
    // The keys that a model has of a GGUF are none of its file.
    if (const auto root = parse_toml(made.text, diag); root && !options.gguf)
      note_origins(model, *root, file, made.origins);
    return made;
  }
  const Words words(known.begin(), known.end());
  return fail(
      Kind::unknown_value,
      fmt::format("no family has the `{}` \"{}\"{}; there are {}; more come with --families{}", key, *name,
                  did_you_mean(*name, words), list_words(words),
                  options.gguf
                      ? ""
                      : "; `python3 -m gacc.pretrained FOLDER` compiles every architecture of transformers"));
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
