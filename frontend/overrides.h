// `--set KEY=VALUE`: changes the tree before it is read, so that an override is checked like the file.
#pragma once
#include "frontend/frontend.h"
#include "frontend/toml_tree.h"

namespace gacc::frontend {

// Applies the overrides in order; the last one of a key wins. What they write carries the place `--set
// KEY=VALUE`.
void apply_overrides(Node& root, const std::vector<Override>& overrides, Diag& diag);

// The names of a list of layer tables, defaults (TYPE_N, N counting the unnamed layers of a type) included;
// "" for what is no layer.
std::vector<std::string> layer_names(const Node& layers);

}  // namespace gacc::frontend
