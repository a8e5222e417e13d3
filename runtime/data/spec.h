// SPEC, the text that says which data to train on: KIND:REST. REST is cut at commas, so no path may hold a
// comma, while ':' and '=' are fine: a NAME=FILE is cut at its first '='. What a kind takes is in the table
// of data sources (source.h); each takes `,limit=N` for the first N samples too.
#pragma once
#include <map>
#include <vector>

#include "runtime/status.h"

namespace gacc {

struct DataSource;

struct Spec {
  const DataSource* source = nullptr;
  std::string path;  // the folder, the file, or what to generate; empty of NAME=FILE parts
  std::vector<std::pair<std::string, std::string>> files;   // NAME=FILE parts: input and file, as written
  std::optional<int64_t> limit;                             // at least 1
  std::map<std::string, std::string, std::less<>> options;  // those given

  bool has(std::string_view option) const { return options.contains(option); }
  // Returns the given value, else the table's; "" for a key that the source does not have.
  std::string_view option(std::string_view name) const;
  // The parts of an option's value, with a bar between them; none when it has no value.
  std::vector<std::string> parts(std::string_view name) const;
};

Result<Spec> parse_spec(std::string_view text);

// Every file that the data source may read, for training and for testing. None of a text that is no SPEC.
std::vector<std::string> data_files(const std::string& text);

// The forms of all sources, a line each, for --help.
std::string spec_forms();
// The table of docs/data.md.
std::string sources_markdown();

}  // namespace gacc
