// See published.h. A family is read as TOML, its expressions are replaced by their values, and the tree is printed.
// What no expression reads of a config.json, and the family does not ignore, is an error.
#include "frontend/published.h"

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
constexpr std::string_view kMatch = "match", kIgnored = "ignored", kRequire = "require",
                           kPositions = "positions", kLet = "let";
constexpr std::string_view kWhen = "when";  // of any table: false leaves it out

// The texts of a list, or the one text.
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
    std::erase_if(model.entries, [](const Entry& entry) {
      constexpr std::string_view own[] = {kMatch, kIgnored, kRequire, kPositions, kLet};
      return std::ranges::count(own, entry.key) > 0;
    });
    fill(model);
    refuse_unread(texts_of(family.find(kIgnored)));
    return model;
  }

  const std::string& problems() const { return problems_; }

 private:
  template <class... A>
  void error(Kind kind, fmt::format_string<A...> format, A&&... args) {
    problems_ += fmt::format("{}: error: {} [{}]\n", file_, fmt::format(format, std::forward<A>(args)...),
                             kind_text(kind));
  }

  ConfigValue value_of(const std::string& name) const {
    const auto found = std::ranges::find(config_, name, &ConfigValues::value_type::first);
    if (found != config_.end()) return found->second;
    const bool object =
        std::ranges::any_of(config_, [&](const auto& entry) { return entry.first.starts_with(name + "."); });
    return object ? ConfigValue{std::string("{...}")} : ConfigValue();
  }
  ConfigValue lookup(const std::string& name) const {
    if (name == "folder") return {options_.folder};
    if (name == "context") return {context_};
    if (name == "lora") return options_.lora ? ConfigValue{*options_.lora} : ConfigValue();
    return value_of(name);
  }

  Evaluated value(std::string_view expression, const Location& at) {
    Evaluated result = evaluate(
        expression, [this](const std::string& name) { return lookup(name); }, named_);
    if (!result.problem.empty())
      error(result.problem.starts_with("there is no") ? Kind::missing_key : Kind::unsupported,
            "{}; {}:{} has `{}`", result.problem, family_, at.line, expression);
    read_.insert(result.read.begin(), result.read.end());
    return result;
  }

  // Evaluates what the family gives names to; an expression may use the names before it.
  void name_expressions(const Node* let) {
    if (let == nullptr) return;
    for (const Entry& entry : let->entries)
      named_.insert_or_assign(entry.key, value(inner(entry.value.text), entry.value.at));
  }

  // The window: what was asked for, else the smaller of 1024 and the model's positions.
  void choose_context(const Node* positions) {
    constexpr int64_t kUsual = 1024;
    int64_t most = std::numeric_limits<int64_t>::max();
    if (positions != nullptr && positions->form == Node::Form::text) {
      const Evaluated result = value(inner(positions->text), positions->at);
      if (const int64_t* number = result.value.get<int64_t>()) most = std::max<int64_t>(*number, 1);
      positions_ = result.read;
    }
    context_ = options_.context.value_or(std::min(kUsual, most));
    if (context_ > most)
      error(Kind::out_of_range, "--context {} is more than the {} positions of the model", context_, most);
  }

  void require(const std::string& condition, const Location& at) {
    const Evaluated result = value(inner(condition), at);
    const bool* holds = result.value.get<bool>();
    if (!result.problem.empty() || (holds != nullptr && *holds)) return;
    std::string found;
    for (const std::string& name : result.read)
      found += fmt::format("{}`{}` = {}", found.empty() ? "" : ", ", name, value_text(lookup(name)));
    error(Kind::unsupported, "{} cannot be expressed; {} needs `{}`", found, family_, inner(condition));
  }

  // What is in ${...}, when that is all of the text; else the text.
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
    std::erase_if(names, [&](const std::string& name) { return value_of(name).is_null(); });
    std::vector<std::string> notes;
    for (const std::string& name : names) {
      const std::string theirs = value_text(value_of(name));
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
      if (holds == nullptr && result.problem.empty())
        error(Kind::wrong_type, "`when` of {}:{} is neither true nor false", family_, when->at.line);
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
      const Evaluated result = value(whole, node.at);
      if (result.value.is_null()) return !result.problem.empty();  // what has a problem is not missing, too
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
    for (const auto& [name, value] : config_)
      if (!value.is_null() && !read_.contains(name) && !is_ignored(name))
        error(Kind::unknown_key, "`{}` = {}: {} does not say what that means", name, value_text(value),
              family_);
  }

  const std::string& file_;
  const ConfigValues& config_;
  const PublishedOptions& options_;
  const std::string& family_;
  int64_t context_ = 0;
  std::map<std::string, Evaluated> named_;  // by `let`
  std::set<std::string> positions_;         // the names that bound the window
  std::set<std::string> read_;
  std::string problems_;
};

// The comment that a family begins with.
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

std::optional<std::string> published_model(std::string_view config, const std::string& file,
                                           std::span<const Family> families, const PublishedOptions& options,
                                           std::string& problems) {
  using namespace frontend;
  const auto fail = [&](Kind kind, const std::string& text) {
    problems += fmt::format("{}: error: {} [{}]\n", file, text, kind_text(kind));
    return std::nullopt;
  };
  std::string problem;
  const std::optional<ConfigValues> values = parse_config(config, problem);
  if (!values) return fail(Kind::syntax, problem);
  const auto type = std::ranges::find(*values, "model_type", &ConfigValues::value_type::first);
  const std::string* name = type != values->end() ? type->second.get<std::string>() : nullptr;
  if (name == nullptr)
    return fail(Kind::missing_key, "it has no `model_type`: which family is the model of?");
  std::vector<std::string> known;
  for (const Family& family : families) {
    Diag diag(family.file, family.text);
    const std::optional<Node> root = parse_toml(family.text, diag);
    if (root && root->find(kMatch) == nullptr)
      diag.error(Kind::missing_key, {}, "a family needs `match`, a list of values of `model_type`");
    problems += diag.render();
    if (diag.failed()) return std::nullopt;
    const std::vector<std::string> match = texts_of(root->find(kMatch));
    known.insert(known.end(), match.begin(), match.end());
    if (std::ranges::count(match, *name) == 0) continue;
    Reading reading(file, *values, options, family.file);
    const Node model = reading.run(*root);
    problems += reading.problems();
    if (!reading.problems().empty()) return std::nullopt;
    return first_comment(family.text) + toml_text(model);
  }
  const Words words(known.begin(), known.end());
  const std::string near = did_you_mean(*name, words);
  return fail(Kind::unknown_value,
              fmt::format("no family has the `model_type` \"{}\"{}; {}; more come with --families", *name,
                          near, "there are " + list_words(words)));
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
