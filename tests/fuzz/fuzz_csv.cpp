// libFuzzer target for CSV files: any text gives a full table, or an error. The first byte chooses the
// separator, whether fields may be missing, and whether the first column holds texts.
#include "runtime/data/csv.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr char kSeparators[] = {',', ';', '\t', '|'};
  const char separator = kSeparators[data[0] % 4];
  const bool gaps = data[0] & 4;
  gacc::Table table;
  const std::vector<std::string> values = {"a", "b"};
  const auto choose = [&]() -> gacc::Result<std::vector<gacc::ColumnUse>> {
    std::vector<gacc::ColumnUse> uses(table.columns.size());
    if (data[0] & 8) uses[0].values = &values;
    return uses;
  };
  const gacc::CsvOptions options = {separator, gaps, {"?"}};
  gacc::Status status =
      gacc::parse_csv({reinterpret_cast<const char*>(data) + 1, size - 1}, "f", table, options, choose);
  gacc::fuzz::check_status(status);
  if (!status) return 0;
  if (table.columns.empty() || table.values.size() != table.lines.size() * table.columns.size())
    __builtin_trap();
  const gacc::Result<size_t> found = gacc::find_column(table, "1", "f");
  gacc::fuzz::check_status(found.status());
  if (found && *found >= table.columns.size()) __builtin_trap();
  return 0;
}
