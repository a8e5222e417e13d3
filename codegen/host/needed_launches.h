// The launches of a program that matter where its caller overwrites some of what they leave.
#pragma once
#include <span>
#include <vector>

#include "ir/dependence.h"

namespace gacc::host {

// Returns which launches, given by the bytes that each reads and replaces, have to run where the caller overwrites
// `given` when the last one has ended: without the others all other bytes are the same.
std::vector<bool> needed_launches(const std::vector<ir::Touched>& launches, std::span<const ir::Bytes> given);

}  // namespace gacc::host
