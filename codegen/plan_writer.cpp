// See plan_writer.h.
#include "codegen/plan_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ir/cost.h"
#include "ir/kernel.h"
#include "ir/schema/rate_schedule.h"
#include "ir/text/size_text.h"

namespace gacc {

namespace {

std::optional<int64_t> input_offset(const ir::Region& region, const std::string& name) {
  for (const ir::ValueId input : region.inputs)
    if (region[input].name == name) return region[input].offset.value_or(0);
  return std::nullopt;
}

PlanPredict write_predict(const ir::Module& module) {
  PlanPredict predict{.needs = *module.results.predict_needs, .positions = *module.results.predict_positions};
  const bool parts = !module.answer.yields.empty();
  const ir::Region& region = parts ? module.answer : module.predict;
  if (region.yields.empty()) return predict;
  const ir::Value& output = region[*ir::as_value(region.yields.front().what)];
  predict.batch = module.most_samples(region);
  predict.offset = output.offset.value_or(0);
  predict.shape.assign(output.type.shape.begin() + 1, output.type.shape.end());
  if (!parts) return predict;
  const ir::Value &table = region[region.inputs.at(0)], &numbers = region[region.inputs.at(1)];
  predict.shape.at(0) = table.type.shape.at(0);
  predict.rows = numbers.type.shape.at(1);
  predict.rows_offset = numbers.offset.value_or(0);
  return predict;
}

PlateauRules write_plateau(const ir::Settings& settings) {
  const auto said = [&](std::string_view key) {
    const auto set = settings.of_types.find(fmt::format("schedule.{}", key));
    return set != settings.of_types.end() ? set->second
                                          : *find_key(ir::rates::plateau.keys, key)->fallback.value;
  };
  return {std::get<std::string>(said("metric")), std::get<int64_t>(said("patience")),
          std::get<double>(said("threshold"))};
}

// Nothing where the model file has no [load].
std::optional<PlanLoad> write_load(const ir::Settings& settings) {
  if (!settings.load.prefix.given()) return std::nullopt;
  PlanLoad load{
      .prefix = *settings.load.prefix, .ignore = *settings.load.ignore, .part = *settings.load.part};
  for (const ir::LoadSettings& each : settings.loads)
    load.parameters.push_back({each.parameter, each.tensors, each.transpose, each.parts});
  return load;
}

std::vector<PlanAdapter> write_adapters(const ir::Settings& settings) {
  std::vector<PlanAdapter> all;
  for (const ir::AdapterSettings& each : settings.adapters)
    all.push_back({each.name, each.weight, each.begin, each.alpha});
  return all;
}

// What the frontend notes of weights from elsewhere.
ir::Texts note(const ir::Settings& settings, std::string_view key) {
  const auto found = settings.of_types.find(key);
  const ir::Texts* texts =
      found == settings.of_types.end() ? nullptr : std::get_if<ir::Texts>(&found->second);
  return texts == nullptr ? ir::Texts{} : *texts;
}

std::vector<PlanTie> write_ties(const ir::Settings& settings) {
  const ir::Texts names = note(settings, "load.tied"), owners = note(settings, "load.owners");
  std::vector<PlanTie> ties;
  for (size_t i = 0; i < std::min(names.size(), owners.size()); ++i) ties.push_back({names[i], owners[i]});
  return ties;
}

void add_inputs(const ir::Module& module, Plan& plan) {
  for (const ir::ValueId id : module.step.inputs) {
    const ir::Value& value = module.step[id];
    PlanInput input;
    input.name = value.name;
    const bool half = ir::is_half(value.type.dtype);  // pass half-inputs
    input.dtype = ir::dtype_text(half ? ir::DType::f32 : value.type.dtype);
    if (half) input.stored = ir::dtype_text(value.type.dtype);
    input.shape.assign(value.type.shape.begin() + (value.type.shape.empty() ? 0 : 1), value.type.shape.end());
    input.step_offset = value.offset.value_or(0);
    input.eval_offset = input_offset(module.eval, value.name).value_or(0);
    input.predict_offset = input_offset(module.predict, value.name);
    const ir::InputSettings& said = module.settings.input(value.name);
    input.mean = said.mean;
    input.std = said.std;
    input.normalize_data = said.normalize_data;
    input.range = said.range;
    input.ignore_index = said.ignore_index;
    input.target = value.name == *module.settings.loss.target;
    input.probability = input.target && *module.settings.loss.type == "bce_with_logits";
    plan.inputs.push_back(std::move(input));
  }
}

// What a launch leaves of a running statistic's change by the launches before it.
double kept_of_change(const ir::Module& module, ir::BufferId change) {
  for (const ir::Op& op : module.step.ops) {
    const ir::Attr* momentum = ir::find_attr(op, "momentum");
    const ir::BufferId* moved = op.operands.empty() ? nullptr : ir::as_buffer(op.operands.front());
    if (momentum && moved && *moved == change) return 1 - std::get<double>(*momentum);
  }
  return 1;
}

void add_buffers(const ir::Module& module, Plan& plan) {
  const ir::Attrs& own = module.settings.of_types;
  for (size_t i = 0; i < module.buffers.size(); ++i) {
    const ir::Buffer& buffer = module.buffers[i];
    PlanBuffer entry;
    entry.name = buffer.name;
    entry.kind = ir::kind_text(buffer.kind);
    entry.role = static_cast<BufferRole>(buffer.role);  // one list
    if (buffer.of) entry.of = module[*buffer.of].name;
    entry.dtype = ir::dtype_text(buffer.type.dtype);
    entry.shape = buffer.type.shape;
    entry.offset = buffer.offset.value_or(0);
    entry.bytes = ir::type_bytes(buffer.type, plan.micro_batch);
    entry.trainable = buffer.trainable;
    if (const auto whole = ir::whole_type(module, buffer)) entry.whole = whole->shape;
    const ir::BufferId id{static_cast<int32_t>(i)};
    if (const ir::BufferId storage = ir::storage_of(module, id); storage != id)
      entry.in = module[storage].name;
    if (buffer.role == ir::BufferRole::change && plan.lanes > 1)
      entry.kept = kept_of_change(module, {static_cast<int32_t>(i)});
    // class_weights, pos_weight
    if (const auto said = own.find(buffer.name); buffer.role == ir::BufferRole::given && said != own.end())
      entry.values = std::get<std::vector<double>>(said->second);
    if (buffer.kind == ir::BufferKind::param) plan.parameters += ir::elements(buffer.type.shape, 1);
    plan.buffers.push_back(std::move(entry));
  }
}

// What the optimizer does alike: the trained parameters of one group, or of none, with the same decay.
struct PlanGroup {
  std::vector<std::string> match{};  // the patterns; none: what no group matches
  int32_t group = -1;
  ir::ParamRule rule{};
  int64_t tensors = 0, parameters = 0;
};

// In the order of the model file's groups, the rest last. A group that trains nothing is left out.
std::vector<PlanGroup> plan_groups(const ir::Module& module) {
  std::vector<PlanGroup> result;
  for (const ir::Buffer& gradient : module.buffers) {
    // A parameter that the loss does not reach has no accumulator, and no update.
    if (gradient.role != ir::BufferRole::gradient) continue;
    const ir::Buffer& buffer = module[*gradient.of];
    const ir::ParamRule rule = optimizer_rule(module, buffer);
    auto found = std::ranges::find_if(result, [&](const PlanGroup& group) {
      return group.group == buffer.group && group.rule.weight_decay == rule.weight_decay;
    });
    if (found == result.end()) found = result.insert(result.end(), {.group = buffer.group, .rule = rule});
    ++found->tensors;
    found->parameters += ir::elements(buffer.type.shape, 1);
  }
  for (PlanGroup& group : result) {
    const auto number = static_cast<size_t>(group.group);  // -1: past all
    if (number < module.settings.groups.size()) group.match = module.settings.groups[number].match;
  }
  constexpr auto place = [](const PlanGroup& group) { return static_cast<uint32_t>(group.group); };
  std::ranges::stable_sort(result,
                           [&](const PlanGroup& a, const PlanGroup& b) { return place(a) < place(b); });
  return result;
}

// The parts that chunk-loss made.
int64_t loss_chunks(const ir::Module& module) { return std::max<int64_t>(*module.settings.loss.chunks, 1); }

int64_t launches_of(const ir::Module& module, const ir::Region& region) {
  int64_t count = 0;
  for (const ir::Kernel& kernel : ir::kernels(module, region)) count += kernel.form != ir::KernelForm::alias;
  return count;
}

}  // namespace

std::string count_text(int64_t count) {  // 567434 -> "567,434"
  std::string text = std::to_string(count);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

std::string predictions_text(const Plan& plan) {
  const PlanPredict& predict = plan.predict;
  if (predict.needs > 0)
    return fmt::format("none: for one sample they need {}, the peak is {}", ir::size_text(predict.needs),
                       ir::size_text(plan.bytes.peak));
  if (predict.parts() > 1)
    return fmt::format("of 1 sample at once, in {} parts of {} of its {} rows, for which the peak has room",
                       predict.parts(), count_text(predict.rows), count_text(predict.shape[0]));
  if (predict.batch == plan.micro_batch) return "";
  return fmt::format("of {} at once, for which the peak has room", ir::counted(predict.batch, "sample"));
}

Plan write_plan(const ir::Module& module, const PlanFacts& facts) {
  const ir::Settings& settings = module.settings;
  Plan plan;
  plan.model = module.name;
  plan.target = facts.target;
  plan.micro_batch = module.micro_batch();
  plan.accumulate = module.accumulate();
  plan.lanes = *settings.train.lanes;
  if (const int64_t ranks = ir::sharing_ranks(settings); ranks > 1) plan.shard = ranks;
  plan.tail = *settings.train.tail;
  plan.epochs = *settings.train.epochs;
  plan.shuffle = *settings.train.shuffle;
  plan.seed = *settings.model.seed;
  plan.lr = *settings.optimizer.lr;
  plan.optimizer = *settings.optimizer.type;
  plan.precision = ir::dtype_text(*settings.precision.compute);
  plan.metrics = *settings.model.metrics;
  plan.arena_bytes = module.arena_bytes.value_or(0);
  plan.bytes = facts.bytes;
  plan.passes = facts.passes;
  plan.flops_per_launch = ir::cost(module, module.step).flops;
  // With "auto" the step may run as one kernel, on a GPU that can; the plan counts what it is made of.
  plan.kernels_per_launch = *settings.launch.mode == "persistent" ? 1 : launches_of(module, module.step);
  // Accumulators hold sums; what is not exact all the same, the frontend says.
  plan.because = *module.results.because;
  plan.exact = plan.because.empty();
  const bool dynamic = *settings.precision.loss_scale == ir::Attr("dynamic");
  plan.skip_nonfinite = dynamic || *settings.precision.on_nonfinite == "skip";
  plan.max_skips = *settings.precision.max_skips;
  if (const auto& elements = module.results.seed_elements; elements.given())
    plan.seed_rules = SeedRules{*elements, dynamic};
  if (*settings.schedule.type == ir::rates::plateau.name) plan.plateau = write_plateau(settings);
  plan.predict = write_predict(module);
  plan.load = write_load(settings);
  plan.adapters = write_adapters(settings);
  plan.ties = write_ties(settings);
  plan.presumes = note(settings, "load.presumes");
  add_inputs(module, plan);
  add_buffers(module, plan);
  return plan;
}

namespace {

// What parameters take, with all that belongs to them: half copies, gradients, moments.
struct Share {
  int64_t parameters = 0, bytes = 0;
};
Share share_of(const Plan& plan, bool trained) {
  std::set<std::string_view> names;
  Share share;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.kind != "param" || buffer.trainable != trained) continue;
    names.insert(buffer.name);
    share.parameters += elements_of(buffer.shape);
    if (buffer.in.empty()) share.bytes += buffer.bytes;
  }
  for (const PlanBuffer& buffer : plan.buffers)
    if (names.contains(buffer.of) && buffer.in.empty()) share.bytes += buffer.bytes;
  return share;
}
nlohmann::ordered_json share_json(const Share& share) {
  return {{"parameters", share.parameters}, {"bytes", share.bytes}};
}

}  // namespace

nlohmann::ordered_json plan_json(const Plan& plan, const ir::Module& module, const PlanRecompute& recompute) {
  using json = nlohmann::ordered_json;
  json equivalence = {{"exact", plan.exact}}, listed = json::array();
  for (const PlanGroup& group : plan_groups(module))
    listed.push_back({{"match", group.match},
                      {"tensors", group.tensors},
                      {"parameters", group.parameters},
                      {"weight_decay", group.rule.weight_decay},
                      {"lr_factor", group.rule.lr_factor}});
  if (!plan.exact) equivalence["because"] = plan.because;
  json predict = {{"batch", plan.predict.batch}, {"needs", plan.predict.needs}};
  if (const int64_t parts = plan.predict.parts(); parts > 1) predict["parts"] = parts;
  return {{"model", plan.model},
          {"target", plan.target},
          {"parameters", plan.parameters},
          {"trained", share_json(share_of(plan, true))},
          {"frozen", share_json(share_of(plan, false))},
          {"micro_batch", plan.micro_batch},
          {"accumulate", plan.accumulate},
          {"effective_batch", plan.micro_batch * plan.accumulate},
          {"precision", plan.precision},
          {"recompute",
           {{"policy", recompute.policy},
            {"recomputed_ops", recompute.recomputed_ops},
            {"extra_flops", recompute.extra_flops},
            {"overhead", recompute.overhead},
            {"overhead_lower_bound", recompute.overhead_lower_bound},
            {"gap", recompute.overhead - recompute.overhead_lower_bound}}},
          {"flops_per_launch", plan.flops_per_launch},
          {"kernels_per_launch", plan.kernels_per_launch},
          {"loss_chunks", loss_chunks(module)},
          {"groups", std::move(listed)},
          {"bytes", to_json(plan.bytes)},
          {"passes", plan.passes},
          {"equivalence", std::move(equivalence)},
          {"predict", std::move(predict)}};
}

std::string plan_text(const Plan& plan, const ir::Module& module, const PlanRecompute& recompute) {
  const PlanBytes& bytes = plan.bytes;
  std::string text = fmt::format("plan of {} for {} ({}, {} parameters)\n", plan.model, plan.target,
                                 plan.precision, count_text(plan.parameters));
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<18}{}\n", name, value);
  };
  line("effective batch",
       fmt::format("{} ({} x {})", plan.micro_batch * plan.accumulate, plan.micro_batch, plan.accumulate));
  if (plan.lanes > 1) {
    const auto nodes = std::ranges::count_if(plan.buffers, [](const PlanBuffer& buffer) {
      return buffer.role == BufferRole::node && buffer.of == state::loss_sum;
    });
    line("lanes", fmt::format("{}; {} of each sum are held at once", plan.lanes, nodes + 1));
  }
  line("launches", fmt::format("{} a micro-batch", ir::counted(plan.kernels_per_launch, "kernel")));
  line("work", fmt::format("{:.1f} MFLOP a micro-batch", static_cast<double>(plan.flops_per_launch) / 1e6));
  if (recompute.recomputed_ops == 0) {
    line("recompute",
         recompute.policy == "none" ? "none" : fmt::format("{}: nothing to do", recompute.policy));
  } else {
    line("recompute", fmt::format("{}: {} again, {:.1f} MFLOP more", recompute.policy,
                                  ir::counted(recompute.recomputed_ops, "op"),
                                  static_cast<double>(recompute.extra_flops) / 1e6));
    line("", fmt::format("{:.2f} % more time by the cost model; at least {:.2f} % for this memory (proven)",
                         100 * recompute.overhead, 100 * recompute.overhead_lower_bound));
  }
  if (const std::string said = predictions_text(plan); !said.empty()) line("predictions", said);
  if (const int64_t chunks = loss_chunks(module); chunks > 1)
    line("loss", fmt::format("in {} parts of the sequence, one after the other", chunks));
  const std::vector<PlanGroup> groups = plan_groups(module);
  for (size_t i = 0; groups.size() > 1 && i < groups.size(); ++i) {
    const PlanGroup& group = groups[i];
    const std::string of = group.match.empty() ? "the rest" : fmt::format("{}", fmt::join(group.match, " "));
    line(i == 0 ? plan.optimizer : "",
         fmt::format("{}: {}, {} parameters, weight decay {}, rate x {}", of,
                     ir::counted(group.tensors, "tensor"), count_text(group.parameters),
                     group.rule.weight_decay, group.rule.lr_factor));
  }
  if (const Share frozen = share_of(plan, false); frozen.parameters > 0) {
    for (const bool trained : {true, false}) {
      const Share share = trained ? share_of(plan, true) : frozen;
      line(trained ? "trained" : "frozen",
           fmt::format("{} parameters: {}{}", count_text(share.parameters), ir::size_text(share.bytes),
                       trained ? " with gradients and moments" : ""));
    }
  }
  if (plan.exact) line("equivalence", "exact: an update equals that of the one big batch");
  for (const std::string& because : plan.because) line("equivalence", "not exact: " + because);
  text += "memory\n";
  const auto row = [&](std::string_view name, int64_t size) {
    if (size > 0)
      text += fmt::format("  {:<18}{:>10}{:>18}\n", name, ir::short_size_text(size), count_text(size));
  };
  row("weights", bytes.weights);
  row("half weights", bytes.half_weights);
  row("gradients", bytes.gradients);
  row("optimizer", bytes.optimizer);
  row("activations", bytes.activations);
  row("workspace", bytes.workspace);
  row("inputs", bytes.inputs);
  row("peak", bytes.peak);
  row("lower bound", bytes.lower_bound);
  return text;
}

}  // namespace gacc
