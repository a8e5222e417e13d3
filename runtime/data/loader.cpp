// The loader thread. The consumer holds batch delivered_ - 1, so the thread may fill a batch of index made_
// as long as made_ <= delivered_: that is one batch ahead, in the slot that the consumer does not hold.
#include "runtime/data/loader.h"

#include <algorithm>
#include <new>
#include <system_error>

#include "runtime/data/array.h"

namespace gacc {

constexpr int64_t kElementBytes = 4;  // f32 and i32

Loader::Loader(const Dataset& dataset, const Plan& plan, Device& device)
    : dataset_(dataset), plan_(plan), device_(device) {
  for (size_t slot = 0; slot < 2; ++slot) {
    for (const PlanInput& input : plan.inputs)
      buffers_[slot].emplace_back(
          static_cast<size_t>(plan.micro_batch * checked_product(input.shape) * kElementBytes));
    batches_[slot].inputs.resize(plan.inputs.size());
  }
  if (device.takes_every_core() && std::ranges::none_of(dataset.columns, &Column::on_disk)) return;
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  } catch (const std::system_error&) {  // next() does the work then
  }
}

void Loader::start(std::vector<int64_t> order, int64_t batch_size) {
  std::unique_lock lock(mutex_);
  total_ = 0;  // the thread begins nothing more of the old order
  changed_.wait(lock, [this] { return !filling_; });
  order_ = std::move(order);
  batch_size_ = std::clamp<int64_t>(batch_size, 1, std::max<int64_t>(plan_.micro_batch, 1));
  total_ = (static_cast<int64_t>(order_.size()) + batch_size_ - 1) / batch_size_;
  made_ = delivered_ = 0;
  status_ = {};
  lock.unlock();
  changed_.notify_all();
}

const Batch* Loader::next() {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable() && delivered_ < total_) make(lock);
  changed_.wait(lock, [this] { return made_ > delivered_ || delivered_ == total_; });
  if (delivered_ == total_) return nullptr;  // all were, or the next one cannot be made
  const Batch* batch = &batches_[static_cast<size_t>(delivered_ % 2)];
  ++delivered_;  // this frees the other slot
  lock.unlock();
  changed_.notify_all();
  return batch;
}

void Loader::work(const std::stop_token& stop) noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, stop, [this] { return made_ < total_ && made_ <= delivered_; });
    if (stop.stop_requested()) return;
    make(lock);
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
  changed_.notify_all();
}

Status Loader::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

Status Loader::fill(int64_t index) noexcept try {
  auto slot = static_cast<size_t>(index % 2);
  const int64_t first = index * batch_size_;
  const int64_t samples = std::min(batch_size_, static_cast<int64_t>(order_.size()) - first);
  const std::span<const int64_t> order(order_.data() + first, static_cast<size_t>(samples));
  Batch& batch = batches_[slot];
  batch.samples = samples;
  for (size_t i = 0; i < plan_.inputs.size(); ++i) {
    if (!dataset_.columns[i].present()) continue;
    auto bytes = static_cast<size_t>(samples * checked_product(plan_.inputs[i].shape) * kElementBytes);
    const std::span<std::byte> destination(buffers_[slot][i].data(), bytes);
    GACC_TRY(gather(i, order, destination));
    batch.inputs[i] = destination;
  }
  return {};
} catch (const std::bad_alloc&) {
  return Status::error("out of memory for a micro-batch");
}

Status Loader::gather(size_t input, std::span<const int64_t> order, std::span<std::byte> destination) {
  const PlanInput& planned = plan_.inputs[input];
  if (thread_.joinable()) return dataset_.gather(input, planned, order, destination);
  constexpr size_t kPieceBytes = 4096;
  const size_t each = destination.size() / order.size(), piece = std::max<size_t>(1, kPieceBytes / each);
  return device_.run_each((order.size() + piece - 1) / piece, [&](size_t i) {
    const size_t first = i * piece, samples = std::min(piece, order.size() - first);
    return dataset_.gather(input, planned, order.subspan(first, samples),
                           destination.subspan(first * each, samples * each));
  });
}

}  // namespace gacc
