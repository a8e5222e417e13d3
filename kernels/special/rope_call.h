// What the kernel of rotary positions is compiled for, as the parameters of its function.
#pragma once
#include "kernels/program.h"

namespace gacc::kernels {

struct RopeShape {
  int64_t length, turned, copied, channels;  // T; heads of queries and keys; of values; D
  bool interleaved, inverse;
  int64_t vector;  // GPU: neighbouring pairs of a thread; 1 on the host
  // Of each pair of channels the turn from one position to the next, theta^(-2 i / R) / (2 pi) turns, in units
  // of 2^-64: a position times this, in 64 bits, is the exact part of a turn.
  std::vector<uint64_t> turns;
  static constexpr int64_t kTogether = 4;  // heads that are read before the first is stored
  int64_t pairs() const { return static_cast<int64_t>(turns.size()); }
  int64_t row() const { return (turned + copied) * channels; }  // of a position
  std::vector<int64_t> list() const;
  static RopeShape of(const Body& body);  // from body.parameters
};

}  // namespace gacc::kernels
