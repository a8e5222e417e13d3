// CSV files: a header line of column names, all of them different, then one sample a line. Fields are
// numbers, separated by commas or what sep= says; a field may be quoted ("" is a quote in it). Lines may end
// in LF, CRLF or CR; empty ones are skipped.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace gacc {

struct Table {
  std::vector<std::string> columns;  // from the header
  std::vector<double> values;        // [rows, columns]
  std::vector<int64_t> lines;        // [rows]: where in the file each begins, from 1
  double& at(size_t row, size_t column) { return values[row * columns.size() + column]; }
  double at(size_t row, size_t column) const { return values[row * columns.size() + column]; }
};

// How a column is used. One that is not read may hold anything, and its values are 0.
enum class ColumnUse : uint8_t { feature, target, unread };
using ChooseColumns = std::function<Result<std::vector<ColumnUse>>()>;

// Errors name the line and the column, and how it is called. With `gaps` a missing field (empty, NA, nan and
// the like) is a NaN; else it is an error, but for a nan. `choose` is called once, with the columns known.
Status parse_csv(std::string_view bytes, std::string_view name, Table& table, char separator = ',',
                 bool gaps = false, const ChooseColumns& choose = {});

// The index of the column that is called `column`, else the one of that number, from 0.
Result<size_t> find_column(const Table& table, std::string_view column, std::string_view name);

}  // namespace gacc
