// Reverse-mode differentiation of `step`. What an op's gradient is stands in the op table; this pass only
// walks the ops backwards and sums.
//
//   1. active: the values that depend on a trainable parameter through floats.
//   2. Walk back from the loss, whose own gradient is the number 1 (accumulators hold gradients of the loss *sum*),
//      or, where it is to be scaled, `seed`. At an op all users of its results have been met: sum what they
//      contributed, then ask the table for the contributions to its operands, for active ones only.
//   3. Yield the gradient of every trainable parameter that was reached. One that the loss does not
//      reach has none, as in PyTorch, and is not updated; reaching none at all is an error.
#include <algorithm>

#include "ir/builder.h"
#include "passes/accumulate.h"
#include "passes/analysis/rewrite.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

// One term of a gradient. `made` is set when the contributing op's gradient made the value, so that it may be
// renamed.
struct Term {
  Operand what;
  std::string from;  // the consumer: result or op name
  bool made = false;
};

class Autodiff {
 public:
  Autodiff(Module& module, Diag& diag)
      : module_(module), step_(module.step), diag_(diag), build_(module, module.step, diag) {}

  bool run() {
    const auto loss = std::ranges::find_if(step_.yields,  // there is at most one (R10)
                                           [](const Yield& yield) { return yield.role == YieldRole::loss; });
    if (loss == step_.yields.end()) {
      diag_.error(Kind::no_gradient, step_.at,
                  "step yields no loss; of one that yields its output gaccc makes a model with a loss");
      return false;
    }
    find_active();
    const Location loss_at = made_at(loss->what);
    const Operand start = seed(loss->what, loss_at);
    active_.resize(step_.values.size(), false);
    value_terms_.resize(step_.values.size());
    buffer_terms_.resize(module_.buffers.size());
    if (active(loss->what)) terms(loss->what)->push_back({start, "loss"});
    for (size_t i = step_.ops.size(); i-- > 0;) back(i);
    if (diag_.failed()) return false;

    bool any = false;
    for (const BufferId id : module_.buffer_ids()) {
      if (const std::optional<Operand> gradient = total(id)) {
        build_.yield({.role = YieldRole::grad, .of = id, .what = *gradient});
        any = true;
      }
    }
    if (!any) diag_.error(Kind::no_gradient, loss_at, "the loss depends on no trainable parameter");
    return !diag_.failed();
  }

 private:
  // Makes the seed of the walk: 1, or what loss-scale will put in its place.
  Operand seed(const Operand& loss, const Location& at) {
    if (!scaling_.seeded()) return 1.0;
    build_.location = at;
    build_.origin = Origin::gradient;
    return build_.make("seed", "d." + name_of(module_, step_, loss), {});
  }

  void find_active() {
    active_.assign(step_.values.size(), false);
    for (const Op& op : step_.ops) {
      const bool reached = std::ranges::any_of(op.operands, [&](const Operand& o) { return active(o); });
      for (const ValueId result : op.results)
        active_[index(result)] = reached && is_float(step_[result].type.dtype);
    }
  }

  bool active(const Operand& operand) const {
    if (const ValueId* value = as_value(operand)) return active_[index(*value)];
    const BufferId* buffer = as_buffer(operand);
    return buffer != nullptr && module_[*buffer].kind == BufferKind::param && module_[*buffer].trainable &&
           is_float(module_[*buffer].type.dtype);
  }

  std::vector<Term>* terms(const Operand& operand) {
    if (const ValueId* value = as_value(operand)) return &value_terms_[index(*value)];
    if (const BufferId* buffer = as_buffer(operand)) return &buffer_terms_[index(*buffer)];
    return nullptr;
  }

  Location made_at(const Operand& operand) const {
    const size_t maker = maker_of(step_, operand);
    return maker < step_.ops.size() ? step_.ops[maker].at : Location{};
  }

  // The sum of all terms of d operand. With several, each is renamed after where it comes from, and the sum
  // gets the plain name: %d.x = add %d.x.fc1, %d.x.fc2.
  std::optional<Operand> total(const Operand& of) {
    std::vector<Term>& list = *terms(of);
    if (list.empty()) return std::nullopt;
    const std::string name = "d." + name_of(module_, step_, of);
    if (list.size() == 1) return list.front().what;
    for (const Term& term : list)
      if (term.made) rename(step_, *as_value(term.what), name + "." + term.from);
    Operand sum = list.front().what;
    for (size_t i = 1; i < list.size(); ++i) {
      const bool last = i + 1 == list.size();
      sum = build_.make("add", last ? name : name + "." + list[i].from + ".sum", {sum, list[i].what});
    }
    list = {{sum, ""}};
    return sum;
  }

  void back(size_t number) {
    const Op op = step_.ops[number];  // a copy: building reallocates the ops
    build_.gradient_of(op);
    std::vector<std::optional<Operand>> d_results;
    bool wanted = false;
    for (const ValueId result : op.results) {
      d_results.push_back(total(result));
      wanted = wanted || d_results.back().has_value();
    }
    std::vector<bool> want;
    for (const Operand& operand : op.operands) want.push_back(active(operand));
    if (!wanted || std::ranges::none_of(want, [](bool w) { return w; })) return;

    // The gradient of what computes in f32 does too.
    build_.keep_f32 = op.keep_f32 || (scaling_.half && op.info->precision == Precision::f32);
    const size_t first_new = step_.values.size();
    GradBuilder gradient(build_, op, d_results);
    gradient.want(want);
    const bool done = gradient.run();
    build_.keep_f32 = false;
    if (!done) return;  // it has said why
    value_terms_.resize(step_.values.size());
    active_.resize(step_.values.size(), false);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const std::optional<Operand>& contribution = gradient.contributions()[i];
      if (!contribution || !want[i]) continue;
      const ValueId* value = as_value(*contribution);
      const bool made = value != nullptr && index(*value) >= first_new;
      terms(op.operands[i])->push_back({*contribution, step_[op.results.front()].name, made});
    }
  }

  Module& module_;
  const Scaling scaling_ = scaling_of(module_);
  Region& step_;
  Diag& diag_;
  Builder build_;
  std::vector<bool> active_;                     // by value
  std::vector<std::vector<Term>> value_terms_;   // what users contributed, by value
  std::vector<std::vector<Term>> buffer_terms_;  // the same by buffer
};

}  // namespace

bool autodiff(Module& module, const Options&, Diag& diag) { return Autodiff(module, diag).run(); }

}  // namespace gacc::passes
