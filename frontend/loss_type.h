// The table of losses: losses.def names them, frontend/losses/ has a file for each family.
#pragma once
#include "frontend/schema.h"

namespace gacc::frontend {

class LossContext;

struct LossType {
  TypeSchema schema;
  std::vector<std::string_view> metrics{};  // those that can be measured beside it
  // What must hold among the keys, beyond their ranges. Reports what does not.
  void (*check)(const Values& keys, Diag& diag) = nullptr;
  void (*lower)(LossContext& loss) = nullptr;
};

namespace losses {
#define X(name) extern const LossType name;
#include "frontend/losses.def"
#undef X
}  // namespace losses

const LossType& loss_type(const TypeSchema& schema);
std::vector<const TypeSchema*> all_loss_schemas();  // in the order of losses.def

std::vector<std::string_view> metric_names();                               // of all losses
std::vector<std::string_view> losses_with_metric(std::string_view metric);  // that it can be measured for

}  // namespace gacc::frontend
