// From text to Module: tree, overrides, checks, then the forward pass for step, eval and predict.
#include "frontend/frontend.h"

#include <algorithm>

#include "frontend/loss.h"
#include "frontend/overrides.h"
#include "ir/positions.h"

namespace gacc {

namespace {

using namespace frontend;

// What the artifact and the passes read besides the ops; the rest was set where it was read.
void finish_settings(const ModelFile& model, ir::Settings& settings) {
  ir::Texts metrics;
  for (const Named& metric : model.metrics) metrics.push_back(metric.name);
  if (!metrics.empty()) settings.model.metrics = metrics;
  if (model.loss.type == nullptr) return;
  settings.loss.type = std::string(model.loss.type->schema.name);
  settings.loss.target = model.loss.keys.text("target");
}

// What predict gives: the layer that [predict] names, else the loss's input. Nothing after a report.
std::optional<ir::ValueId> predicted(const ir::Region& region, const LayerLowering& layers,
                                     const ModelFile& model, Flow output, Diag& diag) {
  std::optional<Named> asked = model.predicted;
  if (const Values& loss = model.loss.keys; !asked && loss.has("input")) asked = loss.named("input");
  if (asked) output = layers.output(*asked);
  if (!output.value || region[*output.value].type.dtype == ir::DType::f32) return output.value;
  diag.error(Kind::type_mismatch, asked ? asked->at : output.at, "predictions are f32, {} is i32",
             output.label);
  return std::nullopt;
}

// The part of the forward pass that the output depends on, its inputs too.
void build_predict(ir::Module& module, const ModelFile& model, Parameters& parameters, Diag& diag) {
  ir::Region& region = module.predict;
  ir::Builder builder(module, region, diag);
  LayerLowering layers(builder, parameters, model);
  const Flow output = layers.run();
  const std::optional<ir::ValueId> what = predicted(region, layers, model, output, diag);
  if (!what) return;
  builder.yield({.role = "output", .metric = {}, .of = {}, .what = *what});
  ir::remove_dead(region);
  std::erase_if(region.inputs, [&](ir::ValueId input) { return !ir::is_read(region, input); });
  ir::compact(region);
  if (const std::optional<std::string> why = ir::mixes_positions(module, region))
    module.results.predict_positions = why->empty() ? "causal" : *why;
}

struct Compiled {
  ir::Module module{};
  std::vector<LayerSummary> layers{};
  std::vector<Inexact> inexact{};
};

// The forward pass of one region, with its loss. Of step also what the layers are, and what makes its update
// differ from the big batch's.
void build_region(Compiled& result, ir::RegionKind kind, const ModelFile& model, Parameters& parameters,
                  Diag& diag) {
  ir::Module& module = result.module;
  ir::Builder builder(module, module.region(kind), diag);
  LayerLowering layers(builder, parameters, model);
  const Flow output = layers.run();
  lower_loss(builder, layers, model, output, kind == ir::RegionKind::eval);
  if (kind != ir::RegionKind::step) return;
  if (model.predicted)
    predicted(builder.region(), layers, model, output, diag);  // reported with all other errors
  result.layers = layers.summary();
  result.inexact = layers.inexact();
}

// An input that the loss does not depend on costs memory and time, and is hardly meant.
void warn_of_unread(const ir::Module& module, const ModelFile& model, Diag& diag) {
  for (const ir::ValueId input : module.step.inputs) {
    if (ir::is_read(module.step, input)) continue;
    const auto spec = std::ranges::find(model.inputs, module.step[input].name, &InputSpec::name);
    diag.warn(Kind::unused_input, spec->at, "no layer reads the input `{}`, nor does the loss", spec->name);
  }
}

std::optional<Compiled> compile(std::string_view text, std::string_view file_name,
                                const std::vector<Override>& overrides, Diag& diag) {
  std::optional<Node> root = parse_toml(text, diag);
  if (!root) return std::nullopt;
  apply_overrides(*root, overrides, diag);
  const ModelFile model = read_model(*root, diag);

  Compiled result;
  ir::Module& module = result.module;
  module.name = model.name;
  module.source = file_name;
  module.settings = model.settings;
  finish_settings(model, module.settings);
  Parameters parameters(module, diag);
  // Building goes on after errors of the schema: shapes are checked as far as they are known.
  build_region(result, ir::RegionKind::step, model, parameters, diag);
  assign_groups(model, module, diag);
  assign_loads(model, parameters, module, diag);
  judge_equivalence(model, result.inexact, module.results, diag);
  if (diag.failed()) return std::nullopt;
  build_region(result, ir::RegionKind::eval, model, parameters, diag);
  build_predict(module, model, parameters, diag);
  if (diag.failed()) return std::nullopt;
  warn_of_unread(result.module, model, diag);
  return result;
}

}  // namespace

std::optional<ir::Module> compile_model(std::string_view text, std::string_view file_name,
                                        const std::vector<Override>& overrides, Diag& diag) {
  std::optional<Compiled> result = compile(text, file_name, overrides, diag);
  if (!result) return std::nullopt;
  return std::move(result->module);
}

std::optional<std::vector<LayerSummary>> summarize_model(std::string_view text, std::string_view file_name,
                                                         const std::vector<Override>& overrides, Diag& diag) {
  std::optional<Compiled> result = compile(text, file_name, overrides, diag);
  if (!result) return std::nullopt;
  return std::move(result->layers);
}

}  // namespace gacc
