// Prints tools/key_advice.h's table of words as a source file, of the schema of model files: gacc-exec, which reads no
// model file, has the table and not the schema.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "frontend/key_place.h"
#include "frontend/schema.h"

namespace {

using namespace gacc;

constexpr size_t kMostWords = 6;

// Returns words as a choice, or what stands for many.
std::string choice(const Words& words) {
  return !words.empty() && words.size() <= kMostWords ? fmt::format("{}", fmt::join(words, "|")) : "VALUE";
}

// Returns what stands for the value of a key: "N", or the words that it takes.
std::string value_of(const Key& key) {
  if (key.form == Form::integer) return "N";
  if (key.form == Form::real) return "X";
  return key.form == Form::flag ? "true|false" : choice(frontend::words_of(key));
}

std::string set_of(const frontend::KeyPlace& place) {
  if (place.key != nullptr)
    return fmt::format("{}.{}={}", place.table->path, place.key->name, value_of(*place.key));
  Words types;
  for (const TypeSchema* type : place.table->types) types.push_back(type->name);
  return fmt::format("{}.type={}", place.table->path, choice(types));
}

}  // namespace

int main() {
  std::vector<std::string> words = frontend::words_for_keys();
  std::ranges::sort(words);
  words.erase(std::unique(words.begin(), words.end()), words.end());
  fmt::print(
      "#include \"tools/key_advice.h\"\n\nnamespace gacc {{\n\nstd::span<const KeyWord> key_words() {{\n"
      "  static constexpr KeyWord words[] = {{\n");
  for (const std::string& word : words)
    fmt::print("      {{\"{}\", \"{}\"}},\n", word, set_of(frontend::key_called(word)));
  fmt::print("  }};\n  return words;\n}}\n\n}}  // namespace gacc\n");
}
