#include "tools/key_advice.h"

#include <fmt/format.h>

#include <algorithm>

namespace gacc {

std::string set_of_option(std::string_view option) {
  std::string word(option.substr(std::min(option.find_first_not_of('-'), option.size())));
  std::ranges::replace(word, '-', '_');
  const auto found = std::ranges::lower_bound(key_words(), word, {}, &KeyWord::word);
  return found == key_words().end() || found->word != word ? "" : fmt::format("--set {}", found->set);
}

}  // namespace gacc
