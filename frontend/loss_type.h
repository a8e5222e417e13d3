// The table of losses: losses.def names them, frontend/losses/ has a file for each family.
#pragma once
#include "frontend/schema.h"

namespace gacc::frontend {

struct LossContext;

struct LossType {
  TypeSchema schema;
  Words metrics{};  // those that can be measured beside it
  // What must hold among the keys, beyond their ranges. Reports what does not.
  void (*check)(const Values& keys, Diag& diag) = nullptr;
  void (*lower)(LossContext& loss) = nullptr;
};

namespace losses {
#define X(name) extern const LossType name;
#include "frontend/losses.def"
#undef X
}  // namespace losses

const std::vector<const LossType*>& all_losses();  // in the order of losses.def
Words metric_names();                              // of all losses

}  // namespace gacc::frontend
