// The passes, in the order of the pipeline.
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using enum ir::Phase;

constexpr Pass kPasses[] = {
    {"autodiff",
     "adds the backward pass to step: it yields a gradient for every trainable parameter the loss reaches",
     model, gradient, autodiff},
    {"accumulate", "gives every gradient a buffer that step adds to, and writes the update region", gradient,
     accumulated, accumulate},
    {"loss-scale",
     "says what the backward pass starts from, undoes it in update, and adjusts the scale; in f32 without a "
     "scale only the phase changes",
     accumulated, scaled, loss_scale},
    {"half-casts", "casts to half precision where the op table says so; with f32 only the phase changes",
     scaled, half, half_casts},
    {"decode", "makes predict for one position, with the keys and values of earlier ones in caches", half,
     half, decode},
    {"shard", "lets each rank have a slice of the optimizer's state and of the update, as memory.shard says",
     half, half, shard},
    {"expand", "writes composite ops (softmax, layer_norm, ...) in ops that have a lowering", {}, {}, expand},
    {"fold", "computes what is constant, and drops operations that change nothing", {}, {}, fold},
    {"cse", "computes equal things once", {}, {}, cse},
    {"dce", "drops what nobody reads", {}, {}, dce},
    {"half-inputs", "lets the runtime round an f32 input that is read as half alone", half, half,
     half_inputs},
    {"chunk-loss", "cuts the head and the loss of a large vocabulary, so that its logits never exist at once",
     half, half, chunk_loss},
    {"frozen-blocks",
     "keeps frozen matrices in the blocks that precision.frozen names, and reads them in front of products",
     half, half, frozen_blocks},
    {"fuse", "groups ops into kernels, splits large sums into parts, and numbers the kernels", half, fused,
     fuse},
    {"save-less",
     "lets the gradient make a value again, in few ops, from what it reads anyway, and not save it", fused,
     fused, save_less},
    {"pitch", "puts the rows of wide products further apart, so that they begin at multiples of 16 bytes",
     fused, fused, pitch},
    {"host-state",
     "keeps optimizer state in the host's memory, as memory.host says, and brings it to the update in pieces",
     fused, fused, host_state},
    {"host-weights",
     "keeps frozen and half weights in the host's memory, as memory.host says, and fetches them for what "
     "reads them",
     fused, fused, host_weights},
    {"recompute",
     "drops values of the forward pass and makes them again in the backward pass, as recompute.policy says",
     fused, recomputed, recompute},
    {"launch-mode",
     "decides whether the step and the update are launches or one cooperative kernel each, and says why",
     recomputed, recomputed, launch_mode},
    {"plan-memory",
     "gives every buffer and value its place in the one arena; predictions that have no room come in parts",
     recomputed, planned, plan_memory},
    {"select", "makes a launch of every kernel: its function or tile, its operands, extents, grid and block",
     planned, scheduled, select},
    {"epilogues", "lets a product do the pointwise kernel behind it while the result is in registers",
     scheduled, scheduled, epilogues},
    {"levels", "says which launches need not wait for each other", scheduled, scheduled, levels},
    {"merge",
     "makes one launch of small kernels that do not wait for each other: of a level of the update, of "
     "closing a lane, and of neighbours in the step",
     scheduled, scheduled, merge},
    {"persistent", "makes one cooperative kernel of a small step, and of the update, as launch.mode says",
     scheduled, scheduled, persistent},
    {"streams", "puts gradients of parameters on a second stream of a step that is a graph", scheduled,
     scheduled, streams},
    {"workspaces", "gives products of a library the bytes of the arena that hold nothing while they run",
     scheduled, scheduled, workspaces},
};

}  // namespace

std::span<const Pass> all_passes() { return kPasses; }

const Pass* find_pass(std::string_view name) {
  for (const Pass& pass : kPasses)
    if (pass.name == name) return &pass;
  return nullptr;
}

std::string_view pass_before(std::string_view name) {
  std::string_view before;
  for (const Pass& pass : kPasses) {
    if (pass.name == name) break;
    before = pass.name;
  }
  return before;
}

std::string passes_text() {
  std::string out;
  for (const Pass& pass : kPasses) out += fmt::format("{:<12} {}\n", pass.name, pass.summary);
  return out;
}

std::string passes_markdown() {
  std::string out = "| pass | needs | gives | what it does |\n|---|---|---|---|\n";
  const auto phase = [](const std::optional<ir::Phase>& phase) {
    return phase ? fmt::format("`{}`", ir::phase_text(*phase)) : std::string("–");
  };
  for (const Pass& pass : kPasses)
    out += fmt::format("| `{}` | {} | {} | {} |\n", pass.name, phase(pass.needs), phase(pass.gives),
                       pass.summary);
  return out;
}

}  // namespace gacc::passes
