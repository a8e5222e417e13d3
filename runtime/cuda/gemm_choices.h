// The chosen algorithms of a library for the matrix products of a step: measured once (`gacc-exec
// --tune-gemm`), kept in a file and in checkpoints, so that a later run sums in the same order. As text it is
// one JSON object: `gpu` and `library`, which must be those of the run, and `products`.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace gacc::cuda {

// The library's own description of an algorithm, opaque to us.
struct LtAlgorithm {
  uint64_t data[8] = {};
};

struct ChosenAlgorithm {
  // m, n, k; whether A and B are transposed and C is added to; the types of A and B, and of C (DType); the
  // alignments of A, B and C in bytes; the elements from one row of A, B and C to the next.
  using Key = std::array<int64_t, 14>;
  Key product{};
  LtAlgorithm algorithm{};
  int64_t workspace_bytes = 0;
  int64_t candidates = 0;   // it is the fastest of so many
  double microseconds = 0;  // as measured
};

struct GemmChoices {
  std::string gpu, library;
  std::vector<ChosenAlgorithm> products{};

  const ChosenAlgorithm* find(const ChosenAlgorithm::Key& product) const;
};

std::string gemm_choices_text(const GemmChoices& choices);
// An error says what is wrong with the text.
Status parse_gemm_choices(std::string_view text, GemmChoices& choices);

}  // namespace gacc::cuda
