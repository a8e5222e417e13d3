// Whether a region computes each position of a sequence from that position and the ones before it.
#pragma once
#include "ir/module.h"

namespace gacc::ir {

// For a region of one i32 input [B, T], beside numbers of documents, that yields [B, T, V]: "" when positions (the
// second axis) meet in causal attention alone, else the first op that has them meet in another way. Nothing for other
// regions.
std::optional<std::string> mixes_positions(const Module& module, const Region& region);

}  // namespace gacc::ir
