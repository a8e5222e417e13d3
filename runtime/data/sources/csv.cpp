// CSV files: columns by name.
#include <algorithm>
#include <cmath>

#include "runtime/data/csv.h"
#include "runtime/data/source.h"
#include "runtime/data/text.h"

namespace gacc {
namespace {

class CsvReader {
 public:
  explicit CsvReader(DataReader& reader) : r_(reader), missing_(reader.spec.option("missing")) {}

  // An i32 input that is named like a column takes it. The label column goes to the first i32 input that has
  // none, or, without one, to the second f32 input (a number to be predicted); all others make the samples of
  // the first f32 input.
  Status read() {
    const std::string& path = r_.spec.path;
    Table table;
    SharedFile file = GACC_TRY(DataReader::read_unzipped(path));
    const char separator = r_.spec.option("sep")[0];
    GACC_TRY(parse_csv(file->text(), path, table, separator, missing_ != "error"));
    file.reset();
    std::vector<size_t> taker;  // of each column; the first f32 input's where nothing else takes it
    GACC_TRY(give_columns(table, taker));
    const size_t features = r_.first_input("f32");
    std::vector<size_t> order;  // of the features, in the table
    for (size_t i = 0; i < taker.size(); ++i)
      if (taker[i] == features) order.push_back(i);
    if (order.empty())
      return Status::error("{}: no column is left for {}", r_.spec.path, quoted(r_.names[features]));
    GACC_TRY(order_features(table, order));
    std::vector<size_t> rows;
    GACC_TRY(choose_rows(table, taker, rows));
    GACC_TRY(fill_gaps(table, order, rows));

    const auto samples = static_cast<int64_t>(rows.size());
    const auto give = [&]<class T>(T, const char* dtype, size_t input, const std::vector<size_t>& columns) {
      std::vector<T> values;
      std::vector<int64_t> lines;
      for (const size_t row : rows) {
        lines.push_back(table.lines[row]);
        for (const size_t column : columns) values.push_back(static_cast<T>(table.at(row, column)));
      }
      const auto all = std::as_bytes(std::span(values));
      std::vector<int64_t> shape = {samples};
      if (input == features) shape.push_back(static_cast<int64_t>(columns.size()));
      const auto place = [path, lines, each = columns.size()](int64_t element) {
        return fmt::format("{}:{}", path, lines[static_cast<size_t>(element) / each]);
      };
      r_.give(input, path, {dtype, std::move(shape), {all.begin(), all.end()}}, place);
    };
    give(float{}, "f32", features, order);
    for (size_t i = 0; i < taker.size(); ++i)
      if (taker[i] != features) give(double{}, "f64", taker[i], {i});
    return {};
  }

 private:
  // Which input takes each column.
  Status give_columns(const Table& table, std::vector<size_t>& taker) {
    const std::string& path = r_.spec.path;
    const size_t none = r_.plan.inputs.size(), features = r_.first_input("f32");
    if (features == none)
      return Status::error("{}: the columns need an input of dtype f32, and the model has none", path);
    taker.assign(table.columns.size(), features);
    std::vector<bool> taken(none);
    for (size_t i = r_.first_input("i32"); i < none; i = r_.first_input("i32", i + 1)) {
      const auto found = std::find(table.columns.begin(), table.columns.end(), r_.names[i]);
      if (found == table.columns.end()) continue;
      taker[static_cast<size_t>(found - table.columns.begin())] = i;
      taken[i] = true;
    }
    size_t target = r_.first_input("i32");
    while (target < none && taken[target]) target = r_.first_input("i32", target + 1);
    if (target == none) target = r_.first_input("f32", features + 1);
    if (!r_.spec.has("label")) {
      if (target == none || !r_.needed(target)) return {};
      return Status::error("{}: say which column is the input {}: csv:{},label=COLUMN (it has {})", path,
                           quoted(r_.names[target]), path, listed(table.columns));
    }
    const std::string label_name(r_.spec.option("label"));
    size_t label = 0;
    GACC_TRY(find_column(table, label_name, path, label));
    if (taker[label] != features) return {};  // an input of that name has it
    if (target != none) {
      taker[label] = target;
      return {};
    }
    const auto named = std::find(taken.begin(), taken.end(), true);
    if (named == taken.end())
      return Status::error("{}: label={} is given, but the model has no second input to take it", path,
                           label_name);
    const std::string& name = r_.names[static_cast<size_t>(named - taken.begin())];
    return Status::error("{}: label={} is given, but the input {} takes the column of its own name", path,
                         label_name, quoted(name));
  }

  // The feature columns in the order of training; other columns than there are an error.
  Status order_features(const Table& table, std::vector<size_t>& order) {
    InputFacts& known = r_.facts[r_.names[r_.first_input("f32")]];
    std::vector<std::string> now;
    for (const size_t column : order) now.push_back(table.columns[column]);
    if (known.columns.empty()) {
      if (r_.learns) known.columns = now;
      return {};
    }
    const auto without = [](const auto& list, const auto& other) {
      std::vector<std::string> rest;
      for (const std::string& name : list)
        if (std::find(other.begin(), other.end(), name) == other.end()) rest.push_back(name);
      return rest;
    };
    const std::vector<std::string> missing = without(known.columns, now), extra = without(now, known.columns);
    if (!missing.empty() || !extra.empty())
      return Status::error("{}: its columns are not those that the model was trained on: {}{}{}{}{}",
                           r_.spec.path, missing.empty() ? "" : "it has no ",
                           missing.empty() ? "" : listed(missing),
                           missing.empty() || extra.empty() ? "" : "; ", extra.empty() ? "" : listed(extra),
                           extra.empty()       ? ""
                           : extra.size() == 1 ? " was not there"
                                               : " were not there");
    if (now == known.columns) return {};
    r_.remark(
        fmt::format("note: {}: its columns stand in another order than in training, and are taken by name",
                    r_.spec.path));
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = static_cast<size_t>(std::find(table.columns.begin(), table.columns.end(), known.columns[i]) -
                                     table.columns.begin());
    return {};
  }

  // The rows of the split, without those that missing=drop leaves out, as far as the limit goes; every number
  // in them is checked.
  Status choose_rows(const Table& table, const std::vector<size_t>& taker, std::vector<size_t>& rows) {
    const size_t features = r_.first_input("f32");
    const auto all = static_cast<size_t>(table.rows());
    const std::string_view split = r_.spec.option("split");
    size_t dropped = 0;
    for (size_t row = 0; row < all; ++row) {
      if (r_.spec.limit && static_cast<int64_t>(rows.size()) == *r_.spec.limit) break;
      if (!split.empty() && (row % 10 == 9) != (split == "test")) continue;
      bool gap = false;
      for (size_t i = 0; i < taker.size(); ++i) {
        const double value = table.at(row, i);
        const auto wrong = [&](std::string_view what) {
          return Status::error("{}:{}: column {} ({}): {}", r_.spec.path, table.lines[row], i + 1,
                               quoted(table.columns[i]), what);
        };
        if (missing_ != "error" && std::isnan(value)) {
          if (missing_ == "mean" && taker[i] != features)
            return wrong(fmt::format(
                "the field is missing, and no mean stands for the input {}; missing=drop leaves the line out",
                quoted(r_.names[taker[i]])));
          gap = true;
        } else if (const std::string_view why = unfit_for_f32(value); !why.empty()) {
          return wrong(fmt::format("{} {}", value, why));
        }
      }
      if (gap && missing_ == "drop")
        ++dropped;
      else
        rows.push_back(row);
    }
    if (dropped > 0)
      r_.remark(fmt::format("note: {}: {} of {} lines have a missing field and are left out", r_.spec.path,
                            dropped, rows.size() + dropped));
    return {};
  }

  // Learns the columns' means, and puts them where a field is missing.
  Status fill_gaps(Table& table, const std::vector<size_t>& order, const std::vector<size_t>& rows) {
    InputFacts& known = r_.facts[r_.names[r_.first_input("f32")]];
    const bool learns = r_.learns && known.fill.empty();
    std::vector<double> means;
    size_t filled = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t column = order[i];
      std::vector<size_t> gaps;
      double first = 0, sum = 0;  // the sum is of differences from the first value
      size_t count = 0;
      for (const size_t row : rows) {
        const double value = table.at(row, column);
        if (std::isnan(value)) {
          gaps.push_back(row);
          continue;
        }
        if (count++ == 0) first = value;
        sum += value - first;
      }
      if (learns) means.push_back(count > 0 ? first + sum / static_cast<double>(count) : 0);
      if (gaps.empty()) continue;
      const std::string place =
          fmt::format("{}: column {} ({})", r_.spec.path, column + 1, quoted(table.columns[column]));
      if (learns && count == 0)
        return Status::error("{}: every field is missing, so there is no mean for missing=mean", place);
      if (!learns && known.fill.empty())
        return Status::error("{}: a field is missing, and no training data have given a mean for it", place);
      filled += gaps.size();
      for (const size_t row : gaps) table.at(row, column) = learns ? means.back() : known.fill[i];
    }
    if (learns) known.fill = std::move(means);
    if (filled > 0)
      r_.remark(fmt::format("note: {}: {} missing field{} column's mean of training", r_.spec.path, filled,
                            filled == 1 ? " has its" : "s have their"));
    return {};
  }

  DataReader& r_;
  const std::string_view missing_;  // what a missing field is: "error", "mean" or "drop"
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
             {"split", "train|test", "", "`test` is every tenth row, `train` the rest (default: all)"},
             {"missing", "error|mean|drop", "error", "what a missing field is"}},
    .read = [](DataReader& r) { return CsvReader(r).read(); },
};

}  // namespace gacc
