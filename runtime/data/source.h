// The table of data sources: sources.def names them, they are in runtime/data/sources/. A source says what
// its SPEC looks like, and reads arrays and gives them to the plan's inputs; checks of counts, shapes and
// values follow for all alike (dataset.cpp).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/array.h"
#include "runtime/data/data_facts.h"
#include "runtime/data/dataset.h"
#include "runtime/data/spec.h"
#include "runtime/plan.h"
#include "runtime/status.h"

namespace gacc {

class DataReader;

// An option of a SPEC, `,NAME=VALUE`.
struct SpecKey {
  std::string_view name;
  std::string_view form;       // "COLUMN": any text; "train|test": one of these words
  std::string_view otherwise;  // the value when it is not given; "": none
  std::string_view says;       // for docs/data.md
  // Says what is wrong with the value, "" when nothing is; may replace it.
  std::string (*check)(std::string& value) = nullptr;
};

struct DataSource {
  std::string_view name;  // of the kind
  std::string_view
      path;  // what the SPEC begins with: "DIR", "FILE", words ("digits|tokens"); "": NAME=FILE parts
  std::string_view says;  // what it gives, for docs/data.md
  std::vector<SpecKey> keys{};
  // The files it may read, where these are not the path or the NAME=FILE parts.
  std::vector<std::string> (*files)(const Spec& spec) = nullptr;
  Status (*read)(DataReader& reader) = nullptr;
};

namespace sources {
#define X(name) extern const DataSource name;
#include "runtime/data/sources.def"
#undef X
}  // namespace sources

const std::vector<const DataSource*>& all_sources();  // in the order of sources.def

// A stream of tokens is cut into windows: the first input of a sample is one window of the stream, the second
// the same window one token later. Samples follow each other without a gap: the window after a window starts
// where it ended, so sample i begins at token i * length, and its last target is the first token of the next.
struct TokenWindows {
  int64_t windows = 0;  // at least 1
  size_t first = 0;     // byte of the stream at which they begin: windows * length + 1 tokens
};

// Cuts a stream of `bytes` bytes, little-endian tokens of `dtype`, into windows of `length` >= 1 tokens, at
// most `limit` of them; tokens left over at the end are not used. Of the split "train" are the first 90 % of
// the tokens (rounded down), of "test" what these leave, of "" all. Errors call the stream `name`.
Result<TokenWindows> cut_tokens(int64_t bytes, std::string_view name, std::string_view dtype,
                                std::string_view split, int64_t length, std::optional<int64_t> limit);

// Says whether a row of a table is of the split: "test" are the rows whose number mod 10 is 9, "train" the others.
inline bool is_of_split(int64_t row, std::string_view split) { return (row % 10 == 9) == (split == "test"); }

// The key `split` of sources whose samples are rows.
inline const SpecKey kSplitRows = {"split", "train|test", "",
                                   "`test` is every tenth row, `train` the rest (default: all)"};

// The reading side of a source, and the receiver of its arrays.
class DataReader {
 public:
  DataReader(const Plan& plan, DataUse use, DataFacts& facts, Dataset& dataset, const Spec& spec)
      : plan(plan),
        spec(spec),
        facts(facts),
        learns(use == DataUse::training),
        use_(use),
        dataset_(dataset),
        given_(plan.inputs.size()) {
    for (const PlanInput& input : plan.inputs) {
      names.push_back(input.name);
      dataset_.columns.emplace_back().name = input.name;
    }
  }

  const Plan& plan;
  const Spec& spec;
  DataFacts& facts;                // of earlier data, to be held to or to be learnt ...
  const bool learns;               // ... as this says
  std::vector<std::string> names;  // of the inputs

  bool needed(size_t input) const;  // whether the run reads the input
  // The first input of that dtype, from index `from` on; the number of inputs when there is none.
  size_t first_input(DType dtype, size_t from = 0) const;

  // `where`: the file, for messages; `place`: where an element stands, if this is not a sample and an index.
  void give(size_t input, std::string where, Array array, Place place = {});
  // Gives the rows of split=train|test: of the array's samples, those whose number mod 10 is 9, or the others.
  Status give_split(size_t input, std::string where, Array array);
  // Images to the first f32 input, labels to the first i32 one. A model may do without the labels.
  Status give_images(std::string image_file, Array images, std::string label_file, Array labels);
  // The first i32 inputs, of equal length: tokens, tokens one later, and, where the SPEC has `end`, documents.
  Result<std::vector<size_t>> token_inputs() const;
  // Says that the data have the input, whatever else is wrong with them.
  void found(size_t input) { dataset_.columns[input].found = true; }
  // Says which rows of the table the samples are.
  void give_rows(std::vector<int64_t> rows) { dataset_.rows = std::move(rows); }
  void remark(std::string text) { dataset_.remarks.push_back(std::move(text)); }

  // Every NAME=FILE part, by a parser of `array.h`.
  using Parse = Status (*)(std::string_view bytes, std::string_view name, Array& array, const SharedFile& in);
  Status read_named(Parse parse);
  // The file `spec.path` as a stream of tokens of `dtype`, in windows; `split` takes a part.
  Status read_windows(std::string_view dtype);
  // The documents of these windows, which a token ends.
  Result<Array> documents(const TokenWindows& windows, const FileBytes& file, std::string_view dtype,
                          int64_t length) const;
  // Fails where a file of tokens is of another format, or its numbers have another width.
  Status check_format(std::string_view text, std::string_view dtype, const PlanInput& tokens);
  // The whole file, unzipped if it is gzipped.
  static Result<SharedFile> read_unzipped(const std::string& path);

  Status finish(std::string_view text);  // the columns, of all that has been given

 private:
  struct Given {
    std::string where;
    int64_t samples = 0;
    int64_t all = 0;  // of both splits, where the samples are of one
  };
  Status check_counts(std::string_view text);
  Status check_shape(size_t input) const;
  Status check_next_tokens() const;
  Status settle(size_t input);
  Status settle_weights(size_t input);
  void warn_of_scale(size_t input, std::string_view before);

  const DataUse use_;
  Dataset& dataset_;
  std::vector<Given> given_;  // in the plan's order, of the columns that are present
};

}  // namespace gacc
