// CSV files: columns by name.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/data/csv.h"
#include "runtime/data/source.h"
#include "runtime/text.h"

namespace gacc {
namespace {

class CsvReader {
 public:
  explicit CsvReader(DataReader& reader)
      : r_(reader),
        path_(reader.spec.path),
        missing_(reader.spec.option("missing")),
        features_(reader.first_input(DType::f32)) {}

  // An i32 input that is named like a column takes it. The label column goes to the first i32 input that has
  // none, or, without one, to the second f32 input (a number to be predicted), which takes the column of its name
  // where no label is given; all others make the samples of the first f32 input.
  Status read() {
    SharedFile file = GACC_TRY(DataReader::read_unzipped(path_));
    const auto choose = [&]() -> Result<std::vector<ColumnUse>> {
      GACC_TRY(give_columns());
      for (const size_t input : taker_)
        if (input != kDropped) r_.found(input);
      return uses();
    };
    const CsvOptions options = {r_.spec.option("sep")[0], missing_ != "error", r_.spec.parts("na")};
    GACC_TRY(parse_csv(file->text(), path_, table_, options, choose));
    file.reset();
    std::vector<size_t> order;  // of the features, in the table
    for (size_t i = 0; i < table_.columns.size(); ++i)
      if (taker(i) == features_) order.push_back(i);
    if (order.empty())
      return Status::error("{}: no column is left for {}", path_, in_quotes(r_.names[features_]));
    GACC_TRY(order_features(order));
    GACC_TRY(check_number(order));
    GACC_TRY(choose_rows());
    GACC_TRY(fill_gaps(order));
    give(features_, order);
    for (size_t i = 0; i < table_.columns.size(); ++i)
      if (taker(i) != features_ && is_read(i)) give(taker(i), {i});
    return {};
  }

 private:
  static constexpr size_t kDropped =
      std::numeric_limits<size_t>::max();  // the taker of a column that is left out

  // Says how each of the file's columns is read.
  Result<std::vector<ColumnUse>> uses() const {
    using Kind = ColumnUse::Kind;
    std::vector<ColumnUse> uses;
    for (const size_t input : taker_) {
      ColumnUse& use = uses.emplace_back();
      use.kind = input == kDropped || !r_.needed(input) ? Kind::unread
                 : input == features_                   ? Kind::feature
                                                        : Kind::target;
      if (use.kind == Kind::target && !r_.plan.inputs[input].values.empty())
        use.values = &r_.plan.inputs[input].values;
    }
    for (const auto& [column, values] : r_.plan.inputs[features_].columns) {
      const auto found = std::ranges::find(table_.columns, column);
      if (found == table_.columns.end())
        return Status::error("{}: has no column {}, which the input {} takes{} (it has {})", path_,
                             in_quotes(column), in_quotes(r_.names[features_]), hint(column, table_.columns),
                             listed(table_.columns));
      const auto at = static_cast<size_t>(found - table_.columns.begin());
      if (taker_[at] != features_)
        return Status::error("{}: the input {} states the column {}, which {}", path_,
                             in_quotes(r_.names[features_]), in_quotes(column),
                             taker_[at] == kDropped
                                 ? "drop= leaves out"
                                 : "the input " + in_quotes(r_.names[taker_[at]]) + " takes");
      if (uses[at].kind == Kind::feature) uses[at].values = &values;
    }
    for (size_t i = 0; i < r_.names.size(); ++i)
      if (i != features_ && !r_.plan.inputs[i].columns.empty())
        return Status::error(
            "{}: the input {} states columns, and a csv file's columns go to {}, the first f32 input", path_,
            in_quotes(r_.names[i]), in_quotes(r_.names[features_]));
    return uses;
  }

  // Returns the input that takes a column of the table.
  size_t taker(size_t column) const { return taker_[table_.in_file[column]]; }
  // Says whether the run reads what the table's column holds.
  bool is_read(size_t column) const { return taker(column) != kDropped && r_.needed(taker(column)); }

  // Gives an input the numbers as they were read: normalisation rounds them once.
  void give(size_t input, const std::vector<size_t>& columns) {
    std::vector<double> values;
    std::vector<int64_t> lines;
    for (const size_t row : rows_) {
      lines.push_back(table_.lines[row]);
      for (const size_t column : columns) values.push_back(table_.at(row, column));
    }
    const auto all = std::as_bytes(std::span(values));
    std::vector<int64_t> shape = {static_cast<int64_t>(rows_.size())};
    if (input == features_) shape.push_back(static_cast<int64_t>(columns.size()));
    const auto place = [path = path_, lines, each = columns.size()](int64_t element) {
      return fmt::format("{}:{}", path, lines[static_cast<size_t>(element) / each]);
    };
    r_.give(input, path_, {"f64", std::move(shape), {all.begin(), all.end()}}, place);
  }

  // Finds the input that takes each column.
  Status give_columns() {
    const size_t none = r_.plan.inputs.size();
    if (features_ == none)
      return Status::error("{}: the columns need an input of dtype f32, and the model has none", path_);
    taker_.assign(table_.columns.size(), features_);
    for (const std::string& name : r_.spec.parts("drop"))
      taker_[GACC_TRY(find_column(table_, name, path_))] = kDropped;
    size_t named = none,
           target = none;  // the first i32 input that takes the column of its name, and that does not
    for (size_t i = r_.first_input(DType::i32); i < none; i = r_.first_input(DType::i32, i + 1)) {
      const auto found = std::ranges::find(table_.columns, r_.names[i]);
      if (found == table_.columns.end() ||
          taker_[static_cast<size_t>(found - table_.columns.begin())] == kDropped) {
        target = std::min(target, i);
        continue;
      }
      named = std::min(named, i);
      taker_[static_cast<size_t>(found - table_.columns.begin())] = i;
    }
    if (target == none) target = r_.first_input(DType::f32, features_ + 1);
    if (!r_.spec.has("label")) {
      if (target == none) return {};
      const auto found = std::ranges::find(table_.columns, r_.names[target]);
      const auto place = static_cast<size_t>(found - table_.columns.begin());
      const bool dropped = found != table_.columns.end() && taker_[place] == kDropped;
      if (found != table_.columns.end() && !dropped) taker_[place] = target;
      if ((found != table_.columns.end() && !dropped) || !r_.needed(target)) return {};
      if (dropped)
        return Status::error("{}: the input {} is the column of its name, and drop= leaves it out", path_,
                             in_quotes(r_.names[target]));
      return Status::error("{}: say which column is the input {}: csv:{},label=COLUMN (it has {})", path_,
                           in_quotes(r_.names[target]), path_, listed(table_.columns));
    }
    const std::string_view name = r_.spec.option("label");
    const Result<size_t> found_label = find_column(table_, name, path_);
    if (!found_label && target != none && !r_.needed(target)) return {};  // predictions look at no label
    const size_t label = GACC_TRY(found_label);
    if (taker_[label] != features_ && taker_[label] != kDropped) return {};  // an input of that name has it
    if (target == none)
      return Status::error("{}: label={} is given, but {}", path_, name,
                           named == none ? "the model has no second input to take it"
                                         : fmt::format("the input {} takes the column of its own name",
                                                       in_quotes(r_.names[named])));
    if (taker_[label] == kDropped)
      return Status::error("{}: label={} is the target, and drop= leaves it out", path_, name);
    taker_[label] = target;
    return {};
  }

  // The feature columns in the order of training; other columns than there are an error.
  Status order_features(std::vector<size_t>& order) {
    InputFacts& known = r_.facts[r_.names[features_]];
    std::vector<std::string> now;
    for (const size_t column : order) now.push_back(table_.columns[column]);
    if (known.columns.empty()) {
      if (r_.learns) known.columns = now;
      return {};
    }
    const auto without = [](std::vector<std::string> list, const std::vector<std::string>& other) {
      std::erase_if(list, [&](const auto& name) { return std::ranges::find(other, name) != other.end(); });
      return list;
    };
    const std::vector<std::string> missing = without(known.columns, now), extra = without(now, known.columns);
    std::vector<std::string> wrong;
    if (!missing.empty()) wrong.push_back("it has no " + listed(missing));
    if (!extra.empty())
      wrong.push_back(listed(extra) + (extra.size() == 1 ? " was" : " were") + " not there");
    if (!wrong.empty())
      return Status::error("{}: its columns are not those that the model was trained on: {}", path_,
                           fmt::join(wrong, "; "));
    if (now == known.columns) return {};
    r_.remark(fmt::format(
        "note: {}: its columns stand in another order than in training, and are taken by name", path_));
    for (size_t i = 0; i < order.size(); ++i)
      order[i] =
          static_cast<size_t>(std::ranges::find(table_.columns, known.columns[i]) - table_.columns.begin());
    return {};
  }

  // Compares the number of feature columns with what the input takes.
  Status check_number(const std::vector<size_t>& order) const {
    const int64_t takes = checked_product(r_.plan.inputs[features_].shape);
    if (std::ssize(order) == takes) return {};
    std::vector<std::string> columns;
    for (const size_t column : order) columns.push_back(table_.columns[column]);
    return Status::error(
        "{}: {} {} left for the input {}, which takes {}: {}. drop=COLUMN leaves one out (by its name or its "
        "number, from 0), and `inputs.{}.shape = [{}]` takes them all",
        path_, counted(std::ssize(order), "column"), order.size() == 1 ? "is" : "are",
        in_quotes(r_.names[features_]), takes, listed(columns), r_.names[features_], order.size());
  }

  // The rows of the split, without those that missing=drop leaves out, as far as the limit goes; every number
  // in them is checked.
  Status choose_rows() {
    const std::string_view split = r_.spec.option("split");
    size_t dropped = 0;
    for (size_t row = 0; row < table_.lines.size(); ++row) {
      if (r_.spec.limit && static_cast<int64_t>(rows_.size()) == *r_.spec.limit) break;
      if (!split.empty() && !is_of_split(static_cast<int64_t>(row), split)) continue;
      bool gap = false;
      for (size_t i = 0; i < table_.columns.size(); ++i) {
        if (!is_read(i)) continue;
        const double value = table_.at(row, i);
        const auto wrong = [&](std::string_view what) {
          return Status::error("{}:{}: column {} ({}): {}", path_, table_.lines[row], table_.in_file[i] + 1,
                               in_quotes(table_.columns[i]), what);
        };
        if (missing_ != "error" && std::isnan(value)) {
          if (missing_ == "mean" && taker(i) != features_)
            return wrong(fmt::format(
                "the field is missing, and no mean stands for the input {}; missing=drop leaves the line out",
                in_quotes(r_.names[taker(i)])));
          gap = true;
        } else if (const std::string_view why = unfit_for_f32(value); !why.empty()) {
          return wrong(fmt::format("{} {}", value, why));
        }
      }
      if (gap && missing_ == "drop")
        ++dropped;
      else
        rows_.push_back(row);
    }
    if (dropped > 0) r_.give_rows({rows_.begin(), rows_.end()});
    if (dropped > 0)
      r_.remark(fmt::format("note: {}: {} of {} lines have a missing field and are left out", path_, dropped,
                            rows_.size() + dropped));
    return {};
  }

  // Learns the columns' means, and puts them where a field is missing.
  Status fill_gaps(const std::vector<size_t>& order) {
    InputFacts& known = r_.facts[r_.names[features_]];
    const bool learns = r_.learns && known.fill.empty();
    std::vector<double> means;
    size_t filled = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t column = order[i];
      std::vector<size_t> gaps;
      double first = 0, sum = 0;  // the sum is of differences from the first value
      size_t count = 0;
      for (const size_t row : rows_) {
        const double value = table_.at(row, column);
        if (std::isnan(value)) {
          gaps.push_back(row);
          continue;
        }
        if (count++ == 0) first = value;
        sum += value - first;
      }
      if (learns) means.push_back(count > 0 ? first + sum / static_cast<double>(count) : 0);
      if (gaps.empty()) continue;
      const std::string place = fmt::format("{}: column {} ({})", path_, table_.in_file[column] + 1,
                                            in_quotes(table_.columns[column]));
      if (learns && count == 0)
        return Status::error("{}: every field is missing, so there is no mean for missing=mean", place);
      if (!learns && known.fill.empty())
        return Status::error("{}: a field is missing, and no training data have given a mean for it", place);
      filled += gaps.size();
      for (const size_t row : gaps) table_.at(row, column) = learns ? means.back() : known.fill[i];
    }
    if (learns) known.fill = std::move(means);
    if (filled > 0)
      r_.remark(fmt::format("note: {}: {} missing field{} column's mean of training", path_, filled,
                            filled == 1 ? " has its" : "s have their"));
    return {};
  }

  DataReader& r_;
  const std::string& path_;
  const std::string_view missing_;  // what a missing field is: "error", "mean" or "drop"
  const size_t features_;           // the first f32 input
  Table table_;
  std::vector<size_t> taker_;  // of each column of the file; the first f32 input where nothing else takes it
  std::vector<size_t> rows_;   // that are samples
};

std::string check_separator(std::string& value) {
  if (value == "tab" || value == "\\t") value.assign(1, '\t');
  constexpr std::string_view kMost = ";|:\t!#$%&*/<>?@^~ ";
  if (value.size() == 1 && kMost.find(value[0]) != std::string_view::npos) return "";
  return "one character such as ; or |, or tab (a comma needs no sep)";
}

}  // namespace

const DataSource sources::csv{
    .name = "csv",
    .path = "FILE",
    .says = "the columns, by name",
    .keys = {{"label", "COLUMN", "", "the column of the target, a name or a number from 0"},
             {"sep", "C", ",", "what separates fields: one sign, or `tab`", check_separator},
             kSplitRows,
             {"missing", "error|mean|drop", "error", "what a missing field is"},
             {"na", "TEXT", "", "a mark of a missing field; a bar between several"},
             {"drop", "COLUMN", "", "a column that is left out; a bar between several"}},
    .read = [](DataReader& r) { return CsvReader(r).read(); },
};

}  // namespace gacc
