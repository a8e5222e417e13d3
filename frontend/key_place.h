// Finds the key of a model file that people mean by a word.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "ir/schema/key.h"

namespace gacc::frontend {

// A key of a table that a file has once; without a key it is the table's `type`, without a table there is none.
struct KeyPlace {
  const Table* table = nullptr;
  const Key* key = nullptr;
};
// Returns the key that a word stands for: its own name, with or without that of its table, or what other frameworks
// call it.
KeyPlace key_called(std::string_view word);
// Returns all words that stand for one.
std::vector<std::string> words_for_keys();

}  // namespace gacc::frontend
