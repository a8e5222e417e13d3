// Sizes for people, in units of 1,024.
#pragma once
#include <cstdint>
#include <string>

namespace gacc::ir {

// With two decimals, "12.34 MiB" and "131.20 MiB": for messages that compare sizes.
std::string size_text(int64_t bytes);
// With three digits, "8.91 MiB" and "131 MiB": for tables and pictures.
std::string short_size_text(int64_t bytes);

}  // namespace gacc::ir
