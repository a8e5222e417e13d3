// See rank_sums.h.
#include "runtime/rank_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace gacc {
namespace {

constexpr int64_t kNumber = 4;                     // bytes
constexpr int64_t kMostPiece = int64_t{64} << 20;  // bytes of scratch in use: far below MPI's counts of int

// All sums as one row of numbers.
class Row {
 public:
  explicit Row(std::span<const LaneSum> sums) : sums_(sums) {
    for (const LaneSum& part : sums) {
      begins_.push_back(size_);
      size_ += part.elements;
    }
  }
  int64_t size() const { return size_; }

  // Calls visit(sum, first element in it, elements, elements before them) for the parts of [begin, begin +
  // count) in each sum.
  template <class Visit>
  Status walk(int64_t begin, int64_t count, Visit visit) const {
    const int64_t end = begin + count;
    auto at = static_cast<size_t>(std::ranges::upper_bound(begins_, begin) - begins_.begin()) - 1;
    for (int64_t next = begin; next < end; ++at) {
      const int64_t stop = std::min(end, begins_[at] + sums_[at].elements);
      if (stop > next)
        if (Status status = visit(sums_[at], next - begins_[at], stop - next, next - begin); !status)
          return status;
      next = std::max(next, stop);
    }
    return {};
  }

 private:
  std::span<const LaneSum> sums_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
};

template <class T>
void add(std::byte* left, const std::byte* right, int64_t count) {
  auto* sums = reinterpret_cast<T*>(left);
  const auto* numbers = reinterpret_cast<const T*>(right);
  for (int64_t i = 0; i < count; ++i) sums[i] += numbers[i];
}

// Rounded twice, as `close` does it on the device.
void add_kept(std::byte* left, const std::byte* right, int64_t count, float kept) {
  auto* sums = reinterpret_cast<float*>(left);
  const auto* numbers = reinterpret_cast<const float*>(right);
  for (int64_t i = 0; i < count; ++i) sums[i] = sums[i] * kept + numbers[i];
}

// Adds the nodes in the tree's order, each in place of its left half's; `at` are where the nodes are, and
// move on. Returns where the sum is: null where no lane of `node` has a micro-batch.
struct Tree {
  const LaneWindow& window;
  const Row& row;
  int64_t begin, count;  // of the row, the slice that is added
  std::span<const LaneRange> nodes;
  std::span<std::byte* const> at;
  size_t next = 0;

  std::byte* sum(LaneRange node) {
    if (next == nodes.size() || nodes[next].low >= node.high) return nullptr;
    if (nodes[next] == node) return at[next++];
    const int64_t middle = (node.low + node.high) / 2;
    std::byte* left = sum({node.low, middle});
    std::byte* right = sum({middle, node.high});
    if (left == nullptr || right == nullptr) return left == nullptr ? right : left;
    Status never =
        row.walk(begin, count, [&](const LaneSum& part, int64_t, int64_t elements, int64_t before) {
          std::byte* to = left + before * kNumber;
          const std::byte* from = right + before * kNumber;
          if (part.kept != 1)
            add_kept(to, from, elements, kept_after(part.kept, window.launches_of({middle, node.high})));
          else if (part.integer)
            add<uint32_t>(to, from, elements);
          else
            add<float>(to, from, elements);
          return Status();
        });
    return never ? left : nullptr;
  }
};

}  // namespace

Status sum_over_ranks(Collective& ranks, Device& device, const LaneWindow& window,
                      std::span<const LaneRange> mine, std::span<const LaneSum> sums,
                      std::span<std::byte> scratch) {
  const auto size = static_cast<size_t>(ranks.size()), me = static_cast<size_t>(ranks.rank());
  // 1. Who has which nodes.
  std::vector<std::string> texts;
  const std::string_view text(reinterpret_cast<const char*>(mine.data()), mine.size_bytes());
  if (Status status = all_gather(ranks, text, texts); !status) return status;
  std::vector<LaneRange> nodes;
  std::vector<int64_t> held(size);  // nodes of each rank
  for (size_t r = 0; r < size; ++r) {
    held[r] = static_cast<int64_t>(texts[r].size() / sizeof(LaneRange));
    nodes.resize(nodes.size() + static_cast<size_t>(held[r]));
    std::memcpy(nodes.data() + nodes.size() - held[r], texts[r].data(), texts[r].size());
  }
  if (nodes.empty()) return Status::error("internal error: a sum over a window without micro-batches");
  // 2. The pieces: a rank holds its own nodes of a piece (room for one, where it has none: the sums come
  // there), and every other rank's nodes of its slice.
  const auto all = static_cast<int64_t>(nodes.size());
  const auto slices = static_cast<int64_t>(size);
  const int64_t room = std::min(static_cast<int64_t>(scratch.size()), kMostPiece) / kNumber;
  const auto needs = [&](int64_t piece, int64_t own) {
    return std::max<int64_t>(own, 1) * piece + (all - own) * ((piece + slices - 1) / slices);
  };
  int64_t piece = room;
  for (const int64_t own : held) {
    const int64_t parts = std::max<int64_t>(own, 1) * slices + (all - own);  // of a slice's size, at most
    piece = std::min(piece, (room / parts) * slices);
  }
  if (piece == 0 || needs(piece, held[me]) > room)
    return Status::error("internal error: {} bytes are too few to add {} ranks' sums in", scratch.size(),
                         size);

  const Row row(sums);
  const int64_t own = held[me], own_room = std::max<int64_t>(own, 1);
  std::vector<std::span<const std::byte>> sends(size);
  std::vector<std::span<std::byte>> receives(size);
  std::vector<std::byte*> at;
  for (int64_t begin = 0; begin < row.size(); begin += piece) {
    const int64_t count = std::min(piece, row.size() - begin);
    const auto slice = [&](size_t r) {
      return count * static_cast<int64_t>(r) / slices;
    };  // its first number
    const auto numbers = [&](size_t r) { return slice(r + 1) - slice(r); };
    // Rank r's slice of this rank's nodes, one node after the other.
    const auto area = [&](size_t r) { return scratch.data() + slice(r) * own_room * kNumber; };
    // 3. All-to-all of slices.
    std::byte* incoming = scratch.data() + count * own_room * kNumber;
    at.clear();
    for (size_t r = 0; r < size; ++r) {
      for (int64_t node = 0; node < own; ++node) {
        std::byte* to = area(r) + node * numbers(r) * kNumber;
        const auto read = [&](const LaneSum& part, int64_t first, int64_t elements, int64_t before) {
          return device.read(part.nodes[static_cast<size_t>(node)] + first * kNumber,
                             {to + before * kNumber, static_cast<size_t>(elements * kNumber)});
        };
        if (Status status = row.walk(begin + slice(r), numbers(r), read); !status) return status;
      }
      for (int64_t node = 0; node < held[r]; ++node)
        at.push_back((r == me ? area(r) : incoming) + node * numbers(me) * kNumber);
      sends[r] = {};
      receives[r] = {};
      if (r == me) continue;
      sends[r] = {area(r), static_cast<size_t>(own * numbers(r) * kNumber)};
      receives[r] = {incoming, static_cast<size_t>(held[r] * numbers(me) * kNumber)};
      incoming += receives[r].size();
    }
    if (Status status = ranks.exchange(sends, receives); !status) return status;
    // 4. This rank's slice, in the tree's order.
    std::byte* sum = Tree{window, row, begin + slice(me), numbers(me), nodes, at}.sum({0, window.lanes});
    // 5. All-gather of the sums.
    for (size_t r = 0; r < size; ++r) {
      if (r == me) continue;
      sends[r] = {sum, static_cast<size_t>(numbers(me) * kNumber)};
      receives[r] = {area(r), static_cast<size_t>(numbers(r) * kNumber)};
    }
    if (Status status = ranks.exchange(sends, receives); !status) return status;
    for (size_t r = 0; r < size; ++r) {
      const std::byte* from = r == me ? sum : area(r);
      const auto write = [&](const LaneSum& part, int64_t first, int64_t elements, int64_t before) {
        return device.write(part.target + first * kNumber,
                            {from + before * kNumber, static_cast<size_t>(elements * kNumber)});
      };
      if (Status status = row.walk(begin + slice(r), numbers(r), write); !status) return status;
    }
  }
  return {};
}

namespace {

constexpr int64_t kLeast = 64 << 10;   // bytes of scratch
constexpr int64_t kStaging = 8 << 20;  // where the arena is not the host's

// The largest part of the arena that holds nothing between programs.
std::pair<int64_t, int64_t> largest_gap(const Plan& plan) {
  std::vector<std::pair<int64_t, int64_t>> taken = {{plan.arena_bytes, 0}};
  for (const PlanBuffer& buffer : plan.buffers) taken.emplace_back(buffer.offset, buffer.bytes);
  std::ranges::sort(taken);
  std::pair<int64_t, int64_t> largest = {0, 0};
  int64_t end = 0;
  for (const auto& [offset, bytes] : taken) {
    if (offset - end > largest.second) largest = {end, offset - end};
    end = std::max(end, (offset + bytes + 63) / 64 * 64);
  }
  return largest;
}

}  // namespace

std::span<std::byte> RankExchange::scratch() {
  if (own_.empty()) {
    const auto [offset, bytes] = largest_gap(plan_);
    const std::span<std::byte> gap = device_.host_memory(offset, bytes);
    if (std::ssize(gap) >= kLeast) return gap;
    own_.resize(static_cast<size_t>(device_.host_memory(0, plan_.arena_bytes).empty() ? kStaging : kLeast));
  }
  return own_;
}

Status RankExchange::sum(const LaneWindow& window, std::span<const LaneRange> nodes,
                         std::span<const LaneSum> sums) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t before = ranks_.bytes_sent();
  Status status = sum_over_ranks(ranks_, device_, window, nodes, sums, scratch());
  ++sums_;
  bytes_ += ranks_.bytes_sent() - before;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return status;
}

Status RankExchange::gather(std::vector<LaneScalars>& nodes) {
  // For each node its lanes, the number of words, and the words.
  std::string mine;
  const auto put = [&](const auto& value) {
    mine.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const LaneScalars& node : nodes) {
    put(node.lanes);
    put(node.words.size());
    for (const uint32_t word : node.words) put(word);
  }
  std::vector<std::string> all;
  if (Status status = all_gather(ranks_, mine, all); !status) return status;
  nodes.clear();
  for (std::string_view text : all) {
    const auto take = [&](auto& value) {
      std::memcpy(&value, text.data(), sizeof value);
      text.remove_prefix(sizeof value);
    };
    while (!text.empty()) {
      LaneScalars& node = nodes.emplace_back();
      size_t words = 0;
      take(node.lanes);
      take(words);
      node.words.resize(words);
      for (uint32_t& word : node.words) take(word);
    }
  }
  return {};
}

}  // namespace gacc
