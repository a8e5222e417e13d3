// The loader thread. The consumer holds batch delivered_ - 1, and the thread fills the others. When all are full it
// sleeps until half of them are taken.
#include "runtime/data/loader.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <system_error>

#include "runtime/data/array.h"
#include "runtime/half.h"

namespace gacc {
namespace {

// Bytes of all buffers, unless two need more, and the most buffers.
constexpr int64_t kBufferBytes = 8 << 20, kMostSlots = 8;
constexpr int64_t kMostKept = 256 << 20;  // bytes

// Returns the half type to which a batch's values are rounded.
std::optional<DType> rounded(const PlanInput& input) { return input.target ? std::nullopt : input.stored; }

}  // namespace

Loader::Loader(const Dataset& dataset, const Plan& plan, Device& device)
    : dataset_(dataset), plan_(plan), device_(device) {
  for (const PlanInput& input : plan.inputs)
    sample_bytes_.push_back(static_cast<size_t>(checked_product(input.shape)) * (rounded(input) ? 2 : 4));
  const auto most_samples = static_cast<size_t>(plan.micro_batch);
  const auto bytes = static_cast<int64_t>(
      1 + most_samples * std::accumulate(sample_bytes_.begin(), sample_bytes_.end(), size_t{0}));
  const bool beside = !device.takes_every_core() || std::ranges::any_of(dataset.columns, &Column::on_disk);
  const auto slots =
      static_cast<size_t>(beside ? std::clamp<int64_t>(kBufferBytes / bytes, 2, kMostSlots) : 2);
  buffers_.resize(slots);
  for (std::vector<std::vector<std::byte>>& slot : buffers_)
    for (const size_t each : sample_bytes_) slot.emplace_back(most_samples * each);
  batches_.assign(slots, {0, std::vector<std::span<const std::byte>>(plan.inputs.size())});
  if (!beside) return;
  make_room_to_keep();
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  } catch (const std::system_error&) {  // next() does the work then
  }
}

void Loader::make_room_to_keep() try {
  int64_t bytes = 0;
  for (size_t i = 0; i < sample_bytes_.size(); ++i)
    if (dataset_.columns[i].present()) bytes += dataset_.samples * static_cast<int64_t>(sample_bytes_[i]);
  if (!device_.host_memory(0, 1).empty() || bytes > kMostKept) return;
  Kept kept;
  for (const size_t each : sample_bytes_)  // the system gives the pages as they are written
    kept.inputs.push_back(
        std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(dataset_.samples) * each));
  kept.has.resize(static_cast<size_t>(dataset_.samples));
  kept_ = std::move(kept);
} catch (const std::bad_alloc&) {  // it goes without
}

void Loader::start(std::vector<int64_t> order, int64_t batch_size) {
  std::unique_lock lock(mutex_);
  total_ = 0;  // the thread begins nothing more of the old order
  made_some_.wait(lock, [this] { return !filling_; });
  order_ = std::move(order);
  batch_size_ = std::clamp<int64_t>(batch_size, 1, std::max<int64_t>(plan_.micro_batch, 1));
  total_ = (static_cast<int64_t>(order_.size()) + batch_size_ - 1) / batch_size_;
  made_ = delivered_ = 0;
  by_thread_ = thread_.joinable() && !(kept_ && kept_->count == dataset_.samples);
  status_ = {};
  lock.unlock();
  taken_some_.notify_one();
}

const Batch* Loader::next() {
  std::unique_lock lock(mutex_);
  if (!by_thread_ && delivered_ < total_) make(lock);
  made_some_.wait(lock, [this] { return ready() > 0 || delivered_ == total_; });
  if (delivered_ == total_) return nullptr;  // all were, or the next one cannot be made
  const Batch* batch = &batches_[static_cast<size_t>(delivered_ % std::ssize(batches_))];
  ++delivered_;  // this frees the slot of the batch before
  const bool few = by_thread_ && ready() <= most_ready() / 2;
  lock.unlock();
  if (few) taken_some_.notify_one();
  return batch;
}

void Loader::work(const std::stop_token& stop) noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    taken_some_.wait(lock, stop,
                     [this] { return by_thread_ && made_ < total_ && ready() <= most_ready() / 2; });
    while (!stop.stop_requested() && by_thread_ && made_ < total_ && ready() < most_ready()) make(lock);
    if (stop.stop_requested()) return;
  }
}

void Loader::make(std::unique_lock<std::mutex>& lock) {
  const int64_t index = made_;
  filling_ = true;
  lock.unlock();
  Status filled = fill(index);
  lock.lock();
  filling_ = false;
  if (total_ > 0 && filled) ++made_;  // unless start() has dropped this order meanwhile
  if (total_ > 0 && !filled) {
    status_ = std::move(filled);
    total_ = made_;
  }
  made_some_.notify_one();
}

Status Loader::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

Status Loader::fill(int64_t index) noexcept try {
  const auto slot = static_cast<size_t>(index % std::ssize(batches_));
  const int64_t first = index * batch_size_;
  const int64_t samples = std::min(batch_size_, static_cast<int64_t>(order_.size()) - first);
  const std::span<const int64_t> order(order_.data() + first, static_cast<size_t>(samples));
  const bool kept =
      kept_ && std::ranges::all_of(order, [&](int64_t i) { return kept_->has[static_cast<size_t>(i)]; });
  Batch& batch = batches_[slot];
  batch.samples = samples;
  for (size_t i = 0; i < plan_.inputs.size(); ++i) {
    if (!dataset_.columns[i].present()) continue;
    const std::span destination(buffers_[slot][i].data(), order.size() * sample_bytes_[i]);
    GACC_TRY(kept ? copy_kept(i, order, destination) : gather(i, order, destination));
    batch.inputs[i] = destination;
  }
  if (kept_ && !kept) keep(order, batch);
  return {};
} catch (const std::bad_alloc&) {
  return Status::error("out of memory for a micro-batch");
}

void Loader::keep(std::span<const int64_t> order, const Batch& batch) {
  for (size_t at = 0; at < order.size(); ++at) {
    const auto sample = static_cast<size_t>(order[at]);
    if (kept_->has[sample]) continue;
    for (size_t i = 0; i < sample_bytes_.size(); ++i) {
      if (!dataset_.columns[i].present()) continue;
      const size_t each = sample_bytes_[i];
      std::ranges::copy(batch.inputs[i].subspan(at * each, each), kept_->inputs[i].get() + sample * each);
    }
    kept_->has[sample] = true;
    ++kept_->count;
  }
}

Status Loader::copy_kept(size_t input, std::span<const int64_t> order,
                         std::span<std::byte> destination) const {
  const Column& column = dataset_.columns[input];
  if (column.on_disk()) GACC_TRY(column.file->unchanged());
  const size_t each = sample_bytes_[input];
  for (size_t at = 0; at < order.size(); ++at)
    std::memcpy(destination.data() + at * each,
                kept_->inputs[input].get() + static_cast<size_t>(order[at]) * each, each);
  return {};
}

Status Loader::gather(size_t input, std::span<const int64_t> order, std::span<std::byte> destination) {
  if (thread_.joinable()) return gather_piece(input, order, destination);
  constexpr size_t kPieceBytes = 4096;
  const size_t each = sample_bytes_[input], piece = std::max<size_t>(1, kPieceBytes / each);
  return device_.run_each((order.size() + piece - 1) / piece, [&](size_t i) {
    const size_t first = i * piece, samples = std::min(piece, order.size() - first);
    return gather_piece(input, order.subspan(first, samples),
                        destination.subspan(first * each, samples * each));
  });
}

Status Loader::gather_piece(size_t input, std::span<const int64_t> order,
                            std::span<std::byte> destination) const {
  const PlanInput& planned = plan_.inputs[input];
  const std::optional<DType> half = rounded(planned);
  if (!half) return dataset_.gather(input, planned, order, destination);
  std::vector<float> floats(destination.size() / 2);
  GACC_TRY(dataset_.gather(input, planned, order, std::as_writable_bytes(std::span(floats))));
  narrow(half_type(*half), floats.data(), reinterpret_cast<uint16_t*>(destination.data()),
         std::ssize(floats));
  return {};
}

}  // namespace gacc
