// Collective operations, made of the one primitive that a transport has: `exchange`.
#include "runtime/collective.h"

namespace gacc {

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
  const auto size = static_cast<size_t>(ranks.size());
  std::vector<uint64_t> lengths(size);
  std::vector<std::span<std::byte>> receives;
  for (uint64_t& length : lengths) receives.push_back(std::as_writable_bytes(std::span(&length, 1)));
  const uint64_t length = mine.size();
  GACC_TRY(all_gather(ranks, std::as_bytes(std::span(&length, 1)), receives));
  std::vector<std::string> all(size);
  for (size_t i = 0; i < size; ++i) {
    all[i].resize(lengths[i]);
    receives[i] = std::as_writable_bytes(std::span(all[i]));
  }
  GACC_TRY(all_gather(ranks, std::as_bytes(std::span(mine)), receives));
  return all;
}

Result<int64_t> maximum(Collective& ranks, int64_t value) {
  std::vector<int64_t> all(static_cast<size_t>(ranks.size()));
  std::vector<std::span<std::byte>> receives;
  for (int64_t& each : all) receives.push_back(std::as_writable_bytes(std::span(&each, 1)));
  GACC_TRY(all_gather(ranks, std::as_bytes(std::span(&value, 1)), receives));
  return std::ranges::max(all);
}

Result<std::string> broadcast(Collective& ranks, const std::string& text) {
  return GACC_TRY(all_gather(ranks, ranks.rank() == 0 ? text : "")).front();
}

}  // namespace gacc
