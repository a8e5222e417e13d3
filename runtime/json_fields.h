// Reads the fields of one JSON object into variables, and trusts nothing: each is checked for its type and
// range. The first wrong one is kept as the error, one sentence that says where it stands, what was found and
// what would fit; later reads then do nothing, so a caller reads a whole object and looks at the status once.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace gacc {

class JsonFields {
 public:
  static constexpr int64_t kMost = int64_t{1} << 48;  // elements of a shape: far below overflow
  static constexpr size_t kMaxRank = 16;

  // `where` stands before keys in messages: "plan: inputs[2]."; `object` and `status` must outlive this.
  JsonFields(const nlohmann::json& object, std::string where, Status& status);

  const std::string& where() const { return where_; }
  Status& status() const { return status_; }
  bool has(const char* key) const;

  // A missing key is an error in all of these.
  void read(const char* key, std::string& to);
  void read(const char* key, bool& to);
  void read(const char* key, double& to);  // finite
  void read(const char* key, int64_t& to, int64_t low, int64_t high);
  void read(const char* key, std::vector<std::string>& to);
  void read(const char* key, std::vector<double>& to);
  // One of a few words.
  void read(const char* key, std::string& to, std::span<const std::string_view> words);
  void read(const char* key, std::string& to, std::initializer_list<std::string_view> words) {
    read(key, to, std::span(words.begin(), words.size()));
  }
  // A name: messages show it, so it is not empty and has no control characters.
  void read_name(const char* key, std::string& to);
  // A shape: at most kMaxRank extents of at least 1 whose product, `elements`, is at most kMost.
  void read_shape(const char* key, std::vector<int64_t>& to, int64_t& elements);
  // Calls `item(value, "key[i]")` for the items of an array, until something is wrong.
  using Item = std::function<void(const nlohmann::json& value, const std::string& name)>;
  void each(const char* key, const Item& item);

  // The value of a key, or null and an error.
  const nlohmann::json* find(const char* key);
  // A value that was found under `name`.
  void integer(const std::string& name, const nlohmann::json& value, int64_t& to, int64_t low, int64_t high);
  void real(const std::string& name, const nlohmann::json& value, double& to);

  void wrong(const std::string& name, const nlohmann::json& value, std::string_view expected);
  void fail(std::string text);

 private:
  const nlohmann::json& object_;
  std::string where_;
  Status& status_;
};

}  // namespace gacc
