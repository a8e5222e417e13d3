// Rules of what regions yield, and of what one of them takes over from another.
#include <algorithm>
#include <set>

#include "ir/verify/rules.h"

namespace gacc::ir {

namespace {

struct YieldRules : RegionRules {
  // R10: what each phase yields
  void yields() {
    if (region.kind == RegionKind::predict) return output();
    if (region.kind == RegionKind::answer) return parts();
    if (region.kind == RegionKind::decode) return one_position();
    if (region.kind == RegionKind::measure) measured();
    if (region.kind == RegionKind::eval || region.kind == RegionKind::measure) answers();
    if (at_least(Phase::accumulated) || !is_batched(region.kind)) {
      if (others() > 0)
        broken("R10", region.at, "{} yields nothing in phase {}", region_text(region.kind),
               phase_text(module.phase));
      return;
    }
    if (!is_there(region)) return;  // a module may lack eval
    const bool forward = region.yields.size() == 1 && region.yields.front().role == YieldRole::output;
    if (module.phase == Phase::model && forward) return output(region.yields.front().what);
    struct Sum {
      YieldRole role;
      std::string_view name;
      DType dtype;
      int found = 0;
    };
    Sum sums[] = {{YieldRole::loss, "loss", DType::f32},
                  {YieldRole::count, "count", DType::i32},
                  {YieldRole::weights, "sum of weights", DType::f32}};
    std::set<int32_t> grads;
    for (const Yield& yield : region.yields) {
      const Type type = operand_type(module, region, yield.what);
      const std::string what = text(yield.what);
      Sum* const sum = std::ranges::find(sums, yield.role, &Sum::role);
      if (sum != std::end(sums)) {
        ++sum->found;
        if (type != Type{sum->dtype, {}})
          broken("R10", region.at, "the {} {} is {}, not {}[]", sum->name, what, type_text(type),
                 dtype_text(sum->dtype));
      } else if (yield.role == YieldRole::grad) {
        const Buffer& buffer = module[yield.of];
        if (module.phase != Phase::gradient || region.kind != RegionKind::step)
          broken("R10", region.at, "gradients are yielded by step in phase gradient only");
        if (buffer.kind != BufferKind::param || !buffer.trainable)
          broken("R10", region.at, "`@{}` is no trainable parameter", buffer.name);
        if (type.shape != buffer.type.shape)
          broken("R10", region.at, "the gradient of `@{}` is {}, the parameter {}", buffer.name,
                 type_text(type), type_text(buffer.type));
        if (!grads.insert(yield.of.index).second)
          broken("R10", region.at, "`@{}` has two gradients", buffer.name);
      } else if (yield.role == YieldRole::metric) {
        const bool measures = region.kind == RegionKind::eval || region.kind == RegionKind::measure;
        if (!measures || type != Type{DType::f32, {}})
          broken("R10", region.at, "a metric is an f32[] of eval or measure");
      } else if (yield.role != YieldRole::output || region.kind == RegionKind::step) {
        broken("R10", region.at, "{} has no yield of the role `{}`", region_text(region.kind),
               yield_role_text(yield.role));
      }
    }
    const int weights = sums[2].found;
    if (sums[0].found != 1 || sums[1].found != 1 || weights > 1)
      broken("R10", region.at, "{} yields one loss and one count{}", region_text(region.kind),
             weights > 1 ? ", and at most one sum of weights" : "");
  }

  // Counts the yields that are no answers of an evaluation.
  int64_t others() const {
    const bool evaluates = region.kind == RegionKind::eval || region.kind == RegionKind::measure;
    return std::ranges::count_if(
        region.yields, [&](const Yield& yield) { return !evaluates || yield.role != YieldRole::output; });
  }

  // Checks what the runtime judges, in every phase.
  void answers() {
    const int64_t found = std::ssize(region.yields) - others();
    if (found > 1) broken("R10", region.at, "{} yields {} outputs, not one", region_text(region.kind), found);
    for (const Yield& yield : region.yields)
      if (yield.role == YieldRole::output) output(yield.what);
  }

  static bool is_there(const Region& region) { return !region.ops.empty() || !region.yields.empty(); }

  // Checks predict's one yield, in every phase.
  void output() {
    if (!is_there(region)) return;  // a module may lack it
    const YieldRole role = is_there(module.answer) ? YieldRole::rows : YieldRole::output;
    const bool one = region.yields.size() == 1 && region.yields.front().role == role;
    if (!one)
      return broken("R10", region.at, "predict yields one {}",
                    role == YieldRole::rows ? "value, as rows" : yield_role_text(role));
    if (role == YieldRole::output) output(region.yields.front().what);
  }
  void output(const Operand& what) {
    const Type type = operand_type(module, region, what);
    if (as_value(what) == nullptr || type.dtype != DType::f32 || !has_batch(type.shape))
      broken("R10", region.at, "the output {} is {}, not f32 with the extent B", text(what), type_text(type));
  }

  // R34: measure begins with what predict yields.
  void measured() {
    if (region.empty()) return;
    const std::vector<Yield>& from = module.predict.yields;
    const ValueId* output = from.size() == 1 ? as_value(from.front().what) : nullptr;
    if (output == nullptr || from.front().role != YieldRole::output)
      return broken("R34", region.at, "there is a measure, and predict yields no output");
    if (region.inputs.empty()) return broken("R34", region.at, "measure takes no output of predict");
    const Value &left = module.predict[*output], &given = region[region.inputs.front()];
    if (given.type != left.type || given.offset != left.offset)
      broken("R34", region.at,
             "the input `%{}` is not where predict leaves its output `%{}`, or of another type", given.name,
             left.name);
  }

  // R26: answer goes on with some of the rows that predict leaves.
  void parts() {
    if (region.empty()) return;
    if (!at_least(Phase::planned))
      broken("R26", region.at, "answer stands in phase {}", phase_text(module.phase));
    if (module.most_samples(region) != 1)
      broken("R26", region.at, "predict.batch is {}; parts are of one sample", module.most_samples(region));
    const std::vector<Yield>& from = module.predict.yields;
    const ValueId* rows = from.size() == 1 ? as_value(from.front().what) : nullptr;
    if (rows == nullptr || from.front().role != YieldRole::rows)
      return broken("R26", region.at, "there is an answer, and predict yields no rows");
    const Value& left = module.predict[*rows];
    if (left.type.shape.size() != 3)
      return broken("R26", region.at, "the rows `%{}` are {}, not [B,T,C]", left.name, type_text(left.type));
    if (region.inputs.size() != 2)
      return broken("R26", region.at, "answer takes a table and numbers of its rows, not {} inputs",
                    region.inputs.size());
    const Value &table = region[region.inputs[0]], &numbers = region[region.inputs[1]];
    const int64_t positions = left.type.shape[1];
    if (table.type != Type{left.type.dtype, {positions, left.type.shape[2]}} || table.offset != left.offset)
      broken("R26", region.at,
             "the table `%{}` is not where predict leaves its rows `%{}`, or of another type", table.name,
             left.name);
    const int64_t some = numbers.type.shape.size() == 2 ? numbers.type.shape[1] : 0;
    if (numbers.type.dtype != DType::i32 || some < 1 || some >= positions || positions % some != 0)
      return broken("R26", region.at,
                    "`%{}` is {}; the numbers of a part of {} rows are i32[B,n], n a divisor", numbers.name,
                    type_text(numbers.type), positions);
    const std::vector<Yield>& yields = region.yields;
    if (yields.size() != 2 || yields[0].role != YieldRole::output || yields[1].role != YieldRole::rows ||
        yields[1].what != Operand(region.inputs[0]))
      return broken("R26", region.at, "answer yields the output of its rows, and the table, as rows");
    output(yields[0].what);
    const Shape shape = operand_type(module, region, yields[0].what).shape;
    if (shape.size() < 2 || shape[1] != some)
      broken("R26", region.at, "the output {} is {}; a part has {} rows", text(yields[0].what),
             shape_text(shape), some);
  }

  // R32: decode takes a token, its position and caches, and gives the output of that position, and the caches again:
  // in their places, so that the next run finds them there.
  void one_position() {
    if (region.empty()) return;
    if (!at_least(Phase::half))
      broken("R32", region.at, "decode stands in phase {}", phase_text(module.phase));
    const size_t caches = region.inputs.size() < 2 ? 0 : region.inputs.size() - 2;
    const Type number{DType::i32, {kBatch, 1}};
    if (caches == 0 || region[region.inputs[0]].type != number || region[region.inputs[1]].type != number)
      return broken("R32", region.at, "decode takes a token and a position, i32[B,1], and caches");
    const std::vector<Yield>& yields = region.yields;
    if (yields.size() != caches + 1 || yields.front().role != YieldRole::output)
      return broken("R32", region.at, "decode yields one output, and each of its {} caches as rows", caches);
    output(yields.front().what);
    for (size_t i = 0; i < caches; ++i) {
      const Value& before = region[region.inputs[2 + i]];
      const ValueId* after = as_value(yields[1 + i].what);
      if (after == nullptr || yields[1 + i].role != YieldRole::rows || region[*after].type != before.type)
        return broken("R32", region.at, "decode does not yield the cache `%{}` again, as rows", before.name);
      if (at_least(Phase::planned) && region[*after].offset != before.offset)
        broken("R32", region.at, "the cache `%{}` is not where `%{}` is", region[*after].name, before.name);
    }
  }
};

}  // namespace

void verify_yields(const Module& module, const Region& region, const Broken& broken) {
  YieldRules{{module, region, broken}}.yields();
}

}  // namespace gacc::ir
