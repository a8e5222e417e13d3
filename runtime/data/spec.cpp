// See spec.h. One table says what each kind takes; the messages list from it.
#include "runtime/data/spec.h"

#include <algorithm>

#include "runtime/data/text.h"

namespace gacc {
namespace {

struct SpecKind {
  std::string_view name;
  std::string_view form;             // for messages
  bool named_files;                  // NAME=FILE parts instead of one path
  std::vector<std::string> options;  // beside limit
};

const std::vector<SpecKind>& kinds() {
  static const std::vector<SpecKind> table = {
      {"mnist", "mnist:DIR[,split=train|test]", false, {"split"}},
      {"idx", "idx:NAME=FILE,...", true, {}},
      {"npy", "npy:NAME=FILE,...", true, {}},
      {"npz", "npz:FILE", false, {}},
      {"csv", "csv:FILE,label=COLUMN", false, {"label", "sep", "split", "missing"}},
      {"tokens", "tokens:FILE", false, {}},
      {"text", "text:FILE[,split=train|test]", false, {"split"}},
      {"synthetic", "synthetic:digits|tokens[,split=train|test]", false, {"split"}},
  };
  return table;
}

const SpecKind* find_kind(std::string_view name) {
  for (const SpecKind& kind : kinds())
    if (kind.name == name) return &kind;
  return nullptr;
}

std::vector<std::string_view> cut_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

// The reader of one SPEC; `problem` begins every message with it.
class Reader {
 public:
  Reader(std::string_view text, Spec& spec) : text_(text), spec_(spec) {}

  Status read() {
    spec_ = {};
    size_t colon = text_.find(':');
    std::string_view name = text_.substr(0, colon);
    kind_ = find_kind(name);
    if (!kind_) return unknown_kind(name);
    if (colon == std::string_view::npos || colon + 1 == text_.size())
      return problem("{}: needs more; its form is {}", name, kind_->form);
    spec_.kind = name;
    std::vector<std::string_view> parts = cut_at_commas(text_.substr(colon + 1));
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].empty()) return problem("part {} is empty; the form is {}", i + 1, kind_->form);
      bool is_path = i == 0 && !kind_->named_files;
      if (is_path) spec_.path = parts[i];
      if (Status status = is_path ? Status() : assignment(parts[i]); !status) return status;
    }
    if (kind_->named_files && spec_.files.empty())
      return problem("names no file; the form is {}", kind_->form);
    return kind_->name == "synthetic" ? check_generator() : Status();
  }

 private:
  template <class... A>
  Status problem(fmt::format_string<A...> format, A&&... arguments) {
    return Status::error("data {}: {}", quoted(text_), fmt::format(format, std::forward<A>(arguments)...));
  }

  Status unknown_kind(std::string_view name) {
    std::vector<std::string> names;
    std::string forms;
    for (const SpecKind& kind : kinds()) {
      names.emplace_back(kind.name);
      forms += forms.empty() ? "" : ", ";
      forms += kind.form;
    }
    return problem("unknown kind {}{} (known are {})", quoted(name), hint(name, names), forms);
  }

  Status check_generator() {
    std::vector<std::string> known = {"digits", "tokens"};
    if (std::find(known.begin(), known.end(), spec_.path) != known.end()) return {};
    return problem("there is no generated set {}{} (known are {})", quoted(spec_.path),
                   hint(spec_.path, known), listed(known));
  }

  Status assignment(std::string_view part) {
    std::vector<std::string> known = kind_->options;
    known.emplace_back("limit");
    size_t equals = part.find('=');
    std::string_view key = part.substr(0, equals);
    if (equals == std::string_view::npos || key.empty() || equals + 1 == part.size())
      return problem("{} is not of the form {} (a path cannot hold a comma)", quoted(part),
                     kind_->named_files ? "NAME=FILE" : "OPTION=VALUE");
    std::string value(part.substr(equals + 1));
    bool is_option = std::find(known.begin(), known.end(), key) != known.end();
    auto is_key = [&](const auto& file) { return file.first == key; };
    bool again = !seen_.empty() && std::find(seen_.begin(), seen_.end(), key) != seen_.end();
    if (again || std::any_of(spec_.files.begin(), spec_.files.end(), is_key))
      return problem("{} is given twice", quoted(key));
    if (!is_option && kind_->named_files) {
      spec_.files.emplace_back(key, value);
      return {};
    }
    if (!is_option)
      return problem("unknown option {}{} ({} takes {})", quoted(key), hint(key, known), kind_->name,
                     listed(known));
    seen_.emplace_back(key);
    if (key == "limit") {
      int64_t limit = 0;
      if (!parse_count(value, limit) || limit == 0)
        return problem("limit must be a whole number from 1 on, not {}", quoted(value));
      spec_.limit = limit;
    } else if (key == "split") {
      std::vector<std::string> splits = {"train", "test"};
      if (value != "train" && value != "test")
        return problem("split is \"train\" or \"test\", not {}{}", quoted(value), hint(value, splits));
      spec_.test = value == "test";
      spec_.split = true;
    } else if (key == "missing") {
      const std::vector<std::string> ways = {"error", "mean", "drop"};  // as Missing has them
      const auto way = std::find(ways.begin(), ways.end(), value);
      if (way == ways.end())
        return problem("missing is {}, not {}{}", listed(ways), quoted(value), hint(value, ways));
      spec_.missing = static_cast<Missing>(way - ways.begin());
    } else if (key == "sep") {
      if (value == "tab" || value == "\\t") value = "\t";
      constexpr std::string_view kMost = ";|:\t!#$%&*/<>?@^~ ";
      if (value.size() != 1 || kMost.find(value[0]) == std::string_view::npos)
        return problem("sep is one character such as ; or |, or tab, not {} (a comma needs no sep)",
                       quoted(value));
      spec_.separator = value[0];
    } else {
      spec_.label = value;
    }
    return {};
  }

  std::string_view text_;
  Spec& spec_;
  const SpecKind* kind_ = nullptr;
  std::vector<std::string> seen_;
};

}  // namespace

Status parse_spec(std::string_view text, Spec& spec) { return Reader(text, spec).read(); }

std::vector<std::string> mnist_files(std::string_view folder, bool test, bool labels) {
  std::vector<std::string> names;
  for (std::string_view join : {"-", "."})
    for (std::string_view ending : {"", ".gz"})
      names.push_back(fmt::format("{}/{}-{}{}{}-ubyte{}", folder, test ? "t10k" : "train",
                                  labels ? "labels" : "images", join, labels ? "idx1" : "idx3", ending));
  return names;
}

std::vector<std::string> data_files(std::string_view text) {
  Spec spec;
  std::vector<std::string> files;
  if (!parse_spec(text, spec) || spec.kind == "synthetic") return files;
  for (const auto& [name, path] : spec.files) files.push_back(path);
  if (!spec.path.empty() && spec.kind != "mnist") files.push_back(spec.path);
  if (spec.kind == "mnist")
    for (bool test : {false, true})
      for (bool labels : {false, true})
        for (std::string& name : mnist_files(spec.path, test, labels)) files.push_back(std::move(name));
  return files;
}

}  // namespace gacc
