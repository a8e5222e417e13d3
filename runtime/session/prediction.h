// The outputs of a model for a few samples, which may come in parts where the arena has no room for all (PlanPredict).
#pragma once
#include <cstdint>
#include <span>

#include "runtime/session/arena.h"

namespace gacc {

class Prediction {
 public:
  explicit Prediction(Arena& arena) : arena_(arena) {}  // which must outlive it
  // Predicts 1 to predict.batch samples; only those inputs are looked at that predict reads. Does not wait.
  Status run(InputBytes inputs, int64_t samples);
  // Reads some of the outputs, from number `first` on; where they come in parts, this runs those parts. Waits.
  Status read(int64_t first, std::span<float> outputs);
  // Goes on with the text of the runs before by one token, at a position from 0 on, where the plan has `decode`; no
  // other program may have run since the text began. Does not wait.
  Status decode(int32_t token, int32_t position);
  // Reads the outputs of the position of the last `decode`. Waits.
  Status read_decoded(std::span<float> outputs);

 private:
  Arena& arena_;
};

}  // namespace gacc
