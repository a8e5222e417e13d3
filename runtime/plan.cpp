#include "runtime/plan.h"

#include <algorithm>
#include <numeric>

namespace gacc {

std::vector<PlanArgument> builtin_arguments(const PlanLaunch& product) {
  if (!product.builtin.arguments.empty()) return product.builtin.arguments;
  const auto address = [](int64_t offset) { return PlanArgument{PlanArgument::Kind::address, offset}; };
  std::vector<PlanArgument> all = {address(product.a), address(product.b), address(product.c),
                                   product.m,          product.n,          product.k};
  if (product.pitch) all.insert(all.end(), product.pitch->begin(), product.pitch->end());
  return all;
}

Tail parse_tail(std::string_view text) {
  return static_cast<Tail>(std::ranges::find(kTails, text) - std::begin(kTails));
}

std::string_view kind_text(BufferKind kind) {
  constexpr std::string_view texts[] = {"param", "accum", "state"};
  return texts[static_cast<size_t>(kind)];
}

BufferKind PlanBuffer::kind() const { return buffer_roles[static_cast<size_t>(role)].kind; }

int64_t elements_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t PlanInput::bytes(int64_t samples) const {
  return elements_of(shape) * samples * dtype_bytes(stored.value_or(dtype));
}

int64_t PlanPredict::outputs() const { return elements_of(shape) / parts() * std::max<int64_t>(batch, 1); }

const std::vector<int64_t>& whole_shape(const PlanBuffer& buffer) {
  return buffer.whole.empty() ? buffer.shape : buffer.whole;
}

int64_t whole_bytes(const PlanBuffer& buffer) {
  if (buffer.whole.empty()) return buffer.bytes;
  return buffer.bytes / elements_of(buffer.shape) * elements_of(buffer.whole);
}

bool Plan::needs(Program program) const {
  if (program == Program::predict) return predict.batch > 0;
  if (program == Program::answer) return predict.rows > 0;
  if (program == Program::decode) return predict.decode.has_value();
  if (program == Program::measure) return predict.measured;
  for (const auto& [one, role] :
       {std::pair(Program::close, BufferRole::node), std::pair(Program::norms, BufferRole::norm_parts),
        std::pair(Program::ratios, BufferRole::ratio_parts), std::pair(Program::clear, BufferRole::slice)})
    if (program == one) return std::ranges::count(buffers, role, &PlanBuffer::role) > 0;
  return true;
}

Status Plan::check_samples(int64_t samples, Program program) const {
  const int64_t most = most_samples(program);
  if (samples >= 1 && samples <= most) return {};
  return Status::error("a launch takes 1 to {} samples, {} were given", most, samples);
}

const PlanBuffer* Plan::find(BufferRole role, std::string_view buffer) const {
  for (const PlanBuffer& candidate : buffers)
    if (candidate.role == role && candidate.of == buffer) return &candidate;
  return nullptr;
}

const PlanBuffer* Plan::find(std::string_view buffer) const {
  for (const PlanBuffer& candidate : buffers)
    if (candidate.name == buffer) return &candidate;
  return nullptr;
}

}  // namespace gacc
