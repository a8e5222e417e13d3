// Programs captured as CUDA graphs, one for each micro-batch size that ran: those of the full micro-batch for
// good, of others (ragged ones) a limited number, the oldest given up first.
#pragma once
#include <array>
#include <utility>
#include <vector>

#include "runtime/cuda/programs.h"

namespace gacc::cuda {

class Graphs {
 public:
  // All three must outlive this; `stream` is the one that is captured.
  void open(const Driver& driver, const Programs& programs, Stream stream);
  void close();
  // Captures the program for a full micro-batch.
  Status add_full(Program program, int64_t micro_batch);
  // The graph of a program for this batch; `captured` when there was none before, so that the driver now
  // holds more memory. Owned by this, valid until the next call. Null when a batch that is not full is asked
  // for the first time: the program is then launched as it is, so that a library has loaded its code when it
  // is captured, and a size that never comes again gets no graph.
  Status find(Program program, int64_t batch, GraphExec& graph, bool& captured);

 private:
  struct Variant {
    Program program = Program::step;
    int64_t batch = 0;
    GraphExec graph = nullptr;
  };

  Status capture(Variant& variant);

  const Driver* driver_ = nullptr;
  const Programs* programs_ = nullptr;
  Stream stream_ = nullptr;
  std::array<Stream, kPlanStreams - 1> others_{};  // ours, as far as a program has launches on them
  std::vector<Variant> graphs_;                    // first the full ones, then the others from the oldest on
  size_t full_ = 0;
  std::vector<std::pair<Program, int64_t>> seen_;  // batches that are not full
};

}  // namespace gacc::cuda
