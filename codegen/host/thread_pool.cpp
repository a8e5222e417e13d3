#include "codegen/host/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <system_error>

namespace gacc::host {

namespace {

thread_local int current_thread = 0;  // of the caller of run as well

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// A pause is 40-140 cycles, so 2,000 of them are 50-100 us: longer than the serial gaps inside a step. With
// more threads than cores spinning only keeps the working thread from its core.
constexpr int kSpins = 2000, kSpinsOversubscribed = 20, kYields = 100;

// A new thread starts on its parent's core and the kernel takes milliseconds to move it: ask for the n-th
// usable core once, then allow all of them again.
void go_to_core(size_t n) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) == 0) return;
  n %= static_cast<size_t>(CPU_COUNT(&all));
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &all) || n-- != 0) continue;
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) sched_setaffinity(0, sizeof all, &all);
    return;
  }
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return std::max(1u, std::thread::hardware_concurrency());
  return std::max(1, CPU_COUNT(&set));
}

int Pool::current() { return current_thread; }

Pool::Pool(int threads)
    : slots_(static_cast<size_t>(std::clamp(threads > 0 ? threads : usable_cores(), 1, 1024))) {
  spins_ = slots_.size() > static_cast<size_t>(usable_cores()) ? kSpinsOversubscribed : kSpins;
  workers_.reserve(slots_.size() - 1);
  try {
    for (size_t i = 1; i < slots_.size(); ++i, ++serving_) workers_.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error&) {  // no room for so many: those that started take the others' shares
  }
}

Pool::~Pool() {
  stop_ = true;
  launch_.fetch_add(1);
  // Until all have seen it: on a busy machine a sleeper was found that one wake-up had not reached.
  for (; serving_ > 0; std::this_thread::yield()) launch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run(int64_t tasks, Task task, const void* context) {
  if (tasks <= 1 || slots_.size() == 1) {
    for (int64_t i = 0; i < tasks; ++i) task(context, i);
    return;
  }
  task_ = task;
  context_ = context;
  tasks_ = tasks;
  done_.store(0, std::memory_order_relaxed);
  const uint32_t number = launch_.load(std::memory_order_relaxed) + 1;
  const auto count = static_cast<int64_t>(slots_.size());
  for (int64_t s = 0; s < count; ++s) {
    const int64_t share = tasks * (s + 1) / count - tasks * s / count;
    slots_[s].left.store(uint64_t{number} << 32 | static_cast<uint64_t>(share), std::memory_order_release);
  }
  launch_.store(number, std::memory_order_seq_cst);
  launch_.notify_all();  // no system call where nobody sleeps

  work(0);
  for (int attempt = 0; done_.load(std::memory_order_acquire) != tasks; ++attempt) {
    if (attempt < spins_)
      pause();
    else
      std::this_thread::yield();
  }
}

// Runs what is left of the launch: first the own share, then the others'.
void Pool::work(size_t self) {
  const size_t count = slots_.size();
  for (size_t attempt = 0; attempt < count; ++attempt) {
    const size_t s = (self + attempt) % count;
    std::atomic<uint64_t>& left = slots_[s].left;
    int64_t finished = 0;
    uint64_t seen = left.load(std::memory_order_relaxed);
    while ((seen & UINT32_MAX) != 0) {
      if (!left.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire, std::memory_order_relaxed))
        continue;
      const auto slots = static_cast<int64_t>(count), slot = static_cast<int64_t>(s);
      const int64_t end = tasks_ * (slot + 1) / slots;
      task_(context_, end - static_cast<int64_t>(seen & UINT32_MAX));
      ++finished;
      seen = left.load(std::memory_order_relaxed);
    }
    if (finished > 0) done_.fetch_add(finished, std::memory_order_release);
  }
}

void Pool::serve(size_t self) {
  go_to_core(self);
  current_thread = static_cast<int>(self);
  uint32_t seen = 0;
  while (wait_for_launch(seen)) work(self);
  --serving_;
}

// Waits until launch_ differs from `seen`, which becomes the same; false when the pool is being destroyed. A later
// look at launch_ could be the destructor's, and `seen` would never differ from it again.
bool Pool::wait_for_launch(uint32_t& seen) {
  uint32_t now = 0;
  for (int attempt = 0; (now = launch_.load(std::memory_order_acquire)) == seen; ++attempt) {
    if (attempt < spins_)
      pause();
    else if (attempt < spins_ + kYields)
      std::this_thread::yield();
    else
      launch_.wait(seen);
  }
  seen = now;
  return !stop_.load(std::memory_order_acquire);
}

}  // namespace gacc::host
