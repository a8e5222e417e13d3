// See dependence.h.
#include "ir/dependence.h"

#include <algorithm>
#include <map>

namespace gacc::ir {

namespace {

// For each byte of the arena, of the kernels seen so far: which reader and which writer has the greatest
// level. -1: none.
class Latest {
 public:
  explicit Latest(const std::vector<int32_t>& levels) : levels_(levels) {}

  // The kernel of the greatest level that one which touches these bytes depends on, or -1.
  int32_t before(const Touched& touched) {
    int32_t found = -1;
    for (const Bytes& bytes : touched.reads)
      each(bytes, [&](Cell& cell) { found = later(found, cell.writer); });
    for (const Bytes& bytes : touched.writes)
      each(bytes, [&](Cell& cell) { found = later(later(found, cell.reader), cell.writer); });
    return found;
  }
  void add(int32_t kernel, const Touched& touched) {
    for (const Bytes& bytes : touched.reads)
      each(bytes, [&](Cell& cell) { cell.reader = later(cell.reader, kernel); });
    for (const Bytes& bytes : touched.writes)
      each(bytes, [&](Cell& cell) { cell.writer = later(cell.writer, kernel); });
  }

 private:
  struct Cell {
    int64_t end;
    int32_t reader = -1, writer = -1;
  };

  int32_t later(int32_t a, int32_t b) const {
    if (a < 0 || b < 0) return std::max(a, b);
    return levels_[static_cast<size_t>(b)] > levels_[static_cast<size_t>(a)] ? b : a;
  }

  // Calls f(cell) for cells that make up exactly these bytes.
  template <class F>
  void each(const Bytes& bytes, F&& f) {
    const int64_t end = bytes.offset + bytes.size;
    int64_t at = bytes.offset;
    auto cell = cut(at);
    while (at < end) {
      if (cell == cells_.end() || cell->first > at) {
        const int64_t until = cell == cells_.end() ? end : std::min(end, cell->first);
        cell = cells_.emplace_hint(cell, at, Cell{until});
      } else if (cell->second.end > end) {
        split(cell, end);
      }
      f(cell->second);
      at = cell->second.end;
      ++cell;
    }
  }
  using Cells = std::map<int64_t, Cell>;
  void split(Cells::iterator cell, int64_t at) {
    const Cell rest = cell->second;
    cell->second.end = at;
    cells_.emplace_hint(std::next(cell), at, rest);
  }
  // The first cell that begins at or behind `at`, none of which spans it.
  Cells::iterator cut(int64_t at) {
    auto cell = cells_.upper_bound(at);
    if (cell == cells_.begin()) return cell;
    --cell;
    if (cell->first == at) return cell;
    if (cell->second.end > at) split(cell, at);
    return std::next(cell);
  }

  const std::vector<int32_t>& levels_;
  Cells cells_;  // by their first byte
};

}  // namespace

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
  return std::any_of(a.begin(), a.end(), [&](const Bytes& x) {
    return std::any_of(b.begin(), b.end(), [&](const Bytes& y) {
      return x.offset < y.offset + y.size && y.offset < x.offset + x.size;
    });
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

std::vector<int32_t> Dependence::earliest_levels() const {
  std::vector<int32_t> levels(touched_.size(), -1);
  Latest latest(levels);
  for (size_t i = 0; i < touched_.size(); ++i) {
    if (none(i)) continue;
    const int32_t before = latest.before(touched_[i]);
    levels[i] = before < 0 ? 0 : levels[static_cast<size_t>(before)] + 1;
    latest.add(static_cast<int32_t>(i), touched_[i]);
  }
  return levels;
}

std::optional<std::pair<size_t, size_t>> Dependence::out_of_order(const std::vector<int32_t>& levels) const {
  Latest latest(levels);
  for (size_t i = 0; i < touched_.size(); ++i) {
    if (none(i)) continue;
    const int32_t before = latest.before(touched_[i]);
    if (before >= 0 && levels[static_cast<size_t>(before)] >= levels[i])
      return std::pair(static_cast<size_t>(before), i);
    latest.add(static_cast<int32_t>(i), touched_[i]);
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
