// Sizes for people, in units of 1,024; and counts.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gacc::ir {

// With two decimals, "12.34 MiB" and "131.20 MiB": for messages that compare sizes.
std::string size_text(int64_t bytes);
// With three digits, "8.91 MiB" and "131 MiB": for tables and pictures.
std::string short_size_text(int64_t bytes);
// "1.5GiB", "64 KB"; nothing when it is not a size.
std::optional<int64_t> parse_bytes(std::string_view text);

// "1 update", "3 launches": a number in a message agrees with its noun. runtime/status.h has the runtime's.
std::string counted(int64_t count, std::string_view noun);

}  // namespace gacc::ir
