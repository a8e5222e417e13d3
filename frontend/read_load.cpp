// [load]: what parameters are called, and how they lie, in weights from elsewhere. Patterns are resolved
// here, where the parameters are known: the module has the names of each one.
#include <algorithm>
#include <set>

#include "frontend/model_file.h"
#include "frontend/parameters.h"
#include "ir/buffer_role.h"

namespace gacc::frontend {

namespace {

// A part of a pattern: letters, {NAME} for a number, or a star.
struct Part {
  enum class Kind : uint8_t { letters, number, star } kind;
  std::string text{};
};
using Pattern = std::vector<Part>;

Pattern parts_of(std::string_view text) {
  Pattern parts;
  while (!text.empty()) {
    const size_t end = text.front() == '{' ? text.find('}') : text.npos;
    const bool number = end != text.npos && end > 1, star = text.front() == '*';
    if (number)
      parts.push_back({Part::Kind::number, std::string(text.substr(1, end - 1))});
    else if (star)
      parts.push_back({Part::Kind::star});
    else if (!parts.empty() && parts.back().kind == Part::Kind::letters)
      parts.back().text += text.front();
    else
      parts.push_back({Part::Kind::letters, std::string(1, text.front())});
    text.remove_prefix(number ? end + 1 : 1);
  }
  return parts;
}

// Of two patterns that name a parameter, the one with more letters counts.
size_t letters(const Pattern& pattern) {
  size_t count = 0;
  for (const auto& [kind, text] : pattern) count += kind == Part::Kind::letters ? text.size() : 0;
  return count;
}

// What the parts of a pattern stood for: its numbers by name, and the texts of its stars in order.
struct Match {
  std::map<std::string, std::string, std::less<>> numbers{};
  std::vector<std::string> texts{};
};

bool matches(std::span<const Part> pattern, std::string_view name, Match& match) {
  if (pattern.empty()) return name.empty();
  const auto& [kind, text] = pattern.front();
  const std::span<const Part> rest = pattern.subspan(1);
  if (kind == Part::Kind::letters)
    return name.starts_with(text) && matches(rest, name.substr(text.size()), match);
  if (kind == Part::Kind::number) {
    const std::string_view digits = name.substr(0, name.find_first_not_of("0123456789"));
    if (digits.empty()) return false;
    const auto [known, fresh] = match.numbers.emplace(text, digits);
    return (fresh || known->second == digits) && matches(rest, name.substr(digits.size()), match);
  }
  for (size_t length = 0; length <= name.size(); ++length) {
    Match longer = match;
    longer.texts.emplace_back(name.substr(0, length));
    if (!matches(rest, name.substr(length), longer)) continue;
    match = std::move(longer);
    return true;
  }
  return false;
}

// The file's name: its {NAME}s and stars replaced by what those of our pattern matched. `problem` names one that
// our pattern does not have.
std::string filled(const Pattern& pattern, const Match& match, std::string& problem) {
  std::string name;
  size_t star = 0;
  for (const auto& [kind, text] : pattern) {
    const auto number = match.numbers.find(text);
    if (kind == Part::Kind::letters)
      name += text;
    else if (kind == Part::Kind::star ? star == match.texts.size() : number == match.numbers.end())
      problem = kind == Part::Kind::star ? "as many `*`" : fmt::format("`{{{}}}`", text);
    else
      name += kind == Part::Kind::star ? match.texts[star++] : number->second;
  }
  return name;
}

class Loads {
 public:
  Loads(ir::Module& module, const Parameters& parameters, Diag& diag)
      : module_(module), parameters_(parameters), diag_(diag), by_(module.buffers.size()) {
    for (const ir::AdapterSettings& adapter : module.settings.adapters)
      for (const std::string_view suffix : {".lora_A.weight", ".lora_B.weight"})
        adapters_.insert(adapter.name + std::string(suffix));
    for (const ir::Buffer& buffer : module.buffers)
      if (is_elsewhere(buffer)) names_.push_back(buffer.name);
  }

  // Our pattern, and the file's: one of `rename`, or the list of `concat`.
  void rename(const Entry& entry, std::span<const Node> theirs) {
    each(entry.key, entry.key_at, [&](size_t i, const Match& match) {
      if (by_[i].said != nullptr && letters(parts_of(by_[i].said->key)) >= letters(parts_of(entry.key)))
        return;
      ir::LoadSettings& load = by_[i].load;
      load.tensors.clear();
      by_[i].said = &entry;
      for (const Node& each : theirs) {
        std::string problem;
        load.tensors.push_back(filled(parts_of(each.text), match, problem));
        if (!problem.empty() && last_problem_ != &each)
          diag_.error(Kind::unknown_name, each.at, "`{}` does not have {} that `{}` has", entry.key, problem,
                      each.text);
        if (!problem.empty()) last_problem_ = &each;
      }
    });
  }

  void transpose(const Node& pattern) {
    each(pattern.text, pattern.at, [&](size_t i, const Match&) {
      const ir::Buffer& buffer = module_.buffers[i];
      if (buffer.type.shape.size() == 2)
        by_[i].load.transpose = true;
      else
        diag_.error(Kind::shape_mismatch, pattern.at, "`{}` {} is no matrix: it cannot be transposed",
                    buffer.name, ir::shape_text(buffer.type.shape));
    });
  }

  // No two parameters have the same tensor: all that are called or lie otherwise than here.
  std::vector<ir::LoadSettings> take() {
    std::map<std::string, std::string_view> taken;
    std::vector<ir::LoadSettings> result;
    for (size_t i = 0; i < by_.size(); ++i) {
      const ir::Buffer& buffer = module_.buffers[i];
      if (!is_elsewhere(buffer)) continue;
      ir::LoadSettings& load = by_[i].load;
      const bool said = !load.tensors.empty() || load.transpose;
      if (load.tensors.empty()) load.tensors.push_back(buffer.name);
      for (const std::string& tensor : load.tensors) {
        const auto [other, fresh] = taken.emplace(tensor, buffer.name);
        if (!fresh)
          diag_.error(Kind::duplicate_name, by_[i].said != nullptr ? by_[i].said->key_at : place,
                      "`{}` and `{}` would both be the file's `{}`", other->second, buffer.name, tensor);
      }
      load.parameter = buffer.name;
      const auto parts = parameters_.parts.find(buffer.name);
      if (parts != parameters_.parts.end() && parts->second.size() == load.tensors.size())
        load.parts = parts->second;
      if (said) result.push_back(std::move(load));
    }
    return result;
  }

  Location place{};

 private:
  // Adapters are of the run, not of the weights that it begins with.
  bool is_elsewhere(const ir::Buffer& buffer) const {
    const bool saved = buffer.role == ir::BufferRole::weight || buffer.role == ir::BufferRole::statistic;
    return saved && !adapters_.contains(buffer.name);
  }

  template <class F>
  void each(const std::string& pattern, const Location& at, const F& f) {
    const Pattern parts = parts_of(pattern);
    bool found = false;
    for (size_t i = 0; i < by_.size(); ++i) {
      Match match;
      if (!is_elsewhere(module_.buffers[i]) || !matches(parts, module_.buffers[i].name, match)) continue;
      found = true;
      f(i, match);
    }
    if (!found)
      diag_.error(Kind::unknown_name, at, "no parameter is named `{}`{}", pattern,
                  did_you_mean(pattern, names_));
  }

  struct Said {
    ir::LoadSettings load{};
    const Entry* said = nullptr;
  };

  ir::Module& module_;
  const Parameters& parameters_;
  Diag& diag_;
  std::set<std::string, std::less<>> adapters_;  // parameters
  std::vector<Said> by_;                         // by buffer
  std::vector<std::string_view> names_;
  const Node* last_problem_ = nullptr;  // the pattern that was reported last: once, not per parameter
};

bool is_texts(const Node& node) {
  return node.is_list() && !node.items.empty() &&
         std::ranges::all_of(node.items, [](const Node& item) { return item.form == Node::Form::text; });
}

}  // namespace

void read_load(const Values& keys, ModelFile& model, Diag& diag) {
  model.load = keys;
  model.settings.load.prefix = keys.text("prefix");  // said, so that the module has a [load] at all
  if (keys.flag("part")) model.settings.load.part = true;
  if (keys.has("ignore")) model.settings.load.ignore = keys.get<ir::Texts>("ignore");
  for (const auto& [key, form] :
       {std::pair("rename", "a string"), std::pair("concat", "a list of strings")}) {
    if (!keys.given(key) || !keys[key].good) continue;
    for (const Entry& entry : keys[key].node->entries) {
      const bool good =
          key == std::string_view("rename") ? entry.value.form == Node::Form::text : is_texts(entry.value);
      if (!good)
        diag.error(Kind::wrong_type, entry.value.at, "`load.{}.\"{}\"` must be {}", key, entry.key, form);
    }
  }
}

void assign_loads(const ModelFile& model, const Parameters& parameters, ir::Module& module, Diag& diag) {
  if (diag.failed()) return;  // parameters may be missing
  if (!model.load) return;
  const Values& keys = *model.load;
  Loads loads(module, parameters, diag);
  loads.place = keys.place;
  for (const std::string_view key : {"rename", "concat"}) {
    if (!keys.given(key)) continue;
    for (const Entry& entry : keys[key].node->entries)
      loads.rename(entry, entry.value.is_list() ? std::span<const Node>(entry.value.items)
                                                : std::span(&entry.value, 1));
  }
  for (const Node& pattern : keys.nodes("transpose")) loads.transpose(pattern);
  module.settings.loads = loads.take();
}

}  // namespace gacc::frontend
