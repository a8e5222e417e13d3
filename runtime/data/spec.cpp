// Reads everything off the table of sources; the messages list from it.
#include "runtime/data/spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "runtime/atomic_file.h"
#include "runtime/data/source.h"
#include "runtime/text.h"

namespace gacc {
namespace {

std::vector<std::string> cut(std::string_view text, char at) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(at);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// "csv:FILE[,label=COLUMN]..."
std::string spec_form(const DataSource& source) {
  std::string form = fmt::format("{}:{}", source.name, source.path.empty() ? "NAME=FILE,..." : source.path);
  for (const SpecKey& key : source.keys) form += fmt::format("[,{}={}]", key.name, key.form);
  return form;
}

// Names that others have for options, and ours.
constexpr std::pair<std::string_view, std::string_view> kForeign[] = {
    {"delimiter", "sep"}, {"separator", "sep"},     {"delim", "sep"},    {"target", "label"},
    {"labels", "label"},  {"y", "label"},           {"na_values", "na"}, {"exclude", "drop"},
    {"ignore", "drop"},   {"skip", "drop"},         {"nrows", "limit"},  {"rows", "limit"},
    {"samples", "limit"}, {"max_samples", "limit"}, {"eos", "end"},      {"eos_token_id", "end"},
    {"type", "dtype"},    {"fillna", "missing"}};

// Kinds of files by their names' endings, and a SPEC that has one; {} is the file.
constexpr std::pair<std::string_view, std::string_view> kEndings[] = {
    {".csv", "did you mean csv:{},label=COLUMN?"},
    {".tsv", "did you mean csv:{},sep=tab,label=COLUMN?"},
    {".tab", "did you mean csv:{},sep=tab,label=COLUMN?"},
    {".npy", "did you mean npy:INPUT={},...? with an INPUT=FILE.npy for each input of the model"},
    {".npz", "did you mean npz:{}? its arrays are called as the model's inputs"},
    {".txt",
     "did you mean text:{}? its bytes are the tokens; python3 -m gacc.tokens makes those of a tokenizer"},
    {".bin", "did you mean tokens:{}?"},
    {".jsonl", "python3 -m gacc.tokens FOLDER {} -o tokens.bin makes tokens of it, for tokens:tokens.bin"},
    {".json", "python3 -m gacc.tokens FOLDER {} -o tokens.bin makes tokens of it, for tokens:tokens.bin"},
    {".parquet",
     "python3 -m gacc.tokens FOLDER {} -o tokens.bin makes tokens of its texts; pandas writes the csv "
     "of a table (to_csv)"},
    {"ubyte", "did you mean idx:INPUT={},...? or mnist:DIR, the folder of all four files"},
    {".xlsx", "save the table as csv: csv:FILE.csv,label=COLUMN"},
    {".pkl", "a pickle runs what its maker wrote: save arrays by numpy.save, for npy:INPUT=FILE.npy"},
    {".pt", "a pickle runs what its maker wrote: save arrays by numpy.save, for npy:INPUT=FILE.npy"},
    {".safetensors", "that is a file of weights, for --load"},
    {".gguf", "that is a file of weights, for --load"},
    {".png", "save the images as one array, for npy:INPUT=FILE.npy"},
    {".jpg", "save the images as one array, for npy:INPUT=FILE.npy"},
};

// Advice for a text that is a path; "" for another.
std::string spec_of_path(std::string_view text) {
  const std::string path(text.substr(0, text.find(',')));
  std::string name = lower_case(path);
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  for (const auto& [ending, advice] : kEndings)
    if (name.ends_with(ending)) return fmt::format(fmt::runtime(advice), path);
  std::error_code none;
  if (std::filesystem::is_directory(path, none))
    return fmt::format(
        "{} is a folder: mnist:{} reads MNIST's four files; of others name the files, as npy:INPUT=FILE or "
        "csv:FILE,label=COLUMN",
        path, path);
  if (std::filesystem::exists(path, none))
    return fmt::format("csv:{0},label=COLUMN of a table, text:{0} of a text, tokens:{0} of tokens", path);
  return "";
}

// The reader of one SPEC; `problem` begins every message with it.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<Spec> read() {
    const size_t colon = text_.find(':');
    const std::string_view name = text_.substr(0, colon);
    for (const DataSource* source : all_sources())
      if (source->name == name) spec_.source = source;
    if (!spec_.source) return unknown_kind(name);
    const std::string form = spec_form(*spec_.source);
    if (colon == std::string_view::npos || colon + 1 == text_.size())
      return problem("{}: needs more; its form is {}", name, form);
    const std::vector<std::string> parts = path_as_one(cut(text_.substr(colon + 1), ','));
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].empty()) return problem("part {} is empty; the form is {}", i + 1, form);
      if (i > 0 || spec_.source->path.empty()) {
        GACC_TRY(assignment(parts[i]));
      } else {
        GACC_TRY(check_words(spec_.source->name, spec_.source->path, parts[i]));
        spec_.path = parts[i];
      }
    }
    if (spec_.source->path.empty() && spec_.files.empty())
      return problem("names no file; the form is {}", form);
    return spec_;
  }

 private:
  template <class... A>
  Status problem(fmt::format_string<A...> format, A&&... arguments) {
    return Status::error("data {}: {}", in_quotes(text_), fmt::format(format, std::forward<A>(arguments)...));
  }

  // Joins the first parts where a file has that name, commas and all.
  std::vector<std::string> path_as_one(std::vector<std::string> parts) const {
    std::string path = parts[0];
    for (size_t i = 0; !spec_.source->path.empty() && i < parts.size(); ++i) {
      if (i > 0) path += "," + parts[i];
      if (!is_there(path)) continue;
      parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i));
      parts[0] = path;
      break;
    }
    return parts;
  }

  // A path alone, or a kind that is not there.
  Status unknown_kind(std::string_view name) {
    std::error_code none;
    const bool path = name == text_ || std::filesystem::exists(text_.substr(0, text_.find(',')), none);
    if (const std::string meant = path ? spec_of_path(text_) : ""; !meant.empty())
      return problem("a SPEC says what the file is: {}", meant);
    if (name.starts_with("0.") && name.find_first_not_of("0123456789.") == name.npos)
      return problem(
          "a share of the data is held out by split=train of --data and split=test of --eval, both of "
          "the same file, as csv:FILE,label=COLUMN,split=test");
    std::vector<std::string> names;
    for (const DataSource* source : all_sources()) names.emplace_back(source->name);
    return problem("unknown kind {}{} (known are {}:; gacc-exec --list-data says their forms)",
                   in_quotes(name), hint(name, names), fmt::join(names, ":, "));
  }

  // A value that a form such as "train|test" does not have; another takes any text.
  Status check_words(std::string_view what, std::string_view form, std::string_view value) {
    const std::vector<std::string> words = cut(form, '|');
    if (words.size() == 1 || std::ranges::find(words, value) != words.end()) return {};
    constexpr std::string_view kHeldOut[] = {"val", "valid", "validation", "dev", "eval", "holdout"};
    const bool held_out = what == "split" && std::ranges::count(kHeldOut, value) > 0;
    return problem("{} is {} or {}, not {}{}", what, fmt::join(words.begin(), words.end() - 1, ", "),
                   words.back(), in_quotes(value),
                   held_out ? "; what is held out is called \"test\" here" : hint(value, words));
  }

  Status assignment(const std::string& part) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    if (equals == std::string::npos || name.empty() || equals + 1 == part.size())
      return problem(
          "{} is not of the form {}{}", in_quotes(part),
          spec_.source->path.empty() ? "NAME=FILE" : "OPTION=VALUE",
          spec_.source->path.empty() ? " (a path cannot hold a comma)"
          : spec_.options.empty()
              ? "; a comma ends the path, unless there is a file of the whole name"
              : "; a comma ends a value: several of an option have a bar between them, as drop=a|b");
    std::string value = part.substr(equals + 1);
    const auto is_file = [&](const auto& file) { return file.first == name; };
    if ((name == "limit" && spec_.limit) || spec_.has(name) || std::ranges::any_of(spec_.files, is_file))
      return problem("{} is given twice", in_quotes(name));
    if (name == "limit") {
      const bool whole = parse_count(value, spec_.limit.emplace());
      if (whole && *spec_.limit > 0) return {};
      return problem("limit must be a whole number from 1 on, not {}", in_quotes(value));
    }
    auto key = std::ranges::find(spec_.source->keys, name, &SpecKey::name);
    // An input may be called as the option is; then the value is a path, and none of the option's words.
    if (spec_.source->path.empty() && key != spec_.source->keys.end() &&
        std::ranges::count(cut(key->form, '|'), value) == 0 && value.find_first_of("./") != value.npos)
      key = spec_.source->keys.end();
    if (key == spec_.source->keys.end() && !spec_.source->path.empty()) return unknown_option(name);
    if (key == spec_.source->keys.end()) {
      spec_.files.emplace_back(name, std::move(value));
      return {};
    }
    GACC_TRY(check_words(key->name, key->form, value));
    if (key->check)
      if (const std::string wrong = key->check(value); !wrong.empty())
        return problem("{} is {}, not {}", key->name, wrong, in_quotes(value));
    spec_.options[name] = std::move(value);
    return {};
  }

  Status unknown_option(const std::string& name) {
    std::vector<std::string> known;
    for (const SpecKey& key : spec_.source->keys) known.emplace_back(key.name);
    known.emplace_back("limit");
    for (const auto& [theirs, ours] : kForeign)
      if (theirs == name && std::ranges::count(known, ours) > 0)
        return problem("unknown option {}; it is called {} here", in_quotes(name), in_quotes(ours));
    return problem("unknown option {}{} ({} takes {})", in_quotes(name), hint(name, known),
                   spec_.source->name, listed(known));
  }

  const std::string_view text_;
  Spec spec_;
};

}  // namespace

std::string_view Spec::option(std::string_view name) const {
  if (const auto given = options.find(name); given != options.end()) return given->second;
  const auto key = std::ranges::find(source->keys, name, &SpecKey::name);
  return key == source->keys.end() ? "" : key->otherwise;
}

std::vector<std::string> Spec::parts(std::string_view name) const {
  std::vector<std::string> parts = cut(option(name), '|');
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

const std::vector<const DataSource*>& all_sources() {
  static const std::vector<const DataSource*> all = {
#define X(name) &sources::name,
#include "runtime/data/sources.def"
#undef X
  };
  return all;
}

Result<Spec> parse_spec(std::string_view text) { return Reader(text).read(); }

std::vector<std::string> data_files(const std::string& text) {
  std::vector<std::string> files;
  const Result<Spec> spec = parse_spec(text);
  if (!spec) return files;
  if (spec->source->files) return spec->source->files(*spec);
  for (const auto& [name, path] : spec->files) files.push_back(path);
  if (!spec->path.empty()) files.push_back(spec->path);
  return files;
}

std::string spec_forms() {
  std::string lines;
  constexpr size_t kWidth = 76;
  for (const DataSource* source : all_sources()) {
    std::string form = spec_form(*source);
    for (size_t begin = 0; form.size() - begin > kWidth;) {
      begin = form.rfind('[', begin + kWidth);
      form.insert(begin, "\n        ");
    }
    lines += fmt::format("    {}\n", form);
  }
  return lines;
}

std::string sources_markdown() {
  std::string page = "| SPEC | gives |\n| --- | --- |";
  const auto cell = [](std::string_view text) {  // a | would end the cell
    return fmt::format("{}", fmt::join(cut(text, '|'), "\\|"));
  };
  for (const DataSource* source : all_sources()) {
    page += fmt::format("\n| `{}` | {}", cell(spec_form(*source)), source->says);
    for (const SpecKey& key : source->keys)
      page += fmt::format("; `{}`: {}{}", key.name, key.says,
                          key.otherwise.empty() ? "" : fmt::format(" (default `{}`)", key.otherwise));
    page += " |";
  }
  return page;
}

}  // namespace gacc
