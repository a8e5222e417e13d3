// From a SPEC to columns, in three steps: a source reads files and gives arrays to the plan's inputs, then
// all are checked. After that a batch can be made of any samples without an error.
#include "runtime/data/dataset.h"

#include <algorithm>

#include "runtime/atomic_file.h"
#include "runtime/data/element_types.h"
#include "runtime/data/gzip.h"
#include "runtime/data/source.h"
#include "runtime/data/text.h"
#include "runtime/data/tokens.h"

namespace gacc {

// ---- what sources read with

bool DataReader::needed(size_t input) const {
  return use_ != DataUse::prediction || plan.inputs[input].predict_offset.has_value();
}

size_t DataReader::first_input(std::string_view dtype, size_t from) const {
  while (from < plan.inputs.size() && plan.inputs[from].dtype != dtype) ++from;
  return from;
}

void DataReader::give(size_t input, std::string where, Array array, Place place) {
  given_[input] = {std::move(where), std::move(array), std::move(place)};
}

Status DataReader::give_images(std::string image_file, Array images, std::string label_file, Array labels) {
  const size_t image = first_input("f32"), label = first_input("i32");
  if (image == plan.inputs.size())
    return Status::error("{}: the images need an input of dtype f32, and the model has none", image_file);
  give(image, std::move(image_file), std::move(images));
  if (label < plan.inputs.size()) give(label, std::move(label_file), std::move(labels));
  return {};
}

Status DataReader::token_inputs(size_t& first, size_t& second) const {
  const std::string_view kind = spec.source->name;
  const size_t none = plan.inputs.size();
  first = first_input("i32");
  second = first_input("i32", std::min(first + 1, none));
  if (second == none)
    return Status::error("{}: needs an i32 input for the tokens and a second one for the targets", kind);
  for (size_t i = 0; i < none; ++i) {
    const PlanInput& input = plan.inputs[i];
    if (i != first && i != second)
      return Status::error("{}: gives tokens and targets; there is nothing for the input {}", kind,
                           quoted(input.name));
    if (input.shape.size() != 1 || input.shape != plan.inputs[first].shape)
      return Status::error(
          "{}: tokens and targets come in windows of one length; the inputs {} and {} have the shapes {} and "
          "{}",
          kind, quoted(names[first]), quoted(names[second]), shape_text(plan.inputs[first].shape),
          shape_text(plan.inputs[second].shape));
  }
  return {};
}

Result<SharedFile> DataReader::read_unzipped(const std::string& path) {
  std::string bytes = GACC_TRY(read_file(path));
  GACC_TRY(gunzip_in_place(path, bytes));
  return SharedFile(std::make_shared<FileBytes>(std::move(bytes)));
}

Status DataReader::read_named(Parse parse) {
  for (const auto& [name, path] : spec.files) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end())
      return Status::error("{}: the model has no input {}{} (it has {})", path, quoted(name),
                           hint(name, names), listed(names));
    Array array;
    SharedFile file = GACC_TRY(FileBytes::open(path));
    if (is_gzip(file->text())) file = GACC_TRY(read_unzipped(path));
    GACC_TRY(parse(file->text(), path, array, file->mapped() ? file : SharedFile()));
    give(static_cast<size_t>(found - names.begin()), path, std::move(array));
  }
  return {};
}

// No sniffing for gzip here: any two bytes may be a token.
Status DataReader::read_windows(std::string_view dtype) {
  size_t first = 0, second = 0;
  GACC_TRY(token_inputs(first, second));
  const int64_t length = plan.inputs[first].shape[0];
  const std::string_view split = spec.option("split");
  const StreamPart part = split.empty()     ? StreamPart::all
                          : split == "test" ? StreamPart::test
                                            : StreamPart::train;
  TokenWindows windows;
  const bool zipped = spec.path.ends_with(".gz");
  const SharedFile file = GACC_TRY(zipped ? read_unzipped(spec.path) : FileBytes::open(spec.path));
  const auto size = static_cast<int64_t>(file->text().size());
  GACC_TRY(cut_tokens(size, spec.path, dtype, part, length, spec.limit, windows));
  for (const size_t i : {first, second}) {
    const int64_t later = i == second ? 1 : 0;
    const size_t begin = windows.first + static_cast<size_t>(later * element_bytes(dtype));
    give(i, spec.path, {std::string(dtype), {windows.windows, length}, {}, file, begin},
         [path = spec.path, part, later](int64_t element) {
           return fmt::format("{}: token {}{}", path, element + later,
                              part == StreamPart::test ? " of the last 10 %" : "");
         });
  }
  return {};
}

// ---- checking

namespace {

// The shape without its axes of extent 1, which say nothing of the order of elements.
std::vector<int64_t> squeezed(std::span<const int64_t> shape) {
  std::vector<int64_t> rest;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(rest), [](int64_t n) { return n != 1; });
  return rest;
}

// Equal shapes, up to axes of extent 1, or either of them flat: nothing else has its elements in that
// order.
Status check_shape(const PlanInput& input, const SourceArray& source) {
  const std::span<const int64_t> stored = std::span(source.array.shape).subspan(1);
  const int64_t needed = checked_product(input.shape), present = checked_product(stored);
  if (needed != present)
    return Status::error("{}: a sample is {}, {}, but the input {} takes {}, {}", source.where,
                         shape_text(stored), counted(present, "element"), quoted(input.name),
                         shape_text(input.shape), counted(needed, "element"));
  const std::vector<int64_t> have = squeezed(stored), want = squeezed(input.shape);
  if (have != want && have.size() > 1 && want.size() > 1) {
    const bool channels_last = stored.size() == 3 && input.shape.size() == 3 &&
                               input.shape == std::vector{stored[2], stored[0], stored[1]};
    return Status::error("{}: a sample is {}, but the input {} takes {}{}", source.where, shape_text(stored),
                         quoted(input.name), shape_text(input.shape),
                         channels_last ? ": HWC? permute to CHW (in numpy: x.transpose(0, 3, 1, 2))"
                                       : "; only axes of extent 1 may differ, or one of them be flat");
  }
  return {};
}

// "F: sample 3", "F: sample 3 at [0, 14]"
Place sample_place(const std::string& where, std::span<const int64_t> shape) {
  return [where, each = checked_product(shape), shape = std::vector(shape.begin(), shape.end())](int64_t i) {
    const std::string at = each > 1 ? " at " + index_text(shape, i % each) : "";
    return fmt::format("{}: sample {}{}", where, i / each, at);
  };
}

}  // namespace

Status DataReader::check_counts(std::string_view text) {
  std::vector<std::string> given;
  for (size_t i = 0; i < given_.size(); ++i)
    if (given_[i]) given.push_back(names[i]);
  const SourceArray* first = nullptr;
  for (size_t i = 0; i < given_.size(); ++i) {
    if (!needed(i)) continue;
    if (!given_[i])
      return Status::error("data {}: nothing is given for the input {}{}", quoted(text), quoted(names[i]),
                           given.empty() ? "" : ", only for " + listed(given));
    const SourceArray& source = *given_[i];
    if (!first) first = &source;
    if (source.array.samples() == 0) return Status::error("{}: holds no samples", source.where);
    if (source.array.samples() != first->array.samples())
      return Status::error("{} has {}, but {} has {}", source.where,
                           counted(source.array.samples(), "sample"), first->where, first->array.samples());
  }
  dataset_.samples = first->array.samples();
  if (spec.limit) dataset_.samples = std::min(dataset_.samples, *spec.limit);
  return {};
}

Status DataReader::finish(std::string_view text) {
  GACC_TRY(check_counts(text));
  for (size_t i = 0; i < given_.size(); ++i) {
    const PlanInput& input = plan.inputs[i];
    Column& column = dataset_.columns.emplace_back();
    column.name = input.name;
    if (!needed(i)) continue;
    SourceArray& source = *given_[i];
    Array& array = source.array;
    GACC_TRY(check_shape(input, source));
    if (!array.file && array.samples() > dataset_.samples) {  // the limit
      const size_t each = array.bytes.size() / static_cast<size_t>(array.samples());
      array.bytes.resize(each * static_cast<size_t>(dataset_.samples));
      array.bytes.shrink_to_fit();
    }
    array.shape[0] = dataset_.samples;
    column.dtype = array.dtype;
    column.shape.assign(array.shape.begin() + 1, array.shape.end());
    column.bytes = std::move(array.bytes);
    column.file = std::move(array.file);
    column.first = array.first;
    if (!source.place) source.place = sample_place(source.where, column.shape);
    const std::span<const std::byte> values = dataset_.bytes(i);
    GACC_TRY(column.on_disk() ? Status() : check_values(input, column.dtype, values, source.place));
    column.place = std::move(source.place);
    GACC_TRY(settle(input, source.where, column, values));
  }
  return {};
}

// ---- facts

// Applies what is known of the input's data, and learns what is not.
Status DataReader::settle(const PlanInput& input, const std::string& where, Column& column,
                          std::span<const std::byte> values) {
  if (input.dtype != "f32") return {};
  InputFacts& known = facts[input.name];
  warn_of_scale(input, where, column, values, known.dtype);
  if (learns) known.dtype = column.dtype;
  if (!input.normalize_data) return {};
  if (known.mean.empty()) {
    if (!learns)
      return Status::error(
          "{}: the input {} is normalised by its training data, and nothing says how: give --data, or --load "
          "a file that gacc-exec has saved after training",
          where, quoted(input.name));
    learn_statistics(column.dtype, values, input.shape, known);
  }
  column.mean = known.mean;
  column.std = known.std;
  return {};
}

// u8 is scaled by 1/255 and no other type is: whoever has one in training and another one later, or images
// of another integer type, may not have meant it.
void DataReader::warn_of_scale(const PlanInput& input, const std::string& where, const Column& column,
                               std::span<const std::byte> values, std::string_view before) {
  const auto is_integer = [](std::string_view dtype) { return !dtype.starts_with('f'); };
  if (column.dtype == "u8") {
    if (!before.empty() && before != "u8" && is_integer(before))
      remark(fmt::format(
          "warning: {}: u8 is scaled by 1/255, and the {} that the input {} was trained on is not", where,
          before, quoted(input.name)));
    return;
  }
  const bool image = std::max(column.shape.size(), input.shape.size()) > 1;
  const bool fixed = input.normalize_data || !input.mean.empty() || !input.std.empty();
  if (before != "u8" && (!is_integer(column.dtype) || !before.empty() || !image || fixed)) return;
  double low = 0, high = 0;
  constexpr size_t kMost = 16 << 20;  // bytes of a column on disk that are looked at
  const size_t seen = column.on_disk() ? std::min(values.size(), kMost) : values.size();
  visit_elements(column.dtype, values.first(seen), [&](const auto& all) {
    for (const auto value : all) {
      low = std::min(low, static_cast<double>(value));
      high = std::max(high, static_cast<double>(value));
    }
  });
  if (high <= 1 || (before != "u8" && (low < 0 || high > 255))) return;
  remark(fmt::format("warning: {}: {} up to {} for the input {} is taken as it is, {} scaled by 1/255", where,
                     column.dtype, high, quoted(input.name),
                     before == "u8" ? "and the u8 that it was trained on is" : "where u8 would be"));
}

Status load_dataset(std::string_view text, const Plan& plan, DataUse use, DataFacts& facts,
                    Dataset& dataset) {
  dataset = {};
  if (plan.inputs.empty()) return Status::error("the model has no inputs to read data for");
  Spec spec;
  GACC_TRY(parse_spec(text, spec));
  DataReader reader(plan, use, facts, dataset, spec);
  GACC_TRY(spec.source->read(reader));
  return reader.finish(text);
}

}  // namespace gacc
