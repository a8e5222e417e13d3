#include "runtime/cuda/graphs.h"

#include <algorithm>
#include <utility>

namespace gacc::cuda {

constexpr size_t kMostRagged = 16;

void Graphs::open(const Driver& driver, const Programs& programs, Stream stream) {
  driver_ = &driver;
  programs_ = &programs;
  stream_ = stream;
}

void Graphs::close() {
  for (const Variant& variant : graphs_)
    if (variant.graph) driver_->graph_exec_destroy(variant.graph);
  graphs_.clear();
  for (Stream& stream : others_)
    if (stream) driver_->stream_destroy(std::exchange(stream, nullptr));
}

Status Graphs::add_full(Program program, int64_t micro_batch) {
  ++full_;
  return capture(graphs_.emplace_back(Variant{program, micro_batch, nullptr}));
}

Status Graphs::find(Program program, int64_t batch, GraphExec& graph, bool& captured) {
  captured = false;
  graph = nullptr;
  for (const Variant& candidate : graphs_)
    if (candidate.program == program && candidate.batch == batch) {
      graph = candidate.graph;
      return {};
    }
  const std::pair asked{program, batch};
  if (std::ranges::find(seen_, asked) == seen_.end()) {
    seen_.push_back(asked);
    return {};
  }
  Variant fresh{program, batch, nullptr};
  GACC_TRY(capture(fresh));
  captured = true;
  graph = fresh.graph;
  if (graphs_.size() == full_ + kMostRagged) {
    const auto oldest = graphs_.begin() + static_cast<std::ptrdiff_t>(full_);
    driver_->graph_exec_destroy(oldest->graph);  // one still running is freed when it is done
    graphs_.erase(oldest);
  }
  graphs_.push_back(fresh);
  return {};
}

Status Graphs::capture(Variant& variant) {
  GACC_TRY(programs_->prepare(variant.program, variant.batch, stream_));
  const int64_t last = programs_->last_stream(variant.program);
  for (int64_t i = 0; i < last; ++i)
    if (Stream& stream = others_[static_cast<size_t>(i)]; !stream) GACC_TRY(driver_->make_stream(stream));
  Fork fork(*driver_, stream_, last > 0 ? others_[0] : nullptr, last > 1 ? others_[1] : nullptr);
  // Relaxed: only this thread works with the context, and a library may still have to load code.
  GACC_TRY(driver_->check(driver_->capture_begin(stream_, kCaptureRelaxed), "cannot capture a graph"));
  Status status = programs_->launch(variant.program, variant.batch, fork);
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
