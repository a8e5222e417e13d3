// A family is read as TOML, together with what it is based on. Its expressions are replaced by their values. What no
// expression reads of a config.json, and the family does not ignore, is an error.
#include "frontend/family.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "frontend/model_file.h"

namespace gacc::frontend {

namespace {

constexpr std::string_view kOpen = "${";
// Keys of a family that are no model file's.
constexpr std::string_view kMatch = "match", kBase = "base", kIgnored = "ignored", kRequire = "require",
                           kPositions = "positions", kLet = "let", kArchitectures = "architectures",
                           kMetadata = "metadata";
constexpr std::string_view kOwn[] = {kMatch,     kBase, kIgnored,       kRequire,
                                     kPositions, kLet,  kArchitectures, kMetadata};
constexpr std::string_view kArchitecture = "general.architecture", kModelType = "model_type";
constexpr std::string_view kWhen = "when";  // of any table: false leaves it out
constexpr std::string_view kName = "name";  // of a layer
constexpr std::string_view kEach = "each";  // of a table in a list: how many it stands for
constexpr std::string_view kIndex = "index";

// Keys of every published model that change no function, whatever their value, and keys that change none at one value.
constexpr std::string_view kNeutral[] = {
#define GACC_NEUTRAL_KEY(name) name,
#include "frontend/config_keys.def"
};
constexpr std::pair<std::string_view, std::string_view> kNeutralValues[] = {
#define GACC_NEUTRAL_VALUE(name, value) {name, value},
#include "frontend/config_keys.def"
};

// The tables of a model file that decide what given weights compute, and keys of them that do not: the tensors show
// them, or they are of training.
constexpr std::string_view kDeciding[] = {"layers", "load", "gguf"};
constexpr std::string_view kShown[] = {
    "bias_init", "documents", "dropout",   "features",  "ignore",    "init",   "lora",      "modules", "p",
    "padding",   "positions", "precision", "proj_init", "recompute", "repeat", "trainable", "vocab"};

// Returns the texts of a list, or the one text.
std::vector<std::string> texts_of(const Node* node) {
  std::vector<std::string> texts;
  if (node != nullptr && node->form == Node::Form::text) texts.push_back(node->text);
  if (node != nullptr)
    for (const Node& item : node->items) texts.push_back(item.text);
  return texts;
}

// The brace that closes an expression, past those in quotes; the text's size when there is none.
size_t closing(std::string_view text, size_t at) {
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

// Returns the contents of ${...} when that is all of the text; else the text.
std::string_view inner(std::string_view text) {
  const bool all = text.starts_with(kOpen) && closing(text, kOpen.size()) + 1 == text.size();
  return all ? text.substr(kOpen.size(), text.size() - kOpen.size() - 1) : text;
}

// Returns a value in one line, for comparisons and messages.
std::string text_of(const Node& node) {
  std::vector<std::string> parts;
  for (const Node& item : node.items) parts.push_back(text_of(item));
  for (const Entry& entry : node.entries)
    parts.push_back(fmt::format("{} = {}", entry.key, text_of(entry.value)));
  if (node.is_table()) return fmt::format("{{{}}}", fmt::join(parts, ", "));
  return node.is_list() ? fmt::format("[{}]", fmt::join(parts, ", ")) : value_text(to_value(node));
}

}  // namespace

// Names of layers begin with "@".
bool is_decisive(std::string_view path) {
  for (bool first = true; !path.empty(); first = false) {
    path.remove_prefix(1);
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(part.size());
    if (first ? std::ranges::count(kDeciding, part) == 0 : std::ranges::count(kShown, part) > 0) return false;
  }
  return true;
}

std::string place_of(const Node& item, size_t number) {
  const Node* name = item.is_table() ? item.find(kName) : nullptr;
  return name == nullptr ? fmt::format("/{}", number) : fmt::format("/@{}", name->text);
}

namespace {

class Reading {
 public:
  Reading(const std::string& file, const ConfigValues& config, const PublishedOptions& options,
          const std::string& family, bool loaded)
      : file_(file), config_(config), options_(options), family_(family), loaded_(loaded) {
    read_.insert("model_type");
  }

  // The family's tree with values in the place of expressions.
  FamilyReading run(const Node& family) {
    name_expressions(family.find(kLet));
    choose_context(family.find(kPositions));
    for (const std::string& condition : texts_of(family.find(kRequire)))
      require(condition, family.find(kRequire)->at);
    Node model = family;
    std::erase_if(model.entries, [](const Entry& entry) { return std::ranges::count(kOwn, entry.key) > 0; });
    fill(model, "");
    if (!options_.gguf) {  // else what it says was read before, as a config.json
      std::vector<std::string> ignored = texts_of(family.find(kIgnored));
      ignored.insert(ignored.end(), std::begin(kNeutral), std::end(kNeutral));
      refuse_unread(ignored);
    }
    return {std::move(model), std::move(values_), config_, std::move(unknown_)};
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
    fill(config, "");
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
    if (name == kIndex) return index_ ? ConfigValue{*index_} : ConfigValue();
    return value_of(name);
  }
  // "llama.toml:12", also of what a family has of another one.
  std::string place(const Location& at) const {
    return fmt::format("{}:{}", at.origin.empty() ? family_ : at.origin, at.line);
  }

  // `needed`: a problem is an error.
  Evaluated value(std::string_view expression, const Location& at, bool needed = true) {
    Evaluated result = evaluate(expression, look_, named_);
    const bool unnamed = result.of_values && !result.read.empty();
    std::set<std::string> names = result.read;
    names.insert(counted_by_.begin(), counted_by_.end());
    const std::string problem = (unnamed ? said_of(names, look_) + ": " : "") + result.problem;
    if (needed && !result.problem.empty() && told_.insert(problem).second)
      error(result.missing ? Kind::missing_key : Kind::unsupported, "{}; {} has `{}`", problem, place(at),
            expression);
    if (needed && result.broken && loaded_) problems_ += std::exchange(of_names_, "");
    read_.insert(result.read.begin(), result.read.end());
    return result;
  }

  // Evaluates what the family gives names to; an expression may use the names before it. A table stays as it is until
  // it is put somewhere. A list is of objects, the first of which that is there has the name.
  void name_expressions(const Node* let) {
    if (let == nullptr) return;
    for (const Entry& entry : let->entries)
      if (entry.value.is_list()) named_[entry.key].objects = texts_of(&entry.value);
    for (const Entry& entry : let->entries)
      if (entry.value.is_table())
        tables_.insert_or_assign(entry.key, entry.value);
      else if (!entry.value.is_list())
        named_.insert_or_assign(entry.key, value(inner(entry.value.text), entry.value.at));
    // Told where something needs them.
    if (loaded_) of_names_ = std::exchange(problems_, "");
  }

  // The window: what was asked for, else the smaller of 1024 and the model's positions.
  void choose_context(const Node* positions) {
    constexpr int64_t kUsual = 1024;
    if (loaded_) {
      if (positions != nullptr) value(inner(positions->text), positions->at, /*needed=*/false);
      context_ = options_.context.value_or(kUsual);
      return;
    }
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

  bool is_needed(std::string_view path) const { return !loaded_ || is_decisive(path); }

  // Puts values in the place of expressions. False when the node is to be left out.
  bool fill(Node& node, const std::string& path) {
    if (node.form == Node::Form::text) return fill_text(node, path);
    const bool holds_each = expand(node, path);
    size_t number = 0;
    std::erase_if(node.items, [&](Node& item) { return !fill(item, path + place_of(item, number++)); });
    if (!node.is_table()) return !holds_each || !node.items.empty();
    if (const Node* when = node.find(kWhen); when != nullptr && when->text.find(kOpen) != std::string::npos) {
      const Evaluated result = value(inner(when->text), when->at, is_needed(path));
      const bool* holds = result.value.get<bool>();
      values_.push_back({path + "/" + std::string(kWhen), result.value, result.read});
      if (holds == nullptr && result.problem.empty() && !result.broken)
        error(Kind::wrong_type, "`when` of {} is neither true nor false", place(when->at));
      if (holds == nullptr || !*holds) return false;
      std::erase_if(node.entries, [](const Entry& entry) { return entry.key == kWhen; });
    }
    const bool empty = node.entries.empty();
    std::erase_if(node.entries, [&](Entry& entry) { return !fill(entry.value, path + "/" + entry.key); });
    return empty || !node.entries.empty();
  }

  // Puts so many tables in the place of one with `each`, and then as few as say the same in turn; none where all are
  // empty. Returns whether the list has, or might have had, such a table.
  bool expand(Node& list, const std::string& path) {
    constexpr int64_t kMost = 4096;
    bool found = false;
    for (size_t at = 0; at < list.items.size(); ++at) {
      const Node& item = list.items[at];
      const std::string_view name = inner(item.text);
      const bool names = name.size() != item.text.size();
      const auto named = names ? tables_.find(name) : tables_.end();
      // The name of nothing, where another family has a table.
      const auto nothing = names ? named_.find(std::string(name)) : named_.end();
      if (nothing != named_.end() && nothing->second.value.is_null() && nothing->second.problem.empty()) {
        found = true;
        list.items.erase(list.items.begin() + static_cast<std::ptrdiff_t>(at--));
        continue;
      }
      const Node table = named == tables_.end() ? item : named->second;
      const Node* each = table.find(kEach);
      if (each == nullptr) continue;
      found = true;
      const Evaluated count = value(inner(each->text), each->at, is_needed(path));
      const int64_t* copies = count.value.get<int64_t>();
      if (copies == nullptr || *copies < 1 || *copies > kMost) {
        if (count.problem.empty() && !count.broken)
          error(Kind::wrong_type, "`each` of {} is {}; it must be 1 to {}", place(each->at),
                shown_text(count.value), kMost);
        list.items.erase(list.items.begin() + static_cast<std::ptrdiff_t>(at--));
        continue;
      }
      const size_t before = values_.size(), problems = problems_.size();
      std::vector<Node> made;
      // Ends with the first that is wrong: the others would say the same.
      counted_by_ = count.read;
      for (index_ = 0; *index_ < *copies && problems_.size() == problems; ++*index_) {
        made.push_back(table);
        std::erase_if(made.back().entries, [](const Entry& entry) { return entry.key == kEach; });
        fill(made.back(), path);
      }
      index_.reset();
      counted_by_.clear();
      FamilyValue whole{.path = path, .value = {}, .keys = count.read};
      for (size_t i = before; i < values_.size(); ++i)
        whole.keys.insert(values_[i].keys.begin(), values_[i].keys.end());
      whole.keys.erase(std::string(kIndex));
      values_.resize(before);
      values_.push_back(std::move(whole));
      size_t period = 1;
      const auto repeats = [&](const Node& one) {
        const auto i = static_cast<size_t>(&one - made.data());
        return text_of(one) == text_of(made[i % period]);
      };
      while (!std::ranges::all_of(made, repeats)) ++period;
      const bool is_nothing = period == 1 && made.front().entries.empty();
      made.resize(is_nothing || problems_.size() != problems ? 0 : period);
      list.items.erase(list.items.begin() + static_cast<std::ptrdiff_t>(at));
      list.items.insert(list.items.begin() + static_cast<std::ptrdiff_t>(at), made.begin(), made.end());
      at += made.size();
      --at;
    }
    return found;
  }

  bool fill_text(Node& node, const std::string& path) {
    const std::string text = node.text;
    if (text.find(kOpen) == std::string::npos) return true;
    if (const std::string_view whole = inner(text); whole.size() != text.size()) {
      if (const auto table = tables_.find(whole); table != tables_.end()) {
        const std::string name(whole);
        if (!filling_.insert(name).second) {
          error(Kind::conflict, "`let` names {} in itself, at {}", name, place(node.at));
          return false;
        }
        node = table->second;
        const bool kept = fill(node, path);
        filling_.erase(name);
        return kept;
      }
      const Evaluated result = value(whole, node.at, is_needed(path));
      values_.push_back({path, result.value, result.read});
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
          value(std::string_view(text).substr(open + kOpen.size(), close - open - kOpen.size()), node.at,
                is_needed(path));
      const std::string* word = result.value.get<std::string>();
      node.text += word != nullptr ? *word : value_text(result.value);
      names.insert(result.read.begin(), result.read.end());
      at = close + 1;
    }
    node.notes = notes_of(names, "");
    values_.push_back({path, {node.text}, names});
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
    const auto is_neutral = [&](const std::string& name, const ConfigValue& value) {
      // 1 is 1.0, too.
      const std::string text = value_text(value.number() == 1 ? ConfigValue{int64_t{1}} : value);
      return std::ranges::any_of(kNeutralValues,
                                 [&](const auto& each) { return each.first == name && each.second == text; });
    };
    // Returns whether some expression reads keys of it, as of an object.
    const auto has_keys = [&](const std::string& name) {
      const auto next = read_.lower_bound(name + ".");
      return next != read_.end() && next->starts_with(name + ".");
    };
    for (const auto& [name, value] : config_) {
      const bool is_known = read_.contains(name) && !has_keys(name);
      if (value.is_null() || is_known || is_ignored(name) || is_neutral(name, value)) continue;
      if (loaded_) {
        unknown_.emplace_back(name, value);
        continue;
      }
      const std::string text = value_text({name});  // without control characters, in quotes
      error(Kind::unknown_key, "`{}` = {}: {} does not say what that means", text.substr(1, text.size() - 2),
            shown_text(value), family_);
    }
  }

  const Lookup look_ = [this](const std::string& name) { return lookup(name); };
  const std::string& file_;
  const ConfigValues& config_;
  const PublishedOptions& options_;
  const std::string& family_;
  bool loaded_;
  int64_t context_ = 0;
  std::map<std::string, Evaluated> named_;           // by `let`
  std::map<std::string, Node, std::less<>> tables_;  // likewise
  std::set<std::string> filling_;                    // tables that are being put in
  std::set<std::string> positions_;                  // the names that bound the window
  std::set<std::string> read_, told_;                // told: problems
  std::optional<int64_t> index_;  // of a table with `each`, and the names that say how many
  std::set<std::string> counted_by_;
  std::vector<FamilyValue> values_;
  ConfigValues unknown_;
  std::string of_names_;  // problems of `let`
  std::string problems_;
};

// Notes in every node of a family where it stands.
void set_origin(Node& node, const std::string& file) {
  node.at.origin = file;
  for (Node& item : node.items) set_origin(item, file);
  for (Entry& entry : node.entries) set_origin(entry.value, file);
}

// Puts what a family says over its base: names of `let` and keys of `metadata` one by one, lists of `ignored` and
// `require` behind the base's, all else in the place of it. New names come first, so that the base's may use them.
Node over(Node base, const Node& own) {
  std::vector<Entry> added;
  for (const Entry& entry : own.entries) {
    Node* before = base.find(entry.key);
    if (before == nullptr)
      added.push_back(entry);
    else if (entry.key == kLet || entry.key == kMetadata)
      *before = over(*before, entry.value);
    else if ((entry.key == kIgnored || entry.key == kRequire) && before->is_list() && entry.value.is_list())
      before->items.insert(before->items.end(), entry.value.items.begin(), entry.value.items.end());
    else
      *before = entry.value;
  }
  base.entries.insert(base.entries.begin(), added.begin(), added.end());
  return base;
}

// Notes the places of a tree that expressions decide. `tables`: those that `let` names.
void add_decided(const Node& node, const std::string& path, const Node* tables,
                 std::vector<std::string>& paths) {
  if (node.form == Node::Form::text && node.text.find(kOpen) != std::string::npos) {
    const Node* table = tables == nullptr ? nullptr : tables->find(inner(node.text));
    if (table != nullptr && table->is_table())
      add_decided(*table, path, tables, paths);
    else
      paths.push_back(path);
  }
  const auto of_each = [&](const Node& item) {
    const Node* table = tables == nullptr ? nullptr : tables->find(inner(item.text));
    return (table == nullptr ? item : *table).find(kEach) != nullptr;
  };
  if (std::ranges::any_of(node.items, of_each)) return paths.push_back(path);
  for (size_t i = 0; i < node.items.size(); ++i)
    add_decided(node.items[i], path + place_of(node.items[i], i), tables, paths);
  for (const Entry& entry : node.entries)
    add_decided(entry.value, fmt::format("{}/{}", path, entry.key), tables, paths);
}

}  // namespace

std::string_view name_of(const Family& family) {
  const std::string_view file = std::string_view(family.file).substr(family.file.rfind('/') + 1);
  return file.substr(0, file.rfind('.'));
}

// Returns the tree of a family by itself; nothing and its problems where it is none.
std::optional<Node> Families::parse(const Family& family) {
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
std::optional<Node> Families::with_bases(const Family& family, Node root, std::vector<const Family*> seen) {
  const Node* base = root.find(kBase);
  if (base == nullptr) return root;
  seen.push_back(&family);
  for (const Family& other : all_) {
    if (name_of(other) != base->text || std::ranges::count(seen, &other) > 0) continue;
    std::optional<Node> under = parse(other);
    if (under) under = with_bases(other, std::move(*under), seen);
    if (!under) return std::nullopt;
    Node whole = over(std::move(*under), root);
    std::erase_if(whole.entries, [](const Entry& entry) { return entry.key == kBase; });
    return whole;
  }
  problems_ += fmt::format("{}:{}: error: there is no other family `{}` to be its base [{}]\n", family.file,
                           base->at.line, base->text, kind_text(Kind::unknown_name));
  return std::nullopt;
}

std::optional<Families::Chosen> Families::choose(const ConfigValues& config, const std::string& file,
                                                 bool gguf) {
  const auto fail = [&](Kind kind, const std::string& text) {
    problems_ += fmt::format("{}: error: {} [{}]\n", file, text, kind_text(kind));
    return std::nullopt;
  };
  const std::string_view key = gguf ? kArchitecture : kModelType;
  const auto type = std::ranges::find(config, key, &ConfigValues::value_type::first);
  const std::string* name = type != config.end() ? type->second.get<std::string>() : nullptr;
  if (name == nullptr)
    return fail(
        Kind::missing_key,
        fmt::format("it has no `{}`: which family is the model of?{}", key,
                    gguf ? "" : " Only the config.json of a published model is JSON; a model file is TOML"));
  std::vector<std::string> known;
  for (const Family& family : all_) {
    std::optional<Node> root = parse(family);
    if (!root) return std::nullopt;
    const Node* architectures = gguf ? root->find(kArchitectures) : nullptr;
    const std::vector<std::string> match =
        texts_of(architectures != nullptr ? architectures : root->find(kMatch));
    known.insert(known.end(), match.begin(), match.end());
    if (std::ranges::count(match, *name) == 0) continue;
    root = with_bases(family, std::move(*root));
    return root ? std::optional(Chosen{&family, std::move(*root)}) : std::nullopt;
  }
  const Words words(known.begin(), known.end());
  return fail(Kind::unknown_value,
              fmt::format("no family has the `{}` \"{}\"{}; there are {}; more come with --families{}", key,
                          *name, did_you_mean(*name, words), list_words(words),
                          gguf ? ""
                               : "; `python3 -m gacc.pretrained FOLDER` compiles every architecture of "
                                 "transformers"));
}

std::optional<Families::Chosen> Families::named(std::string_view name) {
  for (const Family& family : all_) {
    if (name_of(family) != name) continue;
    std::optional<Node> root = parse(family);
    if (root) root = with_bases(family, std::move(*root));
    return root ? std::optional(Chosen{&family, std::move(*root)}) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<FamilyReading> Families::read(const Chosen& chosen, const ConfigValues& config,
                                            const std::string& file, const PublishedOptions& options,
                                            bool loaded) {
  ConfigValues said = config;
  if (options.gguf) {
    Reading metadata(file, config, options, chosen.family->file, /*loaded=*/false);
    said = metadata.read_metadata(chosen.tree);
    problems_ += metadata.problems();
    if (!metadata.problems().empty()) return std::nullopt;
  }
  Reading reading(file, said, options, chosen.family->file, loaded);
  FamilyReading read = reading.run(chosen.tree);
  problems_ += reading.problems();
  return reading.problems().empty() ? std::optional(std::move(read)) : std::nullopt;
}

std::vector<std::string> decided_paths(const Node& family) {
  std::vector<std::string> paths;
  for (const Entry& entry : family.entries)
    if (std::ranges::count(kOwn, entry.key) == 0)
      add_decided(entry.value, "/" + entry.key, family.find(kLet), paths);
  std::erase_if(paths, [](const std::string& path) { return !is_decisive(path); });
  return paths;
}

const Node* node_at(const Node& model, std::string_view path) {
  const Node* node = &model;
  while (node != nullptr && !path.empty()) {
    path.remove_prefix(1);
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(part.size());
    const Node* next = node->find(part);
    for (size_t i = 0; i < node->items.size(); ++i)
      if (place_of(node->items[i], i).substr(1) == part) next = &node->items[i];
    node = next;
  }
  return node;
}

ConfigValue value_at(const Node& model, std::string_view path) {
  const size_t last = path.rfind('/');
  if (path.substr(last + 1) == kWhen) return {node_at(model, path.substr(0, last)) != nullptr};
  const Node* node = node_at(model, path);
  if (node != nullptr && node->is_list() && !node->items.empty() && node->items.front().is_table())
    return {text_of(*node)};
  return node == nullptr || node->is_table() ? ConfigValue{} : to_value(*node);
}

}  // namespace gacc::frontend
