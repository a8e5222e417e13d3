// The plan as JSON, written: a plain listing. plan_reader.cpp is the other direction.
#include "runtime/plan.h"

#include <algorithm>
#include <numeric>

#include <nlohmann/json.hpp>

namespace gacc {
namespace {

using nlohmann::json;

json argument_json(const PlanArgument& argument) {
  if (argument.kind == PlanArgument::Kind::address) return argument.offset;
  return {{"extent", argument.extent}, {"times_batch", argument.times_batch}};
}

json arguments_json(const std::vector<PlanArgument>& arguments) {
  json list = json::array();
  for (const PlanArgument& argument : arguments) list.push_back(argument_json(argument));
  return list;
}

json launch_json(const PlanLaunch& launch) {
  const auto placed = [&](json written) {
    if (launch.stream != 0) written["stream"] = launch.stream;
    if (launch.after >= 0) written["after"] = launch.after;
    return written;
  };
  if (launch.kernel.empty()) {
    json product = {{"a", launch.a},
                    {"b", launch.b},
                    {"c", launch.c},
                    {"m", argument_json(launch.m)},
                    {"n", argument_json(launch.n)},
                    {"k", argument_json(launch.k)},
                    {"transpose_a", launch.transpose_a},
                    {"transpose_b", launch.transpose_b},
                    {"accumulate", launch.accumulate},
                    {"type", launch.type},
                    {"result", launch.result}};
    if (launch.pitch) product["pitch"] = arguments_json({launch.pitch->begin(), launch.pitch->end()});
    const PlanBuiltin& builtin = launch.builtin;
    if (!builtin.kernel.empty())
      product["builtin"] = {{"kernel", builtin.kernel},
                            {"block", builtin.block},
                            {"tile_m", builtin.tile_m},
                            {"tile_n", builtin.tile_n}};
    if (!builtin.arguments.empty()) {
      product["builtin"]["arguments"] = arguments_json(builtin.arguments);
      product["builtin"]["does"] = builtin.does;
    }
    if (launch.bias) product["bias"] = {{"offset", launch.bias->offset}, {"launch", launch.bias->launch}};
    if (launch.workspace)
      product["workspace"] = {{"offset", launch.workspace->offset}, {"bytes", launch.workspace->bytes}};
    return placed(std::move(product));
  }
  json kernel = {{"kernel", launch.kernel},
                 {"arguments", arguments_json(launch.arguments)},
                 {"block", launch.block},
                 {"grid", argument_json(launch.grid)},
                 {"per_block", launch.per_block}};
  if (launch.resident) kernel["resident"] = true;
  if (launch.cooperative) kernel["cooperative"] = true;
  if (!launch.touches.empty()) kernel["touches"] = launch.touches;
  return placed(std::move(kernel));
}

json input_json(const PlanInput& input) {
  json result = {{"name", input.name},
                 {"dtype", input.dtype},
                 {"shape", input.shape},
                 {"step_offset", input.step_offset},
                 {"eval_offset", input.eval_offset},
                 {"mean", input.mean},
                 {"std", input.std}};
  if (!input.stored.empty()) result["stored"] = input.stored;
  if (input.predict_offset) result["predict_offset"] = *input.predict_offset;
  if (input.normalize_data) result["normalize"] = "data";
  if (input.range) result["range"] = *input.range;
  if (input.ignore_index) result["ignore_index"] = *input.ignore_index;
  if (input.target) result["target"] = true;
  return result;
}

json buffer_json(const PlanBuffer& buffer) {
  const std::string_view role = buffer_roles[static_cast<size_t>(buffer.role)].text;
  json result = {{"name", buffer.name},   {"kind", buffer.kind},   {"role", role},
                 {"dtype", buffer.dtype}, {"shape", buffer.shape}, {"offset", buffer.offset},
                 {"bytes", buffer.bytes}};
  if (!buffer.of.empty()) result["of"] = buffer.of;
  if (!buffer.whole.empty()) result["whole"] = buffer.whole;
  if (!buffer.in.empty()) result["in"] = buffer.in;
  if (buffer.kept != 1) result["kept"] = buffer.kept;
  if (buffer.kind == "param") result["trainable"] = buffer.trainable;
  if (!buffer.values.empty()) result["values"] = buffer.values;
  return result;
}

json values_json(const std::vector<PlanValue>& values) {
  json list = json::array();
  for (const PlanValue& value : values) list.push_back({value.offset, value.bytes, value.first, value.last});
  return list;
}

}  // namespace

std::vector<PlanArgument> builtin_arguments(const PlanLaunch& product) {
  if (!product.builtin.arguments.empty()) return product.builtin.arguments;
  const auto address = [](int64_t offset) { return PlanArgument{PlanArgument::Kind::address, offset}; };
  std::vector<PlanArgument> all = {address(product.a), address(product.b), address(product.c),
                                   product.m,          product.n,          product.k};
  if (product.pitch) all.insert(all.end(), product.pitch->begin(), product.pitch->end());
  return all;
}

int64_t elements_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t PlanInput::bytes(int64_t samples) const {
  return elements_of(shape) * samples * (stored.empty() ? 4 : 2);  // f32 and i32, or half
}

int64_t PlanPredict::outputs() const { return elements_of(shape) / parts() * std::max<int64_t>(batch, 1); }

const std::vector<int64_t>& whole_shape(const PlanBuffer& buffer) {
  return buffer.whole.empty() ? buffer.shape : buffer.whole;
}

int64_t whole_bytes(const PlanBuffer& buffer) {
  if (buffer.whole.empty()) return buffer.bytes;
  return buffer.bytes / elements_of(buffer.shape) * elements_of(buffer.whole);
}

bool Plan::needs(Program program) const {
  const auto has = [&](BufferRole role) {
    return std::ranges::find(buffers, role, &PlanBuffer::role) != buffers.end();
  };
  switch (program) {
    case Program::predict:
      return predict.batch > 0;
    case Program::close:
      return has(BufferRole::node);
    case Program::answer:
      return predict.rows > 0;
    case Program::norms:
      return has(BufferRole::norm_parts);
    case Program::ratios:
      return has(BufferRole::ratio_parts);
    case Program::clear:
      return has(BufferRole::slice);
    default:
      return true;
  }
}

const PlanBuffer* Plan::find(BufferRole role, std::string_view buffer) const {
  for (const PlanBuffer& candidate : buffers)
    if (candidate.role == role && candidate.of == buffer) return &candidate;
  return nullptr;
}

const PlanBuffer* Plan::find(std::string_view buffer) const {
  for (const PlanBuffer& candidate : buffers)
    if (candidate.name == buffer) return &candidate;
  return nullptr;
}

nlohmann::ordered_json to_json(const PlanBytes& bytes) {
  return {{"weights", bytes.weights},         {"half_weights", bytes.half_weights},
          {"gradients", bytes.gradients},     {"optimizer", bytes.optimizer},
          {"activations", bytes.activations}, {"workspace", bytes.workspace},
          {"inputs", bytes.inputs},           {"peak", bytes.peak},
          {"lower_bound", bytes.lower_bound}};
}

nlohmann::json to_json(const Plan& plan) {
  json result = {{"model", plan.model},
                 {"target", plan.target},
                 {"parameters", plan.parameters},
                 {"micro_batch", plan.micro_batch},
                 {"accumulate", plan.accumulate},
                 {"tail", plan.tail},
                 {"epochs", plan.epochs},
                 {"shuffle", plan.shuffle},
                 {"seed", plan.seed},
                 {"lr", plan.lr},
                 {"optimizer", plan.optimizer},
                 {"precision", plan.precision},
                 {"metrics", plan.metrics},
                 {"arena_bytes", plan.arena_bytes},
                 {"bytes", json(to_json(plan.bytes))},
                 {"flops_per_launch", plan.flops_per_launch},
                 {"kernels_per_launch", plan.kernels_per_launch},
                 {"passes", plan.passes},
                 {"exact", plan.exact},
                 {"because", plan.because},
                 {"skip_nonfinite", plan.skip_nonfinite},
                 {"max_skips", plan.max_skips}};
  result["predict"] = {{"batch", plan.predict.batch},
                       {"needs", plan.predict.needs},
                       {"offset", plan.predict.offset},
                       {"shape", plan.predict.shape},
                       {"positions", plan.predict.positions}};
  if (plan.predict.rows > 0) {
    result["predict"]["rows"] = plan.predict.rows;
    result["predict"]["rows_offset"] = plan.predict.rows_offset;
  }
  if (plan.lanes > 1) result["lanes"] = plan.lanes;
  if (plan.shard > 0) result["shard"] = plan.shard;
  if (plan.plateau) {
    result["plateau"] = {{"metric", plan.plateau->metric},
                         {"patience", plan.plateau->patience},
                         {"threshold", plan.plateau->threshold}};
  }
  if (plan.seed_rules)
    result["seed_rules"] = {{"elements", plan.seed_rules->elements}, {"dynamic", plan.seed_rules->dynamic}};
  if (plan.load) {
    json parameters = json::array();
    for (const PlanLoad::Parameter& each : plan.load->parameters) {
      json& written = parameters.emplace_back(
          json{{"name", each.name}, {"tensors", each.tensors}, {"transpose", each.transpose}});
      if (!each.parts.empty()) written["parts"] = each.parts;
    }
    result["load"] = {{"parameters", std::move(parameters)},
                      {"prefix", plan.load->prefix},
                      {"ignore", plan.load->ignore},
                      {"part", plan.load->part}};
  }
  for (const PlanAdapter& each : plan.adapters)
    result["adapters"].push_back(
        {{"name", each.name}, {"weight", each.weight}, {"begin", each.begin}, {"alpha", each.alpha}});
  json inputs = json::array(), buffers = json::array(), programs = json::array();
  for (const PlanInput& input : plan.inputs) inputs.push_back(input_json(input));
  for (const PlanBuffer& buffer : plan.buffers) buffers.push_back(buffer_json(buffer));
  for (const PlanProgram& program : plan.programs) {
    json launches = json::array();
    for (const PlanLaunch& launch : program.launches) launches.push_back(launch_json(launch));
    json& written = programs.emplace_back(json{{"name", program.name}, {"launches", std::move(launches)}});
    if (!program.values.empty()) written["values"] = values_json(program.values);
    if (!program.persistent) continue;
    written["persistent"] = launch_json(*program.persistent);
    written["persistent_required"] = program.persistent_required;
    if (!program.persistent_values.empty())
      written["persistent_values"] = values_json(program.persistent_values);
  }
  result["inputs"] = std::move(inputs);
  result["buffers"] = std::move(buffers);
  result["programs"] = std::move(programs);
  return result;
}

}  // namespace gacc
