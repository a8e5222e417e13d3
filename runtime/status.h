// The result of anything in the runtime that can fail: one line of text for the user, or success.
#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>

namespace gacc {

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

 private:
  std::string text_;
  bool failed_ = false;
};

}  // namespace gacc

// Hands on the error of a call that fails: GACC_TRY(file.open(path));
#define GACC_TRY(...)                                                                 \
  do {                                                                                \
    if (::gacc::Status gacc_status = (__VA_ARGS__); !gacc_status) return gacc_status; \
  } while (false)
