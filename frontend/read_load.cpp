// [load] and [gguf]: what parameters are called, and how they lie, in weights from elsewhere. Patterns are resolved
// here, where the parameters are known: the module has the names of each one.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
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

// Counts the letters of a pattern: of two patterns that match a parameter the one with more letters wins.
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

// A parameter or a statistic that weights from elsewhere can have, and what is said of it. A layer that shares
// another's weight has a name for it, too, by which its adapters are called.
struct Loaded {
  const ir::Buffer& buffer;
  ir::LoadSettings load{};
  const Entry* said = nullptr;
  bool split = false;    // the parts are of its one tensor
  bool outside = false;  // its names have no prefix
};

// Adapters are of the run, not of the weights that it begins with.
std::vector<Loaded> all_loaded(const ir::Module& module, const Parameters& parameters) {
  std::set<std::string, std::less<>> adapters;
  for (const ir::AdapterSettings& adapter : module.settings.adapters)
    for (const std::string_view suffix : {".lora_A.weight", ".lora_B.weight"})
      adapters.insert(adapter.name + std::string(suffix));
  std::vector<Loaded> all;
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
void each(std::vector<Loaded>& all, const std::string& pattern, const Location& at, Diag& diag, const F& f) {
  Words names;
  bool found = false;
  for (Loaded& loaded : all) {
    names.push_back(loaded.load.parameter);
    Match match;
    if (!matches(pattern, loaded.load.parameter, match)) continue;
    found = true;
    f(loaded, match);
  }
  if (!found)
    diag.error(Kind::unknown_name, at, "no parameter is named `{}`{}", pattern, did_you_mean(pattern, names));
}

// The file's patterns of an entry: one of `rename` or of `split`, the list of `concat`.
std::span<const Node> patterns(const Entry& entry) {
  if (entry.value.is_list()) return entry.value.items;
  return {entry.value.is_table() ? entry.value.find("tensor") : &entry.value, 1};
}

// Gives a parameter the parts of a tensor, which are as many rows as it has. Those of others count below zero.
void take_parts(Loaded& loaded, const Values& split, Diag& diag) {
  loaded.load.parts = split.integers("sizes");
  const std::vector<int64_t> taken = split.integers("parts");
  const int64_t groups = split.integer("groups");
  int64_t rows = 0;
  for (size_t part = 0; part < loaded.load.parts.size(); ++part) {
    int64_t& size = loaded.load.parts[part];
    if (std::ranges::count(taken, static_cast<int64_t>(part)) > 0)
      rows += size;
    else
      size = -size;
  }
  const ir::Shape& shape = loaded.buffer.type.shape;
  if (shape.empty() || shape.front() % groups != 0 || shape.front() / groups != rows)
    diag.error(Kind::shape_mismatch, split.place, "`{}` {} has other rows than {} times the {} of its parts",
               loaded.load.parameter, ir::shape_text(shape), groups, rows);
}

// Returns how often its parts lie in its tensor, one group behind the other.
int64_t groups(const Loaded& loaded) {
  int64_t rows = 0;
  for (const int64_t part : loaded.load.parts) rows += std::max<int64_t>(part, 0);
  return loaded.buffer.type.shape.empty() || rows == 0 ? 0 : loaded.buffer.type.shape.front() / rows;
}

// Returns the extents behind the first axis.
std::span<const int64_t> behind_rows(const Loaded& loaded) {
  const std::span<const int64_t> shape = loaded.buffer.type.shape;
  return shape.empty() ? shape : shape.subspan(1);
}

// Says what is wrong with two parameters of the same tensor; "" where they take different parts of it.
std::string clash(const Loaded& one, const Loaded& other, const std::string& tensor) {
  const ir::LoadSettings &a = one.load, &b = other.load;
  const auto share = [](int64_t x, int64_t y) { return x > 0 && y > 0; };
  const auto same = [](int64_t x, int64_t y) { return std::abs(x) == std::abs(y); };
  if (!one.split || !other.split ||
      std::ranges::mismatch(a.parts, b.parts, std::not_fn(share)).in1 != a.parts.end())
    return fmt::format("`{}` and `{}` would both be the file's `{}`", a.parameter, b.parameter, tensor);
  if (!std::ranges::equal(a.parts, b.parts, same) || a.transpose != b.transpose ||
      groups(one) != groups(other) || !std::ranges::equal(behind_rows(one), behind_rows(other)))
    return fmt::format("`{}` and `{}` do not agree on the parts of the file's `{}`", a.parameter, b.parameter,
                       tensor);
  return "";
}

// Our pattern, and the file's. `split` is what an entry of that table says, else null.
void rename(std::vector<Loaded>& all, const Entry& entry, const Values* split, Diag& diag) {
  const Node* last = nullptr;  // the pattern that was reported last: once, not for each parameter
  each(all, entry.key, entry.key_at, diag, [&](Loaded& loaded, const Match& match) {
    if (loaded.said != nullptr && letters(loaded.said->key) >= letters(entry.key)) return;
    loaded.load.tensors.clear();
    loaded.load.parts.clear();
    loaded.said = &entry;
    loaded.split = split != nullptr;
    if (split != nullptr) take_parts(loaded, *split, diag);
    for (const Node& theirs : patterns(entry)) {
      std::string problem;
      loaded.load.tensors.push_back(filled(theirs.text, match, problem));
      if (!problem.empty() && std::exchange(last, &theirs) != &theirs)
        diag.error(Kind::unknown_name, theirs.at, "`{}` does not have {} that `{}` has", entry.key, problem,
                   theirs.text);
    }
  });
}

void transpose(std::vector<Loaded>& all, const Node& pattern, Diag& diag) {
  each(all, pattern.text, pattern.at, diag, [&](Loaded& loaded, const Match&) {
    loaded.load.transpose = true;
    if (loaded.buffer.type.shape.size() != 2)
      diag.error(Kind::shape_mismatch, pattern.at, "`{}` {} is no matrix: it cannot be transposed",
                 loaded.load.parameter, ir::shape_text(loaded.buffer.type.shape));
  });
}

// The table of an entry of TABLE.split, or nothing where it is wrong and reported.
std::optional<Values> read_split(std::string_view table, const Entry& entry, Diag& diag) {
  const size_t reports = diag.reports().size();
  const std::string path = fmt::format("{}.split.\"{}\"", table, entry.key);
  if (!entry.value.is_table()) {
    diag.error(Kind::wrong_type, entry.value.at, "`{}` must be a table", path);
    return std::nullopt;
  }
  Values split = read_table(entry.value, tables::split, diag, path, path + ".");
  if (diag.reports().size() > reports) return std::nullopt;
  const std::vector<int64_t> sizes = split.integers("sizes");
  int64_t least = 0;
  for (const Node& part : split.nodes("parts")) {
    if (part.integer >= std::ssize(sizes) || part.integer < least)
      diag.error(Kind::out_of_range, part.at, "`{}.parts` has {}; it needs some of 0 to {}, in their order",
                 path, part.integer, std::ssize(sizes) - 1);
    least = part.integer + 1;
  }
  return diag.reports().size() > reports ? std::nullopt : std::optional(std::move(split));
}

bool is_texts(const Node& node) {
  return node.is_list() && !node.items.empty() &&
         std::ranges::all_of(node.items, [](const Node& item) { return item.form == Node::Form::text; });
}

bool is_text(const Node& node) { return node.form == Node::Form::text; }
bool is_number(const Node& node) {
  return (node.form == Node::Form::integer || node.form == Node::Form::real) && std::isfinite(node.number());
}
bool is_head(const Node& node) {
  return node.form == Node::Form::integer && node.integer > 0 && node.integer % 2 == 0;
}

// Checks the values of the tables of patterns that TABLE has.
void check_patterns(std::string_view table, const Values& keys, Diag& diag) {
  if (keys.given("split") && keys["split"].good)
    for (const Entry& entry : keys["split"].node->entries) read_split(table, entry, diag);
  const struct {
    std::string_view key, form;
    bool (*good)(const Node&);
  } kForms[] = {{"rename", "a string", is_text},
                {"concat", "a list of strings", is_texts},
                {"interleave", "an even number of rows", is_head},
                {"shift", "a number", is_number}};
  for (const auto& [key, form, good] : kForms) {
    if (!keys.lists(key) || !keys.given(key) || !keys[key].good) continue;
    for (const Entry& entry : keys[key].node->entries)
      if (!good(entry.value))
        diag.error(Kind::wrong_type, entry.value.at, "`{}.{}.\"{}\"` must be {}", table, key, entry.key,
                   form);
  }
}

// Notes in which of its tensors rows of a head are interleaved. A pattern that names no tensor is an error.
void interleave(std::vector<Loaded>& all, const Entry& entry, Diag& diag) {
  Words names;
  bool found = false;
  for (Loaded& loaded : all)
    for (size_t i = 0; i < loaded.load.tensors.size(); ++i) {
      const std::string& tensor = loaded.load.tensors[i];
      names.push_back(tensor);
      Match match;
      if (!matches(entry.key, tensor, match)) continue;
      found = true;
      loaded.load.interleave.resize(loaded.load.tensors.size());
      loaded.load.interleave[i] = entry.value.integer;
      const ir::Shape& shape = loaded.buffer.type.shape;
      const int64_t rows = loaded.load.tensors.size() == 1 ? (shape.empty() ? 1 : shape.front())
                           : loaded.load.parts.empty()     ? 0
                                                           : loaded.load.parts[i];
      if (loaded.split || loaded.load.transpose || rows == 0 || rows % entry.value.integer != 0)
        diag.error(Kind::shape_mismatch, entry.value.at, "the {} rows of `{}`, of `{}`, are no heads of {}",
                   rows, tensor, loaded.load.parameter, entry.value.integer);
    }
  if (!found)
    diag.error(Kind::unknown_name, entry.key_at, "no tensor is named `{}`{}", entry.key,
               did_you_mean(entry.key, names));
}

// Resolves the patterns of [TABLE]. No two parameters have the same rows of a tensor. Returns those that are called or
// lie otherwise than here.
std::vector<ir::LoadSettings> assign(std::string_view table, const ModelFile& model,
                                     const Parameters& parameters, const ir::Module& module, Diag& diag) {
  const Values& keys = *model.file.find(table);
  const auto said = [&](std::string_view key) { return keys.lists(key) && keys.given(key); };
  const std::string prefix = said("prefix") ? keys.text("prefix") : "";
  std::vector<Loaded> all = all_loaded(module, parameters);
  Diag reported;
  for (const std::string_view key : {"rename", "concat", "split"})
    if (keys.given(key))
      for (const Entry& entry : keys[key].node->entries) {
        const std::optional<Values> split =
            key == "split" ? read_split(table, entry, reported) : std::optional<Values>();
        rename(all, entry, split ? &*split : nullptr, diag);
      }
  if (said("transpose"))
    for (const Node& pattern : keys.nodes("transpose")) transpose(all, pattern, diag);
  if (said("outside"))
    for (const Node& pattern : keys.nodes("outside"))
      each(all, pattern.text, pattern.at, diag, [](Loaded& loaded, const Match&) { loaded.outside = true; });
  if (said("shift"))
    for (const Entry& entry : keys["shift"].node->entries)
      each(all, entry.key, entry.key_at, diag,
           [&](Loaded& loaded, const Match&) { loaded.load.shift = entry.value.number(); });
  std::map<std::string, std::vector<const Loaded*>> taken;
  std::vector<bool> otherwise;
  for (Loaded& loaded : all) {
    ir::LoadSettings& load = loaded.load;
    otherwise.push_back(!load.tensors.empty() || load.transpose || loaded.outside || load.shift);
    if (load.tensors.empty()) load.tensors.push_back(load.parameter);
    if (!loaded.outside)
      for (std::string& tensor : load.tensors) tensor = prefix + tensor;
    for (const std::string& tensor : load.tensors) {
      std::vector<const Loaded*>& others = taken[tensor];
      for (const Loaded* other : others)
        if (const std::string problem = clash(*other, loaded, tensor); !problem.empty()) {
          diag.error(Kind::duplicate_name, loaded.said != nullptr ? loaded.said->key_at : keys.place, "{}",
                     problem);
          break;
        }
      others.push_back(&loaded);
    }
    const auto parts = parameters.parts.find(load.parameter);
    if (!loaded.split && load.tensors.size() > 1 && parts != parameters.parts.end() &&
        parts->second.size() == load.tensors.size())
      load.parts = parts->second;
  }
  if (said("interleave"))
    for (const Entry& entry : keys["interleave"].node->entries) interleave(all, entry, diag);
  std::vector<ir::LoadSettings> result;
  for (size_t i = 0; i < all.size(); ++i)
    if (otherwise[i]) result.push_back(std::move(all[i].load));
  return result;
}

}  // namespace

void read_load(const Values& keys, ir::Settings& settings, Diag& diag) {
  settings.load.prefix = keys.text("prefix");  // said, so that the module has a [load] at all
  if (keys.flag("part")) settings.load.part = true;
  if (keys.has("ignore")) settings.load.ignore = keys.get<ir::Texts>("ignore");
  check_patterns("load", keys, diag);
}

void read_gguf(const Values& keys, ir::Settings& settings, Diag& diag) {
  if (keys.has("ignore")) settings.gguf.ignore = keys.get<ir::Texts>("ignore");
  check_patterns("gguf", keys, diag);
}

void assign_loads(const ModelFile& model, const Parameters& parameters, ir::Module& module, Diag& diag) {
  if (diag.failed()) return;  // parameters may be missing
  if (model.file.given("load")) module.settings.loads = assign("load", model, parameters, module, diag);
  if (model.file.given("gguf")) module.settings.ggufs = assign("gguf", model, parameters, module, diag);
}

}  // namespace gacc::frontend
