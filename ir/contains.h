#pragma once
#include <algorithm>
#include <iterator>

namespace gacc {

template <class List, class T>
bool contains(const List& list, const T& wanted) {
  return std::ranges::find(list, wanted) != std::end(list);
}

}  // namespace gacc
