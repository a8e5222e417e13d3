// The update region: what happens once per window. With G the accumulated gradient sums and n = @loss.count,
// or @loss.weights where counted elements have weights:
//
//   1. sum of squares of every G, in parts              S = sum over parameters of sum(G^2)
//   2. finite test, mean, norm                          ok = isfinite(S), mean = 1 / n, norm = sqrt(S) * mean
//      where the loss is scaled mean <- mean * unscale: all that follows is of the unscaled gradient
//   3. go = ok and n != 0: a window in which nothing is counted is no error, but makes no update
//   4. clipping and the rate: mean <- mean * clip / norm where norm is above it; rate = the schedule of @lr
//   5. what the runtime reads: @window.ok, @window.sum = loss and @window.count (and @window.weights), which
//      8 clears, @window.loss = loss / n, @window.norm (before clipping), @window.lr = rate
//   6. per parameter, where go: the optimizer, with g = G * mean and the decay and rate of its group; and
//      where ok: G = 0, everywhere if windows are skipped
//   7. running statistics, where ok: what they moved in the window; the window's part is cleared always
//   8. the counters: bias corrections and @updates where go, @loss.sum = @loss.count = 0 as G
//
// Nothing is gated by a multiplication: when() keeps the old bytes. Bias corrections need no pow: c <- c *
// beta + (1 - beta) is exactly 1 - beta^t, and has no cancellation. Where an update stands for K launches
// (the second moment "micro") beta is beta^K.
#include <algorithm>
#include <cmath>
#include <map>

#include "ir/schema/optimizer.h"
#include "ir/schema/rate_schedule.h"
#include "passes/accumulate.h"

namespace gacc::passes {

using namespace ir;

namespace {

class UpdateBuilder {
 public:
  UpdateBuilder(Module& module, const Optimizer& optimizer, const std::vector<Trained>& trained, Diag& diag)
      : module_(module), optimizer_(optimizer), trained_(trained), build_(module, module.update, diag) {}

  void run() {
    const BufferId count = named(Named::loss_count);
    const Operand sum = whole(Named::loss_sum, kLossLow);
    updates_ = named(Named::updates);
    const BufferId lr = named(Named::lr);
    const ValueId squares = sum_of_squares();
    const std::optional<BufferId> weight = module_.find(Named::loss_weight);
    const Operand n =
        weight ? whole(Named::loss_weight, kWeightsLow) : Operand(build_.make("cast", "count", {count}));
    mean_ = build_.make("reciprocal", "mean", {n});
    if (scaling_of(module_).seeded())
      mean_ = build_.make("mul", "mean.unscaled",
                          {mean_, build_.make("seed", "unscale", {}, {{"inverse", true}})});
    const ValueId root = build_.make("sqrt", "norm.sum", {squares});
    const ValueId norm = build_.make("mul", "norm", {root, mean_});
    ok_ = build_.make("is_finite", "ok", {micro_ ? with_micro_squares(squares) : squares});
    counted_ = build_.make("not_equal", "counted", {weight ? n : Operand(count), 0.0});
    go_ = build_.make("mul", "go", {ok_, counted_});
    const ValueId loss = build_.make("div", "loss", {sum, n});
    clip(norm);
    rate_ = rate(lr);
    group_rates();
    bias_corrections();
    build_.effect("store", {named(Named::window_ok), ok_});
    build_.effect("store", {named(Named::window_sum), sum});
    build_.effect("store", {named(Named::window_count), count});
    if (weight) build_.effect("store", {named(Named::window_weight), n});
    build_.effect("store", {named(Named::window_loss), loss});
    build_.effect("store", {named(Named::window_norm), norm});
    build_.effect("store", {named(Named::window_lr), rate_});
    if (skips_) count_skips();
    for (const Named which : {Named::loss_sum, Named::loss_count, Named::loss_weight})
      if (const std::optional<BufferId> buffer = module_.find(which)) zero(*buffer);
    for (const std::string_view low : {kLossLow, kWeightsLow})
      if (const std::optional<BufferId> buffer = module_.find_buffer(low)) zero(*buffer);
    for (const Trained& one : trained_) parameter(one);
    if (micro_) zero(named(Named::window_launches));
    commit_statistics();
    write_when(go_, "add.acc", {updates_, 1.0});
  }

 private:
  BufferId named(Named which) { return module_.named(which); }

  // A sum, with what its additions lost where that is kept.
  Operand whole(Named sum, std::string_view low) {
    const std::optional<BufferId> lost = module_.find_buffer(low);
    if (!lost) return named(sum);
    return build_.make("add", std::string(named_info(sum).name) + ".whole", {named(sum), *lost});
  }

  // Running statistics move with the window's micro-batches in @NAME.change, and for good when it is good,
  // counted targets or not: they are of the inputs. What a skipped window did to them is forgotten.
  void commit_statistics() {
    for (const BufferId change : module_.buffer_ids()) {
      if (module_[change].role != BufferRole::change) continue;
      write_when(ok_, "add.acc", {*module_[change].of, change});
      build_.effect("fill", {change});
    }
  }

  // The sum of one value a parameter, as "NAME".
  ValueId sum_over(const std::vector<ValueId>& parts, const std::string& name) {
    ValueId total = parts.front();
    for (size_t i = 1; i < parts.size(); ++i) {
      const std::string partial = module_[trained_[i].parameter].name + "." + name + ".sum";
      total = build_.make("add", i + 1 == parts.size() ? name : partial, {total, parts[i]});
    }
    return total;
  }

  ValueId sum_of_squares() {
    std::vector<ValueId> sums;
    for (const Trained& one : trained_)
      sums.push_back(norm_squared(module_[one.parameter].name, ".norm2", gradient(one)));
    return sum_over(sums, "norm2");
  }

  // The sum over all uses, in their order.
  Operand gradient(const Trained& one) {
    Operand sum = one.gradient;
    for (const BufferId use : one.uses)
      sum = build_.make("add", module_[one.parameter].name + ".uses", {sum, use});
    return sum;
  }

  ValueId norm_squared(const std::string& name, const std::string& suffix, const Operand& what) {
    const ValueId square =
        build_.make("square", name + (suffix == ".norm2" ? ".square" : suffix + ".square"), {what});
    return build_.make("total_sum", name + suffix, {square});
  }

  // The squares of the launches' gradients may overflow where the window's gradient does not.
  ValueId with_micro_squares(ValueId squares) {
    std::vector<ValueId> sums;
    for (const Trained& one : trained_)
      sums.push_back(build_.make("total_sum", module_[one.parameter].name + ".micro2", {*one.squares}));
    return build_.make("add", "finite", {squares, sum_over(sums, "micro2")});
  }

  // Windows skipped in a row: the runtime gives up after precision.max_skips. One without counted elements is
  // none of them.
  void count_skips() {
    const BufferId skips = named(Named::skips);
    const ValueId next = build_.make("add", "skips.next", {skips, 1.0});
    write_when(counted_, "store", {skips, build_.make("select", "skips.now", {ok_, 0.0, next})});
  }

  // From here on the mean gradient is the clipped one.
  void clip(ValueId norm) {
    const double limit = *module_.settings.train.clip_norm;
    if (limit == 0) return;
    const ValueId factor = build_.make("clip_factor", "clip", {norm}, {{"limit", limit}});
    mean_ = build_.make("mul", "mean.clipped", {mean_, factor});
  }

  // The rate of this update: @lr, scaled for the effective batch, as the schedule has it after the good
  // updates so far.
  Operand rate(BufferId lr) {
    Operand base = lr;
    if (const double scale = rate_scale(); scale != 1) base = build_.make("mul", "lr.scaled", {lr, scale});
    const std::string type = *module_.settings.schedule.type;
    if (type == "constant" && *module_.settings.schedule.warmup == 0) return base;
    Operand t = updates_;
    if (*module_.settings.schedule.unit == "epochs")
      t = build_.make("quotient", "epoch", {updates_, named(Named::updates_per_epoch)});
    std::vector<Operand> operands = {base, t};
    if (type == "plateau") {
      operands.emplace_back(named(Named::plateau_cuts));
      // State that the runtime keeps there between evaluations (runtime/run/rates.h).
      named(Named::plateau_best);
      named(Named::plateau_bad);
      named(Named::plateau_seen);
    }
    const bool by_run = follows_run(module_.settings);
    if (by_run)
      for (const Named each : {Named::run_total, Named::run_warmup}) operands.emplace_back(named(each));
    const std::string op = "schedule." + type;
    const Attrs said = given(module_.settings, module_.results);
    Attrs attrs;
    for (const AttrSpec& spec : find_op(op)->attrs) {
      const auto set = said.find("schedule." + std::string(spec.name));
      const bool is_operand = by_run && (spec.name == "total" || spec.name == "warmup");
      if (!is_operand && set != said.end() && set->second != spec.fallback)
        attrs[std::string(spec.name)] = set->second;
    }
    if (const double least = least_rate(); least > 0) attrs["least"] = least;
    return build_.make(op, "rate", std::move(operands), std::move(attrs));
  }

  // schedule.min_lr as a part of optimizer.lr: what changes lr later changes it, too.
  double least_rate() const {
    const double lowest = module_.settings.real("schedule.min_lr", 0), lr = *module_.settings.optimizer.lr;
    return lr > 0 ? std::min(lowest / lr, 1.0) : 0;
  }

  double rate_scale() const {
    const std::string& scaling = *module_.settings.optimizer.lr_scaling;
    if (scaling == "none") return 1;
    const double ratio = static_cast<double>(module_.micro_batch() * module_.accumulate()) /
                         static_cast<double>(*module_.settings.optimizer.reference_batch);
    return scaling == "linear" ? ratio : std::sqrt(ratio);
  }

  // Groups with a factor have a rate of their own.
  void group_rates() {
    for (const Trained& one : trained_) {
      const Buffer& parameter = module_[one.parameter];
      const double factor = optimizer_rule(module_, parameter).lr_factor;
      if (factor == 1 || group_rates_.contains(parameter.group)) continue;
      group_rates_[parameter.group] =
          build_.make("mul", fmt::format("rate.group{}", parameter.group), {rate_, factor});
    }
  }

  Operand rate_of(const Buffer& parameter) const {
    const auto own = group_rates_.find(parameter.group);
    return own != group_rates_.end() ? Operand(own->second) : rate_;
  }

  void bias_corrections() {
    for (const BiasTerm& term : optimizer_.corrections) {
      const std::string name(term.name);
      const Attr betas = *find_key(optimizer_.schema.keys, "betas")->fallback.value;
      const double beta = module_.settings.real(fmt::format("optimizer.beta{}", term.beta + 1),
                                                std::get<std::vector<double>>(betas)[term.beta]);
      if (!micro_ || !term.launches) {
        corrections_.emplace_back(advance(name, beta, 1 - beta));
        continue;
      }
      const BufferId launches = named(Named::window_launches);
      decay2_ = build_.make("power", "decay2", {launches}, {{"base", beta}});
      const ValueId fresh =
          build_.make("power", "decay2.complement", {launches}, {{"base", beta}, {"complement", true}});
      corrections_.emplace_back(advance(name, *decay2_, fresh));
    }
  }

  // c <- c * kept + fresh; gives the new value.
  ValueId advance(const std::string& name, const Operand& kept, const Operand& fresh) {
    const BufferId buffer = module_.need_buffer({.name = name, .type = {DType::f32, {}}});
    const ValueId old = build_.make("mul", name + ".kept", {buffer, kept});
    const ValueId next = build_.make("add", name + ".next", {old, fresh});
    write_when(go_, "store", {buffer, next});
    return next;
  }

  void write_when(ValueId flag, std::string_view op, std::vector<Operand> operands, Attrs attrs = {}) {
    build_.when = flag;
    build_.effect(op, std::move(operands), std::move(attrs));
    build_.when.reset();
  }
  // A skipped window leaves nothing behind. One that is an error leaves its sums, to find out why.
  void zero(BufferId buffer) {
    if (skips_)
      build_.effect("fill", {buffer});
    else
      write_when(ok_, "fill", {buffer});
  }

  // The settings that the op knows, by its attributes' names.
  Attrs optimizer_attrs(std::string_view op, const Buffer& parameter) const {
    Attrs attrs;
    for (const AttrSpec& spec : find_op(op)->attrs) {
      const Attr* set = module_.settings.of_type(fmt::format("optimizer.{}", spec.name));
      attrs[std::string(spec.name)] = set != nullptr ? *set : spec.fallback;
    }
    if (attrs.contains("weight_decay"))
      attrs["weight_decay"] = optimizer_rule(module_, parameter).weight_decay;
    for (const auto& [name, value] : optimizer_.attrs)
      if (attrs.contains(name)) attrs[name] = value;
    return attrs;
  }

  void parameter(const Trained& one) {
    const BufferId w = one.parameter;
    const std::string name = module_[w].name;
    const Shape shape = module_[w].type.shape;
    const auto state = [&](size_t i) {
      const OptimizerState& kept = optimizer_.state.at(i);
      const Type type{DType::f32, kept.shape != nullptr ? kept.shape(shape) : shape};
      return module_.belonging(w, BufferRole::moment, kept.suffix, type);
    };
    const auto attrs = [&](std::string_view op) { return optimizer_attrs(op, module_[w]); };
    const auto update = [&](std::string_view op, std::vector<Operand> operands) {
      write_when(go_, op, std::move(operands), attrs(op));
    };
    const auto norm = [&](std::string_view suffix, const Operand& what) {
      return norm_squared(name, std::string(suffix), what);
    };
    const Operand rate = rate_of(module_[w]);
    OptimizerStep step{.build = build_,
                       .name = name,
                       .w = w,
                       .g = build_.make("mul", name + ".mean", {gradient(one), mean_}),
                       .rate = rate,
                       .updates = updates_,
                       .corrections = corrections_,
                       .state = state,
                       .update = update,
                       .attrs = attrs,
                       .norm_squared = norm};
    if (micro_) {
      step.squares = *one.squares;
      step.decay2 = decay2_;
    }
    optimizer_.step(step);
    if (micro_) zero(*one.squares);
    zero(one.gradient);
    for (const BufferId use : one.uses) zero(use);
  }

  Module& module_;
  const Optimizer& optimizer_;
  const bool skips_ = skips_windows(module_);
  const bool micro_ =  // the second moment, where the optimizer has one
      *module_.settings.optimizer.second_moment == "micro" &&
      std::ranges::any_of(optimizer_.corrections, &BiasTerm::launches);
  const std::vector<Trained>& trained_;
  Builder build_;
  ValueId mean_{}, ok_{}, counted_{}, go_{};
  std::vector<Operand> corrections_;  // the optimizer's bias terms
  std::optional<Operand> decay2_;
  BufferId updates_{};
  Operand rate_{};
  std::map<int32_t, ValueId> group_rates_;
};

}  // namespace

bool build_update(Module& module, const std::vector<Trained>& trained, Diag& diag) {
  const std::string& type = *module.settings.optimizer.type;
  const Optimizer* optimizer = find_optimizer(type);
  if (optimizer == nullptr) {
    std::vector<std::string_view> types;
    for (const Optimizer* known : all_optimizers()) types.push_back(known->schema.name);
    diag.error(Kind::unknown_value, {}, "optimizer.type is \"{}\"; it must be {}", type, list_words(types));
  }
  const std::string& schedule = *module.settings.schedule.type;
  if (find_op("schedule." + schedule) == nullptr)
    diag.error(Kind::unknown_value, {}, "there is no schedule.type = \"{}\"", schedule);
  if (diag.failed()) return false;
  UpdateBuilder(module, *optimizer, trained, diag).run();
  return !diag.failed();
}

}  // namespace gacc::passes
