#include "compiler/plan/show.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ir/text/size_text.h"

namespace gacc {

namespace {

// The trained parameters that the optimizer treats alike: those of one group, or of none, with the same decay.
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

// The bytes of parameters with all that belongs to them: half copies, gradients, moments.
struct Share {
  int64_t parameters = 0, bytes = 0;
};
Share share_of(const Plan& plan, bool trained) {
  std::set<std::string_view> names;
  Share share;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.kind() != BufferKind::param || buffer.trainable != trained) continue;
    names.insert(buffer.name);
    share.parameters += elements_of(buffer.shape);
    if (buffer.in.empty()) share.bytes += buffer.bytes;
  }
  for (const PlanBuffer& buffer : plan.buffers)
    if (names.contains(buffer.of) && buffer.in.empty()) share.bytes += buffer.bytes;
  return share;
}

// The frozen matrices of each type, and those that precision.frozen leaves because of their rows.
struct Matrices {
  std::map<DType, int64_t> of_type{};
  int64_t left = 0;
};
Matrices frozen_matrices(const Plan& plan) {
  Matrices found;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.kind() != BufferKind::param || buffer.trainable || buffer.shape.size() != 2) continue;
    ++found.of_type[buffer.dtype];
    if (buffer.shape[1] % dtype_block(DType::q8_0) != 0) ++found.left;
  }
  return found;
}
std::string blocks_text(const Matrices& found) {
  std::string text;
  for (const auto& [type, count] : found.of_type)
    if (dtype_block(type) > 1)
      text +=
          fmt::format("{}{} in {}", text.empty() ? "" : ", ", ir::counted(count, "tensor"), dtype_text(type));
  if (found.left > 0)
    text += fmt::format("{}rows of {} are no whole blocks", text.empty() ? "" : "; ",
                        ir::counted(found.left, "tensor"));
  return text;
}

nlohmann::ordered_json share_json(const Share& share) {
  return {{"parameters", share.parameters}, {"bytes", share.bytes}};
}

constexpr std::pair<const char*, int64_t PlanBytes::*> kMemory[] = {
    {"weights", &PlanBytes::weights},         {"half_weights", &PlanBytes::half_weights},
    {"gradients", &PlanBytes::gradients},     {"optimizer", &PlanBytes::optimizer},
    {"activations", &PlanBytes::activations}, {"workspace", &PlanBytes::workspace},
    {"inputs", &PlanBytes::inputs},           {"peak", &PlanBytes::peak},
    {"lower_bound", &PlanBytes::lower_bound}, {"host", &PlanBytes::host}};

// Returns what a run predicts, where that is less than a micro-batch; else "".
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

}  // namespace

std::string count_text(int64_t count) {  // 567434 -> "567,434"
  std::string text = std::to_string(count);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

std::string work_text(int64_t flops) {
  constexpr double kMega = 1e6, kGiga = 1e9, kTera = 1e12;
  const auto number = static_cast<double>(flops);
  if (number < kGiga) return fmt::format("{:.1f} MFLOP", number / kMega);
  const bool giga = number < kTera;
  const double scaled = number / (giga ? kGiga : kTera);
  return fmt::format("{:.{}f} {}FLOP", scaled, scaled < 10 ? 2 : scaled < 100 ? 1 : 0, giga ? "G" : "T");
}

nlohmann::ordered_json plan_json(const Plan& plan, const ir::Module& module,
                                 const passes::RecomputeReport& recompute) {
  using json = nlohmann::ordered_json;
  json equivalence = {{"exact", plan.exact}}, listed = json::array(), bytes;
  for (const auto& [name, size] : kMemory) bytes[name] = plan.bytes.*size;
  for (const PlanGroup& group : plan_groups(module))
    listed.push_back({{"match", group.match},
                      {"tensors", group.tensors},
                      {"parameters", group.parameters},
                      {"weight_decay", group.rule.weight_decay},
                      {"lr_factor", group.rule.lr_factor}});
  if (!plan.exact) equivalence["because"] = plan.because;
  json inputs = json::array();
  for (const PlanInput& input : plan.inputs) {
    json one = {{"name", input.name}, {"dtype", dtype_text(input.dtype)}, {"shape", input.shape}};
    if (input.target) one["target"] = *module.settings.loss.type;  // the loss that compares with it
    inputs.push_back(std::move(one));
  }
  json predict = {{"batch", plan.predict.batch}, {"needs", plan.predict.needs}};
  if (const int64_t parts = plan.predict.parts(); parts > 1) predict["parts"] = parts;
  if (plan.predict.decode) predict["text_positions"] = plan.predict.decode->positions;
  if (const std::string said = predictions_text(plan); !said.empty()) predict["text"] = said;
  return {{"model", plan.model},
          {"target", plan.target},
          {"parameters", plan.parameters},
          {"trained", share_json(share_of(plan, true))},
          {"frozen", share_json(share_of(plan, false))},
          {"micro_batch", plan.micro_batch},
          {"accumulate", plan.accumulate},
          {"effective_batch", plan.micro_batch * plan.accumulate},
          {"inputs", std::move(inputs)},
          {"precision", dtype_text(plan.precision)},
          {"recompute",
           {{"policy", recompute.policy},
            {"recomputed_ops", recompute.recomputed_ops},
            {"extra_flops", recompute.extra_flops},
            {"overhead", recompute.overhead},
            {"overhead_lower_bound", recompute.overhead_lower_bound},
            {"gap", recompute.gap()}}},
          {"flops_per_launch", plan.flops_per_launch},
          {"kernels_per_launch", plan.kernels_per_launch},
          {"loss_chunks", loss_chunks(module)},
          {"groups", std::move(listed)},
          {"bytes", std::move(bytes)},
          {"passes", plan.passes},
          {"equivalence", std::move(equivalence)},
          {"predict", std::move(predict)}};
}

std::string plan_text(const Plan& plan, const ir::Module& module, const passes::RecomputeReport& recompute,
                      const std::string& precision_because) {
  const std::string because = precision_because.empty() ? "," : fmt::format(": {};", precision_because);
  std::string text = fmt::format("plan of {} for {} ({}{} {} parameters)\n", plan.model, plan.target,
                                 dtype_text(plan.precision), because, count_text(plan.parameters));
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
  line("work", work_text(plan.flops_per_launch) + " a micro-batch");
  if (recompute.recomputed_ops == 0) {
    line("recompute",
         recompute.policy == "none" ? "none" : fmt::format("{}: nothing to do", recompute.policy));
  } else {
    line("recompute",
         fmt::format("{}: {} again, {} more", recompute.policy, ir::counted(recompute.recomputed_ops, "op"),
                     work_text(recompute.extra_flops)));
    line("", fmt::format("{:.2f} % more time by the cost model; at least {:.2f} % for this memory (proven)",
                         100 * recompute.overhead, 100 * recompute.overhead_lower_bound));
  }
  if (const std::string said = predictions_text(plan); !said.empty()) line("predictions", said);
  if (const auto& decode = plan.predict.decode; decode && decode->positions < plan.predict.shape[0])
    line("texts", fmt::format("of up to {} positions one by one, for which the peak has room",
                              count_text(decode->positions)));
  else if (!decode && plan.predict.batch > 0 && plan.predict.positions == "causal")
    line("texts", "a whole window a token: the peak has no room for the positions before");
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
  if (*module.settings.precision.frozen != "compute")
    if (const std::string said = blocks_text(frozen_matrices(plan)); !said.empty()) line("", said);
  if (plan.exact) line("equivalence", "exact: an update equals that of the one big batch");
  for (const std::string& because : plan.because) line("equivalence", "not exact: " + because);
  text += "memory\n";
  for (const auto& [key, member] : kMemory) {
    std::string name = key;
    std::ranges::replace(name, '_', ' ');
    if (const int64_t size = plan.bytes.*member; size > 0)
      text += fmt::format("  {:<18}{:>10}{:>18}\n", name, ir::short_size_text(size), count_text(size));
  }
  return text;
}

}  // namespace gacc
