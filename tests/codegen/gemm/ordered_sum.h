// The sum of products in the order in which a tile's threads add it.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/gemm.h"

namespace gacc::codegen {

class OrderedSum {
 public:
  explicit OrderedSum(const kernels::GemmTile& tile)
      : tile_(tile), sums_(static_cast<size_t>(tile.slices), 0.0F) {}
  // The products come in the order of the inner dimension.
  void add(int64_t inner, float x, float y) {
    float& sum = sums_[static_cast<size_t>(inner % tile_.k / (tile_.k / tile_.slices))];
    sum = std::fma(x, y, sum);
  }
  float sum() const {
    float all = sums_[0];
    for (size_t slice = 1; slice < sums_.size(); ++slice) all += sums_[slice];
    return all;
  }

 private:
  const kernels::GemmTile& tile_;
  std::vector<float> sums_;
};

}  // namespace gacc::codegen
