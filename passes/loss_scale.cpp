// Loss scaling: what the backward pass starts from, and what `update` does about it. Gradients of the loss
// sum start from 1; those in half precision would underflow, or, for a large micro-batch, overflow. With E
// the elements that the loss of one full micro-batch has:
//
//   compute    scale       seed              undone in update by
//   f32        none        1                 -
//   f32        a scale     @loss.scale       1 / @loss.scale
//   half       none        1 / E             E
//   half       a scale     @loss.scale / E   E / @loss.scale
//
// K is not in it: a half gradient is the same for every number of launches. A ragged micro-batch has the seed
// of a full one, for the accumulators hold sums. In f32 a power of two changes no bit.
//
//   1. Every `seed` that autodiff and accumulate left is replaced.
//   2. @loss.scale starts at the setting; update stores the one it used in @window.scale, and, with dynamic
//      scaling, adjusts it, last of all.
#include "passes/accumulate.h"

#include <algorithm>
#include <utility>

#include "passes/analysis/rewrite.h"

namespace gacc::passes {

using namespace ir;

Scaling scaling_of(const Module& module) {
  const auto& said = module.settings.precision;
  const Attr& scale = *said.loss_scale;
  const double* constant = std::get_if<double>(&scale);
  Scaling out{.half = *said.compute != DType::f32};
  out.dynamic = scale == Attr("dynamic");
  out.initial = out.dynamic ? *said.scale_initial : constant != nullptr ? *constant : 1;
  out.scaled = out.dynamic || out.initial != 1;
  return out;
}

bool skips_windows(const Module& module) {
  return scaling_of(module).dynamic || *module.settings.precision.on_nonfinite == "skip";
}

namespace {

// Returns how many elements a full micro-batch adds to @loss.count when all count: those of what is summed into it.
int64_t elements_of_loss(const Module& module) {
  const Region& step = module.step;
  const Op* adds = adds_to(step, module.find(Named::loss_count));
  if (adds == nullptr) return 1;
  Operand summed = adds->operands[1];
  // The sum may be an add.acc, or a sum over the sums of samples.
  for (size_t sum = maker_of(step, summed);
       sum < step.ops.size() && step.ops[sum].info->lowering == Lowering::total_reduce;
       sum = maker_of(step, summed))
    summed = step.ops[sum].operands.front();
  // Bits that must not depend on the micro-batch take the elements of one sample.
  const int64_t samples = keeps_bits(module.settings) ? 1 : module.micro_batch();
  return elements(operand_type(module, step, summed).shape, samples);
}

class LossScale {
 public:
  LossScale(Module& module, const Scaling& scaling, Diag& diag)
      : module_(module), scaling_(scaling), diag_(diag) {}

  void run() {
    const int64_t elements = scaling_.half ? elements_of_loss(module_) : 1;
    elements_ = static_cast<double>(elements);
    module_.results.seed_elements = elements;  // who reads accumulators needs it
    if (scaling_.scaled) scale_ = module_.named(Named::loss_scale);
    for (const RegionKind kind : all_regions) replace_seeds(module_.region(kind));
    if (!scaling_.scaled) return;
    start();
    adjust();
  }

 private:
  void replace_seeds(Region& region) {
    rewrite(region, [&](const Op& op, Replacements& replaced) {
      if (op.info != &op_seed) return true;
      Builder build = Builder(module_, region, diag_).like(op);
      const bool inverse = has_flag(op, "inverse");
      std::string name = std::exchange(region[op.results.front()].name, "replaced seed");
      replaced.set(op.results.front(), seed(build, inverse, std::move(name)));
      return false;
    });
  }

  Operand seed(Builder& build, bool inverse, std::string name) const {
    if (!scaling_.scaled) return inverse ? elements_ : 1 / elements_;
    if (inverse) return build.make("div", std::move(name), {elements_, scale_});
    if (elements_ == 1) return scale_;
    return build.make("div", std::move(name), {scale_, elements_});
  }

  void start() {
    Builder build(module_, module_.init, diag_);
    build.effect("fill", {scale_}, {{"value", scaling_.initial}});
    const BufferId used = module_.named(Named::window_scale);
    build.effect("fill", {used}, {{"value", scaling_.initial}});
    if (scaling_.dynamic) build.effect("fill", {module_.named(Named::scale_good)});
  }

  void adjust() {
    Region& update = module_.update;
    Builder build(module_, update, diag_);
    build.effect("store", {*module_.find(Named::window_scale), scale_});
    if (!scaling_.dynamic) return;
    const auto ok = update.find("ok"), go = update.find("go");
    if (!ok || !go) {
      diag_.error(Kind::invalid_ir, update.at, "`update` has no %ok and %go to adjust the loss scale by");
      return;
    }
    if (const auto counted = update.find("counted")) build.when = *counted;  // else nothing happened
    build.effect("scale.adjust", {scale_, *module_.find(Named::scale_good), *ok, *go},
                 {{"backoff", *module_.settings.precision.scale_backoff},
                  {"growth", *module_.settings.precision.scale_growth},
                  {"interval", *module_.settings.precision.scale_interval}});
  }

  Module& module_;
  const Scaling& scaling_;
  Diag& diag_;
  double elements_ = 1;
  BufferId scale_{};
};

}  // namespace

bool loss_scale(Module& module, const Options&, Diag& diag) {
  const Scaling scaling = scaling_of(module);
  if (scaling.seeded()) LossScale(module, scaling, diag).run();
  return !diag.failed();
}

}  // namespace gacc::passes
