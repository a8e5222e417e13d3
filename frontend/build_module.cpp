// From text to Module: tree, overrides, checks, then the forward pass for step, eval and predict.
#include "frontend/frontend.h"

#include <fmt/format.h>

#include <algorithm>

#include "frontend/ir_model.h"
#include "frontend/loaded_config.h"
#include "frontend/loss.h"
#include "frontend/warnings.h"
#include "ir/positions.h"

namespace gacc {

namespace {

using namespace frontend;

// Returns the loss's input; `last` where the loss does not name it.
Flow loss_input(const LayerLowering& layers, Flow last) {
  const std::span<const Node> named = layers.model.loss.keys.nodes("input");
  return named.empty() ? last : layers.output(named.front());
}

// Returns the result of predict: the layer that [predict] names, else `output`; nothing after a report.
std::optional<ir::ValueId> predicted(const LayerLowering& layers, Flow output, Diag& diag) {
  const std::span<const Node> asked = layers.model.predicted();
  if (!asked.empty()) output = layers.output(asked.front());
  if (!output.value || layers.type(output).dtype == ir::DType::f32) return output.value;
  diag.error(Kind::type_mismatch, asked.empty() ? output.at : asked.front().at,
             "predictions are f32, {} is i32", output.label);
  return std::nullopt;
}

// The part of the forward pass that the output depends on, its inputs too. Returns true where it is the loss's input.
bool build_predict(ir::Module& module, const ModelFile& model, Parameters& parameters, Diag& diag) {
  ir::Region& region = module.predict;
  LayerLowering layers({module, region, diag}, parameters, model);
  const Flow output = loss_input(layers, layers.run());
  const std::optional<ir::ValueId> what = predicted(layers, output, diag);
  if (!what) return false;
  if (const std::span<const Node> asked = model.predicted(); !asked.empty())
    module.settings.predict.layer = asked.front().text;
  layers.b.yield({.role = ir::YieldRole::output, .metric = {}, .of = {}, .what = *what});
  ir::remove_unread(region);
  if (what != output.value)
    module.results.predict_positions = fmt::format(
        R"(it gives what the layer "{}" makes, and the loss takes another)", *module.settings.predict.layer);
  else if (const std::optional<std::string> why = ir::mixes_positions(module, region))
    module.results.predict_positions = why->empty() ? "causal" : *why;
  return what == output.value;
}

}  // namespace

std::optional<ir::Module> compile_model(std::string_view text, std::string_view file_name,
                                        const std::vector<Override>& overrides, Diag& diag,
                                        std::vector<LayerSummary>* layers, bool strict) {
  if (is_ir(text)) return compile_ir(text, file_name, overrides, diag, layers, strict);
  std::optional<Node> root = parse_toml(text, diag);
  if (!root) return std::nullopt;
  apply_overrides(*root, overrides, diag);
  const ModelFile model = read_model(*root, tables::file, diag);

  ir::Module module;
  module.name = model.file.table("model").text("name");
  module.source = file_name;
  module.settings = model.settings;
  Parameters parameters(module, diag);
  // Building goes on after errors of the schema: shapes are checked as far as they are known.
  LayerLowering step({module, module.step, diag}, parameters, model);
  const Flow output = step.run();
  lower_loss(step, output, /*metrics=*/false);
  if (!model.predicted().empty()) predicted(step, output, diag);  // reported with all other errors
  if (layers != nullptr) *layers = step.summary();
  assign_groups(model, module, diag);
  assign_loads(model, parameters, module, diag);
  note_presumptions(model, parameters, module, diag);
  note_family(*root, module, diag);
  judge_equivalence(model, step.inexact(), module.results, diag);
  if (diag.failed()) return std::nullopt;
  LayerLowering eval({module, module.eval, diag}, parameters, model);
  const Flow measured = loss_input(eval, eval.run());
  lower_loss(eval, measured, /*metrics=*/true);
  if (build_predict(module, model, parameters, diag)) build_measure(module, *measured.value);
  if (diag.failed()) return std::nullopt;
  warn_of_model(module, model, strict, diag);
  if (diag.failed()) return std::nullopt;
  return module;
}

}  // namespace gacc
