// Streams, events, capture and graphs. A graph is the list of operations in the order they were issued.
#include <fmt/format.h>

#include <algorithm>

#include "emulator/driver.h"

namespace gacc::emulator {

CUstream_st* stream_of(CUstream_st* stream) {
  if (!stream || stream == reinterpret_cast<CUstream_st*>(1) || stream == reinterpret_cast<CUstream_st*>(2))
    return &device().legacy;
  auto& streams = device().streams;
  return std::ranges::find(streams, stream) != streams.end() ? stream : nullptr;
}

int submit(CUstream_st* stream, Operation operation) {
  const std::lock_guard lock(device().mutex);
  stream = stream_of(stream);
  if (!stream) return kInvalidHandle;
  if (!stream->capture) {
    const int error = make_copies(stream);
    return error != kSuccess ? error : operation();
  }
  stream->capture->operations.push_back(std::move(operation));
  ++stream->capture->issued[stream];
  return kSuccess;
}

int submit_copy(CUstream_st* stream, uint64_t address, size_t bytes, bool writes, Operation operation) {
  const std::lock_guard lock(device().mutex);
  CUstream_st* on = stream_of(stream);
  if (!on) return kInvalidHandle;
  if (on->capture || !on->waits) return submit(stream, std::move(operation));
  static uint64_t number = 0;
  on->copies.push_back({std::move(operation), number++, address, bytes, writes});
  return kSuccess;
}

int make_copies(CUstream_st* stream, size_t count) {
  while (!stream->copies.empty() && stream->made < count) {
    const CUstream_st::Copy copy = std::move(stream->copies.front());
    stream->copies.erase(stream->copies.begin());
    ++stream->made;
    for (const CUstream_st* other : device().streams)
      for (const CUstream_st::Copy& waiting : other->copies)
        if (waiting.number < copy.number && (waiting.writes || copy.writes) &&
            waiting.address < copy.address + copy.bytes && copy.address < waiting.address + waiting.bytes)
          device().last_error = fmt::format(
              "a copy of {} bytes {} the device does not wait for one {} it of the same bytes, which was "
              "issued before",
              copy.bytes, copy.writes ? "to" : "from", waiting.writes ? "to" : "from");
    if (const int error = copy.make()) return error;
  }
  return kSuccess;
}

}  // namespace gacc::emulator

using namespace gacc::emulator;

GACC_DRIVER_EXPORT int cuStreamCreate(CUstream_st** stream, unsigned) {
  const std::lock_guard lock(device().mutex);
  if (!stream) return kInvalidValue;
  *stream = new CUstream_st;
  device().streams.push_back(*stream);
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuStreamDestroy_v2(CUstream_st* stream) {
  const std::lock_guard lock(device().mutex);
  if (std::ranges::find(device().streams, stream) == device().streams.end()) return kInvalidHandle;
  make_copies(stream);
  std::erase(device().streams, stream);
  delete stream;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuStreamSynchronize(CUstream_st* stream) {
  const std::lock_guard lock(device().mutex);
  stream = stream_of(stream);
  if (!stream) return kInvalidHandle;
  return stream->capture ? kCaptureUnsupported : make_copies(stream);
}
GACC_DRIVER_EXPORT int cuStreamBeginCapture_v2(CUstream_st* stream, int mode) {
  const std::lock_guard lock(device().mutex);
  stream = stream_of(stream);
  if (!stream) return kInvalidHandle;
  if (stream == &device().legacy || stream->capture) return kCaptureUnsupported;
  if (mode < 0 || mode > 2) return kInvalidValue;
  stream->capture = std::make_shared<Capture>();
  stream->origin = true;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuStreamEndCapture(CUstream_st* stream, CUgraph_st** graph) {
  const std::lock_guard lock(device().mutex);
  stream = stream_of(stream);
  if (!stream) return kInvalidHandle;
  if (!graph) return kInvalidValue;
  if (!stream->capture || !stream->origin) return kCaptureUnmatched;
  const std::shared_ptr<Capture> capture = stream->capture;
  const Progress ended = stream->ended;
  for (CUstream_st* other : device().streams)
    if (other->capture == capture) other->capture.reset(), other->origin = false, other->ended.clear();
  for (const auto& [other, issued] : capture->issued)
    if (other != stream && (!ended.contains(other) || ended.at(other) < issued)) return kCaptureUnjoined;
  *graph = new CUgraph_st{std::move(capture->operations)};
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuGraphInstantiateWithFlags(CUgraphExec_st** executable, CUgraph_st* graph,
                                                   unsigned long long) {
  if (!executable) return kInvalidValue;
  if (!graph) return kInvalidHandle;
  *executable = new CUgraphExec_st{*graph};
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuGraphUpload(CUgraphExec_st* executable, CUstream_st*) {
  return executable ? kSuccess : kInvalidHandle;
}
GACC_DRIVER_EXPORT int cuGraphLaunch(CUgraphExec_st* executable, CUstream_st* stream) {
  if (!executable) return kInvalidHandle;
  return submit(stream, [operations = executable->operations] {
    for (const Operation& operation : operations)
      if (const int error = operation()) return error;
    return static_cast<int>(kSuccess);
  });
}
GACC_DRIVER_EXPORT int cuGraphExecDestroy(CUgraphExec_st* executable) {
  delete executable;
  return executable ? kSuccess : kInvalidHandle;
}
GACC_DRIVER_EXPORT int cuGraphDestroy(CUgraph_st* graph) {
  delete graph;
  return graph ? kSuccess : kInvalidHandle;
}
GACC_DRIVER_EXPORT int cuEventCreate(CUevent_st** event, unsigned) {
  if (!event) return kInvalidValue;
  *event = new CUevent_st;
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuEventDestroy_v2(CUevent_st* event) {
  delete event;
  return event ? kSuccess : kInvalidHandle;
}
GACC_DRIVER_EXPORT int cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  const std::lock_guard lock(device().mutex);
  stream = stream_of(stream);
  if (!event || !stream) return kInvalidHandle;
  event->capture = stream->capture;  // while capturing: a wait on it joins the capture
  event->ended = stream->ended;
  if (stream->capture) event->ended[stream] = stream->capture->issued[stream];
  event->stream = stream;
  event->copies = stream->made + stream->copies.size();
  event->recorded = true;
  event->time = std::chrono::steady_clock::now();
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuStreamWaitEvent(CUstream_st* stream, CUevent_st* event, unsigned) {
  const std::lock_guard lock(device().mutex);
  stream = stream_of(stream);
  if (!event || !stream) return kInvalidHandle;
  if (event->capture && !stream->capture && stream != &device().legacy) stream->capture = event->capture;
  if (CUstream_st* other = event->stream ? stream_of(event->stream) : nullptr;
      other && other != stream && !stream->capture) {
    stream->waits = true;
    if (const int error = make_copies(other, event->copies)) return error;
  }
  if (stream->capture && event->capture == stream->capture)
    for (const auto& [other, ended] : event->ended)
      stream->ended[other] = std::max(stream->ended[other], ended);
  return kSuccess;
}
GACC_DRIVER_EXPORT int cuEventSynchronize(CUevent_st* event) {
  const std::lock_guard lock(device().mutex);
  if (!event) return kInvalidHandle;
  CUstream_st* stream = event->stream ? stream_of(event->stream) : nullptr;
  return stream ? make_copies(stream, event->copies) : kSuccess;
}
GACC_DRIVER_EXPORT int cuEventElapsedTime(float* milliseconds, CUevent_st* from, CUevent_st* to) {
  if (!milliseconds) return kInvalidValue;
  if (!from || !to || !from->recorded || !to->recorded) return kInvalidHandle;
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return kSuccess;
}
