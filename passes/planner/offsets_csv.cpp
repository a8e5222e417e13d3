// Reading is strict: every field is checked and named, so that a wrong file never becomes a wrong plan.
#include "passes/planner/offsets_csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "passes/planner/graph.h"

namespace gacc::passes::planner {

namespace {

constexpr std::array<std::string_view, 4> kColumns = {"id", "lower", "upper", "size"};

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  size_t from = 0;
  while (true) {
    const size_t comma = line.find(',', from);
    fields.push_back(trim(line.substr(from, comma == std::string_view::npos ? comma : comma - from)));
    if (comma == std::string_view::npos) return fields;
    from = comma + 1;
  }
}

}  // namespace

bool parse_buffers(std::string_view text, BufferTable& table, std::string& problem) {
  table = {};
  std::array<size_t, 4> column{};  // of the file, by kColumns
  size_t columns = 0;
  std::vector<std::array<int64_t, 2>> lives;
  std::set<std::string_view> ids;
  int64_t total = 0;
  int line_number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    if (line.empty()) continue;
    const std::vector<std::string_view> fields = fields_of(line);
    const auto wrong = [&](std::string what) {
      problem = fmt::format("{}: {}", line_number, what);
      return false;
    };
    if (columns == 0) {
      columns = fields.size();
      for (size_t k = 0; k < kColumns.size(); ++k) {
        const auto at = std::ranges::find(fields, kColumns[k]);
        if (at == fields.end())
          return wrong(fmt::format("the header names no column `{}`; it needs id, lower, upper and size",
                                   kColumns[k]));
        if (std::find(at + 1, fields.end(), kColumns[k]) != fields.end())
          return wrong(fmt::format("the header names the column `{}` twice", kColumns[k]));
        column[k] = static_cast<size_t>(at - fields.begin());
      }
      if (std::ranges::find(fields, "offset") != fields.end())
        return wrong("the header has a column `offset`, which is what would be written");
      table.header = line;
      continue;
    }
    if (fields.size() != columns)
      return wrong(fmt::format("{} fields, the header has {}", fields.size(), columns));
    const std::string_view id = fields[column[0]];
    if (id.empty()) return wrong("the id is empty");
    if (!ids.insert(id).second) return wrong(fmt::format("a second buffer with the id `{}`", id));
    std::array<int64_t, 3> values{};
    for (size_t k = 0; k < values.size(); ++k) {
      const std::string_view field = fields[column[k + 1]];
      if (!to_number(field, values[k]))
        return wrong(fmt::format("{} is `{}`, not a whole number", kColumns[k + 1], field));
    }
    const auto [lower, upper, bytes] = values;
    if (lower >= upper)
      return wrong(fmt::format("upper is {}: a buffer lives in [lower, upper), so it must be above lower, {}",
                               upper, lower));
    if (bytes < 0) return wrong(fmt::format("size is {}", bytes));
    if (bytes > kMostBytes || total + bytes > kMostBytes) return wrong("the sizes add up to more than 2^60");
    total += bytes;
    table.rows.emplace_back(line);
    // In unsigned arithmetic: the bounds may lie further apart than 2^63.
    const uint64_t length = static_cast<uint64_t>(upper) - static_cast<uint64_t>(lower);
    table.blocks.push_back({bytes, 0, 0, static_cast<int64_t>(std::min(length, uint64_t{1} << 62))});
    lives.push_back({lower, upper});
  }
  if (columns == 0) {
    problem = "1: the file is empty; its first line names the columns id, lower, upper and size";
    return false;
  }
  std::vector<int64_t> instants;
  for (const auto& life : lives) instants.insert(instants.end(), life.begin(), life.end());
  std::ranges::sort(instants);
  instants.erase(std::unique(instants.begin(), instants.end()), instants.end());
  const auto number = [&](int64_t instant) {
    return static_cast<int>(std::ranges::lower_bound(instants, instant) - instants.begin());
  };
  for (size_t i = 0; i < lives.size(); ++i) {
    table.blocks[i].first = number(lives[i][0]);
    table.blocks[i].last = number(lives[i][1]) - 1;
  }
  return true;
}

std::string print_buffers(const BufferTable& table, const std::vector<int64_t>& offsets) {
  std::string text = table.header + ",offset\n";
  for (size_t i = 0; i < table.rows.size(); ++i) text += fmt::format("{},{}\n", table.rows[i], offsets[i]);
  return text;
}

}  // namespace gacc::passes::planner
