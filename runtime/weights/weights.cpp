#include "runtime/weights/weights.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "runtime/blocks.h"
#include "runtime/long_work.h"
#include "runtime/text.h"

namespace gacc {
namespace {

// Elements that are converted at once; of a tensor whose axes are exchanged more, for whole lines of its rows.
constexpr size_t kBlock = size_t{1} << 16, kTurnedBlock = size_t{1} << 20;
constexpr std::string_view kNames = "gacc.names", kOwn = "own";

const PlanLoad& table_of(const Plan& plan, FileKind kind = FileKind::published) {
  static const PlanLoad kNone;
  const std::optional<PlanLoad>& table = kind == FileKind::gguf ? plan.gguf : plan.load;
  return table ? *table : kNone;
}

std::vector<int64_t> transposed_if(std::vector<int64_t> shape, bool transpose) {
  if (transpose) std::ranges::reverse(shape);
  return shape;
}

// Some files hold tied weights twice. A constant matrix does not count: it equals others by chance.
bool same_matrix(const StoredTensor& a, const StoredTensor& b) {
  if (a.shape.size() < 2 || a.shape != b.shape || a.dtype != b.dtype || a.bytes.size() != b.bytes.size())
    return false;
  const size_t each = a.bytes.size() / static_cast<size_t>(std::max<int64_t>(elements_of(a), 1));
  const bool constant =
      a.bytes.size() <= each || a.bytes.substr(each) == a.bytes.substr(0, a.bytes.size() - each);
  return !constant && a.bytes == b.bytes;
}

// Returns the name that the file may have instead: the same under another beginning, or a near one.
std::string nearest_name(const std::string& name, std::span<const std::string> others) {
  for (const std::string& other : others)
    if (other.ends_with("." + name) || name.ends_with("." + other))
      return fmt::format("; did you mean \"{}\"?", other);
  return hint(name, others);
}

// Says why a tensor is left over that has the size of a weight that layers share: the file's model does not share it.
std::string why_left_over(const Plan& plan, const StoredTensor& tensor) {
  for (const PlanTie& tie : plan.ties) {
    if (plan.find(tie.weight)->shape != tensor.shape || is_of_adapter(plan, tensor.name)) continue;
    const std::string layer(std::string_view(tie.name).substr(0, tie.name.rfind('.')));
    return fmt::format(
        ": the layer {} is tied to {}, and the file has other values for the two. Without `tied` "
        "{} has a matrix of its own",
        layer, tie.weight, layer);
  }
  return "";
}

}  // namespace

bool is_of_adapter(const Plan& plan, std::string_view parameter) {
  const size_t end = std::min(parameter.rfind(".lora_A.weight"), parameter.rfind(".lora_B.weight"));
  return end != std::string_view::npos &&
         std::ranges::count(plan.adapters, parameter.substr(0, end), &PlanAdapter::name) > 0;
}

std::vector<std::string> shared_as(const Plan& plan, std::string_view parameter) {
  std::vector<std::string> names;
  for (const PlanTie& tie : plan.ties)
    if (tie.weight == parameter) names.push_back(tie.name);
  if (!names.empty()) names.insert(names.begin(), std::string(parameter));
  return names;
}

PublishedName published_name(const Plan& plan, const std::string& parameter, FileKind kind,
                             bool with_prefix) {
  PublishedName result{.name = parameter, .tensors = {parameter}};
  if (is_of_adapter(plan, parameter)) return result;
  const PlanLoad& table = table_of(plan, kind);
  const auto found = std::ranges::find(table.parameters, parameter, &PlanLoad::Parameter::name);
  if (found != table.parameters.end())
    result = *found;
  else
    result.tensors.front() = table.prefix + parameter;
  if (!with_prefix)
    for (std::string& name : result.tensors)
      if (name.starts_with(table.prefix)) name.erase(0, table.prefix.size());
  return result;
}

std::optional<Split> split_of(const PublishedName& as, int64_t rows) {
  if (as.tensors.size() != 1 || as.parts.empty()) return std::nullopt;
  Split split;
  int64_t own = 0;
  for (const int64_t part : as.parts) {
    if (part > 0) split.taken.push_back(std::ssize(split.sizes));
    split.sizes.push_back(std::abs(part));
    own += std::max<int64_t>(part, 0);
  }
  split.groups = rows / std::max<int64_t>(own, 1);
  return split;
}

int64_t rows_of(const Split& split) {
  return split.groups * std::reduce(split.sizes.begin(), split.sizes.end());
}

std::vector<RowRun> runs_of(const Split& split) {
  const int64_t all = std::reduce(split.sizes.begin(), split.sizes.end());
  std::vector<RowRun> runs;
  for (const int64_t part : split.taken) {
    const int64_t first = std::reduce(split.sizes.begin(), split.sizes.begin() + part);
    for (int64_t group = 0; group < split.groups; ++group)
      runs.push_back({group * all + first, split.sizes[static_cast<size_t>(part)]});
  }
  return runs;
}

std::vector<RowRun> runs_of(const PublishedName& as, size_t tensor, int64_t rows) {
  if (const std::optional<Split> split = split_of(as, rows)) return runs_of(*split);
  const int64_t head = tensor < as.interleave.size() ? as.interleave[tensor] : 0;
  if (head == 0) return {{0, rows}};
  std::vector<RowRun> runs;
  for (int64_t first = 0; first < rows; first += head)
    for (int64_t half = 0; half < 2; ++half)
      for (int64_t row = 0; row < head / 2; ++row) runs.push_back({first + 2 * row + half, 1});
  return runs;
}

std::string split_text(const std::optional<Split>& split) {
  if (!split) return "";
  return fmt::format(", part {} of {} rows{}", fmt::join(split->taken, " and "),
                     fmt::join(split->sizes, " + "),
                     split->groups > 1 ? fmt::format(", {} times", split->groups) : "");
}

// Returns the rows of an entry of the first axis.
static int64_t rows_of_entry(const std::vector<int64_t>& shape) {
  if (shape.size() < 3) return 1;
  return std::reduce(shape.begin() + 1, shape.end() - 1, int64_t{1}, std::multiplies());
}

// Returns [rows, columns] of a parameter of two axes or more.
static std::vector<int64_t> as_rows(const std::vector<int64_t>& shape) {
  if (shape.size() < 3) return shape;
  return {shape.front() * rows_of_entry(shape), shape.back()};
}

// Returns the shape of a tensor that has so many rows of a parameter: a matrix where they are of one entry of its first
// axis, as those of one expert are; else the parameter's, with fewer entries.
static std::vector<int64_t> shape_of_rows(std::vector<int64_t> shape, int64_t rows) {
  const int64_t entry = rows_of_entry(shape);
  if (shape.size() > 2 && (rows <= entry || rows % entry != 0)) return {rows, shape.back()};
  shape.front() = rows / entry;
  return shape;
}

std::vector<int64_t> joined_shape(const WeightSource& source, const PublishedName& as) {
  if (const auto split = split_of(as, source.buffer->shape.empty() ? 0 : source.buffer->shape.front())) {
    std::vector<int64_t> shape = transposed_if(source.tensors.front()->shape, source.transpose);
    if (shape.empty() || shape.front() != rows_of(*split)) return {};
    shape.front() = source.buffer->shape.front();
    return shape;
  }
  const std::vector<int64_t>& parts = as.parts;
  const bool rows = parts.size() > 1 && source.buffer->shape.size() > 2;
  std::vector<int64_t> shape;
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    std::vector<int64_t> part = transposed_if(source.tensors[i]->shape, source.transpose);
    if (rows && part == shape_of_rows(source.buffer->shape, parts[i])) part = as_rows(part);
    if (rows && part.size() != 2) return {};
    if (!parts.empty() && !part.empty() && part.front() != parts[i]) return {};
    if (i == 0)
      shape = part;
    else if (part.size() == shape.size() && std::equal(part.begin() + 1, part.end(), shape.begin() + 1))
      shape.front() += part.front();
    else
      return {};
  }
  return rows && shape == as_rows(source.buffer->shape) ? source.buffer->shape : shape;
}

bool matches_pattern(std::string_view pattern, std::string_view name) {
  // The place of the last star, and the length that it took; a number takes all its digits.
  size_t p = 0, n = 0;
  size_t star = std::string_view::npos, taken = 0;
  const auto number_end = [&](size_t at) {
    const size_t end = pattern[at] == '{' ? pattern.find('}', at) : std::string_view::npos;
    return end == std::string_view::npos || end == at + 1 ? 0 : end + 1;
  };
  const auto digits = [&](size_t at) {
    const size_t end = name.find_first_not_of("0123456789", at);
    return (end == std::string_view::npos ? name.size() : end) - at;
  };
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (const size_t end = p < pattern.size() ? number_end(p) : 0; end > 0 && digits(n) > 0) {
      n += digits(n);
      p = end;
    } else if (end == 0 && p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// 1. Every parameter's tensors, of shapes that fit.
std::vector<std::string> Weights::find_sources(const Plan& plan) {
  const auto own = metadata().find(std::string(kNames));
  const bool own_names = own != metadata().end() && own->second == kOwn;
  // Files of one model exist with and without the prefix: transformers writes it for a model with a head, and takes
  // both.
  const auto is_prefixed = [&](const StoredTensor& tensor) {
    return tensor.name.starts_with(table_of(plan, kind()).prefix);
  };
  has_prefix_ = std::ranges::any_of(tensors(), is_prefixed);
  std::set<std::string_view> wanted;
  std::vector<std::pair<const PlanBuffer*, PublishedName>> all;
  bool has_adapters = false;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_saved(buffer)) continue;
    all.emplace_back(&buffer, own_names ? PublishedName{.name = buffer.name, .tensors = {buffer.name}}
                                        : published_name(plan, buffer.name, kind(), has_prefix_));
    has_adapters |= is_of_adapter(plan, buffer.name) && file_.find(buffer.name) != nullptr;
  }
  for (const auto& [_, as] : all) wanted.insert(as.tensors.begin(), as.tensors.end());
  std::vector<std::string> others;  // in the file, and nobody's
  for (const StoredTensor& tensor : file_.tensors())
    if (!wanted.contains(tensor.name)) others.push_back(tensor.name);

  std::vector<std::string> problems;
  for (const auto& [buffer, as] : all) {
    if (!has_adapters && is_of_adapter(plan, buffer->name)) continue;
    const std::optional<Split> split = split_of(as, buffer->shape.empty() ? 0 : buffer->shape.front());
    const std::string called =
        as.tensors == std::vector{buffer->name}
            ? buffer->name
            : fmt::format("{} ({}{})", buffer->name, fmt::join(as.tensors, ", "), split_text(split));
    WeightSource source{buffer, {}, as.transpose};
    source.shift = static_cast<float>(as.shift);
    std::vector<std::string> absent;
    for (const std::string& name : as.tensors) {
      const StoredTensor* tensor = file_.find(name);
      if (tensor == nullptr) {
        absent.push_back(name);
        continue;
      }
      source.tensors.push_back(tensor);
      if (!tensor->is_real())
        problems.push_back(
            fmt::format("{} has the type {}; known are F32, F16 and BF16", shown_name(name), tensor->dtype));
    }
    const std::vector<int64_t> shape = absent.empty() ? joined_shape(source, as) : std::vector<int64_t>();
    if (absent.size() == as.tensors.size()) {
      missing_.push_back(buffer->name);
      if (!table_of(plan, kind()).part)
        problems.push_back(fmt::format("{} {} is missing{}", called, shape_text(buffer->shape),
                                       nearest_name(as.tensors.front(), others)));
    } else if (!absent.empty()) {
      for (const std::string& name : absent)
        problems.push_back(fmt::format("of {} {} is missing{}", called, name, nearest_name(name, others)));
    } else if (shape != buffer->shape) {
      std::string found;
      for (const StoredTensor* tensor : source.tensors)
        found += (found.empty() ? "" : " and ") + shape_text(tensor->shape);
      const bool exchanged = !shape.empty() && transposed_if(shape, true) == buffer->shape;
      std::vector<int64_t> wanted = buffer->shape;
      if (split) wanted.front() = rows_of(*split);
      problems.push_back(
          fmt::format("{} is {} in the file, {} in the model{}", called, found,
                      shape_text(transposed_if(wanted, as.transpose && as.tensors.size() == 1)),
                      !exchanged          ? ""
                      : as.transpose      ? "; without load.transpose it would fit"
                      : shape.size() == 2 ? "; load.transpose exchanges its axes"
                                          : ""));
    } else {
      for (size_t i = 0; i < source.tensors.size(); ++i) {
        const std::vector<int64_t> of_file = transposed_if(source.tensors[i]->shape, as.transpose);
        source.runs.push_back(runs_of(as, i,
                                      split             ? buffer->shape.front()
                                      : of_file.empty() ? 1
                                                        : of_file.front()));
      }
      sources_.push_back(std::move(source));
    }
  }
  if (sources_.empty() && problems.empty() && !missing_.empty())
    problems.emplace_back("it has none of the model's parameters");
  return problems;
}

// Returns whether the file has the tensor for another layer that shares this weight, with the same numbers.
bool Weights::is_copy_of_shared(const Plan& plan, const StoredTensor& tensor) const {
  for (const PlanTie& tie : plan.ties) {
    if (published_name(plan, tie.name, kind(), has_prefix_).tensors.front() != tensor.name) continue;
    const auto owner = std::ranges::find_if(
        sources_, [&](const WeightSource& source) { return source.buffer->name == tie.weight; });
    if (owner != sources_.end() && owner->tensors.front()->dtype == tensor.dtype &&
        owner->tensors.front()->bytes == tensor.bytes)
      return true;
  }
  return false;
}

// 2. What the file has besides.
std::vector<std::string> Weights::left_over(const Plan& plan) {
  std::set<const StoredTensor*> taken;
  std::set<std::string> looked_for;
  for (const WeightSource& source : sources_) taken.insert(source.tensors.begin(), source.tensors.end());
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_saved(buffer)) continue;
    for (const std::string& name : published_name(plan, buffer.name, kind(), has_prefix_).tensors)
      looked_for.insert(name);
  }
  std::vector<std::string> problems;
  for (const StoredTensor& tensor : file_.tensors()) {
    const auto named = [&](const std::string& pattern) { return matches_pattern(pattern, tensor.name); };
    if (taken.contains(&tensor) || looked_for.contains(tensor.name) || tensor.counts_batches()) continue;
    const bool ignored = std::ranges::any_of(table_of(plan, kind()).ignore, named);
    if (ignored && (tensor.shape.size() != 2 || !tensor.is_real())) continue;
    if (std::ranges::any_of(taken, [&](const StoredTensor* one) { return same_matrix(*one, tensor); }))
      continue;
    if (is_copy_of_shared(plan, tensor)) continue;
    if (ignored) {
      left_out_.push_back(tensor.name);
      continue;
    }
    std::string why = nearest_name(tensor.name, missing_);
    if (why.empty()) why = why_left_over(plan, tensor);
    problems.push_back(
        fmt::format("the model has no {} {}{}", shown_name(tensor.name), shape_text(tensor.shape), why));
  }
  return problems;
}

Status Weights::open(const std::string& path, const Plan& plan) {
  *this = Weights();
  GACC_TRY(file_.open(path));
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) folder_ = std::filesystem::canonical(path, ignored);
  if (const Gguf* gguf = file_.gguf()) {
    if (gguf->text("general.type") == "adapter")
      return Status::error("{}: is an adapter, which --load-adapter takes; --load takes the model", path);
    if (!plan.gguf) return Status::error("{}: {}", path, kNoGguf);
  }
  std::vector<std::string> problems = find_sources(plan);
  for (std::string& more : left_over(plan)) problems.push_back(std::move(more));
  if (!problems.empty())
    return Status::error(problem_list(fmt::format("{} does not fit the model", file_.path()), problems));
  std::vector<const StoredTensor*> taken;
  int64_t bytes = 0;
  for (const WeightSource& source : sources_)
    for (const StoredTensor* tensor : source.tensors)
      taken.push_back(tensor), bytes += std::ssize(tensor->bytes);
  LongWork work(fmt::format("checking the weights of {}", file_.path()), bytes);
  for (const StoredTensor* tensor : taken) {
    GACC_TRY(check_finite(*tensor, file_.path()));
    work.done(std::ssize(tensor->bytes));
  }
  return {};
}

namespace {

// Reads rows of a parameter, those that the runs name, from a tensor of its `rows`. Of a transposed one [rows, columns]
// of the parameter is [columns, rows] in the file: a run of rows is then a piece of every row of the file.
void read_rows(const WeightSource& source, const StoredTensor& tensor, int64_t rows,
               std::span<const RowRun> runs, int64_t columns, std::vector<float>& block) {
  const int64_t width = elements_of(tensor) / std::max<int64_t>(rows, 1);
  const auto each = static_cast<size_t>(columns);
  std::vector<float> line;
  float* to = block.data();
  for (const RowRun& run : runs) {
    if (source.transpose) {
      line.resize(static_cast<size_t>(run.count));
      for (int64_t column = 0; column < columns; ++column) {
        read_elements(tensor, (source.column + column) * rows + run.begin, line);
        for (int64_t r = 0; r < run.count; ++r) to[r * columns + column] = line[static_cast<size_t>(r)];
      }
    } else if (columns == width) {
      read_elements(tensor, run.begin * width, {to, static_cast<size_t>(run.count) * each});
    } else {
      for (int64_t r = 0; r < run.count; ++r)
        read_elements(tensor, (run.begin + r) * width + source.column, {to + r * columns, each});
    }
    to += run.count * columns;
  }
}

// Cuts the runs off the front that have at most so many rows together.
std::vector<RowRun> take_rows(std::span<const RowRun>& runs, int64_t& done, int64_t most) {
  std::vector<RowRun> some;
  while (!runs.empty() && most > 0) {
    const int64_t now = std::min(most, runs.front().count - done);
    some.push_back({runs.front().begin + done, now});
    most -= now, done += now;
    if (done == runs.front().count) runs = runs.subspan(1), done = 0;
  }
  return some;
}

// Says whether rows of the tensor are rows of the parameter, with the same numbers.
bool has_rows(const WeightSource& source, const StoredTensor& tensor) {
  const std::vector<int64_t>& ours = source.buffer->shape;
  const bool as_wide = ours.size() != 2 || (tensor.shape.size() == 2 && tensor.shape[1] == ours[1]);
  return !source.transpose && source.factor == 1 && source.shift == 0 && as_wide;
}

// Returns the bytes of a run of rows, among `rows` of the tensor.
std::span<const std::byte> bytes_of_rows(const StoredTensor& tensor, int64_t rows, const RowRun& run) {
  const size_t row = tensor.bytes.size() / static_cast<size_t>(rows);
  return std::as_bytes(std::span(tensor.bytes))
      .subspan(static_cast<size_t>(run.begin) * row, static_cast<size_t>(run.count) * row);
}

// Writes rows of the tensor, as they lie, from number `at` of the parameter on. Returns false where the parameter is
// kept otherwise.
Result<bool> write_stored(const WeightSource& source, const StoredTensor& tensor, int64_t rows,
                          std::span<const RowRun> runs, int64_t at, Session& session) {
  if (!has_rows(source, tensor)) return false;
  const int64_t columns = elements_of(tensor) / rows;
  for (const RowRun& run : runs) {
    const auto bytes = bytes_of_rows(tensor, rows, run);
    if (!GACC_TRY(session.write_stored(*source.buffer, at, tensor.dtype, bytes))) return false;
    at += run.count * columns;
  }
  return true;
}

// Returns the numbers of rows where they stand in the file so that they can be read there; else nothing.
std::span<const float> floats_in_file(const WeightSource& source, const StoredTensor& tensor, int64_t rows,
                                      std::span<const RowRun> runs) {
  if (tensor.dtype != "F32" || runs.size() != 1 || !has_rows(source, tensor)) return {};
  const auto bytes = bytes_of_rows(tensor, rows, runs.front());
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) != 0) return {};
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

// Overwrites a parameter, some rows at a time: few enough to stay in a core's cache while they are converted.
Status write_source(const WeightSource& source, Session& session) {
  const std::vector<int64_t>& ours = source.buffer->shape;
  std::vector<float> block;
  int64_t at = 0;  // in the parameter
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    const StoredTensor& tensor = *source.tensors[i];
    const std::vector<int64_t> shape = transposed_if(tensor.shape, source.transpose);
    const int64_t rows = shape.empty() ? 1 : shape.front(),
                  columns = ours.size() == 2 ? ours[1] : elements_of(tensor) / std::max<int64_t>(rows, 1);
    const auto most = static_cast<int64_t>(source.transpose ? kTurnedBlock : kBlock);
    const int64_t at_once = std::max<int64_t>(most / std::max<int64_t>(columns, 1), 1);
    const std::vector<RowRun> whole = {{0, rows}};
    std::span<const RowRun> left = source.runs.empty() ? whole : source.runs[i];
    int64_t done = 0;  // of the first run that is left
    while (!left.empty()) {
      const std::vector<RowRun> some = take_rows(left, done, at_once);
      int64_t count = 0;
      for (const RowRun& run : some) count += run.count;
      if (count == 0) continue;
      if (!GACC_TRY(write_stored(source, tensor, rows, some, at, session))) {
        std::span<const float> numbers = floats_in_file(source, tensor, rows, some);
        if (numbers.empty()) {
          block.resize(static_cast<size_t>(count * columns));
          read_rows(source, tensor, rows, some, columns, block);
          if (source.factor != 1 || source.shift != 0)
            for (float& number : block) number = number * source.factor - source.shift;
          numbers = block;
        }
        GACC_TRY(session.write_parameter(*source.buffer, at, numbers));
      }
      at += count * columns;
    }
  }
  return {};
}

}  // namespace

std::vector<const PlanBuffer*> buffers_of(const std::vector<WeightSource>& sources, const Plan& plan) {
  std::map<std::string_view, const PlanBuffer*> halves;  // by parameter
  for (const PlanBuffer& buffer : plan.buffers)
    if (buffer.role == BufferRole::half) halves.emplace(buffer.of, &buffer);
  std::vector<const PlanBuffer*> buffers;
  for (const WeightSource& source : sources) {
    const std::string& name =
        source.buffer->name;  // by its name: the plan may be another one of the same model
    if (const PlanBuffer* buffer = plan.find(name)) buffers.push_back(buffer);
    if (const auto half = halves.find(name); half != halves.end()) buffers.push_back(half->second);
  }
  return buffers;
}

Status write_sources(const std::vector<WeightSource>& sources, Session& session) {
  int64_t bytes = 0;
  for (const WeightSource& source : sources) bytes += source.buffer->bytes;
  LongWork work("loading weights", bytes);
  return session.device().run_each(sources.size(), [&](size_t i) {
    Status status = write_source(sources[i], session);
    work.done(sources[i].buffer->bytes);
    return status;
  });
}

std::string Weights::blocks_text() const {
  std::map<std::string, int64_t> counts;  // by what is said
  for (const WeightSource& source : sources_) {
    const BlockFormat* own = block_format(dtype_text(source.buffer->dtype));
    for (const StoredTensor* tensor : source.tensors) {
      const BlockFormat* blocks = block_format(tensor->dtype);
      if (own != nullptr && blocks == own && has_rows(source, *tensor))
        ++counts[fmt::format("of {} taken as they lie", tensor->dtype)];
      else if (own != nullptr)
        ++counts[fmt::format("of {} quantised to {}", tensor->dtype, dtype_text(source.buffer->dtype))];
      else if (blocks != nullptr)
        ++counts[fmt::format("of {} read as the numbers that they stand for", tensor->dtype)];
    }
  }
  std::vector<std::string> said;
  for (const auto& [what, count] : counts)
    said.push_back(fmt::format("{} {}", counted(count, "tensor"), what));
  return fmt::format("{}", fmt::join(said, ", "));
}

std::vector<int64_t> Weights::parts_of(std::string_view parameter) const {
  for (const WeightSource& source : sources_) {
    if (source.buffer->name != parameter) continue;
    std::vector<int64_t> parts;
    for (const StoredTensor* tensor : source.tensors)
      parts.push_back(transposed_if(tensor->shape, source.transpose)[0]);
    return parts;
  }
  return {};
}

Status Weights::check_same_model(const Plan& plan) const {
  std::vector<std::string> problems;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_saved(buffer) || is_of_adapter(plan, buffer.name)) continue;
    for (const std::string& name : published_name(plan, buffer.name, kind(), has_prefix_).tensors)
      if (file_.find(name) == nullptr) problems.push_back(fmt::format("it lacks {}", name));
  }
  for (const std::string& name : left_out_)
    problems.push_back(fmt::format("it has {}, which the model leaves out", name));
  if (problems.empty()) return {};
  return Status::error(problem_list(fmt::format("{} is of another model", folder_), problems));
}

Status check_whole(const Plan& plan, std::span<const std::string> parameters, FileKind kind) {
  std::map<std::string, Split> tensors;  // with all parts that are taken
  for (const std::string& parameter : parameters) {
    const PublishedName as = published_name(plan, parameter, kind);
    const std::optional<Split> split = split_of(as, 1);
    if (!split) continue;
    Split& parts = tensors[as.tensors.front()];
    parts.sizes = split->sizes;
    parts.taken.insert(parts.taken.end(), split->taken.begin(), split->taken.end());
  }
  for (const auto& [tensor, parts] : tensors)
    for (size_t part = 0; part < parts.sizes.size(); ++part)
      if (std::ranges::count(parts.taken, static_cast<int64_t>(part)) == 0)
        return Status::error(
            "part {} of the tensor {} ({} rows) is no parameter's here, and published weights have "
            "the tensor whole",
            part, tensor, fmt::join(parts.sizes, " + "));
  return {};
}

Status check_published(const Plan& plan, const Weights& loaded, FileKind kind) {
  std::vector<std::string> all;
  for (const PlanLoad::Parameter& each : table_of(plan, kind).parameters) {
    if (plan.find(each.name) != nullptr) all.push_back(each.name);
    if (each.tensors.size() > 1 && each.parts.empty() &&
        loaded.parts_of(each.name).size() != each.tensors.size())
      return Status::error(
          "--save-as published: {} is several tensors of a file ({}), and how large each is only such a file "
          "says; --load it",
          each.name, fmt::join(each.tensors, ", "));
  }
  return check_whole(plan, all, kind);
}

namespace {

// Puts the rows of a parameter, from `from` on, where the tensor has them.
void put_rows(std::vector<float>::const_iterator from, std::span<const RowRun> runs, bool transpose,
              NamedTensor& to) {
  const int64_t rows = transpose          ? to.shape[1]
                       : to.shape.empty() ? 1
                                          : to.shape.front(),
                columns = static_cast<int64_t>(to.data.size()) / std::max<int64_t>(rows, 1);
  for (const RowRun& run : runs)
    for (int64_t row = run.begin; row < run.begin + run.count; ++row)
      for (int64_t column = 0; column < columns; ++column)
        to.data[static_cast<size_t>(transpose ? column * rows + row : row * columns + column)] = *from++;
}

}  // namespace

Status to_published(const Plan& plan, const Weights& loaded, std::vector<NamedTensor>& tensors,
                    FileKind kind) {
  GACC_TRY(check_published(plan, loaded, kind));
  std::vector<NamedTensor> result;
  std::map<std::string, size_t> places;  // of tensors that several parameters have rows of
  for (NamedTensor& tensor : tensors) {
    const PublishedName as = published_name(plan, tensor.name, kind);
    const std::optional<Split> split = split_of(as, tensor.shape.empty() ? 0 : tensor.shape.front());
    const bool whole = as.tensors.size() == 1 && !split;
    if (as.shift != 0)
      for (float& number : tensor.data) number += static_cast<float>(as.shift);
    if (whole && !as.transpose && as.interleave.empty()) {
      result.push_back({as.tensors.front(), std::move(tensor.shape), std::move(tensor.data)});
      continue;
    }
    const std::vector<int64_t> own = tensor.shape;
    if (as.parts.size() > 1) tensor.shape = as_rows(tensor.shape);
    const int64_t row = static_cast<int64_t>(tensor.data.size()) / tensor.shape.front();
    std::vector<int64_t> parts = as.parts.empty() ? loaded.parts_of(tensor.name) : as.parts;
    if (as.tensors.size() == 1) parts = {split ? rows_of(*split) : tensor.shape.front()};
    auto from = tensor.data.cbegin();
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto [place, fresh] = places.emplace(as.tensors[i], result.size());
      std::vector<int64_t> shape = tensor.shape;
      shape.front() = parts[i];
      shape = transposed_if(std::move(shape), as.transpose);
      if (fresh)
        result.push_back({as.tensors[i], shape, std::vector<float>(static_cast<size_t>(parts[i] * row))});
      else if (shape != result[place->second].shape)
        return Status::error(
            "the tensor {} would be {} for the rows of {}, and {} for those of another parameter",
            as.tensors[i], shape_text(shape), tensor.name, shape_text(result[place->second].shape));
      const std::vector<RowRun> runs = runs_of(as, i, split ? tensor.shape.front() : parts[i]);
      put_rows(from, runs, as.transpose, result[place->second]);
      if (own.size() > 2 && as.parts.size() > 1 && !split)
        result[place->second].shape = shape_of_rows(own, parts[i]);
      for (const RowRun& run : runs) from += run.count * row;
    }
  }
  tensors = std::move(result);
  return {};
}

void mark_own_names(const Plan& plan, Metadata& metadata) {
  if (plan.load) metadata.emplace(kNames, kOwn);
}

}  // namespace gacc
