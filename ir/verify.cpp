// The verifier: one function per group of rules of docs/ir.md.
#include "ir/verify.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "ir/host_state.h"
#include "ir/op_info.h"
#include "ir/positions.h"
#include "ir/region_facts.h"
#include "ir/row_pitch.h"
#include "ir/schedule/verify_schedule.h"
#include "ir/schema/verify_settings.h"

namespace gacc::ir {

namespace {

class Verifier {
 public:
  Verifier(const Module& module, Diag& diag) : module_(module), diag_(diag) {}

  bool run() {
    const size_t before = diag_.reports().size();
    const int64_t batch = module_.micro_batch();
    if (batch < 1 || batch >= (int64_t{1} << 31)) broken("R9", {}, "train.micro_batch is {}", batch);
    const int64_t predicted = module_.most_samples(module_.predict);
    if (batch >= 1 && (predicted < 1 || predicted > batch))
      broken("R9", {}, "predict.batch is {}; a micro-batch has {}", predicted, batch);
    if (diag_.reports().size() > before) return false;  // every size below depends on it
    buffers();
    if (diag_.reports().size() > before) return false;  // rules below ask where they lie
    verify_host_buffers(module_, broken_rule());
    launch_modes();
    for (const RegionKind kind : all_regions) {
      const Region& region = module_.region(kind);
      definitions(region);
      if (diag_.reports().size() > before) return false;  // later rules index by what is defined
      for (const Op& op : region.ops) op_rules(region, op);
      if (diag_.reports().size() > before) return false;
      memory_rule(region);
      verify_host_state(module_, region, broken_rule());
      region_writes(region);
      yields(region);
      clones(region);
      if (diag_.reports().size() == before) kernels_and_places(region);
    }
    if (at_least(Phase::planned) && diag_.reports().size() == before && data())
      verify_settings(module_, broken_rule());
    if (diag_.reports().size() == before) schedules();
    return diag_.reports().size() == before;
  }

  // R17
  bool data() {
    const size_t before = diag_.reports().size();
    for (const RegionKind kind : all_regions) {
      if (kind != RegionKind::answer && kind != RegionKind::decode) inputs_of_step(module_.region(kind));
      numbers(module_.region(kind));
    }
    return diag_.reports().size() == before;
  }

 private:
  template <class... A>
  void broken(std::string_view rule, const Location& at, fmt::format_string<A...> format, A&&... args) {
    diag_.error(Kind::invalid_ir, at, "{}: {}", rule, fmt::format(format, std::forward<A>(args)...));
  }
  // For rules that stand in files of their own.
  Broken broken_rule() {
    return [this](std::string_view rule, const Location& at, const std::string& what) {
      broken(rule, at, "{}", what);
    };
  }
  std::string text(const Region& region, const Operand& operand) const {
    return operand_text(module_, region, operand);
  }
  bool at_least(Phase phase) const { return module_.phase >= phase; }

  // R1 unique buffer names; R9 shapes; R15 places of buffers
  void buffers() {
    const size_t before = diag_.reports().size();
    std::set<std::string_view> names;
    for (const Buffer& buffer : module_.buffers) {
      shown(buffer.at, buffer.name);
      if (!names.insert(buffer.name).second)
        broken("R1", buffer.at, "buffer `@{}` is defined twice", buffer.name);
      if (has_batch(buffer.type.shape) || !fits(buffer.type.shape, 1)) {
        broken("R9", buffer.at, "buffer `@{}` has the shape {}", buffer.name, shape_text(buffer.type.shape));
        continue;
      }
      if (buffer.type.pitch != 0) broken("R25", buffer.at, "buffer `@{}` has a pitch", buffer.name);
      const bool frozen = buffer.kind == BufferKind::param && !buffer.trainable;
      if (is_narrow(buffer.type.dtype) && buffer.kind != BufferKind::state && !frozen)
        broken("R13", buffer.at, "`@{}` is {}; trained parameters and accumulators are f32", buffer.name,
               dtype_text(buffer.type.dtype));
      if (is_blocks(buffer.type.dtype) && (buffer.role != BufferRole::weight || !frozen ||
                                           columns(buffer.type.shape) % block_of(buffer) != 0))
        broken("R31", buffer.at, "`@{}` is {}; a frozen parameter of rows of whole blocks may be",
               buffer.name, type_text(buffer.type));
      role(buffer);
    }
    if (diag_.reports().size() > before) return;
    for (const BufferId id : module_.buffer_ids()) {
      const Buffer& buffer = module_[id];
      place(buffer.at, "@" + buffer.name, room_bytes(buffer), buffer.offset, at_least(Phase::planned),
            alignment(buffer), is_on_host(module_, id));
    }
    if (at_least(Phase::planned) != module_.arena_bytes.has_value())
      broken("R15", {}, "a module has an arena size in phase planned, and only then");
  }

  static int64_t block_of(const Buffer& buffer) { return dtype_info(buffer.type.dtype).block; }

  // R1: messages show names
  void shown(const Location& at, const std::string& name) {
    const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (name.empty() || std::ranges::any_of(name, control))
      broken("R1", at, "a name is empty or has a control character");
  }

  // R11: a buffer is what its role says
  void role(const Buffer& buffer) {
    const RoleInfo& role = role_info(buffer.role);
    const auto wrong = [&](const std::string& what) {
      broken("R11", buffer.at, "`@{}` has the role `{}`{}", buffer.name, role.text, what);
    };
    if (role.kind != buffer.kind) wrong(", which is of another kind of buffer");
    if (const NamedInfo* known = find_named(buffer.name);
        known != nullptr && (known->role != buffer.role || buffer.type != Type{known->dtype, {}}))
      broken("R11", buffer.at, "`@{}` must have the role `{}` and the type {}[]", buffer.name,
             role_info(known->role).text, dtype_text(known->dtype));
    if (role.belongs() != buffer.of.has_value())
      return wrong(role.belongs() ? " and must name the buffer that it belongs to"
                                  : ", which belongs to no other buffer");
    if (!buffer.of) return;
    const Buffer& owner = module_[*buffer.of];
    const bool inner = owner.role == BufferRole::slot || owner.role == BufferRole::part;
    if (inner) wrong(fmt::format(", and `@{}` is a piece itself", owner.name));
    if (buffer.role == BufferRole::slot || buffer.role == BufferRole::part) return;  // R33
    if (buffer.role == BufferRole::node) {
      if (owner.kind != BufferKind::accum || !role_info(owner.role).combines())
        wrong(fmt::format(", and `@{}` is no sum of a window", owner.name));
      if (owner.type != buffer.type) wrong(fmt::format(" and not the type of `@{}`", owner.name));
      return;
    }
    const auto within = [](const Shape& part, const Shape& whole) {
      return part.size() == 2 && rows(part, 1) <= rows(whole, 1) && columns(part) == columns(whole);
    };
    if (buffer.role == BufferRole::slice) {
      const bool line = buffer.type.shape.size() == 1 && owner.type.shape.size() == 1 &&
                        buffer.type.shape[0] <= owner.type.shape[0];
      if (owner.role == BufferRole::slice || !(line || within(buffer.type.shape, owner.type.shape)) ||
          owner.type.dtype != buffer.type.dtype)
        wrong(fmt::format(" and is not the first rows of `@{}`", owner.name));
      if (buffer.name != owner.name + std::string(role.suffix))
        wrong(fmt::format(" of `@{0}`, and not the name `@{0}{1}`", owner.name, role.suffix));
      return;
    }
    const bool parts = buffer.role == BufferRole::norm_parts || buffer.role == BufferRole::ratio_parts;
    const bool master = buffer.role == BufferRole::master;
    if (master && !within(buffer.type.shape, owner.type.shape))
      wrong(fmt::format(" and is not rows of `@{}`", owner.name));
    if (master && !module_.find_belonging(*buffer.of, BufferRole::gradient))
      wrong(fmt::format(", and `@{}` has no gradient, in whose place it lies", owner.name));
    const bool of_statistic = buffer.role == BufferRole::change;
    if (owner.role != (of_statistic ? BufferRole::statistic : BufferRole::weight))
      wrong(fmt::format(", and `@{}` the role `{}`", owner.name, role_info(owner.role).text));
    if (buffer.role == BufferRole::gradient && !owner.trainable)
      wrong(fmt::format(", and `@{}` is frozen", owner.name));
    if (owner.type.shape != buffer.type.shape && buffer.role != BufferRole::moment && !parts && !master)
      wrong(fmt::format(" and not the shape of `@{}`", owner.name));
    if (role.suffix != "*" && buffer.name != owner.name + std::string(role.suffix))
      wrong(fmt::format(" of `@{0}`, and not the name `@{0}{1}`", owner.name, role.suffix));
    const bool frozen = buffer.role == BufferRole::weight && !buffer.trainable;  // of either type
    const bool half = is_narrow(buffer.type.dtype);
    if ((half != (buffer.role == BufferRole::half) && !(half && frozen)) || !is_float(buffer.type.dtype))
      wrong(fmt::format(" and cannot be {}", dtype_text(buffer.type.dtype)));
  }

  // R1 and R2: names are unique, values are defined once and before their use
  void definitions(const Region& region) {
    std::set<std::string_view> names;
    std::vector<bool> defined(region.values.size(), false);
    const auto define = [&](ValueId id, const Location& at) {
      if (id.index < 0 || index(id) >= region.values.size()) return broken("R2", at, "a result has no value");
      if (defined[index(id)]) broken("R2", at, "value `%{}` is defined twice", region[id].name);
      if (!names.insert(region[id].name).second)
        broken("R1", at, "two values are called `%{}`", region[id].name);
      defined[index(id)] = true;
    };
    const auto use = [&](const Operand& operand, const Location& at) {
      if (const ValueId* id = as_value(operand)) {
        const bool known = id->index >= 0 && index(*id) < region.values.size();
        if (!known)
          broken("R2", at, "an operand has no value");
        else if (!defined[index(*id)])
          broken("R2", at, "`%{}` is used before its definition", region[*id].name);
      }
      if (const BufferId* id = as_buffer(operand);
          id != nullptr && (id->index < 0 || index(*id) >= module_.buffers.size())) {
        broken("R2", at, "an operand has no buffer");
      }
    };
    for (const ValueId input : region.inputs) define(input, region.at);
    for (const Op& op : region.ops) {
      op.each_operand([&](const Operand& operand) { use(operand, op.at); });
      for (const ValueId result : op.results) define(result, op.at);
    }
    for (const Yield& yield : region.yields) use(yield.what, region.at);
    if (!is_batched(region.kind) && !region.inputs.empty())
      broken("R8", region.at, "{} takes no inputs", region_text(region.kind));
    for (const ValueId input : region.inputs) {
      shown(region.at, region[input].name);
      const Shape& shape = region[input].type.shape;
      const bool table = region.kind == RegionKind::answer ? input == region.inputs.front()
                         : region.kind == RegionKind::decode
                             ? std::ranges::find(region.inputs, input) - region.inputs.begin() >= 2
                             : false;
      if (has_batch(shape) == table)
        broken("R8", region.at, "input `%{}` has {} batch extent B", region[input].name, table ? "a" : "no");
      if (is_blocks(region[input].type.dtype))
        broken("R31", region.at, "input `%{}` is {}; only a frozen parameter is in blocks",
               region[input].name, type_text(region[input].type));
      if (!fits(shape, module_.micro_batch()))
        broken("R9", region.at, "input `%{}` of shape {} is empty or too large", region[input].name,
               shape_text(shape));
    }
  }

  // R3 to R5, R8, R9, R12, R13: one op against the table
  void op_rules(const Region& region, const Op& op) {
    const OpInfo& info = *op.info;
    if (!info.takes_operands(op.operands.size()) || op.results.size() != static_cast<size_t>(info.results)) {
      return broken("R3", op.at, "`{}` takes {} operands and has {} results", info.name,
                    info.operand_count_text(), info.results);
    }
    for (const auto& [key, value] : op.attrs) {
      const auto spec =
          std::ranges::find_if(info.attrs, [&name = key](const AttrSpec& s) { return s.name == name; });
      if (spec == info.attrs.end()) return broken("R3", op.at, "`{}` has no attribute `{}`", info.name, key);
      if (spec->fallback.index() != value.index())
        return broken("R3", op.at, "attribute `{}` of `{}` has another type", key, info.name);
    }
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (op.info->is_written(i) && as_buffer(op.operands[i]) == nullptr)
        return broken("R5", op.at, "operand {} of `{}` is written and must be a buffer", i, info.name);
    if (op.when) {
      const Type type = operand_type(module_, region, *op.when);
      if (info.writes == 0) broken("R5", op.at, "`{}` writes no buffer, so it takes no when()", info.name);
      if (as_number(*op.when) != nullptr || type.dtype != DType::i32 || elements(type.shape, 2) != 1)
        broken("R5", op.at, "when() takes one i32, not {}", type_text(type));
    }
    if (at_least(Phase::scaled) && &info == &op_seed) broken("R12", op.at, "the loss scale is not in `seed`");
    if (at_least(Phase::half)) precision(region, op);
    const auto types = infer_types({module_, region, op}, diag_);
    if (!types) return;
    const int64_t batch = module_.micro_batch();
    for (size_t i = 0; i < op.results.size() && i < types->size(); ++i) {
      const Value& value = region[op.results[i]];
      if (value.type != (*types)[i])
        broken("R4", op.at, "`%{}` is {}, and `{}` gives {}", value.name, type_text(value.type), info.name,
               type_text((*types)[i]));
      if (!fits(value.type.shape, batch))
        broken("R9", op.at, "`%{}` of shape {} is empty or too large", value.name,
               shape_text(value.type.shape));
      if (!is_batched(region.kind) && has_batch(value.type.shape))
        broken("R8", op.at, "`%{}` has the extent B in {}", value.name, region_text(region.kind));
    }
  }

  // R13: from phase half on, an op of half precision has floats of one type, and no op waits for its casts
  void precision(const Region& region, const Op& op) {
    if (op.keep_f32) broken("R13", op.at, "`{}` is marked `keep_f32` after half-casts", op.info->name);
    std::optional<DType> shared;
    for (size_t i = 0; i < op.operands.size() && op.info->precision == Precision::half; ++i) {
      const DType dtype = operand_type(module_, region, op.operands[i]).dtype;
      const bool keeps = op.info->keeps_f32(i);
      if (as_number(op.operands[i]) != nullptr || !is_float(dtype) || op.info->is_written(i) || keeps)
        continue;
      if (dtype != shared.value_or(dtype))
        broken("R13", op.at, "`{}` computes in half precision and reads {} and {}", op.info->name,
               dtype_text(*shared), dtype_text(dtype));
      shared = dtype;
    }
  }

  // Returns true if the op adds to a buffer and never shares a kernel: then others of its kind may add to it as well.
  static bool adds_alone(const Op& op) {
    const bool alone = op.info->lowering == Lowering::gemm || op.info->lowering == Lowering::handwritten;
    return alone && op.info->accumulates;
  }

  // R6: a buffer is written at most once, and never read after that; or several ops add to it, one by one
  void memory_rule(const Region& region) {
    const StorageRoots roots(region);
    std::vector<const Op*> written(module_.buffers.size(), nullptr);
    std::vector<const Op*> parts_written(module_.buffers.size(), nullptr);  // by the whole
    const auto is_part = [&](BufferId buffer) { return module_[buffer].role == BufferRole::part; };
    const auto whole = [&](BufferId buffer) { return index(storage_of(module_, buffer)); };
    const auto place = [&](BufferId buffer) { return is_part(buffer) ? index(buffer) : whole(buffer); };
    for (const Op& op : region.ops) {
      const auto read = [&](const Operand& operand, bool added_to) {
        const std::optional<BufferId> id = roots.buffer(operand);
        if (!id || module_[*id].role == BufferRole::slot) return;  // R33
        const Op* before = written[place(*id)];
        if (before == nullptr) before = is_part(*id) ? written[whole(*id)] : parts_written[whole(*id)];
        if (before == nullptr || (added_to && adds_alone(op) && adds_alone(*before))) return;
        broken("R6", op.at, "`@{}` is used after it was written", module_[*id].name);
      };
      // `init` copies to the host what it made in a gradient's place, which is then free again.
      if (region.kind == RegionKind::init && op.info == &op_host_out) {
        const BufferId from = *as_buffer(op.operands[1]);
        written[place(from)] = parts_written[whole(from)] = nullptr;
      }
      for (size_t i = 0; i < op.operands.size(); ++i) read(op.operands[i], op.info->is_written(i));
      if (op.when) read(*op.when, false);
      for (size_t i = 0; i < op.operands.size(); ++i)
        if (op.info->is_written(i)) {
          const BufferId buffer = *as_buffer(op.operands[i]);
          written[place(buffer)] = &op;
          if (is_part(buffer)) parts_written[whole(buffer)] = &op;
        }
    }
  }

  // R7: what a region may write
  void region_writes(const Region& region) {
    for (const Op& op : region.ops) {
      for (size_t i = 0; i < op.operands.size(); ++i) {
        if (!op.info->is_written(i)) continue;
        const Buffer& buffer = module_[*as_buffer(op.operands[i])];
        const bool acc = op.info->accumulates;
        const bool ordinal =
            op.info == &op_samples_advance && (buffer.name == named_info(Named::samples_low).name ||
                                               buffer.name == named_info(Named::samples_high).name);
        const bool sum = buffer.kind == BufferKind::accum &&
                         (buffer.role == BufferRole::node || role_info(buffer.role).combines());
        const auto slice_of = [&](BufferRole role) {
          return buffer.role == BufferRole::slice && module_[*buffer.of].role == role;
        };
        const struct {
          RegionKind kind;
          bool may;
          std::string_view says;
        } rules[] = {
            {RegionKind::step, (buffer.kind == BufferKind::accum && acc) || ordinal,
             "writes accumulators by *.acc only, not"},
            {RegionKind::eval, buffer.role == BufferRole::evaluation && acc,
             "adds to state of the role `evaluation` only, not to"},
            {RegionKind::measure, buffer.role == BufferRole::evaluation && acc,
             "adds to state of the role `evaluation` only, not to"},
            {RegionKind::close, sum, "writes the window's sums and their nodes only, not"},
            {RegionKind::norms, slice_of(BufferRole::norm_parts), "writes slices of sums in parts only, not"},
            {RegionKind::ratios, slice_of(BufferRole::ratio_parts),
             "writes slices of sums in parts only, not"},
            {RegionKind::clear, sum, "writes the window's sums only, not"},
            {RegionKind::predict, false, "writes no buffer, not"},
            {RegionKind::answer, false, "writes no buffer, not"},
            {RegionKind::decode, false, "writes no buffer, not"}};
        for (const auto& [kind, may, says] : rules)
          if (kind == region.kind && !may)
            broken("R7", op.at, "{} {} `@{}`", region_text(kind), says, buffer.name);
      }
    }
  }

  // R10: what each phase yields
  void yields(const Region& region) {
    if (region.kind == RegionKind::predict) return output(region);
    if (region.kind == RegionKind::answer) return parts(region);
    if (region.kind == RegionKind::decode) return one_position(region);
    if (region.kind == RegionKind::measure) measured(region);
    if (at_least(Phase::accumulated) || !is_batched(region.kind)) {
      if (!region.yields.empty())
        broken("R10", region.at, "{} yields nothing in phase {}", region_text(region.kind),
               phase_text(module_.phase));
      return;
    }
    if (!is_there(region)) return;  // a module may lack eval
    const bool forward = region.yields.size() == 1 && region.yields.front().role == YieldRole::output;
    if (module_.phase == Phase::model && forward) return output(region, region.yields.front().what);
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
      const Type type = operand_type(module_, region, yield.what);
      const std::string what = text(region, yield.what);
      Sum* const sum = std::ranges::find(sums, yield.role, &Sum::role);
      if (sum != std::end(sums)) {
        ++sum->found;
        if (type != Type{sum->dtype, {}})
          broken("R10", region.at, "the {} {} is {}, not {}[]", sum->name, what, type_text(type),
                 dtype_text(sum->dtype));
      } else if (yield.role == YieldRole::grad) {
        const Buffer& buffer = module_[yield.of];
        if (module_.phase != Phase::gradient || region.kind != RegionKind::step)
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
      } else {
        broken("R10", region.at, "{} has no yield of the role `{}`", region_text(region.kind),
               yield_role_text(yield.role));
      }
    }
    const int weights = sums[2].found;
    if (sums[0].found != 1 || sums[1].found != 1 || weights > 1)
      broken("R10", region.at, "{} yields one loss and one count{}", region_text(region.kind),
             weights > 1 ? ", and at most one sum of weights" : "");
  }

  static bool is_there(const Region& region) { return !region.ops.empty() || !region.yields.empty(); }

  // Checks predict's one yield, in every phase.
  void output(const Region& region) {
    if (!is_there(region)) return;  // a module may lack it
    const YieldRole role = is_there(module_.answer) ? YieldRole::rows : YieldRole::output;
    const bool one = region.yields.size() == 1 && region.yields.front().role == role;
    if (!one)
      return broken("R10", region.at, "predict yields one {}",
                    role == YieldRole::rows ? "value, as rows" : yield_role_text(role));
    if (role == YieldRole::output) output(region, region.yields.front().what);
  }
  void output(const Region& region, const Operand& what) {
    const Type type = operand_type(module_, region, what);
    if (as_value(what) == nullptr || type.dtype != DType::f32 || !has_batch(type.shape))
      broken("R10", region.at, "the output {} is {}, not f32 with the extent B", text(region, what),
             type_text(type));
  }

  // R30: how the step and the update run is what was asked for, and what their schedules say.
  void launch_modes() {
    const Results& results = module_.results;
    const std::string& asked = *module_.settings.launch.mode;
    for (const auto& [key, made, region] :
         {std::tuple("launch.step", &results.launch_step, &module_.step),
          std::tuple("launch.update", &results.launch_update, &module_.update)}) {
      const std::string& mode = **made;
      if (mode != "graph" && mode != "persistent")
        broken("R30", region->at, "{} is \"{}\", not \"graph\" or \"persistent\"", key, mode);
      if (made->given() && !region->ops.empty() && (asked == "graph" || region == &module_.step) &&
          asked != "auto" && mode != asked)
        broken("R30", region->at, "{} is \"{}\", and launch.mode asks for \"{}\"", key, mode, asked);
      if (region->schedule && region->schedule->persistent && mode != "persistent")
        broken("R30", region->schedule->persistent->at, "{} has a persistent kernel, and {} is \"{}\"",
               region_text(region->kind), key, mode);
    }
  }

  // R34: measure begins with what predict yields.
  void measured(const Region& region) {
    if (region.empty()) return;
    const std::vector<Yield>& from = module_.predict.yields;
    const ValueId* output = from.size() == 1 ? as_value(from.front().what) : nullptr;
    if (output == nullptr || from.front().role != YieldRole::output)
      return broken("R34", region.at, "there is a measure, and predict yields no output");
    if (region.inputs.empty()) return broken("R34", region.at, "measure takes no output of predict");
    const Value &left = module_.predict[*output], &given = region[region.inputs.front()];
    if (given.type != left.type || given.offset != left.offset)
      broken("R34", region.at,
             "the input `%{}` is not where predict leaves its output `%{}`, or of another type", given.name,
             left.name);
  }

  // R26: answer goes on with some of the rows that predict leaves.
  void parts(const Region& region) {
    if (region.empty()) return;
    if (!at_least(Phase::planned))
      broken("R26", region.at, "answer stands in phase {}", phase_text(module_.phase));
    if (module_.most_samples(region) != 1)
      broken("R26", region.at, "predict.batch is {}; parts are of one sample", module_.most_samples(region));
    const std::vector<Yield>& from = module_.predict.yields;
    const ValueId* rows = from.size() == 1 ? as_value(from.front().what) : nullptr;
    if (rows == nullptr || from.front().role != YieldRole::rows)
      return broken("R26", region.at, "there is an answer, and predict yields no rows");
    const Value& left = module_.predict[*rows];
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
    output(region, yields[0].what);
    const Shape shape = operand_type(module_, region, yields[0].what).shape;
    if (shape.size() < 2 || shape[1] != some)
      broken("R26", region.at, "the output {} is {}; a part has {} rows", text(region, yields[0].what),
             shape_text(shape), some);
  }

  // R32: decode takes a token, its position and caches, and gives the output of that position, and the caches again:
  // in their places, so that the next run finds them there.
  void one_position(const Region& region) {
    if (region.empty()) return;
    if (!at_least(Phase::half))
      broken("R32", region.at, "decode stands in phase {}", phase_text(module_.phase));
    const size_t caches = region.inputs.size() < 2 ? 0 : region.inputs.size() - 2;
    const Type number{DType::i32, {kBatch, 1}};
    if (caches == 0 || region[region.inputs[0]].type != number || region[region.inputs[1]].type != number)
      return broken("R32", region.at, "decode takes a token and a position, i32[B,1], and caches");
    const std::vector<Yield>& yields = region.yields;
    if (yields.size() != caches + 1 || yields.front().role != YieldRole::output)
      return broken("R32", region.at, "decode yields one output, and each of its {} caches as rows", caches);
    output(region, yields.front().what);
    for (size_t i = 0; i < caches; ++i) {
      const Value& before = region[region.inputs[2 + i]];
      const ValueId* after = as_value(yields[1 + i].what);
      if (after == nullptr || yields[1 + i].role != YieldRole::rows || region[*after].type != before.type)
        return broken("R32", region.at, "decode does not yield the cache `%{}` again, as rows", before.name);
      if (at_least(Phase::planned) && region[*after].offset != before.offset)
        broken("R32", region.at, "the cache `%{}` is not where `%{}` is", region[*after].name, before.name);
    }
  }

  // R16: a clone equals its original, and takes its place: neither the original nor an earlier clone is read
  // after it.
  void clones(const Region& region) {
    std::vector<const Op*> maker(region.values.size(), nullptr);
    std::vector<bool> read(region.values.size(), false);
    for (const Op& op : region.ops) {
      for (const ValueId result : op.results) maker[index(result)] = &op;
      for (const Operand& operand : op.operands)
        if (const ValueId* value = as_value(operand)) read[index(*value)] = true;
    }
    // The value that a value is, or repeats.
    const auto base = [&](ValueId value) {
      const Op* op = maker[index(value)];
      if (op == nullptr || !op->remat) return value;
      const Op* original = maker[index(*op->remat)];
      for (size_t i = 0; original != nullptr && i < op->results.size() && i < original->results.size(); ++i)
        if (op->results[i] == value) return original->results[i];
      return value;
    };
    const auto same = [&](const Operand& a, const Operand& b) {
      const ValueId *x = as_value(a), *y = as_value(b);
      return x != nullptr && y != nullptr ? base(*x) == base(*y) : a == b;
    };
    std::vector<ValueId> newest(region.values.size());  // by value: its last clone so far
    for (const Op& op : region.ops) {
      for (const Operand& operand : op.operands) {
        const ValueId* value = as_value(operand);
        if (value == nullptr) continue;
        const ValueId now = newest[index(base(*value))];
        if (now.index >= 0 && now != *value)
          broken("R16", op.at, "`%{}` is read after `%{}` took its place", region[*value].name,
                 region[now].name);
      }
      if (!op.remat) continue;
      if (!at_least(Phase::recomputed))
        broken("R16", op.at, "a clone stands in phase {}", phase_text(module_.phase));
      const Op* original =
          op.remat->index >= 0 && index(*op.remat) < maker.size() ? maker[index(*op.remat)] : nullptr;
      const bool equal =
          original != nullptr && !original->remat && original->results.front() == *op.remat &&
          original->info == op.info && original->attrs == op.attrs && op.info->writes == 0 &&
          std::equal(op.operands.begin(), op.operands.end(), original->operands.begin(),
                     original->operands.end(), same) &&
          std::equal(op.results.begin(), op.results.end(), original->results.begin(), original->results.end(),
                     [&](ValueId a, ValueId b) { return region[a].type == region[b].type; });
      if (!equal) {
        broken("R16", op.at, "this `{}` does not repeat what makes `%{}`", op.info->name,
               original != nullptr ? region[*op.remat].name : "?");
        continue;
      }
      for (const ValueId result : op.results)
        if (read[index(result)]) newest[index(base(result))] = result;
    }
  }

  // R17: eval and predict read what step reads, since the runtime knows one type of each input ...
  void inputs_of_step(const Region& region) {
    for (const ValueId id : region.inputs) {
      if (region.kind == RegionKind::measure && id == region.inputs.front()) continue;  // R34
      const Value& input = region[id];
      const std::optional<ValueId> same = module_.step.find(input.name);
      const std::vector<ValueId>& inputs = module_.step.inputs;
      const bool found = same && contains(inputs, *same) && module_.step[*same].type == input.type;
      if (!found)
        broken("R17", region.at, "{} has the input `%{}` of type {}; step has not", region_text(region.kind),
               input.name, type_text(input.type));
    }
  }

  // ... and numbers that choose a row or class are elements of inputs whose range fits, positions in documents, or
  // selected among such and a number.
  struct Source {
    std::optional<ValueId> input;
    double least = 0, largest = 0;  // of what is none
  };
  using Sources = std::vector<Source>;
  void numbers(const Region& region) {
    std::vector<Sources> known(region.values.size());  // by value: what its elements come from; or none
    for (const ValueId input : region.inputs) known[index(input)] = {{input}};
    const auto sources = [&](const Operand& operand) {
      if (const double* number = as_number(operand)) return Sources{{{}, *number, *number}};
      const ValueId* value = as_value(operand);
      return value != nullptr ? known[index(*value)] : Sources();
    };
    for (const Op& op : region.ops) {
      if (op.info == &op_documents) {
        const int64_t positions = OpView{module_, region, op}.operand(0).shape[1];
        known[index(op.results[1])] = {{{}, 0, static_cast<double>(positions - 1)}};
      }
      const bool selects = op.info == &op_select;  // its first operand chooses
      for (size_t i = selects ? 1 : 0; (selects || op.info->copies) && i < op.operands.size(); ++i) {
        const Sources more = sources(op.operands[i]);
        Sources& all = known[index(op.results.front())];
        if (more.empty()) {
          all.clear();
          break;
        }
        all.insert(all.end(), more.begin(), more.end());
      }
      if (op.info->numbers < 0) continue;
      const Operand& operand = op.operands[op.info->numbers];
      const Sources from = sources(operand);
      if (from.empty())
        broken("R17", op.at, "`{}` takes numbers from {}, which is no input", op.info->name,
               text(region, operand));
      for (const Source& source : from) {
        if (source.input)
          number(region, op, region[*source.input].name);
        else
          number(region, op, source.least, source.largest);
      }
    }
  }
  void number(const Region& region, const Op& op, double least, double largest) {
    const auto rows = static_cast<double>(op.info->numbered(OpView{module_, region, op}));
    const Attr* ignores = find_attr(op, "ignore_index");
    const bool ignored =
        ignores != nullptr && least == largest && static_cast<double>(std::get<int64_t>(*ignores)) == least;
    if ((least < 0 || largest >= rows) && !ignored)
      broken("R17", op.at, "numbers may be {} to {}; `{}` takes 0 to {}", least, largest, op.info->name,
             rows - 1);
  }
  void number(const Region& region, const Op& op, const std::string& input) {
    const int64_t most = op.info->numbered(OpView{module_, region, op});
    if (region.kind == RegionKind::answer) {  // the runtime gives it rows of its table
      const int64_t rows = region[region.inputs[0]].type.shape[0];
      if (rows > most)
        broken("R17", op.at, "input `%{}` has a range of {}; `{}` takes one of 1 to {}", input, rows,
               op.info->name, most);
      return;
    }
    if (region.kind == RegionKind::decode && input == region[region.inputs[1]].name)
      return number(region, op, 0, static_cast<double>(cached_positions(module_) - 1));
    const int64_t range = module_.settings.input(input).range.value_or(0);
    if (range < 1 || range > most)
      broken("R17", op.at, "input `%{}` has {}; `{}` takes one of 1 to {}", input,
             range < 1 ? "no range" : fmt::format("a range of {}", range), op.info->name, most);
    const int64_t ignored = module_.settings.input(input).ignore_index.value_or(0);
    const Attr* ignores = find_attr(op, "ignore_index");
    if ((ignored < 0 || ignored >= most) && (ignores == nullptr || *ignores != Attr(ignored)))
      broken("R17", op.at, "input `%{}` may be {}; `{}` takes 0 to {}", input, ignored, op.info->name,
             most - 1);
  }

  // R15: one place
  void place(const Location& at, const std::string& name, int64_t bytes, const std::optional<int64_t>& offset,
             bool wanted, int64_t alignment = kArenaAlignment, bool host = false) {
    if (!offset) {
      if (wanted) broken("R15", at, "`{}` has no place in the arena", name);
      return;
    }
    if (!at_least(Phase::planned)) return broken("R15", at, "`{}` has a place before phase planned", name);
    const int64_t arena = module_.arena_bytes.value_or(0), begin = host ? arena : 0;
    const int64_t end = host ? arena + module_.host_bytes : arena;
    if (*offset < begin || *offset % alignment != 0 || bytes > end || *offset > end - bytes)
      broken("R15", at, "`{}` at {} is misaligned or outside the {} of {} bytes", name, *offset,
             host ? "host's block" : "arena", end - begin);
  }

  // R18: schedules, each of which has more rules (verify_schedule.h)
  void schedules() {
    const bool scheduled = at_least(Phase::scheduled);
    if (scheduled == module_.target.empty())
      broken("R18", {}, "a module has a target in phase scheduled, and only then");
    for (const RegionKind kind : all_regions) {
      const Region& region = module_.region(kind);
      if (region.schedule.has_value() != (scheduled && !region.ops.empty())) {
        broken("R18", region.at, "{} has {} schedule in phase {}", region_text(kind),
               region.schedule ? "a" : "no", phase_text(module_.phase));
      } else if (region.schedule) {
        verify_schedule(module_, region, broken_rule());
      }
    }
  }

  // R14 kernels and R15 places, from the one description of kernels
  void kernels_and_places(const Region& region) {
    std::set<int32_t> seen;
    for (size_t i = 0; i < region.ops.size(); ++i) {
      const Op& op = region.ops[i];
      if (at_least(Phase::fused) != (op.kernel >= 0))
        return broken("R14", op.at, "`{}` {} a kernel number in phase {}", op.info->name,
                      op.kernel >= 0 ? "has" : "lacks", phase_text(module_.phase));
      const bool continues = i > 0 && region.ops[i - 1].kernel == op.kernel;
      if (op.kernel >= 0 && !continues && !seen.insert(op.kernel).second)
        return broken("R14", op.at, "the ops of kernel {} do not stand together", op.kernel);
    }
    if (!at_least(Phase::fused)) {
      for (const Value& value : region.values) {
        if (value.offset) broken("R15", {}, "`%{}` has a place before phase planned", value.name);
        if (value.type.pitch != 0) broken("R25", {}, "`%{}` has a pitch before phase fused", value.name);
      }
      return;
    }
    const Facts known = facts(module_, region);
    const std::vector<Kernel>& all = known->kernels;
    if (!known->problem.empty()) return broken("R14", region.ops.front().at, "{}", known->problem);
    const bool planned = at_least(Phase::planned);
    const auto value_place = [&](ValueId id, const Location& at) {
      place(at, "%" + region[id].name, type_bytes(region[id].type, module_.most_samples(region)),
            region[id].offset, planned);
    };
    for (const Yield& yield : region.yields)
      if (const ValueId* id = as_value(yield.what)) value_place(*id, region.at);
    for (const ValueId input : region.inputs) value_place(input, region.at);
    pitches(region, all);
    for (const Kernel& kernel : all) {
      for (const Operand& write : kernel.writes)
        if (const ValueId* id = as_value(write)) value_place(*id, region.ops[kernel.members.front().op].at);
    }
  }

  // R25
  void pitches(const Region& region, const std::vector<Kernel>& all) {
    for (size_t i = 0; i < region.values.size(); ++i) {
      const Type& type = region.values[i].type;
      if (type.pitch == 0) continue;
      if (!may_have_pitch(region, all, ValueId{static_cast<int32_t>(i)}))
        broken("R25", region.at, "`%{}` is {}: a kernel that it meets does not walk rows",
               region.values[i].name, type_text(type));
    }
  }

  const Module& module_;
  Diag& diag_;
};

}  // namespace

bool verify(const Module& module, Diag& diag) { return Verifier(module, diag).run(); }
bool verify_data(const Module& module, Diag& diag) { return Verifier(module, diag).data(); }

}  // namespace gacc::ir
