// See fork.h.
#include "runtime/cuda/fork.h"

namespace gacc::cuda {

Fork::~Fork() {
  for (const Event event : events_) driver_.event_destroy(event);
}

Status Fork::begin() {
  GACC_TRY(mark(kWhole, 0));
  return wait(kWhole, 1);
}

Status Fork::end() {
  GACC_TRY(mark(kWhole, 1));
  return wait(kWhole, 0);
}

Status Fork::mark(int64_t launch, int64_t stream) {
  Event event = nullptr;
  GACC_TRY(driver_.check(driver_.event_create(&event, kEventDisableTiming), "cannot create an event"));
  events_.push_back(event);
  marks_[launch] = event;
  return driver_.check(driver_.event_record(event, this->stream(stream)), "cannot record an event");
}

Status Fork::wait(int64_t launch, int64_t stream) {
  return driver_.check(driver_.stream_wait_event(this->stream(stream), marks_.at(launch), 0),
                       "cannot let a stream wait for the other");
}

}  // namespace gacc::cuda
