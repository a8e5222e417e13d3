// The files of `gacc-plan offsets`: columns id, lower, upper, size in any order, named by the first line; a
// buffer lives in [lower, upper). Written back with one more column, offset.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "passes/planner/offsets.h"

namespace gacc::passes::planner {

struct BufferTable {
  std::string header;             // as read
  std::vector<std::string> rows;  // as read, without line ends
  std::vector<Block> blocks;      // one per row; instants number the distinct bounds
};

// False with `problem` = "LINE: what is wrong" (lines count from 1).
[[nodiscard]] bool parse_buffers(std::string_view text, BufferTable& table, std::string& problem);
std::string print_buffers(const BufferTable& table, const std::vector<int64_t>& offsets);

}  // namespace gacc::passes::planner
