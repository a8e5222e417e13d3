// The loader thread. The consumer holds batch delivered_ - 1, and the thread fills the others. When all are full it
// sleeps until half of them are taken.
#include "runtime/data/loader.h"

#include <algorithm>
#include <new>
#include <system_error>

#include "runtime/data/array.h"

namespace gacc {

constexpr int64_t kElementBytes = 4;  // f32 and i32
// Bytes of all buffers, unless two need more, and the most buffers.
constexpr int64_t kBufferBytes = 8 << 20, kMostSlots = 8;

Loader::Loader(const Dataset& dataset, const Plan& plan, Device& device)
    : dataset_(dataset), plan_(plan), device_(device) {
  const auto bytes_of = [&](const PlanInput& input) {
    return plan.micro_batch * checked_product(input.shape) * kElementBytes;
  };
  int64_t bytes = 1;
  for (const PlanInput& input : plan.inputs) bytes += bytes_of(input);
  const bool beside = !device.takes_every_core() || std::ranges::any_of(dataset.columns, &Column::on_disk);
  const auto slots =
      static_cast<size_t>(beside ? std::clamp<int64_t>(kBufferBytes / bytes, 2, kMostSlots) : 2);
  buffers_.resize(slots);
  for (std::vector<std::vector<std::byte>>& slot : buffers_)
    for (const PlanInput& input : plan.inputs) slot.emplace_back(static_cast<size_t>(bytes_of(input)));
  batches_.assign(slots, {0, std::vector<std::span<const std::byte>>(plan.inputs.size())});
  if (!beside) return;
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  } catch (const std::system_error&) {  // next() does the work then
  }
}

void Loader::start(std::vector<int64_t> order, int64_t batch_size) {
  std::unique_lock lock(mutex_);
  total_ = 0;  // the thread begins nothing more of the old order
  made_some_.wait(lock, [this] { return !filling_; });
  order_ = std::move(order);
  batch_size_ = std::clamp<int64_t>(batch_size, 1, std::max<int64_t>(plan_.micro_batch, 1));
  total_ = (static_cast<int64_t>(order_.size()) + batch_size_ - 1) / batch_size_;
  made_ = delivered_ = 0;
  status_ = {};
  lock.unlock();
  taken_some_.notify_one();
}

const Batch* Loader::next() {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable() && delivered_ < total_) make(lock);
  made_some_.wait(lock, [this] { return ready() > 0 || delivered_ == total_; });
  if (delivered_ == total_) return nullptr;  // all were, or the next one cannot be made
  const Batch* batch = &batches_[static_cast<size_t>(delivered_ % std::ssize(batches_))];
  ++delivered_;  // this frees the slot of the batch before
  const bool few = ready() <= most_ready() / 2;
  lock.unlock();
  if (few) taken_some_.notify_one();
  return batch;
}

void Loader::work(const std::stop_token& stop) noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    taken_some_.wait(lock, stop, [this] { return made_ < total_ && ready() <= most_ready() / 2; });
    while (!stop.stop_requested() && made_ < total_ && ready() < most_ready()) make(lock);
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
