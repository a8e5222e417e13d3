// From a SPEC to columns, in three steps: read the files, give their arrays to the plan's inputs, check that
// every value fits. After that a batch can be made of any samples without an error.
#include "runtime/data/dataset.h"

#include <sys/stat.h>

#include <algorithm>

#include "runtime/atomic_file.h"
#include "runtime/data/array.h"
#include "runtime/data/check_values.h"
#include "runtime/data/csv.h"
#include "runtime/data/digits.h"
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
  DatasetReader(const Plan& plan, Dataset& dataset)
      : plan_(plan), dataset_(dataset), sources_(plan.inputs.size()) {
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
      if (status = check_shape(input, source); !status) return status;
      cut_to_limit(source.array);
      if (status = check_elements(input, source); !status) return status;
      std::vector<int64_t> shape(source.array.shape.begin() + 1, source.array.shape.end());
      dataset_.columns.push_back(
          {input.name, source.array.dtype, std::move(shape), std::move(source.array.bytes)});
    }
    return {};
  }

 private:
  // ---- 1 and 2: reading, and giving to inputs

  static Status read_unzipped(const std::string& path, std::string& bytes) {
    if (Status status = read_file(path, bytes); !status) return status;
    return gunzip_in_place(path, bytes);
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
    for (int i = 0; i < 2; ++i) {
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
      if (std::find(present.begin(), present.end(), name) == present.end())
        return Status::error("{}: holds no array {}{}{}", spec_.path, quoted(name), hint(name, present),
                             present.empty() ? "; it is empty" : " (it has " + listed(present) + ")");
    for (NamedArray& named : arrays) {
      auto at = static_cast<size_t>(std::find(names_.begin(), names_.end(), named.name) - names_.begin());
      give(at, fmt::format("{}:{}", spec_.path, quoted(named.name)), std::move(named.array));
    }
    return {};
  }

  // The label column goes to the first i32 input, or, without one, to the second f32 input (a number to be
  // predicted); all others, in order, make the samples of the first f32 input.
  Status read_csv() {
    const std::string& path = spec_.path;
    std::string bytes;
    Table table;
    if (Status status = read_unzipped(path, bytes); !status) return status;
    if (Status status = parse_csv(bytes, path, table); !status) return status;
    bytes = {};
    size_t features = first_input("f32"), target = first_input("i32"), none = plan_.inputs.size();
    if (features == none)
      return Status::error("{}: the columns need an input of dtype f32, and the model has none", path);
    if (target == none) target = first_input("f32", features + 1);
    if (target != none && !spec_.label)
      return Status::error("{}: say which column is the input {}: csv:{},label=COLUMN (it has {})", path,
                           quoted(names_[target]), path, listed(table.columns));
    if (target == none && spec_.label)
      return Status::error("{}: label={} is given, but the model has no second input to take it", path,
                           *spec_.label);
    size_t label = table.columns.size(), columns = table.columns.size();
    if (spec_.label)
      if (Status status = find_column(table, *spec_.label, path, label); !status) return status;
    if (spec_.label && columns == 1)
      return Status::error("{}: the label is its only column; nothing is left for {}", path,
                           quoted(names_[features]));

    const auto rows = static_cast<size_t>(std::min(table.rows(), spec_.limit.value_or(table.rows())));
    std::vector<float> inputs;
    std::vector<double> targets;
    inputs.reserve(rows * columns);
    for (size_t row = 0; row < rows; ++row)
      for (size_t i = 0; i < columns; ++i) {
        double value = table.values[row * columns + i];
        if (const std::string_view why = unfit_for_f32(value); !why.empty())
          return Status::error("{}:{}: column {} ({}): {} {}", path, table.lines[row], i + 1,
                               quoted(table.columns[i]), value, why);
        if (i == label)
          targets.push_back(value);
        else
          inputs.push_back(static_cast<float>(value));
      }
    auto bytes_of = [](const auto& values) {
      auto all = std::as_bytes(std::span(values));
      return std::vector<std::byte>(all.begin(), all.end());
    };
    auto samples = static_cast<int64_t>(rows);
    auto width = static_cast<int64_t>(columns - (spec_.label ? 1 : 0));
    give(features, path, {"f32", {samples, width}, bytes_of(inputs)}, table.lines);
    if (target != none) give(target, path, {"f64", {samples}, bytes_of(targets)}, table.lines);
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

  static Status check_shape(const PlanInput& input, const Source& source) {
    std::span<const int64_t> stored = std::span(source.array.shape).subspan(1);
    int64_t needed = checked_product(input.shape), present = checked_product(stored);
    if (needed != present)
      return Status::error("{}: a sample is {}, {} elements, but the input {} takes {}, {} elements",
                           source.where, shape_text(stored), present, quoted(input.name),
                           shape_text(input.shape), needed);
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

  const Plan& plan_;
  Dataset& dataset_;
  Spec spec_;
  std::vector<std::string> names_;  // of the inputs
  std::vector<Source> sources_;     // in the plan's order
};

}  // namespace

Status load_dataset(std::string_view spec, const Plan& plan, Dataset& dataset) {
  return DatasetReader(plan, dataset).read(spec);
}

}  // namespace gacc
