// Ops that on the host are a library call instead of generated code (kernels/handwritten.h): a number of
// tasks, fixed by the shapes, that the pool hands out. A task computes its share of the results from start to
// end on one thread, so results do not depend on the number of threads.
#pragma once
#include <memory>

#include "ir/op_info.h"

namespace gacc::host {

class LibraryCall {
 public:
  virtual ~LibraryCall() = default;
  // For a micro-batch of `batch` samples.
  virtual int64_t tasks(int64_t batch) const = 0;
  // `operands`: addresses of the op's operands, then of its results. False when the library refuses (out of
  // memory). Many threads call this at once; `thread` is the caller's number.
  [[nodiscard]] virtual bool run(char* const* operands, int64_t batch, int64_t task, int thread) const = 0;
};

// The call of an op in its place, for so many threads; null for an op that is none.
std::unique_ptr<LibraryCall> make_library_call(const ir::OpView& op, int threads);

}  // namespace gacc::host
