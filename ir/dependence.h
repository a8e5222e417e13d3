// The order between kernels of a planned region that must be kept: the one relation behind the GPU's levels, the
// epilogues of products, the host's waves, and the rules that check them.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "ir/kernel.h"

namespace gacc::ir {

// Byte offset of a value or buffer in the arena: a reshape has that of what it is a reshape of. Nothing for
// numbers and register values.
std::optional<int64_t> arena_offset(const Module& module, const Region& region, const Operand& operand);

// The bytes of the arena that a kernel reads and writes in a full micro-batch; a smaller one touches less of
// them. Bytes, not names: memory that is used again orders kernels, too.
struct Touched {
  std::vector<Bytes> reads, writes;
};
Touched touched(const Module& module, const Region& region, const Kernel& kernel);
inline bool overlap(const Bytes& a, const Bytes& b) {
  return a.offset < b.offset + b.size && b.offset < a.offset + a.size;
}
bool overlap(const std::vector<Bytes>& a, const std::vector<Bytes>& b);
// Returns true if one of them writes bytes that the other touches.
bool conflict(const Touched& a, const Touched& b);

// Kernels are numbered as in the list that it was made with. Kernel b depends on a, which stands before it,
// when one of them writes bytes that the other touches. A reshape does nothing, so nothing depends on it.
class Dependence {
 public:
  Dependence(const Module& module, const Region& region, const std::vector<Kernel>& kernels);

  bool between(size_t a, size_t b) const;
  // Returns true if `kernel` could run earlier, as one with `to`: it and the kernels from there on to its own place do
  // not depend on each other, and it writes nothing that `to` reads.
  bool may_move(size_t kernel, size_t to) const;
  // From now on `product` does `kernel`, too: touches what that touches, and `kernel` itself nothing.
  void join(size_t product, size_t kernel);

  // For each kernel the first level in which it can run, when every level begins after the one before it has
  // ended; -1 for reshapes and for what was joined.
  std::vector<int32_t> earliest_levels() const;
  // The first dependence (a, b) whose order the levels do not keep: level[a] >= level[b].
  std::optional<std::pair<size_t, size_t>> out_of_order(const std::vector<int32_t>& levels) const;
  // The kernels in runs of neighbours without a dependence: where each run ends.
  std::vector<size_t> wave_ends() const;

 private:
  bool none(size_t kernel) const { return touched_[kernel].reads.empty() && touched_[kernel].writes.empty(); }
  // The first of those with the greatest level among the kernels that this one depends on; none below `least`.
  std::optional<size_t> latest_before(size_t kernel, const std::vector<int32_t>& levels, int32_t least) const;
  std::vector<Touched> touched_;
};

}  // namespace gacc::ir
