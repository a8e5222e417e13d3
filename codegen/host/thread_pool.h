// The host device's threads. A launch is a number of tasks; each thread has its own share of them, so that
// the same tile meets the same core's cache in every micro-batch, and a thread that is done takes from the
// others'. Which thread runs a task never changes its result.
//
// Waiting threads spin briefly, then yield, then sleep: on a machine with one competing process a pool that
// only spins is 5-40 times slower (measured). Nobody waits for a thread that holds no task.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace gacc::host {

class Pool {
 public:
  using Task = void (*)(const void* context, int64_t index);

  // `threads` counts the caller; 0 means every core this process may use. There are fewer where no more can be started.
  explicit Pool(int threads = 0);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // The number, below threads(), of the thread that runs this task.
  static int current();

  // Calls task(context, i) for every i in [0, tasks), in any order on any thread, and returns when all are
  // done. Allocates nothing. One task runs on the caller. Only one thread may call this.
  void run(int64_t tasks, Task task, const void* context);
  template <class F>
  void run(int64_t tasks, const F& f) {
    run(
        tasks, [](const void* context, int64_t i) { (*static_cast<const F*>(context))(i); }, &f);
  }

 private:
  // The rest of one thread's share: the launch's number (high half) and how many tasks (low half). A
  // successful claim proves that the launch of that number is still under way, so its fields can be read
  // then.
  struct alignas(64) Slot {
    std::atomic<uint64_t> left{0};
  };

  void work(size_t self);
  void serve(size_t self);
  bool wait_for_launch(uint32_t& seen);

  std::vector<Slot> slots_;
  std::vector<std::thread> workers_;
  int spins_;  // pauses before the first yield

  // The launch under way.
  Task task_ = nullptr;
  const void* context_ = nullptr;
  int64_t tasks_ = 0;

  alignas(64) std::atomic<uint32_t> launch_{0};  // counts launches; what sleepers wait on
  alignas(64) std::atomic<int64_t> done_{0};     // finished tasks of the launch
  std::atomic<bool> stop_{false};
  std::atomic<int> serving_{0};  // workers that have not seen the end
};

int usable_cores();  // of this process's affinity mask

}  // namespace gacc::host
