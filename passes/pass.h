// What a pass is: a name, the phases it runs between, and one function. The registry lists them in pipeline
// order.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ir/module.h"
#include "passes/cost_model.h"

namespace gacc::passes {

// Limits that passes work within. They depend on nothing but the module, so that one input has one output.
struct Options {
  size_t kernel_ops = 24;          // ops of one kernel: register pressure
  size_t kernel_operands = 12;     // what one kernel loads and stores in memory
  size_t scalar_kernel_ops = 512;  // the same two for kernels of one element, which have neither problem
  size_t scalar_kernel_operands = 192;
  int64_t small_domain = 4096;       // elements; unrelated ops over a smaller domain share a launch
  int64_t elements_per_part = 4096;  // of a large total_sum, one task's share
  int64_t parts = 64;                // at most
  // A column_sum of fewer rows stays whole: a GPU walks so many in the time that a second launch takes (some
  // six waits for memory, for 8 rows by each of at least 8 warps).
  int64_t rows_to_cut = 1024;
  int64_t rows_per_part = 128;           // of one that is cut: two such waits
  int64_t column_parts = 256;            // at most: their sum is not cut again
  int plan_effort = 1;                   // scales the work of the recompute search
  std::string target = "sm_80";          // the GPU that `select` chooses for ...
  CostModel costs = cost_model(target);  // ... and what recompute weighs: of gaccc's target
};

struct Pass {
  std::string_view name;     // as typed after --passes
  std::string_view summary;  // one line: --list-passes and docs/passes.md
  // The phase the module must be in, and the one it is in afterwards. A clean-up has neither: it runs in any
  // phase before `fused` and keeps it.
  std::optional<ir::Phase> needs, gives;
  // False, or a diagnostic in `diag`: the module could not be transformed. The pass manager sets the phase.
  bool (*run)(ir::Module& module, const Options& options, Diag& diag);
};

std::span<const Pass> all_passes();                   // the pipeline, top to bottom
const Pass* find_pass(std::string_view name);         // null when there is none
std::string_view pass_before(std::string_view name);  // in the pipeline, which has both
std::string passes_text();                            // --list-passes
std::string passes_markdown();                        // docs/passes.md

// One file each, of that name.
[[nodiscard]] bool autodiff(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool accumulate(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool loss_scale(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool half_casts(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool shard(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool expand(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool fold(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool cse(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool dce(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool half_inputs(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool chunk_loss(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool fuse(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool save_less(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool pitch(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool recompute(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool plan_memory(ir::Module& module, const Options& options, Diag& diag);
// In schedule/.
[[nodiscard]] bool select(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool epilogues(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool levels(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool merge(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool persistent(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool streams(ir::Module& module, const Options& options, Diag& diag);
[[nodiscard]] bool workspaces(ir::Module& module, const Options& options, Diag& diag);

}  // namespace gacc::passes
