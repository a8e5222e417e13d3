// A pass: a name, the phases it runs between, and one function. The registry lists them in pipeline
// order.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/module.h"

namespace gacc::passes {

struct Options {
  int plan_effort = 1;           // scales the work of the recompute search
  std::string target = "sm_80";  // the GPU that recompute weighs launches of, and that `select` chooses for
};

// False, or a diagnostic in `diag`: the module could not be transformed. The pass manager sets the phase.
using PassFunction = bool(ir::Module& module, const Options& options, Diag& diag);

struct Pass {
  std::string_view name;     // as typed after --passes
  std::string_view summary;  // one line: --list-passes and docs/passes.md
  // The phase the module must be in, and the one it is in afterwards. A clean-up has neither: it runs in any
  // phase before `fused` and keeps it.
  std::optional<ir::Phase> needs, gives;
  PassFunction* run;
};

std::span<const Pass> all_passes();            // the pipeline, top to bottom
const Pass* find_pass(std::string_view name);  // null when there is none
// Returns the name of the pass before that one in the pipeline; "" for the first, and the last where there is none
// of that name.
std::string_view pass_before(std::string_view name);
// Returns into how many parts chunk-loss will cut the loss: more in a smaller memory.budget.
int64_t loss_chunks(const ir::Module& half);
// Returns the type of every buffer of a module in phase `half`, where those of the pass frozen-blocks are in blocks.
std::vector<ir::Type> stored_types(const ir::Module& half);
std::string passes_text();      // --list-passes
std::string passes_markdown();  // docs/passes.md

// One file each, of that name.
[[nodiscard]] PassFunction autodiff, accumulate, loss_scale, half_casts, decode, shard, expand, fold, cse,
    dce, half_inputs, chunk_loss, frozen_blocks, fuse, save_less, pitch, host_state, host_weights, recompute,
    launch_mode, plan_memory;
// In schedule/.
[[nodiscard]] PassFunction select, epilogues, levels, merge, persistent, streams, workspaces;

}  // namespace gacc::passes
