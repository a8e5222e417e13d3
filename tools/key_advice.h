// Advice for those who look for a key of the model file among a program's options.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace gacc {

// A word that stands for a key, in our words or in another framework's, and what `--set` then says.
struct KeyWord {
  std::string_view word, set;  // "batch_size", "train.micro_batch=N"
};

// Returns the words, sorted; the build makes them of the schema of model files (tools/list_keys.cpp).
std::span<const KeyWord> key_words();

// Returns what to write for an option that stands for a key: "--set train.micro_batch=N" for "--batch-size". "" where
// there is no such key.
std::string set_of_option(std::string_view option);

}  // namespace gacc
