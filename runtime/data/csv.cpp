// Numbers are read with from_chars, so that the user's locale plays no part.
#include "runtime/data/csv.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>

#include "runtime/text.h"

namespace gacc {
namespace {

// The words for a missing number; pandas has the same.
bool is_missing(std::string_view text) {
  constexpr std::string_view kWords[] = {"", "NA", "N/A", "NaN", "nan", "-nan", "null", "NULL", "None"};
  return std::ranges::find(kWords, text) != std::end(kWords);
}

bool parse_number(std::string_view text, double& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end != text.data() + text.size()) return false;
  // Too large or too small for a double: from_chars leaves the value alone, strtod gives infinity or zero.
  if (failure == std::errc::result_out_of_range) value = std::strtod(std::string(text).c_str(), nullptr);
  return failure == std::errc() || failure == std::errc::result_out_of_range;
}

bool is_word_sign(unsigned char c) { return std::isalnum(c) != 0 || c >= 0x80 || c == ',' || c == '|'; }

// The words of programs that write tables; pandas writes True and False.
bool parse_truth(std::string_view text, double& value) {
  const bool yes = text == "true" || text == "True" || text == "TRUE";
  if (!yes && text != "false" && text != "False" && text != "FALSE") return false;
  value = yes ? 1 : 0;
  return true;
}

// Cuts the text into records of fields.
class Records {
 public:
  Records(std::string_view text, std::string_view name, char separator)
      : text_(text), name_(name), separator_(separator), ends_{separator, '\n'} {}

  bool at_end() {
    while (!text_.empty() && (text_[0] == '\n' || text_.substr(0, 2) == "\r\n")) newline();
    return text_.empty();
  }
  int64_t line() const { return line_; }

  // The next record. Fields that are not quoted are trimmed.
  Status read(std::vector<std::string>& fields) {
    size_t count = 0;
    while (true) {
      if (count == fields.size()) fields.emplace_back();
      GACC_TRY(field(fields[count], count + 1));
      ++count;
      if (text_.empty() || text_[0] != separator_) break;
      text_.remove_prefix(1);
    }
    fields.resize(count);
    if (!text_.empty()) newline();
    return {};
  }

 private:
  void newline() {
    text_.remove_prefix(text_[0] == '\r' ? 2 : 1);
    ++line_;
  }
  // Returns where an unquoted field, or the text after a quoted one, ends.
  size_t field_end() const {
    size_t end = text_.find_first_of(std::string_view(ends_, 2));
    if (end == std::string_view::npos) return text_.size();
    if (text_[end] == '\n' && end > 0 && text_[end - 1] == '\r') --end;
    return end;
  }
  Status field(std::string& value, size_t number) {
    const size_t spaces = text_.find_first_not_of(separator_ == '\t' ? " " : " \t");
    if (spaces == std::string_view::npos || text_[spaces] != '"') {
      const size_t end = field_end();
      value = trimmed(text_.substr(0, end));
      text_.remove_prefix(end);
      return {};
    }
    int64_t opened = line_;
    text_.remove_prefix(spaces + 1);
    value.clear();
    while (true) {
      const size_t end = text_.find('"');
      if (end == std::string_view::npos)
        return Status::error("{}:{}: the quote that opens field {} is never closed", name_, opened, number);
      line_ += std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(end), '\n');
      value += text_.substr(0, end);
      text_.remove_prefix(end + 1);
      if (text_.empty() || text_[0] != '"') break;
      value += '"';
      text_.remove_prefix(1);
    }
    const size_t end = field_end();
    if (!trimmed(text_.substr(0, end)).empty())
      return Status::error("{}:{}: field {}{} goes on after its closing quote", name_, line_, number,
                           opened == line_ ? "" : fmt::format(", whose quote opens in line {},", opened));
    text_.remove_prefix(end);
    return {};
  }

  // Spaces around fields; a tab may be the separator.
  std::string_view trimmed(std::string_view text) const {
    const auto is_space = [&](char c) { return c == ' ' || (c == '\t' && separator_ != '\t'); };
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
  }

  std::string_view text_, name_;
  char separator_, ends_[2];
  int64_t line_ = 1;
};

// A header of numbers is a first sample whose header is missing, unless it just counts the columns (0,
// 1, 2...), as pandas does for columns without names.
bool looks_like_data(const std::vector<std::string>& header) {
  double first = 0, value = 0;
  bool counts = parse_number(header[0], first) && (first == 0 || first == 1);
  for (size_t i = 0; i < header.size(); ++i) {
    if (!parse_number(header[i], value)) return false;
    counts = counts && value == first + static_cast<double>(i);
  }
  return !counts;
}

// Reads the fields of one file into a table.
class TableReader {
 public:
  TableReader(std::string_view name, const CsvOptions& options, Table& table)
      : name_(name), options_(options), table_(table) {}

  Status header(std::vector<std::string> columns, int64_t line) {
    columns_ = std::move(columns);
    if (looks_like_data(columns_))
      return Status::error("{}:{}: the first line must name the columns, but it holds numbers only", name_,
                           line);
    const size_t count = columns_.size();
    if (count > 1 && columns_.back().empty())
      return Status::error("{}:{}: column {} has no name: does the line end with a separator?", name_, line,
                           count);
    for (const auto& [other, advice] : {std::pair(';', "semicolons; say sep=';' (numbers have points)"),
                                        std::pair('\t', "tabs; say sep=tab (numbers have points)"),
                                        std::pair(',', "commas; leave sep= out")})
      if (count == 1 && other != options_.separator && columns_[0].find(other) != std::string::npos)
        return Status::error("{}:{}: its fields are separated by {}", name_, line, advice);
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < i; ++j)
        if (columns_[i] == columns_[j])
          return Status::error("{}:{}: columns {} and {} are both called {}; rename one", name_, line, j + 1,
                               i + 1, in_quotes(columns_[i]));
    if (const auto found = std::ranges::find_if_not(columns_, is_utf8); found != columns_.end())
      return Status::error("{}:{}: the name of column {} is no UTF-8: {}; save the file as UTF-8", name_,
                           line, found - columns_.begin() + 1, in_quotes(*found));
    table_.columns = columns_;
    return {};
  }

  // Makes the table's columns of the file's.
  void use(std::vector<ColumnUse> uses) {
    uses_ = std::move(uses);
    table_.columns.clear();
    for (size_t i = 0; i < uses_.size(); ++i) {
      const bool split = is_split(i);
      for (size_t value = 0; value < (split ? uses_[i].values->size() : 1); ++value) {
        table_.columns.push_back(columns_[i] + (split ? "=" + (*uses_[i].values)[value] : ""));
        table_.in_file.push_back(i);
      }
    }
  }

  Status row(const std::vector<std::string>& fields, int64_t line) {
    if (fields.size() != columns_.size())
      return Status::error("{}:{}: has {}, the header has {}", name_, line,
                           counted(static_cast<int64_t>(fields.size()), "field"), columns_.size());
    for (size_t i = 0; i < fields.size(); ++i) {
      const double value = GACC_TRY(number(fields[i], i, line));
      for (size_t k = 0; is_split(i) && k < uses_[i].values->size(); ++k)
        table_.values.push_back(std::isnan(value) ? value
                                                  : static_cast<double>(value == static_cast<double>(k)));
      if (!is_split(i)) table_.values.push_back(value);
    }
    table_.lines.push_back(line);
    return {};
  }

 private:
  bool is_split(size_t column) const {
    return uses_[column].kind == ColumnUse::Kind::feature && uses_[column].values != nullptr;
  }

  Result<double> number(const std::string& field, size_t column, int64_t line) const {
    const ColumnUse& use = uses_[column];
    if (use.kind == ColumnUse::Kind::unread) return 0.0;
    if (use.values != nullptr) {
      const auto found = std::ranges::find(*use.values, field);
      if (found != use.values->end()) return static_cast<double>(found - use.values->begin());
    }
    const bool marked = std::ranges::find(options_.missing, field) != options_.missing.end();
    const bool missing = marked || is_missing(field);
    if (missing && options_.gaps) return std::numeric_limits<double>::quiet_NaN();
    double value = 0;
    if (use.values == nullptr && !marked && (parse_number(field, value) || parse_truth(field, value)))
      return value;
    std::string what = field.empty() ? "the field is empty" : in_quotes(field) + " is no number";
    if (marked)
      what = in_quotes(field) + " is a mark of a missing field";
    else if (!field.empty() && use.values != nullptr)
      what = fmt::format("{} is none of its values{} (they are {})", in_quotes(field),
                         hint(field, *use.values), listed(*use.values));
    const bool feature = use.kind == ColumnUse::Kind::feature;
    if (missing && feature) what += "; missing=mean fills it in";
    if (missing) what += fmt::format("{} missing=drop leaves the line out", feature ? "," : ";");
    const auto can_be_typed = [](std::string_view text) {
      constexpr size_t kMost = 40;
      return text.size() <= kMost && in_quotes(text).size() == text.size() + 2 &&
             text.find_first_of(",|") == text.npos;
    };
    const std::string& column_name = columns_[column];
    std::string pointed(field);
    std::ranges::replace(pointed, ',', '.');
    const bool comma = pointed != field && use.values == nullptr && parse_number(pointed, value);
    if (comma) what += ": numbers have points, and no commas";
    // A sign such as ? or - stands where a number is missing.
    const bool sign =
        !missing && can_be_typed(field) && !field.empty() && std::ranges::none_of(field, is_word_sign);
    const bool word = !missing && !comma && !sign && use.values == nullptr;
    if (word && feature && can_be_typed(column_name))
      what += fmt::format("; drop={} leaves the column out, and `columns` of the input states its words",
                          column_name);
    if (word && !feature) what += "; `values` of the input states its words";
    if (sign) {
      what += fmt::format("; na={} makes a missing field of it", field);
      if (use.values == nullptr)
        what += fmt::format(", which {}missing=drop leaves out with its line",
                            feature ? "missing=mean fills in and " : "");
    }
    return Status::error("{}:{}: column {} ({}): {}", name_, line, column + 1, in_quotes(column_name), what);
  }

  const std::string_view name_;
  const CsvOptions& options_;
  Table& table_;
  std::vector<std::string> columns_;  // of the file
  std::vector<ColumnUse> uses_;       // of each
};

}  // namespace

Status parse_csv(std::string_view bytes, std::string_view name, Table& table, const CsvOptions& options,
                 const ChooseColumns& choose) {
  table = {};
  if (bytes.starts_with("\xef\xbb\xbf")) bytes.remove_prefix(3);  // the byte order mark of some editors
  if (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff"))
    return Status::error("{}: is text in UTF-16; save it as UTF-8", name);
  if (bytes.starts_with("PK\x03\x04"))
    return Status::error("{}: is a zip archive, as a spreadsheet is; save it as CSV", name);
  // Control characters below the tab are in no text.
  const auto binary =
      std::ranges::find_if(bytes, [](char c) { return static_cast<unsigned char>(c) < '\t'; });
  if (binary != bytes.end())
    return Status::error("{}:{}: is no text: byte {} of the file is {}", name,
                         1 + std::count(bytes.begin(), binary, '\n'), binary - bytes.begin() + 1,
                         int{*binary});
  std::string lines;
  if (bytes.find('\r') != bytes.npos && bytes.find('\n') == bytes.npos) {
    lines = bytes;
    std::ranges::replace(lines, '\r', '\n');
    bytes = lines;
  }
  Records records(bytes, name, options.separator);
  if (records.at_end()) return Status::error("{}: is empty", name);
  TableReader reader(name, options, table);
  const int64_t header_line = records.line();
  std::vector<std::string> fields;
  GACC_TRY(records.read(fields));
  GACC_TRY(reader.header(fields, header_line));
  std::vector<ColumnUse> uses(fields.size());
  if (choose) uses = GACC_TRY(choose());
  reader.use(std::move(uses));
  while (!records.at_end()) {
    const int64_t line = records.line();
    GACC_TRY(records.read(fields));
    GACC_TRY(reader.row(fields, line));
  }
  return {};
}

Result<size_t> find_column(const Table& table, std::string_view column, std::string_view name) {
  const auto found = std::ranges::find(table.columns, column);
  if (found != table.columns.end()) return static_cast<size_t>(found - table.columns.begin());
  int64_t number = 0;
  if (!parse_count(column, number))
    return Status::error("{}: has no column {}{} (it has {})", name, in_quotes(column),
                         hint(column, table.columns), listed(table.columns));
  if (number >= static_cast<int64_t>(table.columns.size()))
    return Status::error("{}: has no column {}: its {} columns count from 0", name, number,
                         table.columns.size());
  return static_cast<size_t>(number);
}

}  // namespace gacc
