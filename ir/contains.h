#pragma once
#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>

namespace gacc {

template <class List, class T>
bool contains(const List& list, const T& wanted) {
  return std::ranges::find(list, wanted) != std::end(list);
}

// Returns the enumerator whose place in a list, by its number, has that text.
template <class Enum, class List, class Text, class Of = std::identity>
std::optional<Enum> enumerator(const List& list, const Text& text, Of of = {}) {
  const auto found = std::ranges::find(list, text, of);
  if (found == std::end(list)) return std::nullopt;
  return static_cast<Enum>(found - std::begin(list));
}

}  // namespace gacc
