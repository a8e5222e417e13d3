#include "codegen/host/needed_launches.h"

#include <algorithm>
#include <iterator>
#include <map>

namespace gacc::host {
namespace {

// A set of bytes, as ranges that neither overlap nor touch: where each begins, and where it ends.
class ByteSet {
 public:
  void add(const ir::Bytes& bytes) {
    int64_t begin = bytes.offset, end = bytes.offset + bytes.size;
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second >= begin) --next;
    while (next != ranges_.end() && next->first <= end) {
      begin = std::min(begin, next->first), end = std::max(end, next->second);
      next = ranges_.erase(next);
    }
    ranges_.emplace(begin, end);
  }
  void remove(const ir::Bytes& bytes) {
    const int64_t begin = bytes.offset, end = bytes.offset + bytes.size;
    add(bytes);  // now one range has all of them
    const auto whole = std::prev(ranges_.upper_bound(begin));
    const auto [first, last] = *whole;
    ranges_.erase(whole);
    if (first < begin) ranges_.emplace(first, begin);
    if (end < last) ranges_.emplace(end, last);
  }
  bool has(const ir::Bytes& bytes) const {
    const auto next = ranges_.upper_bound(bytes.offset);
    return next != ranges_.begin() && std::prev(next)->second >= bytes.offset + bytes.size;
  }

 private:
  std::map<int64_t, int64_t> ranges_;
};

}  // namespace

// From the last launch to the first, with the bytes that nobody reads any more before they are written anew.
std::vector<bool> needed_launches(const std::vector<ir::Touched>& launches,
                                  std::span<const ir::Bytes> given) {
  ByteSet unread;
  for (const ir::Bytes& bytes : given) unread.add(bytes);
  std::vector<bool> needed(launches.size());
  for (size_t i = launches.size(); i-- > 0;) {
    const auto& [reads, writes] = launches[i];
    needed[i] = !std::ranges::all_of(writes, [&](const ir::Bytes& bytes) { return unread.has(bytes); });
    if (!needed[i]) continue;
    for (const ir::Bytes& bytes : writes) unread.add(bytes);
    for (const ir::Bytes& bytes : reads) unread.remove(bytes);
  }
  return needed;
}

}  // namespace gacc::host
