#include "runtime/session/arena.h"

#include <algorithm>

#include "runtime/half.h"

namespace gacc {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;  // bytes copied or written at once

}  // namespace

void Arena::open() {
  for (const PlanBuffer& buffer : plan_.buffers) by_name_.emplace(buffer.name, &buffer);
}

Result<const PlanBuffer*> Arena::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return Status::error("the artifact has no state {}", name);
  return found->second;
}

Result<std::vector<uint32_t>> Arena::read_words(std::span<const PlanBuffer* const> buffers) {
  std::vector<uint32_t> words;
  for (const PlanBuffer* buffer : buffers)
    words.push_back(GACC_TRY(read<uint32_t>(buffer->offset, 1)).front());
  return words;
}

Status Arena::zero(int64_t offset, int64_t bytes) {
  static const std::vector<std::byte> zeros(kBlock);
  for (int64_t done = 0; done < bytes; done += kBlock)
    GACC_TRY(
        write(offset + done, std::span(zeros).first(static_cast<size_t>(std::min(bytes - done, kBlock)))));
  return {};
}

Status Arena::copy(int64_t from, int64_t to, int64_t bytes) {
  for (int64_t done = 0; done < bytes; done += kBlock) {
    const std::vector<std::byte> block =
        GACC_TRY(read<std::byte>(from + done, std::min(bytes - done, kBlock)));
    GACC_TRY(write(to + done, block));
  }
  return {};
}

Status Arena::write_inputs(InputBytes inputs, int64_t samples, Program program) {
  if (inputs.size() != plan_.inputs.size())
    return Status::error("the step takes {}, {} were given", counted(plan_.inputs.size(), "input"),
                         inputs.size());
  GACC_TRY(plan_.check_samples(samples, program));
  inputs_.clear();
  halves_.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlanInput& input = plan_.inputs[i];
    const std::optional<int64_t> offset = input.offset(program);
    if (!offset) continue;
    auto bytes = static_cast<size_t>(elements_of(input.shape) * samples * 4);  // f32 and i32 are 4 bytes
    const bool is_half = input.stored && inputs[i].size() == bytes / 2;
    if (inputs[i].size() != bytes && !is_half)
      return Status::error("input {} takes {} bytes, {} were given", input.name, bytes, inputs[i].size());
    inputs_.push_back({*offset, inputs[i]});
    if (!input.stored || is_half) continue;
    round_to_half(inputs[i], half_type(*input.stored), halves_[i]);
    inputs_.back().bytes = std::as_bytes(std::span(halves_[i]));
  }
  return device_.write_all(inputs_);
}

}  // namespace gacc
