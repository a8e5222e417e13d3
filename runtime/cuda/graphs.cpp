#include "runtime/cuda/graphs.h"

#include <algorithm>

namespace gacc::cuda {

namespace {
constexpr size_t kMostRagged = 16;
}

void Graphs::open(const Driver& driver, const Programs& programs, Stream stream) {
  driver_ = &driver;
  programs_ = &programs;
  stream_ = stream;
}

void Graphs::close() {
  for (std::vector<Variant>* list : {&full_, &ragged_}) {
    for (const Variant& variant : *list)
      if (variant.graph) driver_->graph_exec_destroy(variant.graph);
    list->clear();
  }
  if (second_) driver_->stream_destroy(second_);
  second_ = nullptr;
}

Status Graphs::add_full(Program program, int64_t micro_batch) {
  return capture(full_.emplace_back(Variant{program, micro_batch, nullptr}));
}

Status Graphs::find(Program program, int64_t batch, GraphExec& graph, bool& captured) {
  captured = false;
  graph = nullptr;
  for (const std::vector<Variant>* list : {&full_, &ragged_})
    for (const Variant& candidate : *list)
      if (candidate.program == program && candidate.batch == batch) {
        graph = candidate.graph;
        return {};
      }
  const std::pair asked{program, batch};
  if (std::find(seen_.begin(), seen_.end(), asked) == seen_.end()) {
    seen_.push_back(asked);
    return {};
  }
  Variant fresh{program, batch, nullptr};
  GACC_TRY(capture(fresh));
  captured = true;
  graph = fresh.graph;
  if (ragged_.size() < kMostRagged) {
    ragged_.push_back(fresh);
    return {};
  }
  driver_->graph_exec_destroy(ragged_[next_ragged_].graph);  // one still running is freed when it is done
  ragged_[next_ragged_] = fresh;
  next_ragged_ = (next_ragged_ + 1) % kMostRagged;
  return {};
}

Status Graphs::capture(Variant& variant) {
  GACC_TRY(programs_->prepare(variant.program, variant.batch, stream_));
  const bool forks = programs_->forks(variant.program);
  if (forks && !second_)
    GACC_TRY(driver_->check(driver_->stream_create(&second_, kStreamNonBlocking),
                            "cannot create a stream on the GPU"));
  Fork fork(*driver_, stream_, second_);
  // Relaxed: only this thread works with the context, and a library may still have to load code.
  GACC_TRY(driver_->check(driver_->capture_begin(stream_, kCaptureRelaxed), "cannot capture a graph"));
  Status status = forks ? programs_->launch(variant.program, variant.batch, fork)
                        : programs_->launch(variant.program, variant.batch, stream_);
  const auto check = [&](int error, const char* what) {
    if (status && error != 0) status = driver_->check(error, what);
  };
  Graph captured = nullptr;
  check(driver_->capture_end(stream_, &captured), "cannot capture a graph");  // after a failure as well
  if (status) check(driver_->graph_instantiate(&variant.graph, captured, 0), "cannot prepare a graph");
  if (status) check(driver_->graph_upload(variant.graph, stream_), "cannot upload a graph");
  if (captured) driver_->graph_destroy(captured);
  return status;
}

}  // namespace gacc::cuda
