// The first state of a session: from the seed and files of parameters, or from a checkpoint.
#pragma once
#include <cstdint>

#include "runtime/session/session.h"
#include "runtime/store/checkpoint.h"
#include "runtime/weights/adapters.h"
#include "runtime/weights/weights.h"

namespace gacc {

struct Beginning {
  uint64_t seed = 0;
  double lr = 0;  // also after a checkpoint
  const CheckpointReader* checkpoint =
      nullptr;  // which has been checked; then files of parameters are not looked at
  const Weights* weights = nullptr;
  const Adapter* adapter = nullptr;
  std::vector<float> class_weights{};  // where they follow from the data (runtime/data/data_facts.h)
};
Status begin(Session& session, const Plan& plan, const Beginning& from);

// The session's update; an error where training cannot go on after it.
Result<WindowReport> update_window(Session& session, const Plan& plan);

}  // namespace gacc
