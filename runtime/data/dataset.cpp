// From a SPEC to columns, in three steps: a source reads files and gives arrays to the plan's inputs, then
// all are checked. After that a batch can be made of any samples without an error.
#include "runtime/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/atomic_file.h"
#include "runtime/data/gzip.h"
#include "runtime/data/source.h"
#include "runtime/text.h"

namespace gacc {

// ---- what sources read with

bool DataReader::needed(size_t input) const {
  return use_ != DataUse::prediction || plan.inputs[input].predict_offset.has_value();
}

size_t DataReader::first_input(DType dtype, size_t from) const {
  while (from < plan.inputs.size() && plan.inputs[from].dtype != dtype) ++from;
  return from;
}

namespace {

// Tells an element's place by its sample and its index in it.
Place sample_and_index(const std::string& where, const std::vector<int64_t>& shape) {
  return [where, each = checked_product(shape), shape](int64_t i) {
    const std::string at = each > 1 ? " at " + index_text(shape, i % each) : "";
    return fmt::format("{}: sample {}{}", where, i / each, at);
  };
}

}  // namespace

void DataReader::give(size_t input, std::string where, Array array, Place place) {
  const std::vector<int64_t> shape(array.shape.begin() + 1, array.shape.end());
  dataset_.columns[input] = {names[input],
                             std::move(array.dtype),
                             shape,
                             std::move(array.bytes),
                             std::move(array.file),
                             array.first,
                             place ? std::move(place) : sample_and_index(where, shape)};
  given_[input] = {std::move(where), array.shape[0], array.shape[0]};
}

Status DataReader::give_split(size_t input, std::string where, Array array) {
  const std::string_view split = spec.option("split");
  if (split.empty() || array.samples() == 0) {
    give(input, std::move(where), std::move(array));
    return {};
  }
  const std::vector<int64_t> shape(array.shape.begin() + 1, array.shape.end());
  const int64_t each = checked_product(shape);
  const auto row_bytes = static_cast<size_t>(each * element_bytes(array.dtype));
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < array.samples(); ++row)
    if (is_of_split(row, split)) rows.push_back(row);
  Array some = {array.dtype, array.shape, std::vector<std::byte>(rows.size() * row_bytes)};
  some.shape[0] = std::ssize(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<std::byte> to = std::span(some.bytes).subspan(i * row_bytes, row_bytes);
    const size_t from = static_cast<size_t>(rows[i]) * row_bytes;
    if (array.file)
      GACC_TRY(array.file->read(array.first + from, to));
    else
      std::ranges::copy(std::span(array.bytes).subspan(from, row_bytes), to.begin());
  }
  const int64_t all = array.samples();
  give(input, where, std::move(some), [place = sample_and_index(where, shape), rows, each](int64_t i) {
    return place(rows[static_cast<size_t>(i / each)] * each + i % each);
  });
  given_[input].all = all;
  return {};
}

Status DataReader::give_images(std::string image_file, Array images, std::string label_file, Array labels) {
  const size_t image = first_input(DType::f32), label = first_input(DType::i32);
  if (image == plan.inputs.size())
    return Status::error("{}: the images need an input of dtype f32, and the model has none", image_file);
  give(image, std::move(image_file), std::move(images));
  if (label < plan.inputs.size() && needed(label)) give(label, std::move(label_file), std::move(labels));
  return {};
}

Result<std::vector<size_t>> DataReader::token_inputs() const {
  const std::string_view kind = spec.source->name;
  const std::string_view names_of[] = {"tokens", "targets", "documents"};
  std::vector<size_t> found;
  for (size_t i = 0; i < plan.inputs.size(); ++i)
    if (plan.inputs[i].dtype == DType::i32 && found.size() < (spec.has("end") ? 3 : 2)) found.push_back(i);
  if (found.size() < 2)
    return Status::error("{}: needs an i32 input for the tokens and a second one for the targets", kind);
  if (spec.has("end") && found.size() < 3)
    return Status::error(
        "{}: `end` says where documents end, and the model has no third i32 input for their numbers", kind);
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const PlanInput &input = plan.inputs[i], &first = plan.inputs[found[0]];
    const auto which = std::ranges::find(found, i);
    if (which == found.end())
      return Status::error("{}: gives tokens and targets; there is nothing for the input {}{}", kind,
                           in_quotes(input.name),
                           found.size() == 2 && input.dtype == DType::i32 && kind != "synthetic"
                               ? " (end=ID gives documents, which that token ends)"
                               : "");
    if (input.shape.size() != 1 || input.shape != first.shape)
      return Status::error(
          "{}: tokens and {} come in windows of one length; the inputs {} and {} have the shapes {} and {}",
          kind, names_of[std::max<std::ptrdiff_t>(which - found.begin(), 1)], in_quotes(first.name),
          in_quotes(input.name), shape_text(first.shape), shape_text(input.shape));
  }
  return found;
}

Result<SharedFile> DataReader::read_unzipped(const std::string& path) {
  std::string bytes = GACC_TRY(read_file(path));
  if (is_gzip(bytes)) bytes = GACC_TRY(gunzip(bytes, path));
  return SharedFile(std::make_shared<FileBytes>(std::move(bytes)));
}

Status DataReader::read_named(Parse parse) {
  for (const auto& [name, path] : spec.files) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end())
      return Status::error("{}: the model has no input {}{} (it has {})", path, in_quotes(name),
                           hint(name, names), listed(names));
    if (!needed(static_cast<size_t>(found - names.begin()))) continue;  // it is not even opened
    Array array;
    SharedFile file = GACC_TRY(FileBytes::open(path));
    if (is_gzip(file->text())) file = GACC_TRY(read_unzipped(path));
    GACC_TRY(parse(file->text(), path, array, file->mapped() ? file : SharedFile()));
    GACC_TRY(give_split(static_cast<size_t>(found - names.begin()), path, std::move(array)));
  }
  return {};
}

// ---- checking

namespace {

// Returns the index from which on a value may be unfit for f32. It looks at some values at once, since each epoch reads
// again, and checks, what is on disk.
template <class T>
size_t first_doubtful(std::span<const T> values) {
  // A double rounds to a finite f32 below the middle between the largest one and 2^128.
  constexpr T kEnd =
      std::is_same_v<T, double> ? static_cast<T>(0x1.ffffffp127) : std::numeric_limits<T>::infinity();
  constexpr size_t kTogether = 64;
  size_t first = 0;
  for (; first + kTogether <= values.size(); first += kTogether) {
    int fit = 1;
    for (size_t i = 0; i < kTogether; ++i) fit &= static_cast<int>(std::abs(values[first + i]) < kEnd);
    if (fit == 0) break;
  }
  return first;
}

template <class T>
Status check(const PlanInput& input, std::span<const T> values, const Place& place) {
  using I32 = std::numeric_limits<int32_t>;
  if (input.dtype == DType::f32) {
    size_t doubtful = values.size();
    if constexpr (std::is_floating_point_v<T>) doubtful = first_doubtful(values);
    for (size_t i = doubtful; i < values.size(); ++i)
      if (const std::string_view why = unfit_for_f32(static_cast<double>(values[i])); !why.empty())
        return Status::error("{}: {} {}, and the input {} takes finite f32", place(static_cast<int64_t>(i)),
                             values[i], why, in_quotes(input.name));
    // u8 is scaled into 0 to 1; what normalisation makes of other values is its own matter.
    const bool scaled =
        std::is_same_v<T, uint8_t> || !input.mean.empty() || !input.std.empty() || input.normalize_data;
    for (size_t i = 0; input.probability && !scaled && i < values.size(); ++i)
      if (values[i] < T(0) || values[i] > T(1))
        return Status::error(
            "{}: {} is no target of bce_with_logits: the input {} takes 0 to 1. Classes by number are "
            "cross_entropy's",
            place(static_cast<int64_t>(i)), values[i], in_quotes(input.name));
    return {};
  }
  const int64_t low = input.range ? 0 : I32::min(), high = input.range ? *input.range - 1 : I32::max();
  for (size_t i = 0; i < values.size(); ++i) {
    T value = values[i];
    auto at = [&] { return place(static_cast<int64_t>(i)); };
    if constexpr (std::is_floating_point_v<T>)
      if (!(std::trunc(value) == value) || std::isinf(value))
        return Status::error("{}: {} is no whole number, which the input {} needs", at(), value,
                             in_quotes(input.name));
    // Compared as double, floats keep every value of 32 bits; as i64, integers keep all of theirs.
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    auto wide = static_cast<Wide>(value);
    const bool in_range = wide >= static_cast<Wide>(low) && wide <= static_cast<Wide>(high);
    const bool ignored = input.ignore_index && wide == static_cast<Wide>(*input.ignore_index);
    if (in_range || ignored) continue;
    if (!input.range)
      return Status::error("{}: {} does not fit into 32 bits, which the input {} has", at(), value,
                           in_quotes(input.name));
    return Status::error(
        "{}: the value {} is not valid for the input {}: it takes 0 to {}{}", at(), value,
        in_quotes(input.name), high,
        input.ignore_index ? fmt::format(", and {} to be ignored", *input.ignore_index) : "");
  }
  return {};
}

}  // namespace

std::optional<std::array<size_t, 2>> next_token_inputs(const Plan& plan) {
  if (plan.predict.positions != "causal") return std::nullopt;
  std::optional<size_t> tokens, target;
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    if (plan.inputs[i].dtype != DType::i32 || plan.inputs[i].shape.size() != 1) continue;
    std::optional<size_t>& which = plan.inputs[i].target ? target : tokens;
    if (!which) which = i;
  }
  if (!tokens || !target || plan.inputs[*tokens].shape != plan.inputs[*target].shape) return std::nullopt;
  return std::array{*tokens, *target};
}

Status check_next_tokens_of(const Plan& plan, std::span<const std::byte> tokens,
                            std::span<const std::byte> targets) {
  const auto [first, second] = *next_token_inputs(plan);
  const PlanInput& target = plan.inputs[second];
  const auto length = static_cast<size_t>(target.shape[0]);
  const auto number = [](std::span<const std::byte> from, size_t i) {
    int32_t value = 0;
    std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
    return value;
  };
  int64_t counted = 0, same = 0, followed = 0, next = 0;
  for (size_t i = 0; i < targets.size() / sizeof(int32_t); ++i) {
    const int32_t value = number(targets, i);
    if (target.ignore_index && value == *target.ignore_index) continue;
    ++counted;
    same += value == number(tokens, i);
    if (i % length + 1 == length) continue;
    ++followed;
    next += value == number(tokens, i + 1);
  }
  constexpr double kAll = 0.99;
  const auto most = [](int64_t some, int64_t all) {
    return static_cast<double>(some) > kAll * static_cast<double>(all);
  };
  // Few places say nothing, and where all tokens are one, it is the next one, too.
  if (counted < 32 || !most(same, counted) || (followed > 0 && most(next, followed))) return {};
  return Status::error(
      "the inputs {} and {} are the same in {} of {} places: the model sees each target, and would "
      "learn to copy it. The targets of a language model are its tokens, one later: {} = tokens[:, "
      ":-1], {} = tokens[:, 1:]",
      in_quotes(plan.inputs[first].name), in_quotes(target.name), same, counted, plan.inputs[first].name,
      target.name);
}

std::string_view unfit_for_f32(double value) {
  if (!std::isfinite(value)) return "is not finite";
  return std::isfinite(static_cast<float>(value)) ? "" : "is beyond the largest f32";
}

Status check_values(const PlanInput& input, std::string_view dtype, std::span<const std::byte> bytes,
                    const Place& place) {
  Status status;
  visit_elements(dtype, bytes, [&](const auto& values) { status = check(input, values, place); });
  return status;
}

// Equal shapes, up to axes of extent 1, or either of them flat: nothing else has its elements in that
// order.
Status DataReader::check_shape(size_t i) const {
  const PlanInput& input = plan.inputs[i];
  const std::string& where = given_[i].where;
  const std::vector<int64_t>& stored = dataset_.columns[i].shape;
  const int64_t needed = checked_product(input.shape), present = checked_product(stored);
  if (needed != present)
    return Status::error("{}: a sample is {}, {}, but the input {} takes {}, {}", where, shape_text(stored),
                         counted(present, "element"), in_quotes(input.name), shape_text(input.shape),
                         counted(needed, "element"));
  std::vector<int64_t> have = stored, want = input.shape;
  std::erase(have, 1);
  std::erase(want, 1);
  if (have == want || have.size() <= 1 || want.size() <= 1) return {};
  const bool channels_last =
      stored.size() == 3 && input.shape == std::vector{stored[2], stored[0], stored[1]};
  return Status::error("{}: a sample is {}, but the input {} takes {}{}", where, shape_text(stored),
                       in_quotes(input.name), shape_text(input.shape),
                       channels_last ? ": HWC? permute to CHW (in numpy: x.transpose(0, 3, 1, 2))"
                                     : "; only axes of extent 1 may differ, or one of them be flat");
}

Status DataReader::check_counts(std::string_view text) {
  std::vector<std::string> given;
  for (const Column& column : dataset_.columns)
    if (column.present()) given.push_back(column.name);
  const Given* first = nullptr;
  for (size_t i = 0; i < given_.size(); ++i) {
    if (!needed(i)) continue;
    if (!dataset_.columns[i].present())
      return Status::error("data {}: nothing is given for the input {}{}", in_quotes(text),
                           in_quotes(names[i]), given.empty() ? "" : ", only for " + listed(given));
    const auto& [where, samples, all] = given_[i];
    if (!first) first = &given_[i];
    if (samples == 0)
      return Status::error("{}: holds no samples{}", where,
                           all > 0 || spec.has("split") ? " of that split" : "");
    if (all != first->all)
      return Status::error("{} has {}, but {} has {}", where, counted(all, "sample"), first->where,
                           first->all);
  }
  dataset_.samples = std::min(first->samples, spec.limit.value_or(first->samples));
  return {};
}

Status DataReader::finish(std::string_view text) {
  GACC_TRY(check_counts(text));
  for (size_t i = 0; i < given_.size(); ++i) {
    Column& column = dataset_.columns[i];
    if (!needed(i)) {
      column = {};
      column.name = names[i];
      continue;
    }
    GACC_TRY(check_shape(i));
    if (!column.file && given_[i].samples > dataset_.samples) {  // the limit
      const size_t each = column.bytes.size() / static_cast<size_t>(given_[i].samples);
      column.bytes.resize(each * static_cast<size_t>(dataset_.samples));
      column.bytes.shrink_to_fit();
    }
    if (!column.on_disk())
      GACC_TRY(check_values(plan.inputs[i], column.dtype, dataset_.bytes(i), column.place));
    GACC_TRY(settle(i));
    if (const std::vector<std::string>& values = plan.inputs[i].values; learns && !values.empty())
      facts[names[i]].values = values;
  }
  return check_next_tokens();
}

// The first samples say it, of a file that is too large to be read as a whole.
Status DataReader::check_next_tokens() const {
  const std::optional<std::array<size_t, 2>> pair = next_token_inputs(plan);
  if (!pair || use_ == DataUse::prediction) return {};
  constexpr int64_t kMost = 1 << 20;  // elements
  const int64_t length = plan.inputs[(*pair)[0]].shape[0];
  const int64_t samples = std::min(dataset_.samples, std::max<int64_t>(kMost / length, 1));
  std::vector<std::byte> values[2];
  for (size_t i = 0; i < 2; ++i) {
    values[i].resize(static_cast<size_t>(samples * length * 4));
    GACC_TRY(dataset_.gather((*pair)[i], plan.inputs[(*pair)[i]],
                             epoch_order(samples, 0, 0, /*shuffle=*/false), values[i]));
  }
  return check_next_tokens_of(plan, values[0], values[1]);
}

// ---- facts

// Applies what is known of the input's data, and learns what is not.
Status DataReader::settle(size_t i) {
  const PlanInput& input = plan.inputs[i];
  Column& column = dataset_.columns[i];
  if (input.balanced) GACC_TRY(settle_weights(i));
  if (input.dtype != DType::f32) return {};
  InputFacts& known = facts[input.name];
  warn_of_scale(i, known.dtype);
  if (learns) known.dtype = column.dtype;
  if (!input.normalize_data) return {};
  if (known.mean.empty()) {
    if (!learns)
      return Status::error(
          "{}: the input {} is normalised by its training data, and nothing says how: {}--load a file that "
          "gacc-exec has saved after training, or state normalize = {{ mean = [...], std = [...] }} of the "
          "input in the model file",
          given_[i].where, in_quotes(input.name), use_ == DataUse::evaluation ? "give --data, " : "");
    learn_statistics(column.dtype, dataset_.bytes(i), input.shape, known);
  }
  column.mean = known.mean;
  column.std = known.std;
  return {};
}

// Class weights that follow from the targets of the training data.
Status DataReader::settle_weights(size_t i) {
  const PlanInput& input = plan.inputs[i];
  InputFacts& known = facts[input.name];
  if (!known.weights.empty()) return {};
  if (!learns)
    return Status::error(
        "{}: loss.class_weights = \"balanced\" are those of the training data, and nothing says them: give "
        "--data, or --load a file that gacc-exec has saved after training",
        given_[i].where);
  known.weights = balanced_weights(dataset_.columns[i].dtype, dataset_.bytes(i), input.range.value_or(0));
  return {};
}

// u8 is scaled by 1/255 and no other type is: whoever has one in training and another one later, or images
// of another integer type, may not have meant it.
void DataReader::warn_of_scale(size_t i, std::string_view before) {
  const PlanInput& input = plan.inputs[i];
  const Column& column = dataset_.columns[i];
  const std::string& where = given_[i].where;
  const auto is_integer = [](std::string_view dtype) { return !dtype.starts_with('f'); };
  if (column.dtype == "u8") {
    // Images are meant to be scaled; numbers of a table perhaps not.
    constexpr int64_t kFew = 64;  // elements of a sample
    constexpr size_t kLooked = 1 << 20;
    const std::span<const std::byte> all = dataset_.bytes(i), some = all.first(std::min(all.size(), kLooked));
    const bool dark = std::ranges::all_of(some, [](std::byte value) { return value < std::byte{128}; });
    if (learns && (dark || checked_product(column.shape) < kFew))
      remark(fmt::format("note: {}: u8 is scaled by 1/255 for the input {}", where, in_quotes(input.name)));
    const auto most = [](const std::vector<double>& of) { return of.empty() ? 0.0 : std::ranges::max(of); };
    if (const double mean = most(input.mean), std = most(input.std); mean > 1 || std > 1)
      remark(fmt::format(
          "warning: {}: u8 is scaled by 1/255 before it is normalised: with mean {:.6g} and std {:.6g} the "
          "input {} has {:.4g} to {:.4g}; of bytes between 0 and 1 they are {:.4g} and {:.4g}",
          where, mean, std, in_quotes(input.name), -mean / std, (1 - mean) / std, mean / 255, std / 255));
    if (!before.empty() && before != "u8" && is_integer(before))
      remark(fmt::format(
          "warning: {}: u8 is scaled by 1/255, and the {} that the input {} was trained on is not", where,
          before, in_quotes(input.name)));
    return;
  }
  const bool image = std::max(column.shape.size(), input.shape.size()) > 1;
  const bool fixed = input.normalize_data || !input.mean.empty() || !input.std.empty();
  if (before != "u8" && (!is_integer(column.dtype) || !before.empty() || !image || fixed)) return;
  double low = 0, high = 0;
  std::span<const std::byte> values = dataset_.bytes(i);
  if (column.on_disk())
    values = values.first(std::min<size_t>(values.size(), 16 << 20));  // or it takes too long
  visit_elements(column.dtype, values, [&](const auto& all) {
    for (const auto value : all) {
      low = std::min(low, static_cast<double>(value));
      high = std::max(high, static_cast<double>(value));
    }
  });
  if (high <= 1 || (before != "u8" && (low < 0 || high > 255))) return;
  remark(fmt::format("warning: {}: {} up to {} for the input {} is taken as it is, {} scaled by 1/255", where,
                     column.dtype, high, in_quotes(input.name),
                     before == "u8" ? "and the u8 that it was trained on is" : "where u8 would be"));
}

Status load_dataset(std::string_view text, const Plan& plan, DataUse use, DataFacts& facts,
                    Dataset& dataset) {
  dataset = {};
  if (plan.inputs.empty()) return Status::error("the model has no inputs to read data for");
  const Spec spec = GACC_TRY(parse_spec(text));
  DataReader reader(plan, use, facts, dataset, spec);
  GACC_TRY(spec.source->read(reader));
  return reader.finish(text);
}

}  // namespace gacc
