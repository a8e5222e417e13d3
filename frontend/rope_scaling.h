// Rotary positions for longer sequences than a model was trained on: factors of the frequencies, by the types that
// transformers has.
#pragma once
#include "frontend/schema.h"

namespace gacc::frontend {

std::vector<const TypeSchema*> rope_scalings();
// Returns what the turn theta^(-2 i / rotated) of pair i is multiplied by; `scaling` has a type.
std::vector<double> rope_factors(const Values& scaling, double theta, int64_t rotated);

}  // namespace gacc::frontend
