#include "runtime/long_work.h"

#include <mutex>
#include <utility>
#include <vector>

#include "runtime/standard_streams.h"

namespace gacc {
namespace {

std::mutex works_mutex;
std::vector<LongWork*> all;  // the innermost last

}  // namespace

LongWork::LongWork(std::string what, int64_t parts) : what_(std::move(what)), parts_(parts) {
  const std::lock_guard lock(works_mutex);
  all.push_back(this);
}

LongWork::~LongWork() {
  const std::lock_guard lock(works_mutex);
  std::erase(all, this);
  if (all.empty()) clear_moving_line();
}

void LongWork::now(std::string what) {
  const std::lock_guard lock(works_mutex);
  what_ = std::move(what);
}

void LongWork::look(const std::function<void(const std::optional<State>&)>& f) {
  const std::lock_guard lock(works_mutex);
  std::optional<State> state;
  if (!all.empty()) {
    const LongWork& work = *all.back();
    state = {work.what_, work.done_.load(std::memory_order_relaxed), work.parts_};
  }
  f(state);
}

}  // namespace gacc
