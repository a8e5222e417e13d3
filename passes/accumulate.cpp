// Gradient accumulation. What `step` and `eval` yield goes into buffers that live across launches, so that a
// window of K micro-batches adds up to the gradient of one big batch, ragged ones included.
//
//   1. Every gradient that step yields gets an f32 accumulator @PARAM.grad; the loss and the count of its
//      elements go into @loss.sum and @loss.count, and the sum of their weights, where they have some, into
//      @loss.weights. In eval they go into @eval.loss, @eval.count, @eval.weights and @eval.METRIC.
//   2. A yielded value is added by the op that makes it where that op has an `.acc` form and nobody else
//      reads the value: a weight gradient accumulates inside its matrix product. Else an add.acc follows it.
//      With train.require = "bits" a sum of samples has a second buffer for what its additions lose, `.kept`.
//   3. For optimizer.second_moment = "micro" the step also adds the square of its own mean gradient to
//      @PARAM.grad2 and counts its launches; then no gradient stays inside its product.
//   4. Where samples have random numbers, the step ends with advancing the ordinal of its first sample.
//   5. The update region is built (build_update.cpp), with train.lanes the region that closes a lane
//      (lanes.cpp), and `init` clears every accumulator and state but those that the runtime writes.
#include <algorithm>
#include <functional>

#include "ir/contains.h"
#include "ir/kernel.h"
#include "ir/parts.h"
#include "passes/accumulate.h"
#include "passes/analysis/rewrite.h"

namespace gacc::passes {

using namespace ir;

namespace {

size_t uses(const Region& region, const Operand& operand) {
  size_t count = 0;
  for (const Op& op : region.ops)  // none has a `when` yet: nothing writes before this pass
    count += static_cast<size_t>(std::ranges::count(op.operands, operand));
  for (const Yield& yield : region.yields) count += yield.what == operand ? 1 : 0;
  return count;
}

// The `.acc` form that may take the op's place when nobody else reads its result.
const OpInfo* accumulating(const Region& region, const Op& op) {
  const OpInfo* acc = accumulating(*op.info);
  const bool fits = acc != nullptr && acc->operands == op.info->operands + 1 && acc->results == 0 &&
                    op.results.size() == 1 && uses(region, op.results.front()) == 1;
  return fits ? acc : nullptr;
}

void accumulate_into(BufferId buffer, const OpInfo* acc, Op& op) {
  op.info = acc;
  op.operands.insert(op.operands.begin(), buffer);
  op.results.clear();
}

// The terms of a sum that autodiff made of a parameter's uses, if each can be added by the op that makes it,
// alone in its kernel (rule R6); `sums` are the additions that are then needed no more.
bool find_terms(const Region& region, const Operand& what, std::vector<size_t>& terms,
                std::vector<size_t>& sums) {
  const size_t maker = maker_of(region, what);
  if (maker == region.ops.size()) return false;
  const Op& op = region.ops[maker];
  if (op.info != &op_add) {
    terms.push_back(maker);
    const bool alone = op.info->lowering == Lowering::gemm || op.info->lowering == Lowering::handwritten;
    return alone && accumulating(region, op) != nullptr;
  }
  sums.push_back(maker);
  return uses(region, what) == 1 && find_terms(region, op.operands[0], terms, sums) &&
         find_terms(region, op.operands[1], terms, sums);
}

// Adds `what` to `buffer` where `what` is made. The gradient of a weight that is used twice is never made as
// a whole: each use adds its own.
void add_to(Module& module, Region& region, BufferId buffer, const Operand& what, Diag& diag) {
  std::vector<size_t> terms, sums;
  if (find_terms(region, what, terms, sums)) {
    for (const size_t term : terms)
      accumulate_into(buffer, accumulating(region, region.ops[term]), region.ops[term]);
    std::ranges::sort(sums, std::greater<>());
    for (const size_t sum : sums) region.ops.erase(region.ops.begin() + static_cast<std::ptrdiff_t>(sum));
    return;
  }
  const size_t maker = maker_of(region, what);
  Builder build(module, region, diag);
  if (maker < region.ops.size()) {
    Op& op = region.ops[maker];
    if (const OpInfo* acc = accumulating(region, op)) return accumulate_into(buffer, acc, op);
    build.like(op);
    build.at = maker + 1;
  }
  build.effect("add.acc", {buffer, what});
}

// With train.require = "bits" a sum over samples is made sample after sample: then it does not show which of them a
// launch has had. A product, and a sum of few rows a sample, adds row by row (on the CPU and in a GPU's own products,
// docs/training.md); a sum of many rows makes those of each sample first, in parts of about kRowsOfPart.
constexpr int64_t kLeastRowsToPart = 16, kRowsOfPart = 128;

class InOrder {
 public:
  InOrder(Module& module, Region& region, Diag& diag) : module_(module), region_(region), diag_(diag) {}

  // `of`: the parameter, of a gradient. What its uses give, which autodiff adds up, has a sum for each. `low` makes the
  // buffer of what additions lose; null where nobody reads one.
  using MakeBuffer = std::function<BufferId()>;
  void add(BufferId buffer, const Operand& what, std::string_view sum, Trained* of, MakeBuffer low) {
    size_t maker = maker_of(region_, what);
    if (of != nullptr && maker < region_.ops.size() && region_.ops[maker].info == &op_add &&
        uses(region_, what) == 1) {
      const std::vector<Operand> terms = region_.ops[maker].operands;
      add(buffer, terms[0], sum, of, low);
      const BufferId use = further(*of, fmt::format(".grad.use{}", ++uses_));
      add(use, terms[1], sum, of, [&] { return further(*of, fmt::format(".grad.use{}.low", uses_)); });
      maker = maker_of(region_, what);
      region_.ops.erase(region_.ops.begin() + static_cast<std::ptrdiff_t>(maker));
      return;
    }
    std::vector<size_t> terms, sums;
    if (find_terms(region_, what, terms, sums) && terms.size() == 1) {
      accumulate_into(buffer, accumulating(region_, region_.ops[terms[0]]), region_.ops[terms[0]]);
      return;
    }
    std::vector<ValueId> shaped;  // the same sums under other shapes, which nobody else reads
    while (maker < region_.ops.size() && region_.ops[maker].info->lowering == Lowering::alias &&
           uses(region_, region_.ops[maker].results.front()) == 1) {
      shaped.push_back(region_.ops[maker].results.front());
      maker = maker_of(region_, region_.ops[maker].operands.front());
    }
    if (maker == region_.ops.size()) return refuse(maker, sum, "is no sum over samples");
    const Lowering lowering = region_.ops[maker].info->lowering;
    const OpInfo* acc = accumulating(region_, region_.ops[maker]);
    if (acc == nullptr || uses(region_, region_.ops[maker].results.front()) != 1 ||
        (lowering != Lowering::column_reduce && lowering != Lowering::total_reduce))
      return refuse(maker, sum, "is no sum that can be made sample after sample");
    cut(maker, lowering);
    Op& op = region_.ops[maker_];
    if (low && module_[buffer].type.dtype == DType::f32) {
      op.info = find_op(lowering == Lowering::total_reduce ? "total_sum.kept" : "column_sum.kept");
      op.operands = {buffer, low(), op.operands.front()};
      op.attrs.clear();
      op.results.clear();
    } else {
      accumulate_into(buffer, acc, op);
      op.attrs["ordered"] = true;
    }
    std::erase_if(region_.ops, [&](const Op& each) {
      return !each.results.empty() && contains(shaped, each.results.front());
    });
  }

 private:
  void refuse(size_t maker, std::string_view sum, std::string_view why) {
    const bool made = maker < region_.ops.size();
    diag_.error(Kind::not_exact, made ? region_.ops[maker].at : region_.at,
                "train.require = \"bits\": {} {}{}", sum, why,
                made ? fmt::format(" (`{}`)", region_.ops[maker].info->name) : "");
  }

  // Puts the sums of each sample before a sum over many rows.
  void cut(size_t at, Lowering lowering) {
    maker_ = at;
    const Operand x = region_.ops[at].operands.front();
    const Shape shape = operand_type(module_, region_, x).shape;
    const bool total = lowering == Lowering::total_reduce;
    const int64_t rows_of_sample = rows(shape, 1), micro_batch = module_.micro_batch();
    if (!has_batch(shape) || (total ? elements(shape, 1) == 1 : rows_of_sample < kLeastRowsToPart)) return;
    int64_t parts = 1;
    while (!total && rows_of_sample / parts > kRowsOfPart && rows_of_sample % (2 * parts) == 0) parts *= 2;
    if (parts * micro_batch > kMostParts) {
      diag_.error(
          Kind::out_of_range, region_.ops[at].at,
          "train.require = \"bits\": a sum here has {} parts a sample, and {} are the most of a launch: "
          "train.micro_batch is {}, and may be {}",
          parts, kMostParts, micro_batch, kMostParts / parts);
      return;
    }
    const std::string name = region_[region_.ops[at].results.front()].name + ".samples";
    Builder build = Builder(module_, region_, diag_).like(region_.ops[at]);
    build.at = at;
    const size_t before = region_.ops.size();
    Operand sums =
        build.make(total ? "total_sum" : "column_sum", name, {x}, {{"parts", parts * micro_batch}});
    if (!total && parts * micro_batch == 1)  // a row all the same
      sums = build.make("reshape", name + ".row", {sums}, {{"shape", Shape{1, shape.back()}}});
    maker_ = at + (region_.ops.size() - before);
    region_.ops[maker_].operands.front() = sums;
  }

  // A further sum of the parameter's gradient.
  BufferId further(Trained& of, const std::string& suffix) {
    return of.uses.emplace_back(module_.belonging(of.parameter, BufferRole::further_use, suffix));
  }

  Module& module_;
  Region& region_;
  Diag& diag_;
  size_t maker_ = 0;
  int uses_ = 1;  // of the parameter
};

// Adds `what`, which an error calls `sum`, to a buffer of the window; `of`: the parameter, of a gradient; `low`: the
// name of the buffer of what additions lose, if there may be one.
void sum_samples(Module& module, Region& region, BufferId buffer, const Operand& what, std::string_view sum,
                 Diag& diag, Trained* of = nullptr, std::string_view low = "") {
  if (!keeps_bits(module.settings)) return add_to(module, region, buffer, what, diag);
  InOrder::MakeBuffer make;
  if (of != nullptr)
    make = [&] {
      return of->uses.emplace_back(module.belonging(of->parameter, BufferRole::further_use, ".grad.low"));
    };
  if (!low.empty())
    make = [&] {
      return module.need_buffer({.name = std::string(low),
                                 .kind = BufferKind::accum,
                                 .role = BufferRole::total,
                                 .type = {DType::f32, {}}});
    };
  InOrder(module, region, diag).add(buffer, what, sum, of, make);
}

// Returns where the region makes an operand: the op's index plus one, 0 when it is there from the start.
size_t made_by(const Region& region, const Operand& what) {
  const size_t maker = maker_of(region, what);
  return maker < region.ops.size() ? maker + 1 : 0;
}

void add_micro_squares(Module& module, std::vector<Trained>& trained, Diag& diag) {
  Operand count = 0.0;  // or the weight, where there is one
  const bool weighted = std::ranges::any_of(
      module.step.yields, [](const Yield& yield) { return yield.role == YieldRole::weights; });
  for (const Yield& yield : module.step.yields)
    if (yield.role == YieldRole::weights || (yield.role == YieldRole::count && !weighted)) count = yield.what;
  // A launch's own mean gradient is an unscaled one.
  std::optional<ValueId> unscale;
  if (scaling_of(module).seeded()) {
    Builder build(module, module.step, diag);
    build.origin = Origin::gradient;
    build.at = 0;
    unscale = build.make("seed", "unscale", {}, {{"inverse", true}});
  }
  size_t next = 0;
  for (const Yield& yield : module.step.yields) {
    if (yield.role != YieldRole::grad) continue;
    Trained& one = trained[next++];
    one.squares = module.belonging(one.parameter, BufferRole::squares);
    Builder build(module, module.step, diag);
    build.origin = Origin::gradient;
    build.at = std::max(made_by(module.step, yield.what), made_by(module.step, count));
    Operand gradient = yield.what;
    if (unscale) gradient = build.make("mul", module[one.gradient].name + ".unscaled", {gradient, *unscale});
    build.effect("square_mean.acc", {*one.squares, gradient, count});
  }
  Builder build(module, module.step, diag);
  build.origin = Origin::gradient;
  build.effect("add.acc", {module.named(Named::window_launches), 1.0});
}

void clear_in_init(Module& module, Diag& diag) {
  std::vector<bool> written(module.buffers.size(), false);
  for (const Op& op : module.init.ops)
    for (const BufferId buffer : ir::written(op)) written[index(buffer)] = true;
  Builder build(module, module.init, diag);
  for (const BufferId id : module.buffer_ids()) {
    // Roles that the runtime writes, and nodes, which `close` writes before they are read.
    constexpr BufferRole others[] = {BufferRole::weight, BufferRole::given, BufferRole::node,
                                     BufferRole::lane};
    if (!contains(others, module[id].role) && !written[index(id)]) build.effect("fill", {id});
  }
}

void add_metrics(Module& module, Region& region, Diag& diag) {
  for (size_t at = 0; at < region.yields.size();) {
    const Yield yield = region.yields[at];
    if (yield.role == YieldRole::output) {  // what the runtime judges stays
      ++at;
      continue;
    }
    const bool named = yield.role == YieldRole::metric;
    const std::string name = "eval." + (named ? yield.metric : std::string(yield_role_text(yield.role)));
    const BufferId sum =
        module.need_buffer({.name = name,
                            .role = BufferRole::evaluation,
                            .type = {yield.role == YieldRole::count ? DType::i32 : DType::f32, {}}});
    sum_samples(module, region, sum, yield.what, fmt::format("the metric {}", name), diag);
    region.yields.erase(region.yields.begin() + static_cast<std::ptrdiff_t>(at));
  }
  compact(region);
}

}  // namespace

bool accumulate(Module& module, const Options&, Diag& diag) {
  std::vector<Trained> trained;
  for (const Yield& yield : module.step.yields) {
    if (yield.role != YieldRole::grad) continue;
    trained.push_back({yield.of, module.belonging(yield.of, BufferRole::gradient)});
  }
  if (*module.settings.optimizer.second_moment == "micro") add_micro_squares(module, trained, diag);
  size_t next = 0;
  while (!module.step.yields.empty()) {  // uses() counts what is still to come
    const Yield yield = module.step.yields.front();
    BufferId into{};
    Trained* const of = yield.role == YieldRole::grad ? &trained[next++] : nullptr;
    std::string_view low;
    if (of != nullptr) into = of->gradient;
    if (yield.role == YieldRole::loss) into = module.named(Named::loss_sum), low = kLossLow;
    if (yield.role == YieldRole::count) into = module.named(Named::loss_count);
    if (yield.role == YieldRole::weights) into = module.named(Named::loss_weight), low = kWeightsLow;
    sum_samples(module, module.step, into, yield.what,
                of != nullptr ? fmt::format("the gradient of `{}`", module[yield.of].name)
                              : fmt::format("the {}", yield_role_text(yield.role)),
                diag, of, low);
    module.step.yields.erase(module.step.yields.begin());
  }
  const auto low = module.find(Named::samples_low), high = module.find(Named::samples_high);
  if (low && high) {
    Builder build(module, module.step, diag);
    build.effect("samples.advance", {*low, *high});
  }
  add_metrics(module, module.eval, diag);
  add_metrics(module, module.measure, diag);
  if (!build_update(module, trained, diag)) return false;
  build_close(module, diag);
  clear_in_init(module, diag);
  compact(module.step);
  return !diag.failed();
}

}  // namespace gacc::passes
