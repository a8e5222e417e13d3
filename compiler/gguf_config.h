// Reads what a GGUF says of itself, as a configuration.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/status.h"

namespace gacc {

constexpr int64_t kMostConfig = int64_t{4} << 20;  // bytes of a config.json or a family

// Returns the JSON that PublishedOptions::gguf describes. `matrices`, where given, receives the type that most bytes of
// the file's matrices have: "Q4_1"; "" where there are none.
Result<std::string> said_by_gguf(const std::string& path, std::string* matrices = nullptr);

}  // namespace gacc
