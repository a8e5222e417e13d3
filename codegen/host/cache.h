// The cache of compiled host objects: one file an artifact and machine, in $XDG_CACHE_HOME/gacc (else
// ~/.cache/gacc). It only ever saves time: a folder that cannot be used, a missing entry, a damaged one or one that
// is not the user's own mean that the object is compiled again. GACC_CACHE=off turns it off.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gacc::host {

class Cache {
 public:
  static constexpr int64_t kEntries = 64, kBytes = int64_t{512} << 20;  // the oldest go first

  // The user's folder, made when it is missing; disabled when it cannot be made, is a link, or is writable by others.
  static Cache open();
  explicit Cache(std::string folder) : folder_(std::move(folder)) {}  // "" is disabled

  bool enabled() const { return !folder_.empty(); }
  std::string path(const std::string& key) const { return folder_ + "/" + key + ".o"; }
  std::optional<std::string> load(const std::string& key) const;
  void store(const std::string& key, std::string_view object) const;

 private:
  void trim() const;
  std::string folder_;
};

}  // namespace gacc::host
