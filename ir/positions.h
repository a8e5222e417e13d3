// Positions of a sequence: whether a region computes each from that position and the ones before it, and what goes on
// with them one by one.
#pragma once
#include "ir/module.h"

namespace gacc::ir {

// For a region of one i32 input [B, T], beside numbers of documents, that yields [B, T, V]: "" when positions (the
// second axis) meet in causal attention alone, else the first op that has them meet in another way. Nothing for other
// regions.
std::optional<std::string> mixes_positions(const Module& module, const Region& region);

// Returns the inputs but for numbers of documents, which only say what attention does not see.
std::vector<ValueId> token_inputs(const Region& region);

// Returns how many positions the caches of the region `decode` have room for; 0: there is no such region.
int64_t cached_positions(const Module& module);

}  // namespace gacc::ir
