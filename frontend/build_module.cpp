// The way from text to Module: tree, overrides, checks, then the forward pass twice: for step and for eval.
#include "frontend/frontend.h"

#include <algorithm>

#include "frontend/loss.h"
#include "frontend/overrides.h"

namespace gacc {

namespace {

using namespace frontend;

// What the artifact and the passes read besides the ops; the rest was set where it was read.
void finish_settings(const ModelFile& model, ir::Attrs& settings) {
  std::string metrics;
  for (const Named& metric : model.metrics) (metrics += metrics.empty() ? "" : ",") += metric.name;
  settings["metrics"] = metrics;
  if (model.loss.type == nullptr) return;
  settings["loss.type"] = std::string(model.loss.type->schema.name);
  settings["loss.target"] = model.loss.keys.text("target");
}

struct Forward {
  std::vector<Inexact> inexact{};  // what makes its update differ from the big batch's
  std::vector<LayerSummary> layers{};
};

// The forward pass of one region, with its loss.
Forward build_region(ir::Module& module, ir::RegionKind kind, const ModelFile& model, Parameters& parameters,
                     Diag& diag) {
  ir::Builder builder(module, module.region(kind), diag);
  LayerLowering layers(builder, parameters, model);
  const Flow output = layers.run();
  lower_loss(builder, layers, model, output, kind == ir::RegionKind::eval);
  return {layers.inexact(), layers.summary()};
}

struct Compiled {
  ir::Module module{};
  std::vector<LayerSummary> layers{};
};

// An input that the loss does not depend on costs memory and time, and is hardly meant.
void warn_of_unread(const ir::Module& module, const ModelFile& model, Diag& diag) {
  for (const ir::ValueId input : module.step.inputs) {
    const bool read = std::ranges::any_of(module.step.ops, [&](const ir::Op& op) {
      return std::ranges::any_of(op.operands, [&](const ir::Operand& operand) {
        const ir::ValueId* value = ir::as_value(operand);
        return value != nullptr && *value == input;
      });
    });
    if (read) continue;
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
  Forward step = build_region(module, ir::RegionKind::step, model, parameters, diag);
  result.layers = std::move(step.layers);
  assign_groups(model, module, diag);
  judge_equivalence(model, step.inexact, module.settings, diag);
  if (diag.failed()) return std::nullopt;
  build_region(module, ir::RegionKind::eval, model, parameters, diag);
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
