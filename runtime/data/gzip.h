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
Status gunzip(std::string_view bytes, std::string_view name, std::string& out, int64_t limit = kMostUnzipped);

// A raw deflate stream (a zip entry) that must give exactly `size` bytes.
Status inflate_exactly(std::string_view bytes, int64_t size, std::string_view name, std::string& out);

// If `bytes` are gzipped, replaces them by what they hold.
Status gunzip_in_place(std::string_view name, std::string& bytes, int64_t limit = kMostUnzipped);

}  // namespace gacc
