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

// The first part of a pattern: {NAME} for a number, a star, or a letter.
std::string_view part_of(std::string_view pattern) {
  const size_t end = pattern.front() == '{' ? pattern.find('}') : pattern.npos;
  return pattern.substr(0, end != pattern.npos && end > 1 ? end + 1 : 1);
}
bool is_letter(std::string_view part) { return part.size() == 1 && part != "*"; }

// Of two patterns that name a parameter, the one with more letters counts.
int letters(std::string_view pattern) {
  int count = 0;
  for (; !pattern.empty(); pattern.remove_prefix(part_of(pattern).size()))
    count += is_letter(part_of(pattern)) ? 1 : 0;
  return count;
}

// The parts of a pattern that are no letters, and what they stood for.
using Match = std::vector<std::pair<std::string_view, std::string_view>>;

bool matches(std::string_view pattern, std::string_view name, Match& match) {
  if (pattern.empty()) return name.empty();
  const std::string_view part = part_of(pattern), rest = pattern.substr(part.size());
  if (is_letter(part)) return name.starts_with(part) && matches(rest, name.substr(1), match);
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const auto known = std::ranges::find(match, part, &Match::value_type::first);
  const bool star = part == "*", other = known != match.end() && known->second != name.substr(0, digits);
  if (!star && (digits == 0 || other)) return false;
  for (size_t length = star ? 0 : digits; length <= (star ? name.size() : digits); ++length) {
    match.emplace_back(part, name.substr(0, length));
    if (matches(rest, name.substr(length), match)) return true;
    match.pop_back();
  }
  return false;
}

// The file's name: its {NAME}s and stars replaced by what those of our pattern matched. `problem` names one that
// our pattern does not have.
std::string filled(std::string_view pattern, Match match, std::string& problem) {
  std::string name;
  for (; !pattern.empty(); pattern.remove_prefix(part_of(pattern).size())) {
    const std::string_view part = part_of(pattern);
    const auto found = std::ranges::find(match, part, &Match::value_type::first);
    if (is_letter(part))
      name += part;
    else if (found == match.end())
      problem = part == "*" ? "as many `*`" : fmt::format("`{}`", part);
    else
      name += found->second;
    if (part == "*" && found != match.end()) match.erase(found);  // the next star is the next one's
  }
  return name;
}

// A parameter or a statistic, and what is said of it. A layer that shares another's weight has a name for it, too,
// by which its adapters are called.
struct Own {
  const ir::Buffer& buffer;
  ir::LoadSettings load{};
  const Entry* said = nullptr;
};

// Those that weights from elsewhere can have: adapters are of the run, not of the weights that it begins with.
std::vector<Own> all_own(const ir::Module& module, const Parameters& parameters) {
  std::set<std::string, std::less<>> adapters;
  for (const ir::AdapterSettings& adapter : module.settings.adapters)
    for (const std::string_view suffix : {".lora_A.weight", ".lora_B.weight"})
      adapters.insert(adapter.name + std::string(suffix));
  std::vector<Own> all;
  for (const ir::Buffer& buffer : module.buffers)
    if ((buffer.role == ir::BufferRole::weight || buffer.role == ir::BufferRole::statistic) &&
        !adapters.contains(buffer.name))
      all.push_back({buffer, {.parameter = buffer.name}});
  for (const auto& [name, owner] : parameters.ties)
    all.push_back({module[*module.find_buffer(owner)], {.parameter = name}});
  return all;
}

// Calls `f` for each that a pattern names. One that names none is an error.
template <class F>
void each(std::vector<Own>& all, const std::string& pattern, const Location& at, Diag& diag, const F& f) {
  Words names;
  bool found = false;
  for (Own& own : all) {
    names.push_back(own.load.parameter);
    Match match;
    if (!matches(pattern, own.load.parameter, match)) continue;
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
    if (own.said != nullptr && letters(own.said->key) >= letters(entry.key)) return;
    own.load.tensors.clear();
    own.said = &entry;
    for (const Node& theirs : one ? std::span(&entry.value, 1) : std::span(entry.value.items)) {
      std::string problem;
      own.load.tensors.push_back(filled(theirs.text, match, problem));
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
                 own.load.parameter, ir::shape_text(own.buffer.type.shape));
  });
}

bool is_texts(const Node& node) {
  return node.is_list() && !node.items.empty() &&
         std::ranges::all_of(node.items, [](const Node& item) { return item.form == Node::Form::text; });
}

}  // namespace

void read_load(const Values& keys, ir::Settings& settings, Diag& diag) {
  settings.load.prefix = keys.text("prefix");  // said, so that the module has a [load] at all
  if (keys.flag("part")) settings.load.part = true;
  if (keys.has("ignore")) settings.load.ignore = keys.get<ir::Texts>("ignore");
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
  if (diag.failed() || !model.file.given("load")) return;  // parameters may be missing
  const Values& keys = *model.file.find("load");
  std::vector<Own> all = all_own(module, parameters);
  for (const std::string_view key : {"rename", "concat"})
    if (keys.given(key))
      for (const Entry& entry : keys[key].node->entries) rename(all, entry, diag);
  for (const Node& pattern : keys.nodes("transpose")) transpose(all, pattern, diag);
  std::map<std::string, std::string> taken;
  for (auto& [_, load, said] : all) {
    const bool otherwise = !load.tensors.empty() || load.transpose;
    if (load.tensors.empty()) load.tensors.push_back(load.parameter);
    for (const std::string& tensor : load.tensors)
      if (const auto [other, fresh] = taken.emplace(tensor, load.parameter); !fresh)
        diag.error(Kind::duplicate_name, said != nullptr ? said->key_at : keys.place,
                   "`{}` and `{}` would both be the file's `{}`", other->second, load.parameter, tensor);
    const auto parts = parameters.parts.find(load.parameter);
    if (parts != parameters.parts.end() && parts->second.size() == load.tensors.size())
      load.parts = parts->second;
    if (otherwise) module.settings.loads.push_back(std::move(load));
  }
}

}  // namespace gacc::frontend
