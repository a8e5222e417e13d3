// See rank_sums.h.
#include "runtime/rank_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

namespace gacc {
namespace {

constexpr int64_t kNumber = 4;                     // bytes
constexpr int64_t kMostPiece = int64_t{64} << 20;  // bytes of scratch in use: far below MPI's counts of int

int64_t length(const LaneSum& part) { return part.elements; }
int64_t length(const SharedBytes& part) { return part.slice; }

// All sums as one row of numbers; of what ranks share, one rank's slices.
template <class Part>
class Row {
 public:
  explicit Row(std::span<const Part> parts) : parts_(parts) {
    for (const Part& part : parts) {
      begins_.push_back(size_);
      size_ += length(part);
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
      const int64_t stop = std::min(end, begins_[at] + length(parts_[at]));
      if (stop > next)
        if (Status status = visit(parts_[at], next - begins_[at], stop - next, next - begin); !status)
          return status;
      next = std::max(next, stop);
    }
    return {};
  }

 private:
  std::span<const Part> parts_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
};

template <class T>
void add(std::byte* left, const std::byte* right, int64_t count) {
  auto* __restrict sums = reinterpret_cast<T*>(left);
  const auto* __restrict numbers = reinterpret_cast<const T*>(right);
  constexpr int64_t kAtOnce = 16;  // which the compiler adds as vectors
  int64_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce)
    for (int64_t j = i; j < i + kAtOnce; ++j) sums[j] += numbers[j];
  for (; i < count; ++i) sums[i] += numbers[i];
}

// Rounded twice, as `close` does it on the device.
void add_kept(std::byte* left, const std::byte* right, int64_t count, float kept) {
  auto* sums = reinterpret_cast<float*>(left);
  const auto* numbers = reinterpret_cast<const float*>(right);
  for (int64_t i = 0; i < count; ++i) sums[i] = sums[i] * kept + numbers[i];
}

// How two rows of numbers at `left` and `right` are added, in place of the left one.
Status add_rows(const LaneSum& part, std::byte* left, std::byte* right, int64_t count, float kept) {
  if (part.kept != 1)
    add_kept(left, right, count, kept);
  else if (part.integer)
    add<uint32_t>(left, right, count);
  else
    add<float>(left, right, count);
  return {};
}

// Adds the nodes in the tree's order, each in place of its left half's; `at` are where the nodes are, one
// row each. `add` is as add_rows.
template <class Place, class Add>
struct Tree {
  const LaneWindow& window;
  const Row<LaneSum>& row;
  int64_t begin, count;  // of the row, the slice that is added
  std::span<const LaneRange> nodes;
  std::span<const Place> at;
  Add add;
  size_t next = 0;

  // `to`: where the sum is; nothing where no lane of `node` has a micro-batch.
  Status sum(LaneRange node, std::optional<Place>& to) {
    to.reset();
    if (next == nodes.size() || nodes[next].low >= node.high) return {};
    if (nodes[next] == node) {
      to = at[next++];
      return {};
    }
    const int64_t middle = (node.low + node.high) / 2;
    std::optional<Place> right;
    if (Status status = sum({node.low, middle}, to); !status) return status;
    if (Status status = sum({middle, node.high}, right); !status) return status;
    if (!to || !right) {
      if (!to) to = right;
      return {};
    }
    return row.walk(begin, count, [&](const LaneSum& part, int64_t, int64_t elements, int64_t before) {
      const float kept = part.kept == 1 ? 1 : kept_after(part.kept, window.launches_of({middle, node.high}));
      return add(part, *to + before * kNumber, *right + before * kNumber, elements, kept);
    });
  }
};

// The nodes of all ranks, from left to right, and how many each has.
struct Nodes {
  std::vector<LaneRange> all;
  std::vector<int64_t> held;
};

Status gather_nodes(Collective& ranks, std::span<const LaneRange> mine, Nodes& nodes) {
  std::vector<std::string> texts;
  const std::string_view text(reinterpret_cast<const char*>(mine.data()), mine.size_bytes());
  if (Status status = all_gather(ranks, text, texts); !status) return status;
  for (const std::string& one : texts) {
    const size_t held = one.size() / sizeof(LaneRange);
    nodes.held.push_back(static_cast<int64_t>(held));
    nodes.all.resize(nodes.all.size() + held);
    std::memcpy(nodes.all.data() + nodes.all.size() - held, one.data(), one.size());
  }
  if (nodes.all.empty()) return Status::error("internal error: a sum over a window without micro-batches");
  return {};
}

}  // namespace

Status sum_over_ranks(Collective& ranks, Device& device, const LaneWindow& window,
                      std::span<const LaneRange> mine, std::span<const LaneSum> sums,
                      std::span<std::byte> scratch) {
  const int size = ranks.size(), me = ranks.rank();
  // 1. Who has which nodes.
  Nodes known;
  if (Status status = gather_nodes(ranks, mine, known); !status) return status;
  const auto& [nodes, held] = known;
  const auto all = std::ssize(nodes);
  const int64_t own = held[static_cast<size_t>(me)];
  // 2. The pieces. A rank holds all nodes of its slice. Where the arena is not in the host's memory, it also holds its
  // own nodes of the other slices (room for one, where it has none), for messages cannot go from and to the arena.
  const bool direct = !device.host_memory(0, kNumber).empty();
  const int64_t room = std::min(std::ssize(scratch), kMostPiece) / kNumber;
  int64_t piece = room;
  for (const int64_t theirs : held) {
    const int64_t areas = all + (direct ? 0 : std::max<int64_t>(theirs, 1) * (size - 1));
    piece = std::min(piece, room / areas * size);
  }
  if (piece == 0)
    return Status::error("internal error: {} bytes are too few to add {} ranks' sums in", scratch.size(),
                         size);

  const Row<LaneSum> row(sums);
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  std::vector<std::byte*> at;    // each node of this rank's slice
  std::vector<int64_t> targets;  // where what is received belongs in the arena
  for (int64_t begin = 0; begin < row.size(); begin += piece) {
    const int64_t count = std::min(piece, row.size() - begin);
    const auto slice = [&](int r) { return count * r / size; };  // its first number
    const auto walk = [&](int r, auto visit) {
      return row.walk(begin + slice(r), slice(r + 1) - slice(r), visit);
    };
    const int64_t bytes_of_slice = (slice(me + 1) - slice(me)) * kNumber;
    std::byte* const staging = scratch.data() + all * bytes_of_slice;
    std::byte* next = staging;
    const auto message = [&](int64_t offset, int64_t elements) {  // its bytes in the arena, or room for them
      const int64_t bytes = elements * kNumber;
      if (direct) return device.host_memory(offset, bytes);
      return std::span(std::exchange(next, next + bytes), static_cast<size_t>(bytes));
    };
    // 3. All-to-all of slices: a message for each part of each node.
    at.clear();
    sends.clear();
    receives.clear();
    for (int r = 0; r < size; ++r) {
      for (int64_t node = 0; node < held[static_cast<size_t>(r)]; ++node) {
        at.push_back(scratch.data() + std::ssize(at) * bytes_of_slice);
        const auto take = [&](const LaneSum& part, int64_t first, int64_t elements, int64_t before) {
          const std::span to(at.back() + before * kNumber, static_cast<size_t>(elements * kNumber));
          if (r == me) return device.read(part.nodes[static_cast<size_t>(node)] + first * kNumber, to);
          receives.push_back({r, to});
          return Status();
        };
        if (Status status = walk(me, take); !status) return status;
      }
      for (int64_t node = 0; node < own && r != me; ++node) {
        const auto give = [&](const LaneSum& part, int64_t first, int64_t elements, int64_t) {
          const int64_t offset = part.nodes[static_cast<size_t>(node)] + first * kNumber;
          const std::span<std::byte> from = message(offset, elements);
          sends.push_back({r, from});
          return direct ? Status() : device.read(offset, from);
        };
        if (Status status = walk(r, give); !status) return status;
      }
    }
    if (Status status = ranks.exchange(sends, receives); !status) return status;
    // 4. This rank's slice, in the tree's order.
    std::optional<std::byte*> sum;
    Tree<std::byte*, decltype(&add_rows)> tree{window, row, begin + slice(me), slice(me + 1) - slice(me),
                                               nodes,  at,  add_rows};
    if (Status status = tree.sum({0, window.lanes}, sum); !status) return status;
    // 5. All-gather of the sums.
    next = staging;
    sends.clear();
    receives.clear();
    targets.clear();
    for (int r = 0; r < size; ++r) {
      const auto put = [&](const LaneSum& part, int64_t first, int64_t elements, int64_t before) {
        const std::span<const std::byte> from(*sum + before * kNumber,
                                              static_cast<size_t>(elements * kNumber));
        if (r == me) return device.write(part.target + first * kNumber, from);
        sends.push_back({r, from});
        return Status();
      };
      if (Status status = walk(me, put); !status) return status;
      const auto get = [&](const LaneSum& part, int64_t first, int64_t elements, int64_t) {
        targets.push_back(part.target + first * kNumber);
        receives.push_back({r, message(targets.back(), elements)});
        return Status();
      };
      if (r == me) continue;
      if (Status status = walk(r, get); !status) return status;
    }
    if (Status status = ranks.exchange(sends, receives); !status) return status;
    for (size_t i = 0; i < receives.size() && !direct; ++i)
      if (Status status = device.write(targets[i], receives[i].bytes); !status) return status;
  }
  return {};
}

// Of sums of which each rank wants a slice: as above without the last step. A piece has as many numbers of
// every slice, so what is not yet sent lies behind it, and the sums may take the place of what is.
Status scatter_over_ranks(Collective& ranks, Device& device, const LaneWindow& window,
                          std::span<const LaneRange> mine, std::span<const LaneSum> sums,
                          std::span<std::byte> scratch) {
  const auto size = static_cast<size_t>(ranks.size()), me = static_cast<size_t>(ranks.rank());
  Nodes known;
  if (Status status = gather_nodes(ranks, mine, known); !status) return status;
  const auto& [nodes, held] = known;
  const auto all = static_cast<int64_t>(nodes.size()), own = held[me];
  const int64_t room = std::min(std::ssize(scratch), kMostPiece) / kNumber;
  int64_t piece = room;  // numbers of each slice: a rank holds its own nodes of all, the others' of its slice
  for (const int64_t theirs : held)
    piece = std::min(piece, room / (theirs * static_cast<int64_t>(size) + all - theirs));
  if (piece == 0)
    return Status::error("internal error: {} bytes are too few to add {} ranks' sums in", scratch.size(),
                         size);
  const Row<LaneSum> row(sums);
  std::vector<std::span<const std::byte>> sends(size);
  std::vector<std::span<std::byte>> receives(size);
  std::vector<std::byte*> at;
  for (int64_t begin = 0; begin < row.size(); begin += piece) {
    const int64_t count = std::min(piece, row.size() - begin), bytes = count * kNumber;
    std::byte* incoming = scratch.data() + static_cast<int64_t>(size) * own * bytes;
    at.clear();
    for (size_t r = 0; r < size; ++r) {
      std::byte* area = scratch.data() + static_cast<int64_t>(r) * own * bytes;
      for (int64_t node = 0; node < own; ++node) {
        const auto read = [&](const LaneSum& part, int64_t first, int64_t elements, int64_t before) {
          const int64_t from = static_cast<int64_t>(r) * part.elements + first;
          const int64_t there = std::clamp<int64_t>(part.whole - from, 0, elements);
          std::byte* to = area + node * bytes + before * kNumber;
          std::memset(to + there * kNumber, 0, static_cast<size_t>((elements - there) * kNumber));
          if (there == 0) return Status();
          return device.read(part.nodes[static_cast<size_t>(node)] + from * kNumber,
                             {to, static_cast<size_t>(there * kNumber)});
        };
        if (Status status = row.walk(begin, count, read); !status) return status;
      }
      for (int64_t node = 0; node < held[r]; ++node) at.push_back((r == me ? area : incoming) + node * bytes);
      sends[r] = {};
      receives[r] = {};
      if (r == me) continue;
      sends[r] = {area, static_cast<size_t>(own * bytes)};
      receives[r] = {incoming, static_cast<size_t>(held[r] * bytes)};
      incoming += receives[r].size();
    }
    if (Status status = all_to_all(ranks, sends, receives); !status) return status;
    std::optional<std::byte*> sum;
    Tree<std::byte*, decltype(&add_rows)> tree{window, row, begin, count, nodes, at, add_rows};
    if (Status status = tree.sum({0, window.lanes}, sum); !status) return status;
    const auto write = [&](const LaneSum& part, int64_t first, int64_t elements, int64_t before) {
      return device.write(part.target + first * kNumber,
                          {*sum + before * kNumber, static_cast<size_t>(elements * kNumber)});
    };
    if (Status status = row.walk(begin, count, write); !status) return status;
  }
  return {};
}

// A rank's slice lies where the first rank's belongs: each piece is sent before others come there.
Status gather_slices(Collective& ranks, Device& device, std::span<const SharedBytes> shared,
                     std::span<std::byte> scratch) {
  const auto size = static_cast<size_t>(ranks.size()), me = static_cast<size_t>(ranks.rank());
  const int64_t piece = std::min(std::ssize(scratch), kMostPiece) / static_cast<int64_t>(size);
  const Row<SharedBytes> row(shared);
  std::vector<std::span<const std::byte>> sends(size);
  std::vector<std::span<std::byte>> receives(size);
  for (int64_t begin = 0; begin < row.size(); begin += piece) {
    const int64_t count = std::min(piece, row.size() - begin);
    const auto area = [&](size_t r) {
      return scratch.subspan(r * static_cast<size_t>(count), static_cast<size_t>(count));
    };
    const auto read = [&](const SharedBytes& part, int64_t first, int64_t bytes, int64_t before) {
      return device.read(part.offset + first,
                         area(me).subspan(static_cast<size_t>(before), static_cast<size_t>(bytes)));
    };
    if (Status status = row.walk(begin, count, read); !status) return status;
    for (size_t r = 0; r < size; ++r) {
      sends[r] = r == me ? std::span<std::byte>() : area(me);
      receives[r] = r == me ? std::span<std::byte>() : area(r);
    }
    if (Status status = all_to_all(ranks, sends, receives); !status) return status;
    for (size_t r = 0; r < size; ++r) {
      const auto write = [&](const SharedBytes& part, int64_t first, int64_t bytes, int64_t before) {
        const int64_t to = static_cast<int64_t>(r) * part.slice + first;
        const int64_t there = std::clamp<int64_t>(part.bytes - to, 0, bytes);
        if (there == 0) return Status();
        return device.write(part.offset + to,
                            area(r).subspan(static_cast<size_t>(before), static_cast<size_t>(there)));
      };
      if (Status status = row.walk(begin, count, write); !status) return status;
    }
  }
  return {};
}

Status sum_over_link(Collective& ranks, DeviceLink& link, const LaneWindow& window,
                     std::span<const LaneRange> mine, std::span<const LaneSum> sums, LinkScratch scratch,
                     int64_t& sent) {
  const auto slices = static_cast<int64_t>(ranks.size());
  const auto me = static_cast<size_t>(ranks.rank());
  Nodes known;
  if (Status status = gather_nodes(ranks, mine, known); !status) return status;
  const auto& [nodes, held] = known;
  // Pieces: a rank holds the slice that it adds, of all nodes.
  const int64_t piece = scratch.bytes / kNumber / std::ssize(nodes) * slices;
  if (piece == 0)
    return Status::error("internal error: {} bytes are too few to add {} ranks' sums in", scratch.bytes,
                         slices);
  const Row<LaneSum> row(sums);
  for (int64_t begin = 0; begin < row.size(); begin += piece) {
    const int64_t count = std::min(piece, row.size() - begin);
    const auto slice = [&](size_t r) { return count * static_cast<int64_t>(r) / slices; };
    // Visits the parts of rank r's slice.
    const auto walk = [&](size_t r, auto visit) {
      return row.walk(begin + slice(r), slice(r + 1) - slice(r), visit);
    };
    const auto send = [&](int64_t from, int64_t elements, size_t to) {
      sent += elements * kNumber;
      return link.send(from, elements, static_cast<int>(to));
    };
    // 1. All-to-all of slices: this rank's of each node come side by side into the scratch.
    std::vector<int64_t> at;
    for (size_t i = 0; i < nodes.size(); ++i)
      at.push_back(scratch.offset + static_cast<int64_t>(i) * (slice(me + 1) - slice(me)) * kNumber);
    Status status = link.begin();
    size_t first = 0;
    for (size_t r = 0; r < held.size(); first += static_cast<size_t>(held[r]), ++r) {
      for (size_t node = 0; node < static_cast<size_t>(held[r]) && status && r != me; ++node)
        status = walk(me, [&](const LaneSum&, int64_t, int64_t elements, int64_t before) {
          return link.receive(at[first + node] + before * kNumber, elements, static_cast<int>(r));
        });
      for (size_t node = 0; node < mine.size() && status && r != me; ++node)
        status = walk(r, [&](const LaneSum& part, int64_t from, int64_t elements, int64_t) {
          return send(part.nodes[node] + from * kNumber, elements, r);
        });
    }
    if (status) status = link.end();
    // 2. This rank's own nodes beside them, and the sum in the tree's order.
    first = static_cast<size_t>(std::accumulate(held.begin(), held.begin() + ranks.rank(), int64_t{0}));
    for (size_t node = 0; node < mine.size() && status; ++node)
      status = walk(me, [&](const LaneSum& part, int64_t from, int64_t elements, int64_t before) {
        return link.copy(at[first + node] + before * kNumber, part.nodes[node] + from * kNumber, elements);
      });
    const auto add = [&](const LaneSum& part, int64_t left, int64_t right, int64_t elements, float kept) {
      return link.add(left, right, elements, part.integer, kept);
    };
    Tree<int64_t, decltype(add)> tree{window, row, begin + slice(me), slice(me + 1) - slice(me), nodes,
                                      at,     add};
    std::optional<int64_t> sum;
    if (status) status = tree.sum({0, window.lanes}, sum);
    // 3. All-gather of the sums.
    if (status) status = link.begin();
    for (size_t r = 0; r < held.size() && status; ++r) {
      if (r == me) continue;
      status = walk(me, [&](const LaneSum&, int64_t, int64_t elements, int64_t before) {
        return send(*sum + before * kNumber, elements, r);
      });
      if (status)
        status = walk(r, [&](const LaneSum& part, int64_t from, int64_t elements, int64_t) {
          return link.receive(part.target + from * kNumber, elements, static_cast<int>(r));
        });
    }
    if (status) status = link.end();
    if (status)
      status = walk(me, [&](const LaneSum& part, int64_t from, int64_t elements, int64_t before) {
        return link.copy(part.target + from * kNumber, *sum + before * kNumber, elements);
      });
    if (!status) return status;
  }
  return {};
}

namespace {

constexpr int64_t kLeast = 64 << 10;   // bytes of scratch
constexpr int64_t kLeastOfNode = 256;  // on a link
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

template <class Work>
Status RankExchange::measured(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t before = ranks_.bytes_sent();
  Status status = work();
  bytes_ += ranks_.bytes_sent() - before;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return status;
}

Status RankExchange::sum(const LaneWindow& window, std::span<const LaneRange> nodes,
                         std::span<const LaneSum> sums) {
  ++sums_;
  // Ranks come one after the other, and the last one's time is no part of the sum.
  const auto begin = std::chrono::steady_clock::now();
  int64_t nothing = 0;
  if (Status status = maximum(ranks_, nothing); !status) return status;
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return measured([&] {
    if (link_ != nullptr) {
      const auto [offset, gap] = largest_gap(plan_);
      return sum_over_link(ranks_, *link_, window, nodes, sums, {offset, gap}, bytes_);
    }
    std::vector<LaneSum> of_all, shared;
    for (const LaneSum& sum : sums) (sum.whole > 0 ? shared : of_all).push_back(sum);
    Status status = sum_over_ranks(ranks_, device_, window, nodes, of_all, scratch());
    if (status && !shared.empty())
      status = scatter_over_ranks(ranks_, device_, window, nodes, shared, scratch());
    return status;
  });
}

Status RankExchange::gather_slices(std::span<const SharedBytes> shared) {
  return measured([&] { return gacc::gather_slices(ranks_, device_, shared, scratch()); });
}

Status RankExchange::gather_bytes(std::span<const std::byte> mine, std::vector<std::byte>& all) {
  all.resize(mine.size() * static_cast<size_t>(ranks_.size()));
  std::vector<std::span<std::byte>> receives;
  for (size_t r = 0; r < static_cast<size_t>(ranks_.size()); ++r)
    receives.push_back(std::span(all).subspan(r * mine.size(), mine.size()));
  return all_gather(ranks_, mine, receives);
}

Status RankExchange::open_link(std::string& why) {
  if (plan_.shard > 0) {
    why = "they share the optimizer's state (memory.shard)";
    return {};
  }
  const auto [offset, bytes] = largest_gap(plan_);
  DeviceLink* link = nullptr;
  Status mine = device_.open_link(link);
  if (mine && bytes < kLeastOfNode * plan_.lanes)
    mine = Status::error("the arena has too little room for other ranks' sums");
  std::vector<std::string> all;
  if (Status status = all_gather(ranks_, mine ? "+" + link->gpu() : "", all); !status) return status;
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty())
      why = static_cast<int>(r) == ranks_.rank() ? mine.text() : fmt::format("rank {} has no link", r);
    else if (all[r].size() > 1 &&
             std::ranges::count(all, all[r]) > 1)  // of one machine or, by chance, of two
      why = fmt::format("rank {} is not alone on its GPU", r);
    if (!why.empty()) return {};
  }
  std::string id;
  if (ranks_.rank() == 0) mine = link->make_id(id);
  if (Status status = broadcast(ranks_, id); !status) return status;
  if (mine) mine = link->join(id, ranks_.rank(), ranks_.size());
  int64_t failed = mine ? 0 : 1;
  if (Status status = maximum(ranks_, failed); !status) return status;
  if (failed != 0) {
    why = mine ? "another rank cannot join" : mine.text();
    return {};
  }
  link->lend(offset, bytes);
  link_ = link;
  return {};
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
