// CSV files: a header line of column names, then one sample a line. Fields are numbers, separated by commas;
// a field may be quoted ("" is a quote in it). Lines may end in LF or CRLF; empty ones are skipped.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace gacc {

struct Table {
  std::vector<std::string> columns;  // from the header
  std::vector<double> values;        // [rows, columns]
  std::vector<int64_t> lines;        // [rows]: where in the file each begins, from 1
  int64_t rows() const { return static_cast<int64_t>(lines.size()); }
};

// Errors name the line and the column, and how it is called.
Status parse_csv(std::string_view bytes, std::string_view name, Table& table);

// The index of the column that is called `column`, else the one of that number, from 0.
Status find_column(const Table& table, std::string_view column, std::string_view name, size_t& index);

}  // namespace gacc
