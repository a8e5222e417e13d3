// [load]: what parameters are called, and how they lie, in weights from elsewhere. Patterns are resolved
// here, where the parameters are known: the module has the names of each one.
#include <algorithm>
#include <set>

#include "frontend/model_file.h"
#include "frontend/parameters.h"
#include "ir/buffer_role.h"

namespace gacc::frontend {

namespace {

// What the parts of a pattern stood for: its numbers by name, and the texts of its stars in order.
struct Match {
  std::map<std::string, std::string, std::less<>> numbers{};
  std::vector<std::string> texts{};
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The NAME of a pattern that begins with {NAME}; nothing when it does not.
std::optional<std::string_view> number_name(std::string_view pattern) {
  if (!pattern.starts_with('{')) return std::nullopt;
  const size_t end = pattern.find('}');
  if (end == std::string_view::npos || end == 1) return std::nullopt;
  return pattern.substr(1, end - 1);
}

bool matches(std::string_view pattern, std::string_view name, Match& match) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*') {
    for (size_t length = 0; length <= name.size(); ++length) {
      Match rest = match;
      rest.texts.emplace_back(name.substr(0, length));
      if (!matches(pattern.substr(1), name.substr(length), rest)) continue;
      match = std::move(rest);
      return true;
    }
    return false;
  }
  if (const auto number = number_name(pattern)) {
    const auto* const end = std::find_if_not(name.begin(), name.end(), is_digit);
    const std::string_view digits = name.substr(0, static_cast<size_t>(end - name.begin()));
    if (digits.empty()) return false;
    const auto [known, fresh] = match.numbers.emplace(*number, digits);
    return (fresh || known->second == digits) &&
           matches(pattern.substr(number->size() + 2), name.substr(digits.size()), match);
  }
  return !name.empty() && name.front() == pattern.front() &&
         matches(pattern.substr(1), name.substr(1), match);
}

// The file's name: its {NAME}s and stars replaced by what those of our pattern matched. `problem` names one that
// our pattern does not have.
std::string filled(std::string_view pattern, const Match& match, std::string& problem) {
  std::string name;
  size_t star = 0;
  while (!pattern.empty()) {
    size_t taken = 1;
    if (const auto number = number_name(pattern)) {
      taken = number->size() + 2;
      const auto found = match.numbers.find(*number);
      if (found == match.numbers.end()) problem = fmt::format("`{{{}}}`", *number);
      if (found != match.numbers.end()) name += found->second;
    } else if (pattern.front() == '*') {
      if (star == match.texts.size()) problem = "as many `*`";
      if (star < match.texts.size()) name += match.texts[star++];
    } else {
      name += pattern.front();
    }
    pattern.remove_prefix(taken);
  }
  return name;
}

// What a pattern says without stars and numbers: of two that name a parameter, the one that says more counts.
size_t letters(std::string_view pattern) {
  size_t count = 0;
  while (!pattern.empty()) {
    const auto number = number_name(pattern);
    count += !number && pattern.front() != '*';
    pattern.remove_prefix(number ? number->size() + 2 : 1);
  }
  return count;
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
      if (by_[i].said != nullptr && letters(by_[i].said->key) >= letters(entry.key)) return;
      ir::LoadSettings& load = by_[i].load;
      load.tensors.clear();
      by_[i].said = &entry;
      for (const Node& each : theirs) {
        std::string problem;
        load.tensors.push_back(filled(each.text, match, problem));
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
    bool found = false;
    for (size_t i = 0; i < by_.size(); ++i) {
      Match match;
      if (!is_elsewhere(module_.buffers[i]) || !matches(pattern, module_.buffers[i].name, match)) continue;
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
