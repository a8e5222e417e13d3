#include "runtime/session/sharded_update.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/blocks.h"
#include "runtime/half.h"

namespace gacc {

bool is_window_sum(const PlanBuffer& buffer) {
  return buffer.kind() == BufferKind::accum && buffer.role != BufferRole::node;
}

Status ShardedUpdate::open() {
  const Plan& plan = arena_.plan();
  if (plan.shard == 0) return {};
  if (exchange_ == nullptr || exchange_->ranks() != plan.shard)
    return Status::error(
        "the artifact is for exactly {0} ranks, which share the optimizer's state (memory.shard), and this "
        "run has {1}: start {0}, or compile it with --set train.ranks={1} (alone: --set memory.shard=none)",
        plan.shard, exchange_ == nullptr ? 1 : exchange_->ranks());
  for (const PlanBuffer& buffer : plan.buffers) {
    const PlanBuffer* whole = plan.find(buffer.of);
    const bool master = buffer.role == BufferRole::master;
    if (!master && buffer.role != BufferRole::slice) continue;
    shards_[whole] = &buffer;
    if (!master) shared_[whole->role].push_back({whole->offset, whole->bytes, buffer.bytes});
  }
  return {};
}

// Moves this rank's shard to another place, or to the front of the whole; zeros follow behind the tensor's end.
Status ShardedUpdate::move_own(const SharedBytes& from, int64_t to) {
  if (to == from.offset && rank() == 0) return {};
  const int64_t begin = rank() * from.shard;
  const int64_t there = std::clamp<int64_t>(from.bytes - begin, 0, from.shard);
  GACC_TRY(arena_.copy(from.offset + begin, to, there));
  return arena_.zero(to + there, from.shard - there);
}

Status ShardedUpdate::init(std::span<const PlanBuffer* const> given) {
  if (Status status = arena_.run_init(given); !status || arena_.plan().shard == 0) return status;
  for (const auto& [whole, shard] : shards_)
    if (shard->role == BufferRole::master)
      GACC_TRY(move_own({whole->offset, whole->bytes, shard->bytes}, shard->offset));
  return arena_.run(Program::clear);
}

Status ShardedUpdate::run() {
  if (arena_.plan().shard == 0) return arena_.run(Program::update);
  std::vector<SharedBytes> parameters = shared_[BufferRole::weight];
  const std::vector<SharedBytes>& halves = shared_[BufferRole::half];
  parameters.insert(parameters.end(), halves.begin(), halves.end());
  for (const SharedBytes& each : parameters) GACC_TRY(move_own(each, each.offset));
  for (const auto& [role, program] : {std::pair(BufferRole::norm_parts, Program::norms),
                                      std::pair(BufferRole::ratio_parts, Program::ratios)}) {
    if (shared_[role].empty()) continue;
    GACC_TRY(arena_.run(program));
    GACC_TRY(exchange_->gather_shards(shared_[role]));
  }
  GACC_TRY(arena_.run(Program::update));
  GACC_TRY(exchange_->gather_shards(parameters));
  const int32_t ok = GACC_TRY(arena_.read_state<int32_t>(state::window_ok));
  if (ok == 0 && !arena_.plan().skip_nonfinite) return {};  // the sums tell why
  set_summed(false);
  return arena_.run(Program::clear);
}

LaneSum ShardedUpdate::sum_of(const PlanBuffer& buffer, std::vector<int64_t> nodes) const {
  const auto shard = shards_.find(&buffer);
  const bool shared = shard != shards_.end();
  const int64_t all = elements_of(buffer.shape);
  return {shared ? elements_of(shard->second->shape) : all,
          buffer.dtype == DType::i32,
          buffer.kept,
          std::move(nodes),
          buffer.offset,
          shared ? all : 0};
}

const PlanBuffer* ShardedUpdate::shard_of(const PlanBuffer& buffer) const {
  if (buffer.role == BufferRole::moment && !buffer.whole.empty()) return &buffer;
  const auto found = shards_.find(&buffer);
  if (found == shards_.end()) return nullptr;
  const bool master = found->second->role == BufferRole::master;
  return master || (summed_ && is_window_sum(buffer)) ? found->second : nullptr;
}

Result<std::vector<std::byte>> ShardedUpdate::read(const PlanBuffer& buffer) {
  const PlanBuffer* shard = shard_of(buffer);
  if (shard == nullptr) return arena_.read<std::byte>(buffer.offset, buffer.bytes);
  const std::vector<std::byte> mine = GACC_TRY(arena_.read<std::byte>(shard->offset, shard->bytes));
  std::vector<std::byte> bytes = GACC_TRY(exchange_->gather_bytes(mine));
  bytes.resize(static_cast<size_t>(whole_bytes(buffer)));
  return bytes;
}

Result<std::vector<float>> ShardedUpdate::read_floats(const PlanBuffer& buffer) {
  const int64_t elements = elements_of(buffer.shape);
  if (shard_of(buffer) == nullptr && buffer.dtype == DType::f32)
    return arena_.read<float>(buffer.offset, elements);
  const std::vector<std::byte> bytes = GACC_TRY(read(buffer));
  std::vector<float> values(static_cast<size_t>(elements));
  if (buffer.dtype == DType::f32)
    std::memcpy(values.data(), bytes.data(), bytes.size());
  else if (const BlockFormat* format = block_format(dtype_text(buffer.dtype)))
    dequantize(*format, bytes.data(), 0, values);
  else  // a frozen parameter
    widen(half_type(buffer.dtype), bytes.data(), values.data(), elements);
  return values;
}

Status ShardedUpdate::write(const PlanBuffer& buffer, int64_t first, std::span<const std::byte> bytes) {
  const PlanBuffer* shard = shard_of(buffer);
  if (shard == nullptr) return arena_.write(buffer.offset + first, bytes);
  const int64_t begin = rank() * shard->bytes, low = std::max(begin, first);
  const int64_t high = std::min(begin + shard->bytes, first + std::ssize(bytes));
  if (low >= high) return {};
  return arena_.write(shard->offset + low - begin,
                      bytes.subspan(static_cast<size_t>(low - first), static_cast<size_t>(high - low)));
}

}  // namespace gacc
