#include "runtime/cuda/profiler.h"

namespace gacc::cuda {

void Profiler::open(const Driver& driver, const EmulatorLink* emulator) {
  driver_ = &driver;
  emulator_ = emulator;
}

Status Profiler::mark(Stream stream) {
  if (emulator_ != nullptr) {
    counts_.push_back(emulator_->executed());
    return {};
  }
  Event event = nullptr;
  GACC_TRY(driver_->make_event(event, 0));
  events_.push_back(event);
  return driver_->record(event, stream);
}

Status Profiler::queued(Program program, int64_t launch, const std::string& name, int64_t batch,
                        Stream stream) {
  GACC_TRY(mark(stream));
  timings_.push_back({name, program, launch, batch, 0, 0});
  ends_.push_back((emulator_ != nullptr ? counts_.size() : events_.size()) - 1);
  return {};
}

Status Profiler::read(std::vector<Timing>& timings) {
  // From one mark to another, in microseconds or instructions.
  Status status;
  const auto between = [&](size_t from, size_t to) {
    if (emulator_ != nullptr) return static_cast<double>(counts_[to] - counts_[from]);
    float milliseconds = 0;
    const int error = driver_->event_elapsed(&milliseconds, events_[from], events_[to]);
    if (error != 0 && status) status = driver_->check(error, "cannot read an event's time");
    return static_cast<double>(milliseconds) * 1000;
  };
  double at = 0;  // of the mark before; sums, since differences from the first would lose digits
  size_t before = 0;
  for (size_t i = 0; i < timings_.size(); ++i) {
    at += before < ends_[i] - 1 ? between(before, ends_[i] - 1) : 0;
    timings_[i].begin = at;
    timings_[i].duration = between(ends_[i] - 1, ends_[i]);
    at += timings_[i].duration;
    before = ends_[i];
  }
  timings = timings_;
  return status;
}

void Profiler::close() {
  for (Event event : events_) driver_->event_destroy(event);
  events_.clear();
}

}  // namespace gacc::cuda
