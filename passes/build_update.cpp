// The update region: what happens once per window. With G the accumulated gradient sums and n = @loss.count:
//
//   1. sum of squares of every G, in parts              S = sum over parameters of sum(G^2)
//   2. finite test, mean, norm                          ok = isfinite(S), mean = 1 / n, norm = sqrt(S) * mean
//   3. go = ok and n != 0: a window in which nothing is counted is no error, but makes no update
//   4. what the runtime reads: @window.ok, @window.loss = loss / n, @window.norm, @window.lr
//   5. per parameter, where go: the optimizer, with g = G * mean; and where ok: G = 0
//   6. the counters: bias corrections and @updates where go, @loss.sum = @loss.count = 0 where ok
//
// Nothing is gated by a multiplication: when() keeps the old bytes. Bias corrections need no pow: c <- c *
// beta + (1 - beta) is exactly 1 - beta^t, and has no cancellation.
#include "passes/accumulate.h"

namespace gacc::passes {

using namespace ir;

namespace {

enum class Rule : uint8_t { sgd, sgd_momentum, adam };

class UpdateBuilder {
 public:
  UpdateBuilder(Module& module, const std::vector<Trained>& trained, Diag& diag)
      : module_(module), trained_(trained), build_(module, module.update, diag) {
    build_.location.why = "update";
  }

  void run(Rule rule, bool decoupled) {
    const BufferId sum = accum("loss.sum", DType::f32), count = accum("loss.count", DType::i32);
    const BufferId updates = state("updates", DType::i32), lr = state("lr", DType::f32);
    const ValueId squares = sum_of_squares();
    const ValueId n = build_.make("cast", "count", {count});
    mean_ = build_.make("reciprocal", "mean", {n});
    const ValueId root = build_.make("sqrt", "norm.sum", {squares});
    const ValueId norm = build_.make("mul", "norm", {root, mean_});
    ok_ = build_.make("is_finite", "ok", {squares});
    const ValueId counted = build_.make("not_equal", "counted", {count, 0.0});
    go_ = build_.make("mul", "go", {ok_, counted});
    const ValueId loss = build_.make("div", "loss", {sum, n});
    if (rule == Rule::adam) {
      c1_ = advance("adam.c1", module_.setting("optimizer.beta1", 0.9));
      c2_ = advance("adam.c2", module_.setting("optimizer.beta2", 0.999));
    }
    build_.effect("store", {state("window.ok", DType::i32), ok_});
    build_.effect("store", {state("window.loss", DType::f32), loss});
    build_.effect("store", {state("window.norm", DType::f32), norm});
    build_.effect("store", {state("window.lr", DType::f32), lr});
    zero(sum);
    zero(count);
    for (const Trained& one : trained_) parameter(one, rule, decoupled, lr, updates);
    write_when(go_, "add.acc", {updates, 1.0});
  }

 private:
  BufferId accum(const std::string& name, DType dtype) {
    return need_buffer(module_, name, BufferKind::accum, {dtype, {}});
  }
  BufferId state(const std::string& name, DType dtype) {
    return need_buffer(module_, name, BufferKind::state, {dtype, {}});
  }

  ValueId sum_of_squares() {
    std::vector<ValueId> sums;
    for (const Trained& one : trained_) {
      const std::string& name = module_[one.parameter].name;
      const ValueId square = build_.make("square", name + ".square", {one.gradient});
      sums.push_back(build_.make("total_sum", name + ".norm2", {square}));
    }
    ValueId total = sums.front();
    for (size_t i = 1; i < sums.size(); ++i) {
      const std::string name =
          i + 1 == sums.size() ? "norm2" : module_[trained_[i].parameter].name + ".norm2.sum";
      total = build_.make("add", name, {total, sums[i]});
    }
    return total;
  }

  // c <- c * beta + (1 - beta); gives the new value.
  ValueId advance(const std::string& name, double beta) {
    const BufferId buffer = state(name, DType::f32);
    const ValueId kept = build_.make("mul", name + ".kept", {buffer, beta});
    const ValueId next = build_.make("add", name + ".next", {kept, 1 - beta});
    write_when(go_, "store", {buffer, next});
    return next;
  }

  void write_when(ValueId flag, std::string_view op, std::vector<Operand> operands, Attrs attrs = {}) {
    build_.when = flag;
    build_.effect(op, std::move(operands), std::move(attrs));
    build_.when.reset();
  }
  void zero(BufferId buffer) { write_when(ok_, "fill", {buffer}); }

  void parameter(const Trained& one, Rule rule, bool decoupled, BufferId lr, BufferId updates) {
    const std::string name = module_[one.parameter].name;
    const Type type = module_[one.gradient].type;
    const auto moment = [&](const char* suffix) {
      return need_buffer(module_, name + suffix, BufferKind::state, type);
    };
    const double decay = module_.setting("optimizer.weight_decay", 0.0);
    const ValueId g = build_.make("mul", name + ".mean", {one.gradient, mean_});
    switch (rule) {
      case Rule::sgd:
        write_when(go_, "sgd", {one.parameter, g, lr}, {{"weight_decay", decay}});
        break;
      case Rule::sgd_momentum:
        write_when(go_, "sgd_momentum", {one.parameter, moment(".m"), g, lr, updates},
                   {{"momentum", module_.setting("optimizer.momentum", 0.0)},
                    {"dampening", module_.setting("optimizer.dampening", 0.0)},
                    {"nesterov", module_.setting("optimizer.nesterov", false)},
                    {"weight_decay", decay}});
        break;
      case Rule::adam:
        write_when(go_, "adam", {one.parameter, moment(".m"), moment(".v"), g, lr, c1_, c2_},
                   {{"beta1", module_.setting("optimizer.beta1", 0.9)},
                    {"beta2", module_.setting("optimizer.beta2", 0.999)},
                    {"eps", module_.setting("optimizer.eps", 1e-8)},
                    {"weight_decay", decay},
                    {"decoupled", decoupled}});
        break;
    }
    zero(one.gradient);
  }

  Module& module_;
  const std::vector<Trained>& trained_;
  Builder build_;
  ValueId mean_{}, ok_{}, go_{}, c1_{}, c2_{};
};

}  // namespace

bool build_update(Module& module, const std::vector<Trained>& trained, Diag& diag) {
  const std::string type = module.setting("optimizer.type", "sgd");
  if (type != "sgd" && type != "adam" && type != "adamw") {
    diag.error(Kind::unsupported, {},
               "optimizer.type = \"{}\" is not supported yet; \"sgd\", \"adam\" and \"adamw\" are", type);
    return false;
  }
  Rule rule = Rule::adam;
  if (type == "sgd") rule = module.setting("optimizer.momentum", 0.0) != 0 ? Rule::sgd_momentum : Rule::sgd;
  UpdateBuilder(module, trained, diag).run(rule, type == "adamw");
  return !diag.failed();
}

}  // namespace gacc::passes
