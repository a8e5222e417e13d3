// Makes the micro-batches of an epoch on a thread of its own, some ahead of the consumer, so that gathering and
// converting samples runs beside the computing, and neither wakes the other for each of them. Where a device takes
// every core, such a thread would keep one of its threads waiting: then next() makes a micro-batch of samples in memory
// on the device's threads. Each input has two buffers or more, allocated once for the largest micro-batch.
//
// For a device with a memory of its own, samples are kept from the epoch that first takes them, as the device reads
// them: values are checked, normalised and rounded once. An epoch whose samples are all kept is only copied.
//
//   Loader loader(dataset, plan, session.device());
//   loader.start(epoch_order(dataset.samples, seed, epoch, shuffle), plan.micro_batch);
//   while (const Batch* batch = loader.next()) session.step(batch->inputs, batch->samples);
//   then loader.status()
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/device.h"

namespace gacc {

struct Batch {
  int64_t samples = 0;  // 1 to the batch size
  // In the plan's order, `samples` samples each, as Session::step takes them: but for a target, which the host reads as
  // well, of the type that the input has in the arena.
  std::vector<std::span<const std::byte>> inputs;
};

class Loader {
 public:
  // All must outlive the loader; next() and the device's other work are called by one thread. Allocates the
  // buffers for plan.micro_batch samples. May be destroyed at any moment, also in the middle of an epoch.
  Loader(const Dataset& dataset, const Plan& plan, Device& device);

  // Begins to deliver the samples `order` (indices into the dataset, any number of them) in batches of
  // `batch_size`, 1 to plan.micro_batch; the last batch is what is left. Whatever was under way is dropped.
  void start(std::vector<int64_t> order, int64_t batch_size);
  // The next batch, or null when all have been delivered (and before any start). It stays valid until the
  // following call of next or start.
  const Batch* next();
  // Why next() has ended before all were delivered, since the last start; success when it has not.
  Status status() const;

 private:
  void work(const std::stop_token& stop) noexcept;
  void make(std::unique_lock<std::mutex>& lock);  // the next batch
  Status fill(int64_t index) noexcept;            // batch `index` of the order, into its slot
  // Returns the number of batches that are filled and not delivered ...
  int64_t ready() const { return made_ - delivered_; }
  // ... and the most that may be: the consumer holds another one.
  int64_t most_ready() const { return std::ssize(batches_) - 1; }
  Status gather(size_t input, std::span<const int64_t> order, std::span<std::byte> destination);
  Status gather_piece(size_t input, std::span<const int64_t> order, std::span<std::byte> destination) const;

  // The samples of the whole dataset, and which of them are there.
  struct Kept {
    std::vector<std::unique_ptr<std::byte[]>> inputs;  // [input]: one sample after the other
    std::vector<bool> has;
    int64_t count = 0;
  };
  void make_room_to_keep();
  void keep(std::span<const int64_t> order, const Batch& batch);
  Status copy_kept(size_t input, std::span<const int64_t> order, std::span<std::byte> destination) const;

  const Dataset& dataset_;
  const Plan& plan_;
  Device& device_;
  std::vector<size_t> sample_bytes_;  // [input]
  std::optional<Kept> kept_;          // used by whoever fills
  // Batch i of an epoch lives in slot i modulo their number. [slot][input]
  std::vector<std::vector<std::vector<std::byte>>> buffers_;
  std::vector<Batch> batches_;

  mutable std::mutex mutex_;
  std::condition_variable made_some_;       // for the consumer
  std::condition_variable_any taken_some_;  // for the thread
  std::vector<int64_t> order_;
  int64_t batch_size_ = 1;
  int64_t total_ = 0;       // batches of this epoch
  int64_t made_ = 0;        // batches filled
  int64_t delivered_ = 0;   // batches that next() has handed out
  bool by_thread_ = false;  // the thread fills, else next() does
  bool filling_ = false;    // the thread writes a buffer just now
  Status status_{};         // of the batch that could not be filled
  std::jthread thread_;  // not running when next() fills by itself, as when the system has no thread to give
};

}  // namespace gacc
