// From a SPEC to columns, in three steps: read the files, give their arrays to the plan's inputs, check that
// every value fits. After that a batch can be made of any samples without an error.
#include "runtime/data/dataset.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/atomic_file.h"
#include "runtime/data/array.h"
#include "runtime/data/check_values.h"
#include "runtime/data/csv.h"
#include "runtime/data/digits.h"
#include "runtime/data/element_types.h"
#include "runtime/data/gzip.h"
#include "runtime/data/spec.h"
#include "runtime/data/text.h"
#include "runtime/data/tokens.h"

namespace gacc {
namespace {

constexpr int64_t kGeneratedSamples = 10000;  // of synthetic:, without a limit

// The array of one input and where it comes from.
struct Source {
  bool present = false;
  std::string where;  // the file, for messages
  Array array;
  std::vector<int64_t> lines;  // csv: the line of each sample, else empty
};

class DatasetReader {
 public:
  DatasetReader(const Plan& plan, DataUse use, DataFacts& facts, Dataset& dataset)
      : plan_(plan),
        use_(use),
        learns_(use == DataUse::training),
        facts_(facts),
        dataset_(dataset),
        sources_(plan.inputs.size()) {
    for (const PlanInput& input : plan.inputs) names_.push_back(input.name);
  }

  Status read(std::string_view text) {
    dataset_ = {};
    if (plan_.inputs.empty()) return Status::error("the model has no inputs to read data for");
    if (Status status = parse_spec(text, spec_); !status) return status;
    const bool generated_tokens = spec_.kind == "synthetic" && spec_.path == "tokens";
    if (spec_.kind == "tokens" || spec_.kind == "text" || generated_tokens) return read_tokens();
    Status status = spec_.kind == "mnist"       ? read_mnist()
                    : spec_.kind == "npz"       ? read_npz()
                    : spec_.kind == "csv"       ? read_csv()
                    : spec_.kind == "synthetic" ? make_synthetic()
                                                : read_named_files();
    if (!status) return status;
    if (status = check_counts(text); !status) return status;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const PlanInput& input = plan_.inputs[i];
      Source& source = sources_[i];
      if (!needed(i)) {
        dataset_.columns.push_back({input.name, {}, {}, {}});
        continue;
      }
      if (status = check_shape(input, source); !status) return status;
      cut_to_limit(source.array);
      if (status = check_elements(input, source); !status) return status;
      std::vector<int64_t> shape(source.array.shape.begin() + 1, source.array.shape.end());
      dataset_.columns.push_back(
          {input.name, source.array.dtype, std::move(shape), std::move(source.array.bytes)});
      if (status = settle(input, source.where, dataset_.columns.back()); !status) return status;
    }
    return {};
  }

 private:
  // ---- 1 and 2: reading, and giving to inputs

  static Status read_unzipped(const std::string& path, std::string& bytes) {
    if (Status status = read_file(path, bytes); !status) return status;
    return gunzip_in_place(path, bytes);
  }

  // Whether the run reads the input.
  bool needed(size_t input) const {
    return use_ != DataUse::prediction || plan_.inputs[input].predict_offset.has_value();
  }

  // The first input of that dtype, from index `from` on; the number of inputs when there is none.
  size_t first_input(std::string_view dtype, size_t from = 0) const {
    while (from < plan_.inputs.size() && plan_.inputs[from].dtype != dtype) ++from;
    return from;
  }

  void give(size_t input, std::string where, Array array, std::vector<int64_t> lines = {}) {
    sources_[input] = {true, std::move(where), std::move(array), std::move(lines)};
  }

  // Images to the first f32 input, labels to the first i32 one. A model may do without the labels.
  Status give_images(std::string image_file, Array images, std::string label_file, Array labels) {
    size_t image = first_input("f32"), label = first_input("i32");
    if (image == plan_.inputs.size())
      return Status::error("{}: the images need an input of dtype f32, and the model has none", image_file);
    give(image, std::move(image_file), std::move(images));
    if (label < plan_.inputs.size()) give(label, std::move(label_file), std::move(labels));
    return {};
  }

  static bool exists(const std::string& path) {
    struct stat info;
    return stat(path.c_str(), &info) == 0;
  }

  Status find_mnist_file(bool labels, std::string& path) const {
    const std::vector<std::string> names = mnist_files(spec_.path, spec_.test, labels);
    for (const std::string& name : names)
      if (exists(path = name)) return {};
    if (!exists(spec_.path)) return Status::error("mnist: there is no folder {}", spec_.path);
    return Status::error("mnist: the folder {} holds no {}, also not as .gz", spec_.path,
                         names[0].substr(spec_.path.size() + 1));
  }

  Status read_mnist() {
    std::string paths[2];
    Array arrays[2];
    const size_t label = first_input("i32");
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && label < plan_.inputs.size() && !needed(label)) break;
      if (Status status = find_mnist_file(i == 1, paths[i]); !status) return status;
      std::string bytes;
      if (Status status = read_unzipped(paths[i], bytes); !status) return status;
      if (Status status = parse_idx(bytes, paths[i], arrays[i]); !status) return status;
    }
    return give_images(paths[0], std::move(arrays[0]), paths[1], std::move(arrays[1]));
  }

  Status make_synthetic() {
    constexpr int64_t kMost = int64_t{1} << 24;  // 12 GiB of pixels
    int64_t samples = spec_.limit.value_or(kGeneratedSamples);
    if (samples > kMost)
      return Status::error("synthetic:digits makes at most {} samples, not {}", kMost, samples);
    Array images, labels;
    make_digits(samples, static_cast<uint64_t>(plan_.seed), spec_.test, images, labels);
    return give_images("synthetic:digits", std::move(images), "synthetic:digits", std::move(labels));
  }

  // tokens:, text: and synthetic:tokens, which make their columns themselves: the second i32 input is the
  // first one, a token later.
  Status read_tokens() {
    const size_t none = plan_.inputs.size();
    const size_t first = first_input("i32"), second = first_input("i32", std::min(first + 1, none));
    if (second == none)
      return Status::error("{}: needs an i32 input for the tokens and a second one for the targets",
                           spec_.kind);
    for (size_t i = 0; i < none; ++i) {
      const PlanInput& input = plan_.inputs[i];
      if (i != first && i != second)
        return Status::error("{}: gives tokens and targets; there is nothing for the input {}", spec_.kind,
                             quoted(input.name));
      if (input.shape.size() != 1 || input.shape != plan_.inputs[first].shape)
        return Status::error(
            "{}: tokens and targets come in windows of one length; the inputs {} and {} have the shapes {} "
            "and {}",
            spec_.kind, quoted(names_[first]), quoted(names_[second]), shape_text(plan_.inputs[first].shape),
            shape_text(plan_.inputs[second].shape));
    }
    const int64_t length = plan_.inputs[first].shape[0];
    dataset_.columns.resize(none);
    if (spec_.kind == "synthetic") {
      if (Status status = make_tokens(first, second, length); !status) return status;
    } else {
      if (Status status = read_windows(first, second, length); !status) return status;
    }
    for (const size_t i : {first, second}) {
      dataset_.columns[i].name = names_[i];
      if (Status status = check_tokens(i, i == second); !status) return status;
    }
    return {};
  }

  // No sniffing for gzip here: any two bytes may be a token.
  Status read_windows(size_t first, size_t second, int64_t length) {
    const bool text = spec_.kind == "text";
    const StreamPart part = !spec_.split ? StreamPart::all
                            : spec_.test ? StreamPart::test
                                         : StreamPart::train;
    std::string bytes;
    TokenWindows cut;
    if (Status status = read_file(spec_.path, bytes); !status) return status;
    if (spec_.path.ends_with(".gz"))
      if (Status status = gunzip_in_place(spec_.path, bytes); !status) return status;
    if (Status status = cut_tokens(bytes, spec_.path, text ? "u8" : "u16", part, length, spec_.limit, cut);
        !status)
      return status;
    dataset_.samples = cut.windows;
    const auto each = static_cast<size_t>(element_bytes(cut.dtype));
    dataset_.columns[first] = {{}, cut.dtype, {length}, std::move(cut.bytes)};
    dataset_.columns[second] = {{}, cut.dtype, {length}, {}, first, each};
    return {};
  }

  Status make_tokens(size_t first, size_t second, int64_t length) {
    constexpr int64_t kMost = int64_t{1} << 32;  // tokens
    dataset_.samples = spec_.limit.value_or(kGeneratedSamples);
    if (length >= kMost || dataset_.samples > kMost / (length + 1))
      return Status::error("synthetic:tokens makes at most {} tokens, not {} times {}", kMost,
                           dataset_.samples, length);
    const int64_t range =
        std::min(plan_.inputs[first].range.value_or(256), plan_.inputs[second].range.value_or(256));
    const std::vector<std::byte> both =
        make_token_windows(dataset_.samples, length, range, static_cast<uint64_t>(plan_.seed), spec_.test);
    for (const size_t i : {first, second}) {
      Column& column = dataset_.columns[i] = {{}, "u8", {length}, {}};
      const int64_t shift = i == second ? 1 : 0;
      for (int64_t sample = 0; sample < dataset_.samples; ++sample) {
        const auto* from = both.data() + sample * (length + 1) + shift;
        column.bytes.insert(column.bytes.end(), from, from + length);
      }
    }
    return {};
  }

  Status check_tokens(size_t input, bool target) const {
    const Column& column = dataset_.columns[input];
    const auto place = [&](int64_t i) {
      if (spec_.kind == "synthetic") return fmt::format("synthetic:tokens: token {}", i);
      return fmt::format("{}: token {}{}", spec_.path, i + (target ? 1 : 0),
                         spec_.test ? " of the last 10 %" : "");
    };
    return check_values(plan_.inputs[input], column.dtype, dataset_.bytes(input), place);
  }

  Status read_named_files() {
    for (const auto& [name, path] : spec_.files) {
      auto found = std::find(names_.begin(), names_.end(), name);
      if (found == names_.end())
        return Status::error("{}: the model has no input {}{} (it has {})", path, quoted(name),
                             hint(name, names_), listed(names_));
      std::string bytes;
      Array array;
      if (Status status = read_unzipped(path, bytes); !status) return status;
      Status status = spec_.kind == "idx" ? parse_idx(bytes, path, array) : parse_npy(bytes, path, array);
      if (!status) return status;
      give(static_cast<size_t>(found - names_.begin()), path, std::move(array));
    }
    return {};
  }

  Status read_npz() {
    std::string bytes;
    std::vector<NamedArray> arrays;
    std::vector<std::string> present;
    if (Status status = read_file(spec_.path, bytes); !status) return status;
    if (Status status = parse_npz(bytes, spec_.path, &names_, arrays, present); !status) return status;
    for (const std::string& name : names_)
      if (needed(static_cast<size_t>(&name - names_.data())) &&
          std::find(present.begin(), present.end(), name) == present.end())
        return Status::error("{}: holds no array {}{}{}", spec_.path, quoted(name), hint(name, present),
                             present.empty() ? "; it is empty" : " (it has " + listed(present) + ")");
    for (NamedArray& named : arrays) {
      auto at = static_cast<size_t>(std::find(names_.begin(), names_.end(), named.name) - names_.begin());
      give(at, fmt::format("{}:{}", spec_.path, quoted(named.name)), std::move(named.array));
    }
    return {};
  }

  // ---- csv: columns by name

  // An i32 input that is named like a column takes it. The label column goes to the first i32 input that has
  // none, or, without one, to the second f32 input (a number to be predicted); all others make the samples of
  // the first f32 input.
  Status read_csv() {
    std::string bytes;
    Table table;
    if (Status status = read_unzipped(spec_.path, bytes); !status) return status;
    const bool gaps = spec_.missing != Missing::error;
    if (Status status = parse_csv(bytes, spec_.path, table, spec_.separator, gaps); !status) return status;
    bytes = {};
    std::vector<size_t> taker;  // of each column; the first f32 input's where nothing else takes it
    if (Status status = give_columns(table, taker); !status) return status;
    const size_t features = first_input("f32");
    std::vector<size_t> order;  // of the features, in the table
    for (size_t i = 0; i < taker.size(); ++i)
      if (taker[i] == features) order.push_back(i);
    if (order.empty())
      return Status::error("{}: no column is left for {}", spec_.path, quoted(names_[features]));
    if (Status status = order_features(table, order); !status) return status;
    std::vector<size_t> rows;
    if (Status status = choose_rows(table, taker, rows); !status) return status;
    if (Status status = fill_gaps(table, order, rows); !status) return status;

    const auto samples = static_cast<int64_t>(rows.size());
    std::vector<int64_t> lines;
    for (const size_t row : rows) lines.push_back(table.lines[row]);
    const auto take = [&]<class T>(T, const std::vector<size_t>& columns) {
      std::vector<T> values;
      for (const size_t row : rows)
        for (const size_t column : columns) values.push_back(static_cast<T>(table.at(row, column)));
      const auto all = std::as_bytes(std::span(values));
      return std::vector<std::byte>(all.begin(), all.end());
    };
    give(features, spec_.path, {"f32", {samples, static_cast<int64_t>(order.size())}, take(float{}, order)},
         lines);
    for (size_t i = 0; i < taker.size(); ++i)
      if (taker[i] != features) give(taker[i], spec_.path, {"f64", {samples}, take(double{}, {i})}, lines);
    return {};
  }

  // Which input takes each column.
  Status give_columns(const Table& table, std::vector<size_t>& taker) {
    const std::string& path = spec_.path;
    const size_t none = plan_.inputs.size(), features = first_input("f32");
    if (features == none)
      return Status::error("{}: the columns need an input of dtype f32, and the model has none", path);
    taker.assign(table.columns.size(), features);
    std::vector<bool> taken(none);
    for (size_t i = first_input("i32"); i < none; i = first_input("i32", i + 1)) {
      const auto found = std::find(table.columns.begin(), table.columns.end(), names_[i]);
      if (found == table.columns.end()) continue;
      taker[static_cast<size_t>(found - table.columns.begin())] = i;
      taken[i] = true;
    }
    size_t target = first_input("i32");
    while (target < none && taken[target]) target = first_input("i32", target + 1);
    if (target == none) target = first_input("f32", features + 1);
    if (!spec_.label) {
      if (target == none || !needed(target)) return {};
      return Status::error("{}: say which column is the input {}: csv:{},label=COLUMN (it has {})", path,
                           quoted(names_[target]), path, listed(table.columns));
    }
    size_t label = 0;
    if (Status status = find_column(table, *spec_.label, path, label); !status) return status;
    if (taker[label] != features) return {};  // an input of that name has it
    if (target != none) {
      taker[label] = target;
      return {};
    }
    const auto named = std::find(taken.begin(), taken.end(), true);
    if (named == taken.end())
      return Status::error("{}: label={} is given, but the model has no second input to take it", path,
                           *spec_.label);
    const std::string& name = names_[static_cast<size_t>(named - taken.begin())];
    return Status::error("{}: label={} is given, but the input {} takes the column of its own name", path,
                         *spec_.label, quoted(name));
  }

  // The feature columns in the order of training; other columns than there are an error.
  Status order_features(const Table& table, std::vector<size_t>& order) {
    InputFacts& known = facts_[names_[first_input("f32")]];
    std::vector<std::string> now;
    for (const size_t column : order) now.push_back(table.columns[column]);
    if (known.columns.empty()) {
      if (learns_) known.columns = now;
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
                           spec_.path, missing.empty() ? "" : "it has no ",
                           missing.empty() ? "" : listed(missing),
                           missing.empty() || extra.empty() ? "" : "; ", extra.empty() ? "" : listed(extra),
                           extra.empty()       ? ""
                           : extra.size() == 1 ? " was not there"
                                               : " were not there");
    if (now == known.columns) return {};
    dataset_.remarks.push_back(fmt::format(
        "note: {}: its columns stand in another order than in training, and are taken by name", spec_.path));
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = static_cast<size_t>(std::find(table.columns.begin(), table.columns.end(), known.columns[i]) -
                                     table.columns.begin());
    return {};
  }

  // The rows of the split, without those that missing=drop leaves out, as far as the limit goes; every number
  // in them is checked.
  Status choose_rows(const Table& table, const std::vector<size_t>& taker, std::vector<size_t>& rows) {
    const size_t features = first_input("f32");
    const auto all = static_cast<size_t>(table.rows());
    size_t dropped = 0;
    for (size_t row = 0; row < all; ++row) {
      if (spec_.limit && static_cast<int64_t>(rows.size()) == *spec_.limit) break;
      if (spec_.split && (row % 10 == 9) != spec_.test) continue;
      bool gap = false;
      for (size_t i = 0; i < taker.size(); ++i) {
        const double value = table.at(row, i);
        const auto wrong = [&](std::string_view what) {
          return Status::error("{}:{}: column {} ({}): {}", spec_.path, table.lines[row], i + 1,
                               quoted(table.columns[i]), what);
        };
        if (spec_.missing != Missing::error && std::isnan(value)) {
          if (spec_.missing == Missing::mean && taker[i] != features)
            return wrong(
                fmt::format("the field is missing, and no mean stands for the input {}; missing=drop "
                            "leaves the line out",
                            quoted(names_[taker[i]])));
          gap = true;
        } else if (const std::string_view why = unfit_for_f32(value); !why.empty()) {
          return wrong(fmt::format("{} {}", value, why));
        }
      }
      if (gap && spec_.missing == Missing::drop)
        ++dropped;
      else
        rows.push_back(row);
    }
    if (dropped > 0)
      dataset_.remarks.push_back(fmt::format("note: {}: {} of {} lines have a missing field and are left out",
                                             spec_.path, dropped, rows.size() + dropped));
    return {};
  }

  // Learns the columns' means, and puts them where a field is missing.
  Status fill_gaps(Table& table, const std::vector<size_t>& order, const std::vector<size_t>& rows) {
    InputFacts& known = facts_[names_[first_input("f32")]];
    const bool learns = learns_ && known.fill.empty();
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
          fmt::format("{}: column {} ({})", spec_.path, column + 1, quoted(table.columns[column]));
      if (learns && count == 0)
        return Status::error("{}: every field is missing, so there is no mean for missing=mean", place);
      if (!learns && known.fill.empty())
        return Status::error("{}: a field is missing, and no training data have given a mean for it", place);
      filled += gaps.size();
      for (const size_t row : gaps) table.at(row, column) = learns ? means.back() : known.fill[i];
    }
    if (learns) known.fill = std::move(means);
    if (filled > 0)
      dataset_.remarks.push_back(fmt::format("note: {}: {} missing field{} column's mean of training",
                                             spec_.path, filled, filled == 1 ? " has its" : "s have their"));
    return {};
  }

  // ---- 3: checking

  Status check_counts(std::string_view text) {
    std::vector<std::string> given;
    for (size_t i = 0; i < sources_.size(); ++i)
      if (sources_[i].present) given.push_back(names_[i]);
    const Source* first = nullptr;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const Source& source = sources_[i];
      if (!needed(i)) continue;
      if (!source.present)
        return Status::error("data {}: nothing is given for the input {}{}", quoted(text), quoted(names_[i]),
                             given.empty() ? "" : ", only for " + listed(given));
      if (!first) first = &source;
      if (source.array.samples() == 0) return Status::error("{}: holds no samples", source.where);
      if (source.array.samples() != first->array.samples())
        return Status::error("{} has {} samples, but {} has {}", source.where, source.array.samples(),
                             first->where, first->array.samples());
    }
    dataset_.samples = first->array.samples();
    if (spec_.limit) dataset_.samples = std::min(dataset_.samples, *spec_.limit);
    return {};
  }

  // The shape without its axes of extent 1, which say nothing of the order of elements.
  static std::vector<int64_t> squeezed(std::span<const int64_t> shape) {
    std::vector<int64_t> rest;
    std::copy_if(shape.begin(), shape.end(), std::back_inserter(rest), [](int64_t n) { return n != 1; });
    return rest;
  }

  // Equal shapes, up to axes of extent 1, or either of them flat: nothing else has its elements in that
  // order.
  static Status check_shape(const PlanInput& input, const Source& source) {
    std::span<const int64_t> stored = std::span(source.array.shape).subspan(1);
    int64_t needed = checked_product(input.shape), present = checked_product(stored);
    if (needed != present)
      return Status::error("{}: a sample is {}, {} elements, but the input {} takes {}, {} elements",
                           source.where, shape_text(stored), present, quoted(input.name),
                           shape_text(input.shape), needed);
    const std::vector<int64_t> have = squeezed(stored), want = squeezed(input.shape);
    if (have != want && have.size() > 1 && want.size() > 1) {
      const bool channels_last = stored.size() == 3 && input.shape.size() == 3 &&
                                 input.shape == std::vector{stored[2], stored[0], stored[1]};
      return Status::error("{}: a sample is {}, but the input {} takes {}{}", source.where,
                           shape_text(stored), quoted(input.name), shape_text(input.shape),
                           channels_last ? ": HWC? permute to CHW (in numpy: x.transpose(0, 3, 1, 2))"
                                         : "; only axes of extent 1 may differ, or one of them be flat");
    }
    for (const std::vector<double>* list : {&input.mean, &input.std})
      if (list->size() > 1 && (input.shape.empty() || static_cast<int64_t>(list->size()) != input.shape[0]))
        return Status::error("the input {} of shape {} cannot be normalised with {} numbers",
                             quoted(input.name), shape_text(input.shape), list->size());
    return {};
  }

  void cut_to_limit(Array& array) const {
    if (array.samples() == dataset_.samples) return;
    array.bytes.resize(array.bytes.size() / static_cast<size_t>(array.samples()) *
                       static_cast<size_t>(dataset_.samples));
    array.bytes.shrink_to_fit();
    array.shape[0] = dataset_.samples;
  }

  // "F: sample 3", "F: sample 3 at [0, 14]" or, in a csv file, "F:5".
  static std::string place(const Source& source, int64_t element) {
    const std::span<const int64_t> shape = std::span(source.array.shape).subspan(1);
    const int64_t each = checked_product(shape), sample = element / each;
    if (!source.lines.empty())
      return fmt::format("{}:{}", source.where, source.lines[static_cast<size_t>(sample)]);
    const std::string at = each > 1 ? " at " + index_text(shape, element % each) : "";
    return fmt::format("{}: sample {}{}", source.where, sample, at);
  }

  static Status check_elements(const PlanInput& input, const Source& source) {
    return check_values(input, source.array.dtype, source.array.bytes,
                        [&](int64_t element) { return place(source, element); });
  }

  // ---- facts

  // Applies what is known of the input's data, and learns what is not.
  Status settle(const PlanInput& input, const std::string& where, Column& column) {
    if (input.dtype != "f32") return {};
    InputFacts& known = facts_[input.name];
    warn_of_scale(input, where, column, known.dtype);
    if (learns_) known.dtype = column.dtype;
    if (!input.normalize_data) return {};
    if (known.mean.empty()) {
      if (!learns_)
        return Status::error(
            "{}: the input {} is normalised by its training data, and nothing says how: give "
            "--data, or --load a file that gacc-exec has saved after training",
            where, quoted(input.name));
      learn_statistics(column.dtype, column.bytes, input.shape, known);
    }
    column.mean = known.mean;
    column.std = known.std;
    return {};
  }

  // u8 is scaled by 1/255 and no other type is: whoever has one in training and another one later, or images
  // of another integer type, may not have meant it.
  void warn_of_scale(const PlanInput& input, const std::string& where, const Column& column,
                     std::string_view before) {
    const auto is_integer = [](std::string_view dtype) { return !dtype.starts_with('f'); };
    if (column.dtype == "u8") {
      if (!before.empty() && before != "u8" && is_integer(before))
        dataset_.remarks.push_back(fmt::format(
            "warning: {}: u8 is scaled by 1/255, and the {} that the input {} was trained on is not", where,
            before, quoted(input.name)));
      return;
    }
    const bool image = std::max(column.shape.size(), input.shape.size()) > 1;
    const bool fixed = input.normalize_data || !input.mean.empty() || !input.std.empty();
    if (before != "u8" && !(is_integer(column.dtype) && before.empty() && image && !fixed)) return;
    double low = 0, high = 0;
    visit_elements(column.dtype, column.bytes, [&](const auto& values) {
      for (const auto value : values) {
        low = std::min(low, static_cast<double>(value));
        high = std::max(high, static_cast<double>(value));
      }
    });
    if (high <= 1 || (before != "u8" && (low < 0 || high > 255))) return;
    dataset_.remarks.push_back(
        fmt::format("warning: {}: {} up to {} for the input {} is taken as it is, {} scaled by 1/255", where,
                    column.dtype, high, quoted(input.name),
                    before == "u8" ? "and the u8 that it was trained on is" : "where u8 would be"));
  }

  const Plan& plan_;
  const DataUse use_;
  const bool learns_;
  DataFacts& facts_;
  Dataset& dataset_;
  Spec spec_;
  std::vector<std::string> names_;  // of the inputs
  std::vector<Source> sources_;     // in the plan's order
};

}  // namespace

Status load_dataset(std::string_view spec, const Plan& plan, DataUse use, DataFacts& facts,
                    Dataset& dataset) {
  return DatasetReader(plan, use, facts, dataset).read(spec);
}

Status load_dataset(std::string_view spec, const Plan& plan, Dataset& dataset) {
  DataFacts facts;
  return load_dataset(spec, plan, DataUse::training, facts, dataset);
}

}  // namespace gacc
