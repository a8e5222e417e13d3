// See fork.h.
#include "runtime/cuda/fork.h"

namespace gacc::cuda {

Fork::~Fork() {
  for (const Event event : events_) driver_.event_destroy(event);
}

Status Fork::begin() {
  const Status status = mark(kWhole, 0);
  return status ? wait(kWhole, 1) : status;
}

Status Fork::end() {
  const Status status = mark(kWhole, 1);
  return status ? wait(kWhole, 0) : status;
}

Status Fork::mark(int64_t launch, int64_t stream) {
  Event event = nullptr;
  if (const int error = driver_.event_create(&event, kEventDisableTiming); error != 0)
    return driver_.check(error, "cannot create an event");
  events_.push_back(event);
  marks_[launch] = event;
  return driver_.check(driver_.event_record(event, this->stream(stream)), "cannot record an event");
}

Status Fork::wait(int64_t launch, int64_t stream) {
  return driver_.check(driver_.stream_wait_event(this->stream(stream), marks_.at(launch), 0),
                       "cannot let a stream wait for the other");
}

}  // namespace gacc::cuda
