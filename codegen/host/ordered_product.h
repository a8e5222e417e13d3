// Products whose every element adds its terms one after the other, each by a fused multiplication and addition. So an
// element has the same bits whatever the product's other extents are, how its terms are cut into calls, and how wide
// the machine's vectors are: a library promises none of this. train.require = "bits" rests on it. Without instructions
// for it (an x86 of before 2013) a term is rounded twice: the same bits for every split, but those of that machine.
#pragma once
#include <algorithm>
#include <cstdint>

#include "codegen/host/products.h"

namespace gacc::host {

// The start of a call's sum, and where it goes.
enum class Start : uint8_t {
  zero,     // c = sum
  element,  // c goes on with its own terms: as if one call had had the terms of both
  apart     // c += sum, which starts from zero: one rounding more
};

// The runs that a call's terms come in, each a sum of `start`'s: up to `longest` terms of one sample's `rows`.
struct Runs {
  int64_t rows, longest, first;  // of the call's first term, in its sample

  // The terms of the run that begins with term `p` of the call.
  int64_t length(int64_t p) const {
    const int64_t at = (first + p) % rows;
    return std::min(rows - at, longest - at % longest);
  }
};

// Says whether this machine's registers hold tiles that run as quickly as a library's.
bool has_wide_tiles();

// c[m, n] from a[m, k] @ b[k, n], on the calling thread; rows of c lie `step` elements apart.
void multiply_in_order(const ProductSize& size, const HostMatrix& a, const HostMatrix& b, float* c,
                       int64_t step, Start start, const Runs& runs);

}  // namespace gacc::host
