#include "runtime/weights/gguf_template.h"

#include <algorithm>
#include <map>

#include "runtime/atomic_file.h"
#include "runtime/half.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr std::string_view kWritable = "F32, F16, BF16 and Q8_0";
constexpr size_t kMostListed = 8;  // tensors that cannot be written

// Returns whether the numbers are the tensor's, or what a step in that precision keeps of them.
bool same_numbers(const StoredTensor& tensor, std::span<const float> ours, DType precision) {
  constexpr size_t kBlock = size_t{1} << 16;
  std::vector<float> theirs;
  std::vector<uint16_t> halves;
  const auto equal = [&](std::span<const float> some) { return std::ranges::equal(theirs, some); };
  for (size_t first = 0; first < ours.size(); first += kBlock) {
    const std::span<const float> some = ours.subspan(first, std::min(kBlock, ours.size() - first));
    theirs.resize(some.size());
    read_elements(tensor, static_cast<int64_t>(first), theirs);
    if (equal(some)) continue;
    if (precision == DType::f32) return false;
    round_to_half(std::as_bytes(std::span(theirs)), half_type(precision), halves);
    widen(half_type(precision), halves.data(), theirs.data(), std::ssize(halves));
    if (!equal(some)) return false;
  }
  return true;
}

// Returns whether what is written may be other than what was loaded.
bool changes(const Plan& plan, const PlanBuffer& buffer, bool merges) {
  return buffer.trainable || buffer.role == BufferRole::statistic ||
         (merges && std::ranges::count(plan.adapters, buffer.name, &PlanAdapter::weight) > 0);
}

}  // namespace

std::string GgufTemplate::architecture() const {
  return std::string(base_.file().gguf()->text("general.architecture").value_or(""));
}

Status GgufTemplate::open(const std::string& path, const Plan& plan, bool merges, bool writes) {
  GACC_TRY(base_.open(path, plan));
  if (base_.kind() != FileKind::gguf)
    return Status::error("{}: is no GGUF, and a GGUF is written like another one", path);
  std::vector<std::string> problems;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!writes) break;
    if (!is_saved(buffer) || is_of_adapter(plan, buffer.name) || !changes(plan, buffer, merges)) continue;
    for (const std::string& name : published_name(plan, buffer.name, FileKind::gguf).tensors)
      if (const StoredTensor* tensor = base_.file().find(name); !is_writable_in_gguf(tensor->dtype))
        problems.push_back(
            fmt::format("{} is {} there and {}; of changed numbers {} can be written", name, tensor->dtype,
                        buffer.trainable ? "is trained here" : "--merge changes it", kWritable));
  }
  if (problems.size() > kMostListed + 1) {
    const int64_t more = std::ssize(problems) - static_cast<int64_t>(kMostListed);
    problems.resize(kMostListed);
    problems.push_back(fmt::format("and {} more tensors", more));
  }
  return problems.empty() ? Status() : Status::error(problem_list(path, problems));
}

Status GgufTemplate::write(const std::string& path, const Plan& plan,
                           std::vector<NamedTensor>& parameters) const {
  std::erase_if(parameters, [&](const NamedTensor& each) { return is_of_adapter(plan, each.name); });
  // A file may hold tied weights twice.
  for (const PlanTie& tie : plan.ties)
    if (base_.file().find(published_name(plan, tie.name, FileKind::gguf).tensors.front()) != nullptr) {
      NamedTensor copy = *std::ranges::find(parameters, tie.weight, &NamedTensor::name);
      copy.name = tie.name;
      parameters.push_back(std::move(copy));
    }
  GACC_TRY(to_published(plan, base_, parameters, FileKind::gguf));
  std::map<std::string_view, const NamedTensor*> ours;
  for (const NamedTensor& tensor : parameters) ours.emplace(tensor.name, &tensor);

  const std::string_view bytes = base_.file().bytes();
  AtomicFile file;
  GACC_TRY(file.open(path));
  uint64_t done = 0;
  for (const GgufTensor& tensor : base_.file().gguf()->tensors) {
    GACC_TRY(
        file.write(bytes.substr(done, tensor.begin - done)));  // the header, or what fills up to a multiple
    done = tensor.begin + tensor.size;
    const auto own = ours.find(tensor.name);
    const StoredTensor& stored = *base_.file().find(tensor.name);
    if (own == ours.end() || same_numbers(stored, own->second->data, plan.precision)) {
      GACC_TRY(file.write(stored.bytes));
    } else if (is_writable_in_gguf(tensor.type)) {
      const std::string data = GACC_TRY(gguf_data(tensor.type, own->second->data, tensor.name));
      GACC_TRY(file.write(data));
    } else {
      return Status::error(
          "{}: {} is {} in {} with other numbers than the run's, and of changed ones {} can be "
          "written; it was not loaded from there",
          path, tensor.name, tensor.type, base_.file().path(), kWritable);
    }
  }
  GACC_TRY(file.write(bytes.substr(done)));
  return file.commit();
}

}  // namespace gacc
