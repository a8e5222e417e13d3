#include "ir/schema/key.h"

#include <algorithm>

namespace gacc {

std::string_view form_text(Form form) {
  constexpr std::string_view texts[] = {
#define X(name, element, one, list, text) text,
#include "ir/schema/forms.def"
  };
  return texts[static_cast<size_t>(form)];
}

std::string number_text(double value) { return fmt::format("{}", value); }

std::string list_words(const std::vector<std::string_view>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? " or " : ", ";
    out += fmt::format("\"{}\"", words[i]);
  }
  return out;
}

std::string Range::text() const {
  std::string out;
  if (low > -kInfinity) out = fmt::format("{} {}", low_open ? "above" : "at least", number_text(low));
  if (high < kInfinity && high != kLargest) {
    if (!out.empty()) out += " and ";
    out += fmt::format("{} {}", high_open ? "below" : "at most", number_text(high));
  }
  return out;
}

std::string Range::text(double found) const {
  // The technical upper limit is of interest to those alone who meet it.
  if (high == kLargest && found > high) return fmt::format("at most {}", number_text(high));
  return text().empty() ? "a finite number" : text();
}

const Key* find_key(const std::vector<Key>& keys, std::string_view name) {
  const auto found = std::ranges::find_if(keys, [&](const Key& key) { return key.name == name; });
  return found != keys.end() ? &*found : nullptr;
}

}  // namespace gacc
