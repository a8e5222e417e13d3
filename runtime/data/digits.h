// The generated data set `synthetic:digits`: handwritten-looking digits, drawn rather than stored.
#pragma once
#include <cstdint>

#include "runtime/data/array.h"

namespace gacc {

constexpr int64_t kDigitSide = 28;  // pixels

// `samples` images [samples, 28, 28] u8 and their labels [samples] u8, 0 to 9. Sample i is a pure function of
// (seed, test, i); the two sets have nothing in common.
void make_digits(int64_t samples, uint64_t seed, bool test, Array& images, Array& labels);

}  // namespace gacc
