// See agreement.h.
#include "runtime/agreement.h"

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
  std::vector<std::string> words;
  for (text.remove_prefix(1); !text.empty(); text.remove_prefix(words.back().size() + 1))
    words.emplace_back(text.substr(0, text.find('\0')));
  for (size_t i = 0; i + 1 < words.size(); i += 2) facts.emplace_back(words[i], words[i + 1]);
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

}  // namespace

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
