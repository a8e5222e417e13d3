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
  // From the header; a column of texts is one for each of its values: "color=red".
  std::vector<std::string> columns;
  std::vector<size_t> in_file;  // [columns]: the number in the file of the column that each is from
  std::vector<double> values;   // [rows, columns]
  std::vector<int64_t> lines;   // [rows]: where in the file each begins, from 1
  double& at(size_t row, size_t column) { return values[row * columns.size() + column]; }
  double at(size_t row, size_t column) const { return values[row * columns.size() + column]; }
};

// The use of a column. A column that is not read may hold anything, and its values are 0.
struct ColumnUse {
  enum class Kind : uint8_t { feature, target, unread } kind = Kind::feature;
  // The texts that it holds. They stand for 0, 1, 2 ..., or, of a feature, make a column each, of zeros and ones. Null:
  // it holds numbers, or the words true and false for 1 and 0.
  const std::vector<std::string>* values = nullptr;
};
using ChooseColumns = std::function<Result<std::vector<ColumnUse>>()>;

struct CsvOptions {
  char separator = ',';
  bool gaps = false;                   // a missing field is a NaN; else it is an error, but for a nan
  std::vector<std::string> missing{};  // marks of a missing field, beside "", NA, nan and the like
};

// Errors name the line and the column, and how it is called. `choose` is called once, with the file's columns known.
Status parse_csv(std::string_view bytes, std::string_view name, Table& table, const CsvOptions& options = {},
                 const ChooseColumns& choose = {});

// The index of the column that is called `column`, else the one of that number, from 0.
Result<size_t> find_column(const Table& table, std::string_view column, std::string_view name);

}  // namespace gacc
