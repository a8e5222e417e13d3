#include "ir/dependence.h"

#include <algorithm>

namespace gacc::ir {

std::optional<int64_t> arena_offset(const Module& module, const Region& region, const Operand& operand) {
  if (const ValueId* value = as_value(operand)) return region[*value].offset;
  if (const BufferId* buffer = as_buffer(operand)) return module[*buffer].offset;
  return std::nullopt;
}

Touched touched(const Module& module, const Region& region, const Kernel& kernel) {
  const auto bytes_of = [&](const std::vector<Operand>& operands) {
    std::vector<Bytes> list;
    for (const Operand& operand : operands)
      if (const std::optional<int64_t> offset = arena_offset(module, region, operand))
        list.push_back(
            {*offset, type_bytes(operand_type(module, region, operand), module.most_samples(region))});
    return list;
  };
  if (kernel.form == KernelForm::alias) return {};
  return {bytes_of(kernel.reads), bytes_of(kernel.writes)};
}

bool overlap(const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
  return std::ranges::any_of(a, [&](const Bytes& x) {
    return std::ranges::any_of(b, [&](const Bytes& y) { return overlap(x, y); });
  });
}

bool conflict(const Touched& a, const Touched& b) {
  return overlap(a.writes, b.writes) || overlap(a.writes, b.reads) || overlap(a.reads, b.writes);
}

Dependence::Dependence(const Module& module, const Region& region, const std::vector<Kernel>& kernels) {
  touched_.reserve(kernels.size());
  for (const Kernel& kernel : kernels) touched_.push_back(touched(module, region, kernel));
}

bool Dependence::between(size_t a, size_t b) const { return conflict(touched_[a], touched_[b]); }

bool Dependence::may_move(size_t kernel, size_t to) const {
  if (overlap(touched_[kernel].writes, touched_[to].reads)) return false;
  for (size_t i = to + 1; i < kernel; ++i)
    if (between(i, kernel)) return false;
  return true;
}

void Dependence::join(size_t product, size_t kernel) {
  Touched& into = touched_[product];
  Touched& from = touched_[kernel];
  into.reads.insert(into.reads.end(), from.reads.begin(), from.reads.end());
  into.writes.insert(into.writes.end(), from.writes.begin(), from.writes.end());
  from = {};
}

std::optional<size_t> Dependence::latest_before(size_t kernel, const std::vector<int32_t>& levels,
                                                int32_t least) const {
  std::optional<size_t> latest;
  // From the end: what a kernel waits for is mostly near, and then all of lower levels need no look.
  for (size_t i = kernel; i-- > 0;)
    if (levels[i] >= least && between(i, kernel)) latest = i, least = levels[i];
  return latest;
}

namespace {

// The greatest levels so far at which each byte was read and written. Bytes that all kernels touch alike are a cell.
class LevelsOfBytes {
 public:
  explicit LevelsOfBytes(const std::vector<Touched>& all) {
    for (const Touched& touched : all)
      for (const auto* list : {&touched.reads, &touched.writes})
        for (const Bytes& bytes : *list)
          begins_.insert(begins_.end(), {bytes.offset, bytes.offset + bytes.size});
    std::ranges::sort(begins_);
    begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
    read_.resize(begins_.size(), -1);
    written_.resize(begins_.size(), -1);
  }

  // Returns the greatest level of what these bytes have to wait for; -1: nothing.
  int32_t before(const Touched& touched) const {
    int32_t level = -1;
    each_cell(touched.reads, [&](size_t cell) { level = std::max(level, written_[cell]); });
    each_cell(touched.writes, [&](size_t cell) { level = std::max({level, written_[cell], read_[cell]}); });
    return level;
  }
  void add(const Touched& touched, int32_t level) {
    each_cell(touched.reads, [&](size_t cell) { read_[cell] = std::max(read_[cell], level); });
    each_cell(touched.writes, [&](size_t cell) { written_[cell] = std::max(written_[cell], level); });
  }

 private:
  template <class F>
  void each_cell(const std::vector<Bytes>& list, F&& f) const {
    for (const Bytes& bytes : list) {
      auto cell = static_cast<size_t>(std::ranges::lower_bound(begins_, bytes.offset) - begins_.begin());
      for (; cell < begins_.size() && begins_[cell] < bytes.offset + bytes.size; ++cell) f(cell);
    }
  }

  std::vector<int64_t> begins_;  // of cells, sorted
  std::vector<int32_t> read_, written_;
};

}  // namespace

std::vector<int32_t> Dependence::earliest_levels() const {
  std::vector<int32_t> levels(touched_.size(), -1);
  LevelsOfBytes so_far(touched_);
  for (size_t i = 0; i < touched_.size(); ++i) {
    if (none(i)) continue;
    levels[i] = so_far.before(touched_[i]) + 1;
    so_far.add(touched_[i], levels[i]);
  }
  return levels;
}

std::optional<std::pair<size_t, size_t>> Dependence::out_of_order(const std::vector<int32_t>& levels) const {
  LevelsOfBytes so_far(touched_);
  for (size_t i = 0; i < touched_.size(); ++i) {
    if (none(i)) continue;
    if (so_far.before(touched_[i]) >= levels[i])
      if (const std::optional<size_t> before = latest_before(i, levels, levels[i]))
        return std::pair(*before, i);
    so_far.add(touched_[i], levels[i]);
  }
  return std::nullopt;
}

std::vector<size_t> Dependence::wave_ends() const {
  std::vector<size_t> ends;
  size_t first = 0;
  for (size_t i = 0; i < touched_.size(); ++i) {
    bool waits = false;
    for (size_t other = first; other < i && !waits; ++other) waits = between(other, i);
    if (!waits) continue;
    ends.push_back(i);
    first = i;
  }
  if (!touched_.empty()) ends.push_back(touched_.size());
  return ends;
}

}  // namespace gacc::ir
