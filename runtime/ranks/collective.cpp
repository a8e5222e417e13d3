// Collective operations, made of the one primitive that a transport has: `exchange`.
#include "runtime/ranks/collective.h"

#include <algorithm>

namespace gacc {
namespace {

// "E" and the error; or "F" and names and values, each ended by a byte 0.
std::string packed(const Status& status, const Facts& facts) {
  if (!status) return "E" + status.text();
  std::string text = "F";
  for (const auto& [name, value] : facts) text += name + '\0' + value + '\0';
  return text;
}

Facts unpacked(std::string_view text) {
  Facts facts;
  for (text.remove_prefix(1); !text.empty();) {
    const size_t name = text.find('\0'), value = text.find('\0', name + 1);
    facts.emplace_back(text.substr(0, name), text.substr(name + 1, value - name - 1));
    text.remove_prefix(value + 1);
  }
  return facts;
}

std::string difference(const Facts& theirs, const Facts& first) {
  for (size_t i = 0; i < std::max(theirs.size(), first.size()); ++i) {
    if (i >= theirs.size() || i >= first.size() || theirs[i].first != first[i].first) {
      const auto& [name, value] = i < theirs.size() ? theirs[i] : first[i];
      return fmt::format("only one of them has {} ({})", name, value);
    }
    if (theirs[i].second != first[i].second)
      return fmt::format("{} is {} there, and {} on rank 0", theirs[i].first, theirs[i].second,
                         first[i].second);
  }
  return "";
}

// The number of every rank.
template <class T>
Result<std::vector<T>> gather_numbers(Collective& ranks, T mine) {
  std::vector<T> all(static_cast<size_t>(ranks.size()));
  std::vector<std::span<std::byte>> receives;
  for (T& each : all) receives.push_back(std::as_writable_bytes(std::span(&each, 1)));
  GACC_TRY(all_gather(ranks, std::as_bytes(std::span(&mine, 1)), receives));
  return all;
}

}  // namespace

Status all_to_all(Collective& ranks, Sends sends, Receives receives) {
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int offset = 0; offset < ranks.size(); ++offset) {  // every rank begins with another peer
    const int to = (ranks.rank() + offset) % ranks.size();
    out.push_back({to, sends[static_cast<size_t>(to)]});
    in.push_back({to, receives[static_cast<size_t>(to)]});
  }
  return ranks.exchange(out, in);
}

Status all_gather(Collective& ranks, std::span<const std::byte> mine, Receives all) {
  const std::vector<std::span<const std::byte>> sends(static_cast<size_t>(ranks.size()), mine);
  return all_to_all(ranks, sends, all);
}

Result<std::vector<std::string>> all_gather(Collective& ranks, std::string_view mine) {
  const std::vector<uint64_t> lengths = GACC_TRY(gather_numbers<uint64_t>(ranks, mine.size()));
  std::vector<std::string> all;
  for (const uint64_t length : lengths) all.emplace_back(length, '\0');
  std::vector<std::span<std::byte>> receives;
  for (std::string& text : all) receives.push_back(std::as_writable_bytes(std::span(text)));
  GACC_TRY(all_gather(ranks, std::as_bytes(std::span(mine)), receives));
  return all;
}

Result<int64_t> maximum(Collective& ranks, int64_t value) {
  return std::ranges::max(GACC_TRY(gather_numbers(ranks, value)));
}

Result<std::string> broadcast(Collective& ranks, const std::string& text) {
  return GACC_TRY(all_gather(ranks, ranks.rank() == 0 ? text : "")).front();
}

Status agree(Collective& ranks, const Status& mine, const Facts& facts) {
  if (ranks.size() == 1) return mine;
  const std::vector<std::string> all = GACC_TRY(all_gather(ranks, packed(mine, facts)));
  const auto failed = std::ranges::find_if(all, [](const std::string& text) { return text[0] == 'E'; });
  if (failed != all.end()) {
    const bool everywhere =
        std::ranges::all_of(all, [&](const std::string& text) { return text == *failed; });
    if (everywhere) return Status::error(failed->substr(1));
    return Status::error("rank {}: {}", failed - all.begin(), failed->substr(1));
  }
  const Facts first = unpacked(all[0]);
  for (size_t r = 1; r < all.size(); ++r)
    if (const std::string how = difference(unpacked(all[r]), first); !how.empty())
      return Status::error("rank {} differs from rank 0: {}", r, how);
  return {};
}

}  // namespace gacc
