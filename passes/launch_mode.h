// The record that pass launch-mode leaves. plan-memory, merge and persistent read it, and nobody decides it again.
#pragma once
#include "ir/module.h"

namespace gacc::passes {

inline constexpr std::string_view kGraphMode = "graph", kPersistentMode = "persistent";

// Tell whether a micro-batch, or the update, is one cooperative kernel.
inline bool is_persistent_step(const ir::Module& module) {
  return *module.results.launch_step == kPersistentMode;
}
inline bool is_persistent_update(const ir::Module& module) {
  return *module.results.launch_update == kPersistentMode;
}

}  // namespace gacc::passes
