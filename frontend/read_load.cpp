// [load]: what parameters are called, and how they lie, in weights from elsewhere. Patterns are resolved
// here, where the parameters are known: the module has the names of each one.
#include <algorithm>
#include <set>
#include <utility>

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

// A parameter or a statistic, and what is said of it.
struct Own {
  const ir::Buffer& buffer;
  ir::LoadSettings load{};
  const Entry* said = nullptr;
};

// Those that weights from elsewhere can have: adapters are of the run, not of the weights that it begins with.
std::vector<Own> all_own(const ir::Module& module) {
  std::set<std::string, std::less<>> adapters;
  for (const ir::AdapterSettings& adapter : module.settings.adapters)
    for (const std::string_view suffix : {".lora_A.weight", ".lora_B.weight"})
      adapters.insert(adapter.name + std::string(suffix));
  std::vector<Own> all;
  for (const ir::Buffer& buffer : module.buffers)
    if ((buffer.role == ir::BufferRole::weight || buffer.role == ir::BufferRole::statistic) &&
        !adapters.contains(buffer.name))
      all.push_back({buffer, {.parameter = buffer.name}});
  return all;
}

// Calls `f` for each that a pattern names. One that names none is an error.
template <class F>
void each(std::vector<Own>& all, const std::string& pattern, const Location& at, Diag& diag, const F& f) {
  const Pattern parts = parts_of(pattern);
  Words names;
  bool found = false;
  for (Own& own : all) {
    names.push_back(own.buffer.name);
    Match match;
    if (!matches(parts, own.buffer.name, match)) continue;
    found = true;
    f(own, match);
  }
  if (!found)
    diag.error(Kind::unknown_name, at, "no parameter is named `{}`{}", pattern, did_you_mean(pattern, names));
}

// Our pattern, and the file's: one of `rename`, or the list of `concat`.
void rename(std::vector<Own>& all, const Entry& entry, Diag& diag) {
  const bool one = !entry.value.is_list();
  const Node* last = nullptr;  // the pattern that was reported last: once, not for each parameter
  each(all, entry.key, entry.key_at, diag, [&](Own& own, const Match& match) {
    if (own.said != nullptr && letters(parts_of(own.said->key)) >= letters(parts_of(entry.key))) return;
    own.load.tensors.clear();
    own.said = &entry;
    for (const Node& theirs : one ? std::span(&entry.value, 1) : std::span(entry.value.items)) {
      std::string problem;
      own.load.tensors.push_back(filled(parts_of(theirs.text), match, problem));
      if (!problem.empty() && std::exchange(last, &theirs) != &theirs)
        diag.error(Kind::unknown_name, theirs.at, "`{}` does not have {} that `{}` has", entry.key, problem,
                   theirs.text);
    }
  });
}

void transpose(std::vector<Own>& all, const Node& pattern, Diag& diag) {
  each(all, pattern.text, pattern.at, diag, [&](Own& own, const Match&) {
    own.load.transpose = true;
    if (own.buffer.type.shape.size() != 2)
      diag.error(Kind::shape_mismatch, pattern.at, "`{}` {} is no matrix: it cannot be transposed",
                 own.buffer.name, ir::shape_text(own.buffer.type.shape));
  });
}

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

// No two parameters have the same tensor. The module gets those that are called or lie otherwise than here.
void assign_loads(const ModelFile& model, const Parameters& parameters, ir::Module& module, Diag& diag) {
  if (diag.failed() || !model.load) return;  // parameters may be missing
  const Values& keys = *model.load;
  std::vector<Own> all = all_own(module);
  for (const std::string_view key : {"rename", "concat"})
    if (keys.given(key))
      for (const Entry& entry : keys[key].node->entries) rename(all, entry, diag);
  for (const Node& pattern : keys.nodes("transpose")) transpose(all, pattern, diag);
  std::map<std::string, std::string_view> taken;
  for (auto& [buffer, load, said] : all) {
    const bool otherwise = !load.tensors.empty() || load.transpose;
    if (load.tensors.empty()) load.tensors.push_back(buffer.name);
    for (const std::string& tensor : load.tensors)
      if (const auto [other, fresh] = taken.emplace(tensor, buffer.name); !fresh)
        diag.error(Kind::duplicate_name, said != nullptr ? said->key_at : keys.place,
                   "`{}` and `{}` would both be the file's `{}`", other->second, buffer.name, tensor);
    const auto parts = parameters.parts.find(buffer.name);
    if (parts != parameters.parts.end() && parts->second.size() == load.tensors.size())
      load.parts = parts->second;
    if (otherwise) module.settings.loads.push_back(std::move(load));
  }
}

}  // namespace gacc::frontend
