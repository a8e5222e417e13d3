#include "runtime/ranks/rank_sums.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/byte_order.h"

namespace gacc {
namespace {

constexpr int64_t kNumber = 4;                     // bytes
constexpr int64_t kMostPiece = int64_t{64} << 20;  // bytes of scratch in use: far below MPI's counts of int

int64_t length(const LaneSum& part) { return part.elements; }
int64_t length(const SharedBytes& part) { return part.shard; }

// All sums as one row of numbers; of what ranks share, one rank's shards.
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
      if (stop > next) GACC_TRY(visit(parts_[at], next - begins_[at], stop - next, next - begin));
      next = std::max(next, stop);
    }
    return {};
  }

 private:
  std::span<const Part> parts_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
};

// left = left * kept + right: rounded twice, as `close` does it on the device.
template <class T>
void add(std::byte* left, const std::byte* right, int64_t count, T kept) {
  auto* sums = reinterpret_cast<T*>(left);
  const auto* numbers = reinterpret_cast<const T*>(right);
  if (kept == 1)
    for (int64_t i = 0; i < count; ++i) sums[i] += numbers[i];
  else
    for (int64_t i = 0; i < count; ++i) sums[i] = sums[i] * kept + numbers[i];
}

// Adds two rows of numbers, in place of the left one.
Status add_rows(const LaneSum& part, std::byte* left, std::byte* right, int64_t count, float kept) {
  if (part.integer)
    add<uint32_t>(left, right, count, 1);
  else
    add<float>(left, right, count, kept);
  return {};
}

// Cuts the sums into pieces, and says which numbers of a piece each rank adds. Where all ranks want a sum whole, a rank
// adds its share of each piece. Where ranks share it (memory.shard), a rank adds numbers of its own shard, and a piece
// has as many of every shard. Then all that is still to be sent lies behind the piece, so sums may overwrite what was.
class Shards {
 public:
  Shards(std::span<const LaneSum> sums, int64_t ranks)
      : row_(sums), ranks_(ranks), shared_(!sums.empty() && sums.front().whole > 0) {}
  bool shared() const { return shared_; }
  int64_t size() const { return row_.size(); }
  // Numbers of the row in a piece, of which a rank adds at most `numbers`.
  int64_t piece(int64_t numbers) const { return shared_ ? numbers : numbers * ranks_; }

  // In the piece [begin, begin + count), calls visit(sum, first element in a node, elements, elements before them)
  // for what that rank adds.
  template <class Visit>
  Status walk(int64_t begin, int64_t count, int64_t rank, Visit visit) const {
    if (!shared_) {
      const int64_t low = count * rank / ranks_, high = count * (rank + 1) / ranks_;
      return row_.walk(begin + low, high - low, visit);
    }
    return row_.walk(begin, count, [&](const LaneSum& sum, int64_t first, int64_t elements, int64_t before) {
      const int64_t from = rank * sum.elements + first, there = std::min(elements, sum.whole - from);
      return there > 0 ? visit(sum, from, there, before) : Status();
    });
  }
  // Returns the address of the sum of that element of a node, which this rank has added.
  int64_t target(const LaneSum& sum, int64_t element, int64_t rank) const {
    return sum.target + (element - (shared_ ? rank * sum.elements : 0)) * kNumber;
  }

 private:
  Row<LaneSum> row_;
  int64_t ranks_;
  bool shared_;
};

// Adds the nodes in the tree's order, each in place of its left half's: returns the node in whose place the sum is.
// `walk(visit)` visits what is added, as Shards::walk; `by` knows the addresses of nodes, and adds.
template <class Walk, class Transport>
Result<size_t> sum_nodes(const LaneWindow& window, std::span<const LaneRange> nodes, Walk walk,
                         Transport& by) {
  std::vector<size_t> numbers(nodes.size());
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  Status status;
  const auto add_node = [&](size_t to, size_t from, LaneRange right) {
    const int64_t later = window.launches_of(right);
    const auto add_part = [&](const LaneSum& part, int64_t first, int64_t elements, int64_t before) {
      const float kept = part.kept == 1 ? 1 : kept_after(part.kept, later);
      return by.add(part, by.at(to, part, first, before), by.at(from, part, first, before), elements, kept);
    };
    if (status) status = walk(add_part);
    return to;
  };
  const std::optional<size_t> sum =
      tree_sum<size_t>({0, window.lanes}, nodes, std::span<size_t>(numbers), add_node);
  GACC_TRY(status);
  return *sum;
}

// The nodes of one rank among all: those from first on.
struct OwnNodes {
  int64_t first = 0, count = 0;
  OwnNodes(const LaneNodes& nodes, int rank)
      : first(std::accumulate(nodes.held.begin(), nodes.held.begin() + rank, int64_t{0})),
        count(nodes.held[static_cast<size_t>(rank)]) {}
  // A node's number among the rank's, or nothing.
  std::optional<size_t> among(size_t node) const {
    const auto i = static_cast<int64_t>(node) - first;
    return i >= 0 && i < count ? std::optional(static_cast<size_t>(i)) : std::nullopt;
  }
  // ... and among those of the other ranks.
  int64_t among_others(size_t node) const {
    const auto i = static_cast<int64_t>(node);
    return i < first ? i : i - count;
  }
};

constexpr int64_t kLeast = 64 << 10;   // bytes of scratch
constexpr int64_t kLeastOfNode = 256;  // on a link
constexpr int64_t kStaging = 8 << 20;  // where the arena is not the host's

// The largest part of the arena that holds nothing between programs.
struct Gap {
  int64_t offset = 0, bytes = 0;
};
Gap largest_gap(const Plan& plan) {
  std::vector<std::pair<int64_t, int64_t>> taken = {{plan.arena_bytes, 0}};
  for (const PlanBuffer& buffer : plan.buffers) taken.emplace_back(buffer.offset, buffer.room);
  std::ranges::sort(taken);
  Gap largest;
  int64_t end = 0;
  for (const auto& [offset, bytes] : taken) {
    if (offset - end > largest.bytes) largest = {end, offset - end};
    end = std::max(end, (offset + bytes + 63) / 64 * 64);
  }
  return largest;
}

// Returns how many numbers a shard of a piece may have, so that a rank has room for it of the nodes of all others,
// and `copies` of it of each node of its own.
Result<int64_t> numbers_of_shard(const LaneNodes& nodes, int64_t bytes, int64_t copies) {
  int64_t most = bytes / kNumber;
  for (const int64_t own : nodes.held) {
    const int64_t held = std::ssize(nodes.all) - own + std::max<int64_t>(own, 1) * copies;
    most = std::min(most, bytes / kNumber / std::max<int64_t>(held, 1));
  }
  if (most > 0) return most;
  return Status::error("internal error: {} bytes are too few to add {} ranks' sums in", bytes,
                       nodes.held.size());
}

// Sums over ranks, piece by piece: an all-to-all of shards of the nodes, the sum of this rank's shard in the tree's
// order, and, where all ranks want the whole, an all-gather of the sums. `by` says how bytes travel and who adds:
// HostTransport or LinkTransport. Its addresses are of nodes, as by.at(node, sum, element, elements before it).
template <class Transport>
Status sum_by(Transport& by, const Collective& ranks, const LaneWindow& window, const LaneNodes& known,
              const Shards& shards) {
  const int size = ranks.size(), me = ranks.rank();
  const OwnNodes own(known, me);
  const int64_t piece = shards.piece(by.most);
  for (int64_t begin = 0; begin < shards.size(); begin += piece) {
    const int64_t count = std::min(piece, shards.size() - begin);
    const auto walk = [&](int r, auto visit) { return shards.walk(begin, count, r, visit); };
    GACC_TRY(by.begin());
    size_t node = 0;
    for (int r = 0; r < size; ++r) {
      for (int64_t i = 0; i < known.held[static_cast<size_t>(r)]; ++i, ++node) {
        const auto take = [&](const LaneSum& part, int64_t from, int64_t elements, int64_t before) {
          const auto to = by.at(node, part, from, before);
          if (r != me) return by.receive(to, elements, r);
          return by.hold(to, part.nodes[static_cast<size_t>(i)] + from * kNumber, elements);
        };
        GACC_TRY(walk(me, take));
      }
      for (int64_t i = 0; i < own.count && r != me; ++i) {
        const auto give = [&](const LaneSum& part, int64_t from, int64_t elements, int64_t) {
          return by.send(part.nodes[static_cast<size_t>(i)] + from * kNumber, elements, r);
        };
        GACC_TRY(walk(r, give));
      }
    }
    GACC_TRY(by.exchange());

    const auto walk_own = [&](auto visit) { return walk(me, visit); };
    const size_t sum = GACC_TRY(sum_nodes(window, known.all, walk_own, by));
    const auto put = [&](const LaneSum& part, int64_t from, int64_t elements, int64_t before) {
      return by.put(shards.target(part, from, me), by.at(sum, part, from, before), elements);
    };
    GACC_TRY(walk_own(put));
    if (shards.shared()) continue;

    GACC_TRY(by.begin());
    for (int r = 0; r < size; ++r) {
      const auto give = [&](const LaneSum& part, int64_t from, int64_t elements, int64_t before) {
        return by.send_sum(part.target + from * kNumber, by.at(sum, part, from, before), elements, r);
      };
      const auto get = [&](const LaneSum& part, int64_t from, int64_t elements, int64_t) {
        return by.receive_sum(part.target + from * kNumber, elements, r);
      };
      if (r == me) continue;
      GACC_TRY(walk(me, give));
      GACC_TRY(walk(r, get));
    }
    GACC_TRY(by.exchange_sums());
  }
  return by.finish();
}

// From device to device: nothing passes through the hosts. A rank holds other ranks' nodes in `scratch` of its arena.
struct LinkTransport {
  DeviceLink& link;
  OwnNodes own;
  Gap scratch;
  int64_t most;   // numbers of a shard of a piece
  int64_t& sent;  // grows by the bytes that this rank sends

  int64_t at(size_t node, const LaneSum& part, int64_t from, int64_t before) const {
    if (const auto mine = own.among(node)) return part.nodes[*mine] + from * kNumber;
    return scratch.offset + (own.among_others(node) * most + before) * kNumber;
  }
  Status begin() { return link.begin(); }
  Status hold(int64_t /*to*/, int64_t /*from*/, int64_t /*elements*/) { return {}; }  // there already
  Status receive(int64_t to, int64_t elements, int from) { return link.receive(to, elements, from); }
  Status send(int64_t from, int64_t elements, int to) {
    sent += elements * kNumber;
    return link.send(from, elements, to);
  }
  Status exchange() { return link.end(); }
  Status add(const LaneSum& part, int64_t left, int64_t right, int64_t elements, float kept) {
    return link.add(left, right, elements, part.integer, kept);
  }
  Status put(int64_t target, int64_t at, int64_t elements) {
    return at == target ? Status() : link.copy(target, at, elements);
  }
  Status send_sum(int64_t target, int64_t /*at*/, int64_t elements, int to) {
    return send(target, elements, to);
  }
  Status receive_sum(int64_t target, int64_t elements, int from) { return receive(target, elements, from); }
  Status exchange_sums() { return link.end(); }
  Status finish() { return {}; }
};

// By messages between hosts. A rank holds other ranks' nodes in `scratch`. Where the arena is in the host's memory
// (`direct`), messages come from and go to the arena itself, and the all-gather of a piece travels with the next
// piece's all-to-all. Elsewhere a rank also holds its own nodes, and behind the nodes is room for messages.
struct HostTransport {
  Collective& ranks;
  Device& device;
  OwnNodes own;
  int64_t nodes;  // of all ranks
  std::span<std::byte> scratch;
  bool direct;
  int64_t most;  // numbers of a shard of a piece
  std::byte* next{};
  std::vector<Outgoing> sends{};
  std::vector<Incoming> receives{};
  std::vector<int64_t> targets{};  // where sums that are received belong in the arena

  std::byte* at(size_t node, const LaneSum& part, int64_t from, int64_t before) const {
    const std::optional<size_t> mine = own.among(node);
    if (direct && mine) return arena(part.nodes[*mine] + from * kNumber, 1).data();
    const int64_t area = direct ? own.among_others(node) : static_cast<int64_t>(node);
    return scratch.data() + (area * most + before) * kNumber;
  }
  Status begin() {
    next = scratch.data() + nodes * most * kNumber;
    return {};
  }
  Status hold(std::byte* to, int64_t from, int64_t elements) {
    return direct ? Status() : device.read(from, bytes(to, elements));
  }
  Status receive(std::byte* to, int64_t elements, int from) {
    receives.push_back({from, bytes(to, elements)});
    return {};
  }
  Status send(int64_t from, int64_t elements, int to) {
    const std::span<std::byte> message = this->message(from, elements);
    sends.push_back({to, message});
    return direct ? Status() : device.read(from, message);
  }
  Status exchange() {
    Status status = ranks.exchange(sends, receives);
    for (size_t i = 0; i < targets.size() && status && !direct; ++i)
      status = device.write(targets[i], receives[i].bytes);
    sends.clear();
    receives.clear();
    targets.clear();
    return status;
  }
  Status add(const LaneSum& part, std::byte* left, std::byte* right, int64_t elements, float kept) {
    return add_rows(part, left, right, elements, kept);
  }
  Status put(int64_t target, std::byte* at, int64_t elements) {
    if (!direct) return device.write(target, bytes(at, elements));
    const std::span<std::byte> there = arena(target, elements);
    if (there.data() != at) std::memmove(there.data(), at, there.size());
    return {};
  }
  Status send_sum(int64_t target, std::byte* at, int64_t elements, int to) {
    sends.push_back({to, direct ? arena(target, elements) : bytes(at, elements)});
    return {};
  }
  Status receive_sum(int64_t target, int64_t elements, int from) {
    targets.push_back(target);
    receives.push_back({from, message(target, elements)});
    return {};
  }
  Status exchange_sums() { return direct ? Status() : exchange(); }
  Status finish() { return exchange(); }

  static std::span<std::byte> bytes(std::byte* at, int64_t elements) {
    return {at, static_cast<size_t>(elements * kNumber)};
  }
  std::span<std::byte> arena(int64_t offset, int64_t elements) const {
    return device.host_memory(offset, elements * kNumber);
  }
  // The bytes of a message that belong at `offset`: those of the arena, or room for them.
  std::span<std::byte> message(int64_t offset, int64_t elements) {
    if (direct) return arena(offset, elements);
    return bytes(std::exchange(next, next + elements * kNumber), elements);
  }
};

}  // namespace

Result<LaneNodes> gather_nodes(Collective& ranks, std::span<const LaneRange> mine) {
  LaneNodes nodes;
  const std::vector<std::string> texts = GACC_TRY(all_gather(ranks, bytes_of(mine)));
  for (const std::string& one : texts) {
    const size_t held = one.size() / sizeof(LaneRange);
    nodes.held.push_back(static_cast<int64_t>(held));
    nodes.all.resize(nodes.all.size() + held);
    std::memcpy(nodes.all.data() + nodes.all.size() - held, one.data(), one.size());
  }
  if (nodes.all.empty()) return Status::error("internal error: a sum over a window without micro-batches");
  return nodes;
}

Status sum_over_ranks(Collective& ranks, Device& device, const LaneWindow& window, const LaneNodes& nodes,
                      std::span<const LaneSum> sums, std::span<std::byte> scratch) {
  const Shards shards(sums, ranks.size());
  const bool direct = !device.host_memory(0, kNumber).empty();
  // Without a node of its own a rank still needs room for a message to each rank.
  const int64_t most =
      GACC_TRY(numbers_of_shard(nodes, std::min(std::ssize(scratch), kMostPiece), direct ? 0 : ranks.size()));
  HostTransport by{ranks,  device, OwnNodes(nodes, ranks.rank()), std::ssize(nodes.all), scratch,
                   direct, most};
  GACC_TRY(sum_by(by, ranks, window, nodes, shards));
  if (!shards.shared()) return {};
  for (const LaneSum& sum : sums) {  // zeros behind the end of a shard that has fewer numbers than others
    const int64_t there = std::clamp<int64_t>(sum.whole - ranks.rank() * sum.elements, 0, sum.elements);
    const std::vector<std::byte> zeros(static_cast<size_t>((sum.elements - there) * kNumber));
    GACC_TRY(device.write(sum.target + there * kNumber, zeros));
  }
  return {};
}

double sum_words(int64_t lanes, std::span<const LaneScalars> nodes, size_t word, bool integer) {
  int64_t whole = 0;
  std::vector<LaneRange> ranges;
  std::vector<float> terms;
  for (const LaneScalars& node : nodes) {
    whole += std::bit_cast<int32_t>(node.words[word]);
    ranges.push_back(node.lanes);
    terms.push_back(std::bit_cast<float>(node.words[word]));
  }
  if (integer) return static_cast<double>(whole);
  const auto add = [](float left, float right, LaneRange) { return left + right; };
  return tree_sum<float>({0, lanes}, ranges, std::span(terms), add).value_or(0);
}

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
auto RankExchange::measured(double& seconds, Work work) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t before = ranks_.bytes_sent();
  auto result = work();
  bytes_ += ranks_.bytes_sent() - before;
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

Status RankExchange::sum(const LaneWindow& window, std::span<const LaneRange> nodes,
                         std::span<const LaneSum> sums) {
  ++sums_;
  // Here ranks wait for the slowest one, and its time is no part of the sum.
  const LaneNodes known = GACC_TRY(measured(waited_, [&] { return gather_nodes(ranks_, nodes); }));
  return measured(seconds_, [&] {
    if (link_ != nullptr) return sum_over_link(window, known, sums);
    std::vector<LaneSum> whole, shared;
    for (const LaneSum& sum : sums) (sum.whole > 0 ? shared : whole).push_back(sum);
    GACC_TRY(sum_over_ranks(ranks_, device_, window, known, whole, scratch()));
    return sum_over_ranks(ranks_, device_, window, known, shared, scratch());
  });
}

Status RankExchange::sum_over_link(const LaneWindow& window, const LaneNodes& nodes,
                                   std::span<const LaneSum> sums) {
  const Gap gap = largest_gap(plan_);
  const int64_t most = GACC_TRY(numbers_of_shard(nodes, gap.bytes, 0));
  LinkTransport by{*link_, OwnNodes(nodes, ranks_.rank()), gap, most, bytes_};
  return sum_by(by, ranks_, window, nodes, Shards(sums, ranks_.size()));
}

// A rank's shard lies where the first rank's belongs: each piece is sent before others come there.
Status RankExchange::gather_shards(std::span<const SharedBytes> shared) {
  return measured(seconds_, [&]() -> Status {
    const std::span<std::byte> scratch = this->scratch();
    const auto size = static_cast<size_t>(ranks_.size()), me = static_cast<size_t>(ranks_.rank());
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
        return device_.read(part.offset + first,
                            area(me).subspan(static_cast<size_t>(before), static_cast<size_t>(bytes)));
      };
      GACC_TRY(row.walk(begin, count, read));
      for (size_t r = 0; r < size; ++r) {
        sends[r] = r == me ? std::span<std::byte>() : area(me);
        receives[r] = r == me ? std::span<std::byte>() : area(r);
      }
      GACC_TRY(all_to_all(ranks_, sends, receives));
      for (size_t r = 0; r < size; ++r) {
        const auto write = [&](const SharedBytes& part, int64_t first, int64_t bytes, int64_t before) {
          const int64_t to = static_cast<int64_t>(r) * part.shard + first;
          const int64_t there = std::clamp<int64_t>(part.bytes - to, 0, bytes);
          if (there == 0) return Status();
          return device_.write(part.offset + to,
                               area(r).subspan(static_cast<size_t>(before), static_cast<size_t>(there)));
        };
        GACC_TRY(row.walk(begin, count, write));
      }
    }
    return {};
  });
}

Result<std::vector<std::byte>> RankExchange::gather_bytes(std::span<const std::byte> mine) {
  std::vector<std::byte> all(mine.size() * static_cast<size_t>(ranks_.size()));
  std::vector<std::span<std::byte>> receives;
  for (size_t r = 0; r < static_cast<size_t>(ranks_.size()); ++r)
    receives.push_back(std::span(all).subspan(r * mine.size(), mine.size()));
  GACC_TRY(all_gather(ranks_, mine, receives));
  return all;
}

Result<std::string> RankExchange::open_link() {
  if (plan_.shard > 0) return std::string("they share the optimizer's state (memory.shard)");
  const auto [offset, bytes] = largest_gap(plan_);
  DeviceLink* link = nullptr;
  Status mine = device_.open_link(link);
  if (mine && bytes < kLeastOfNode * plan_.lanes)
    mine = Status::error("the arena has too little room for other ranks' sums");
  const std::vector<std::string> all =
      GACC_TRY(all_gather(ranks_, mine ? fmt::format("+{}", link->gpu()) : ""));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty())
      return static_cast<int>(r) == ranks_.rank() ? mine.text() : fmt::format("rank {} has no link", r);
    if (all[r].size() > 1 && std::ranges::count(all, all[r]) > 1)  // of one machine or, by chance, of two
      return fmt::format("rank {} is not alone on its GPU", r);
  }
  std::string id;
  if (ranks_.rank() == 0) mine = link->make_id(id);
  id = GACC_TRY(broadcast(ranks_, id));
  if (mine) mine = link->join(id, ranks_.rank(), ranks_.size());
  if (GACC_TRY(maximum(ranks_, mine ? 0 : 1)) != 0)
    return mine ? std::string("another rank cannot join") : mine.text();
  link->lend(offset, bytes);
  link_ = link;
  return std::string();
}

Result<std::vector<LaneScalars>> RankExchange::gather(const std::vector<LaneScalars>& mine, size_t words) {
  const size_t bytes = words * sizeof(uint32_t), each = sizeof(LaneRange) + bytes;
  std::string own;
  for (const LaneScalars& node : mine)
    own.append(bytes_of(node.lanes)).append(bytes_of(std::span(node.words)));
  const std::vector<std::string> all = GACC_TRY(all_gather(ranks_, own));
  std::vector<LaneScalars> nodes;
  for (const std::string& text : all)
    for (size_t at = 0; at < text.size(); at += each) {
      LaneScalars& node = nodes.emplace_back();
      node.words.resize(words);
      std::memcpy(&node.lanes, &text[at], sizeof node.lanes);
      std::memcpy(node.words.data(), &text[at + sizeof node.lanes], bytes);
    }
  return nodes;
}

LaneRange own_lanes(const Plan& plan, const RankExchange* exchange) {
  return exchange == nullptr ? LaneRange{0, plan.lanes}
                             : lanes_of_rank(exchange->rank(), plan.lanes, exchange->ranks());
}

}  // namespace gacc
