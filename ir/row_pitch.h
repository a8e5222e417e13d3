// Rows with gaps. A tensor core's operands, and loads of 16 bytes, want rows that begin at multiples of 16
// bytes; a vocabulary of 50,257 in f16 has none. Type::pitch puts such rows further apart: shapes, sums and
// saved files stay as they are. Pass `pitch` decides.
#pragma once
#include "ir/kernel.h"
#include "ir/module.h"

namespace gacc::ir {

// Libraries compute half products fast where each extent is a multiple of this (measured on an H200: 2 to 8 times as
// slow elsewhere, whatever the pitch).
inline constexpr int64_t kLibraryStep = 8;

// Rows with a pitch begin at multiples of so many elements.
inline constexpr int64_t kPitchStep = 64;

// The pitch of rows of so many columns; 0 where rows are aligned without, where gaps would be more than 1 in 16,
// and where no product takes so many.
constexpr int64_t wanted_pitch(int64_t columns) {
  if (columns > kMostMatrixExtent) return 0;
  const int64_t pitch = aligned(columns, kPitchStep);
  return columns % kLibraryStep != 0 && (pitch - columns) * 16 <= columns ? pitch : 0;
}

// The bytes of a buffer in the arena. A half copy, or a gradient, with as many rows as a pitch is for has room for rows
// up to a multiple of kLibraryStep. Nothing writes there, or zeros, so the room holds the zeros of the load.
int64_t room_bytes(const Buffer& buffer);

// Returns true if every kernel that touches the value finds it row by row, and nobody outside reads it. `kernels`:
// those of the region.
bool may_have_pitch(const Region& region, const std::vector<Kernel>& kernels, ValueId value);

}  // namespace gacc::ir
