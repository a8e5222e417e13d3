// Half precision, where the op table's Precision asks for it. What lies in memory between ops is half;
// parameters, accumulators and the optimizer's state stay f32, and so do losses, norms and reductions. With
// f32 the pass changes only the phase, so that there is one pipeline for all precisions.
//
//   1. Demand: a value that an op of half precision reads gets one half copy, %x.h, made where %x is. Losses,
//      norms and reductions read the copy too, so that the f32 value need not be kept, but for inputs of the
//      region; `keep_f32`-marked ops read the f32 value where there is one.
//   2. Every op of `step`, `eval` and `predict` gets operands by the table; an output of predict is f32:
//        half    all half; a parameter is read from its half copy, @w.h
//        follow  all half where all of them are (parameters follow the others), else f32
//        f32     what there is; the result is f32
//      and `keep_f32`-marked ops (layers with precision = "f32", gradients of ops that give f32) f32.
//   3. A product whose result only goes into accumulators keeps its f32 sum.
//   4. The half copies @w.h are state. Whatever sets @w in `init` and `update` becomes its NAME.half, which
//      writes both: once per update, not per micro-batch, and in the same kernel. The runtime writes the
//      copy where it writes the parameter (Session::write_parameter).
//   5. A frozen parameter that is read as half alone has no copy: it is half itself. Where precision.frozen asks for
//      blocks, vectors stay f32, and a matrix has no copy whatever reads it: frozen-blocks reads it as each op asks.
#include <algorithm>
#include <utility>

#include "ir/builder.h"
#include "passes/analysis/rewrite.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

class HalfCasts {
 public:
  HalfCasts(Module& module, DType dtype, Diag& diag)
      : module_(module), dtype_(dtype), diag_(diag), copies_(module.buffers.size()) {}

  bool run() {
    halve_frozen();
    convert_all();
    for (const BufferId master : module_.buffer_ids()) {
      if (index(master) >= copies_.size() || !copies_[index(master)]) continue;
      if (!write_copy(module_.init, master)) {  // a module whose init leaves @w to others
        Builder build(module_, module_.init, diag_);
        build.effect("store", {*copies_[index(master)], master});
      }
      write_copy(module_.update, master);
    }
    return !diag_.failed();
  }

 private:
  void convert_all() {
    for (const RegionKind kind : all_regions)
      if (is_batched(kind)) convert(module_.region(kind));
  }

  // Tells whether its rows are whole blocks of every type that precision.frozen may name.
  static bool has_blocks(const Buffer& buffer) {
    return buffer.type.shape.size() == 2 && buffer.type.shape[1] % dtype_info(DType::q8_0).block == 0;
  }

  // Halves frozen parameters. Their readers are known only when all is converted, so a copy of the module is converted
  // first.
  void halve_frozen() {
    const bool blocks = *module_.settings.precision.frozen != "compute";
    const auto frozen = [&](const Buffer& buffer) {
      return buffer.kind == BufferKind::param && !buffer.trainable && buffer.type.dtype == DType::f32 &&
             !(blocks && buffer.type.shape.size() < 2);
    };
    if (std::ranges::none_of(module_.buffers, frozen)) return;
    Module other = module_;
    Diag unheard("", "");
    HalfCasts trial(other, dtype_, unheard);
    trial.convert_all();
    std::vector<bool> whole(module_.buffers.size());  // read in f32
    for (const RegionKind kind : all_regions)
      for (const Op& op : is_batched(kind) ? other.region(kind).ops : std::vector<Op>())
        for (const Operand& operand : op.operands)
          if (const BufferId* id = as_buffer(operand); id != nullptr && index(*id) < whole.size())
            whole[index(*id)] = true;
    for (size_t i = 0; i < whole.size(); ++i)
      if (frozen(module_.buffers[i]) && trial.copies_[i] &&
          (!whole[i] || (blocks && has_blocks(module_.buffers[i]))))
        module_.buffers[i].type.dtype = dtype_;
  }

  // --- what is asked for
  static bool computes_half(const Op& op) { return op.info->precision == Precision::half && !op.keep_f32; }

  bool is_real(const Op& op, size_t i) const {
    const Operand& operand = op.operands[i];
    return as_number(operand) == nullptr && !op.info->is_written(i) &&
           is_float(operand_type(module_, *region_, operand).dtype);
  }

  const Buffer* parameter(const Operand& operand) const {
    const BufferId* id = as_buffer(operand);
    return id != nullptr && module_[*id].kind == BufferKind::param ? &module_[*id] : nullptr;
  }

  // Backwards, so that an alias knows what its result is wanted as; and what is only added to accumulators.
  void find_demand() {
    const size_t count = region_->values.size();
    wanted_.assign(count, false);
    std::vector<bool> summed(count, true), used(count, false);
    for (size_t k = region_->ops.size(); k-- > 0;) {
      const Op& op = region_->ops[k];
      const bool sums =
          (op.info->writes != 0 && op.info->lowering == Lowering::pointwise) ||
          (op.info->precision == Precision::follow && std::ranges::all_of(op.results, [&](ValueId result) {
             return summed[index(result)] && used[index(result)];
           }));
      const bool half =
          computes_half(op) || (op.info->lowering == Lowering::alias && wanted_[index(op.results.front())]);
      for (size_t i = 0; i < op.operands.size(); ++i) {
        const ValueId* value = as_value(op.operands[i]);
        if (value == nullptr) continue;
        used[index(*value)] = true;
        summed[index(*value)] = summed[index(*value)] && sums;
        if (half && is_real(op, i) && !op.info->keeps_f32(i)) wanted_[index(*value)] = true;
      }
    }
    only_summed_.resize(count);
    for (size_t i = 0; i < count; ++i) only_summed_[i] = used[i] && summed[i];
  }

  // --- one region
  void convert(Region& region) {
    region_ = &region;
    find_demand();
    half_.assign(region.values.size(), std::nullopt);
    std::vector<Op> old = std::exchange(region.ops, {});
    for (const ValueId input : region.inputs) {
      if (is_narrow(region[input].type.dtype) || !wanted_[index(input)]) continue;
      Builder build(module_, region, diag_);
      half_[index(input)] = cast(build, input, dtype_, ".h");
    }
    for (Op& op : old) {
      set_operands(op);
      set_results(op);
      const Op& done = region.ops.emplace_back(std::move(op));
      Builder build = Builder(module_, region, diag_).like(done);
      for (const ValueId result : std::vector<ValueId>(done.results)) {
        if (region[result].type.dtype != DType::f32 || !wanted_[index(result)]) continue;
        half_[index(result)] = cast(build, result, dtype_, ".h");
      }
    }
    for (Yield& yield : region.yields) {
      const ValueId* value = as_value(yield.what);
      if (yield.role != YieldRole::output || value == nullptr || !is_narrow(region[*value].type.dtype))
        continue;
      Builder build(module_, region, diag_);
      yield.what = cast(build, *value, DType::f32, ".f");
    }
    region_ = nullptr;
  }

  void set_operands(Op& op) {
    bool half = computes_half(op);
    if (op.info->precision == Precision::follow && !op.keep_f32) half = all_half(op);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (!is_real(op, i)) continue;
      if (half && !op.info->keeps_f32(i))
        op.operands[i] = as_half(op, op.operands[i]);
      else if (!op.keep_f32)
        op.operands[i] = as_it_is(op.operands[i]);
    }
    // Kept out, and nothing but half to read: an op that asks for one type gets f32, another is as wide as
    // its widest.
    const bool kept_out = op.keep_f32 && op.info->precision != Precision::f32;
    op.keep_f32 = false;
    for (size_t i = 0; i < op.operands.size() && kept_out; ++i) {
      if (!is_real(op, i) || !is_narrow(operand_type(module_, *region_, op.operands[i]).dtype)) continue;
      if (op.info->precision == Precision::follow && !gives_half(op)) break;
      Builder build = Builder(module_, *region_, diag_).like(op);
      op.operands[i] = cast(build, op.operands[i], DType::f32, ".f");
    }
  }

  // Returns whether every float that a `follow` op reads is half or has a half copy; parameters alone take the type
  // that is wanted of the result.
  bool all_half(const Op& op) const {
    bool any = false, parameters = false;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (!is_real(op, i)) continue;
      if (parameter(op.operands[i]) != nullptr)
        parameters = true;
      else if (half_of(op.operands[i]))
        any = true;
      else
        return false;
    }
    return any || (parameters &&
                   std::ranges::any_of(op.results, [&](ValueId result) { return wanted_[index(result)]; }));
  }

  bool gives_half(const Op& op) const {
    const auto types = infer_types({module_, *region_, op}, diag_);
    return types && std::ranges::any_of(*types, [](const Type& type) { return is_narrow(type.dtype); });
  }

  // The half value or copy that there is.
  std::optional<Operand> half_of(const Operand& operand) const {
    const ValueId* value = as_value(operand);
    if (value == nullptr) return std::nullopt;
    if (is_narrow((*region_)[*value].type.dtype)) return operand;
    const std::optional<ValueId>& copy = half_[index(*value)];
    return copy ? std::optional<Operand>(*copy) : std::nullopt;
  }

  Operand as_half(const Op& op, const Operand& operand) {
    if (const auto there = half_of(operand)) return *there;
    if (parameter(operand) != nullptr) return copy_of(*as_buffer(operand));
    Builder build = Builder(module_, *region_, diag_).like(op);  // a state buffer
    return cast(build, operand, dtype_, ".h");
  }

  Operand as_it_is(const Operand& operand) const {
    const ValueId* value = as_value(operand);
    const auto& inputs = region_->inputs;
    const bool input = value != nullptr && contains(inputs, *value);
    return input ? operand : half_of(operand).value_or(operand);
  }

  ValueId cast(Builder& build, const Operand& from, DType to, const char* suffix) const {
    return build.make("cast", name_of(module_, *region_, from) + suffix, {from},
                      {{"to", std::string(dtype_text(to))}});
  }

  void set_results(Op& op) {
    if (op.results.empty()) return;
    if (computes_half(op) && find_attr(op, "f32") != nullptr && only_summed_[index(op.results.front())])
      op.attrs["f32"] = true;
    const auto types = infer_types({module_, *region_, op}, diag_);
    for (size_t i = 0; types && i < op.results.size(); ++i) (*region_)[op.results[i]].type = (*types)[i];
  }

  // --- half copies of parameters
  BufferId copy_of(BufferId master) {
    if (is_narrow(module_[master].type.dtype)) return master;
    std::optional<BufferId>& copy = copies_[index(master)];
    if (!copy)
      copy = module_.belonging(master, BufferRole::half, {}, Type{dtype_, module_[master].type.shape});
    return *copy;
  }

  // Lets the op that sets the master set its copy as well.
  bool write_copy(Region& region, BufferId master) {
    for (Op& op : region.ops) {
      if (op.info->writes == 0 || op.operands.front() != Operand(master)) continue;
      const OpInfo* both = find_op(std::string(op.info->name) + ".half");
      if (both == nullptr || both->half_of != op.info) {
        diag_.error(Kind::unsupported, op.at, "`{}` sets `@{}` and cannot set its half copy", op.info->name,
                    module_[master].name);
        return true;
      }
      op.info = both;
      op.operands.emplace_back(*copies_[index(master)]);
      return true;
    }
    return false;
  }

  Module& module_;
  DType dtype_;
  Diag& diag_;
  Region* region_ = nullptr;
  std::vector<std::optional<BufferId>> copies_;  // by parameter
  std::vector<bool> wanted_;                     // by value: an op of half precision reads it
  std::vector<bool> only_summed_;                // by value: it is only added to accumulators
  std::vector<std::optional<ValueId>> half_;     // by value: its half copy
};

}  // namespace

bool half_casts(Module& module, const Options&, Diag& diag) {
  const DType compute = *module.settings.precision.compute;
  if (compute == DType::f32) {  // nothing is to be kept out of anything
    for (const RegionKind kind : all_regions)
      for (Op& op : module.region(kind).ops) op.keep_f32 = false;
    return true;
  }
  if (!is_narrow(compute)) {
    diag.error(Kind::unknown_value, {},
               "precision.compute is \"{}\"; it must be \"f32\", \"f16\" or \"bf16\"", dtype_text(compute));
    return false;
  }
  return HalfCasts(module, compute, diag).run();
}

}  // namespace gacc::passes
