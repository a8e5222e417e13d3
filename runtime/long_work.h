// LongWork that may take long, for whoever tells the user of it (runtime/tell/waiting.h):
//
//   LongWork work("loading weights", bytes);
//   for (...) { ...; work.done(some); }
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/no_copy.h"

namespace gacc {

// A piece of this process's work, from its construction to its destruction. One that begins within another one is told
// of in its place until it ends. They begin and end on one thread.
class LongWork : NoCopy {
 public:
  // `what` it does: "loading weights". `parts`: of how many it will say that they are done; 0: it will not.
  explicit LongWork(std::string what, int64_t parts = 0);
  ~LongWork();

  // So many more parts are done. Any thread may call it.
  void done(int64_t more = 1) { done_.fetch_add(more, std::memory_order_relaxed); }
  // From now on it does this.
  void now(std::string what);

  struct State {
    std::string what;
    int64_t done = 0, parts = 0;
  };
  // Calls f with the innermost piece, or nothing where there is none. Any thread may call it; while f runs, no piece
  // begins or ends.
  static void look(const std::function<void(const std::optional<State>&)>& f);

 private:
  std::string what_;
  const int64_t parts_;
  std::atomic<int64_t> done_ = 0;
};

}  // namespace gacc
