// libFuzzer target for CSV files: any text gives a full table, or an error.
#include "runtime/data/csv.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gacc::Table table;
  gacc::Status status = gacc::parse_csv({reinterpret_cast<const char*>(data), size}, "f", table);
  gacc::fuzz::check_status(status);
  if (!status) return 0;
  if (table.columns.empty() || table.values.size() != table.lines.size() * table.columns.size())
    __builtin_trap();
  size_t column = 0;
  gacc::Status found = gacc::find_column(table, "1", "f", column);
  gacc::fuzz::check_status(found);
  if (found && column >= table.columns.size()) __builtin_trap();
  return 0;
}
