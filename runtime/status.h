// The result of anything in the runtime that can fail: success, or one line of text for the user; with a value, where
// there is one to return.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gacc {

// "1 update", "3 launches": a number in a message agrees with its noun. ir/text/size_text.h has the compiler's.
inline std::string counted(int64_t count, std::string_view noun) {
  const bool takes_es = noun.ends_with('s') || noun.ends_with("nch");  // launches, but epochs
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : takes_es ? "es" : "s");
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status error(std::string text) {
    Status status;
    status.text_ = std::move(text);
    status.failed_ = true;
    return status;
  }
  template <class A, class... B>
  static Status error(fmt::format_string<A, B...> format, A&& a, B&&... b) {
    return error(fmt::format(format, std::forward<A>(a), std::forward<B>(b)...));
  }
  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const std::string& text() const { return text_; }

  // As of a Result, for GACC_TRY.
  const Status& status() const { return *this; }
  void take() {}

 private:
  std::string text_;
  bool failed_ = false;
};

// A value, or the error in its place.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status error) : status_(std::move(error)) {}  // not of a success
  explicit operator bool() const { return status_.ok(); }
  const Status& status() const { return status_; }
  const T& operator*() const { return *value_; }
  const T* operator->() const { return &*value_; }
  T take() { return std::move(*value_); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace gacc

// Hands on the error of a call that fails, else it is the call's value: const File file = GACC_TRY(open(path));
// No reference may be bound to that, as `for (auto& line : GACC_TRY(lines()))` does.
#define GACC_TRY(...)                              \
  ({                                               \
    auto gacc_result = (__VA_ARGS__);              \
    if (!gacc_result) return gacc_result.status(); \
    gacc_result.take();                            \
  })
