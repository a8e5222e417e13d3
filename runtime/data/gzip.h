// Decompression with zlib, with a limit on what may come out: a file of a few kilobytes can hold gigabytes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/status.h"

namespace gacc {

constexpr int64_t kMostUnzipped = int64_t{1} << 33;  // 8 GiB

bool is_gzip(std::string_view bytes);

// All members of a gzip file. More than `limit` bytes are an error.
Result<std::string> gunzip(std::string_view bytes, std::string_view name, int64_t limit = kMostUnzipped);

// A raw deflate stream (a zip entry) that must give exactly `size` bytes.
Result<std::string> inflate_exactly(std::string_view bytes, int64_t size, std::string_view name);

}  // namespace gacc
