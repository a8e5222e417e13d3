// Prints a tree as TOML.
#pragma once
#include "frontend/toml_tree.h"

namespace gacc::frontend {

// Returns the text of a table: [NAME] for tables and [[NAME]] for lists of them, but what is in an entry of such a
// list in one line; behind each line the notes of its values.
std::string toml_text(const Node& root);

}  // namespace gacc::frontend
