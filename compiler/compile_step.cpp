#include "compiler/compile_step.h"

#include <algorithm>
#include <utility>

#include "codegen/device_code.h"
#include "compiler/choose_batch.h"
#include "ir/text/text.h"
#include "runtime/artifact.h"
#include "runtime/long_work.h"

namespace gacc {

std::optional<Compiled> make_artifact(const ir::Module& module, const std::string& model,
                                      const std::vector<Override>& overrides, Diag& diag,
                                      bool shows_llvm_ir) {
  std::optional<codegen::DeviceCode> code = codegen::emit_nvptx(module, module.target, diag, shows_llvm_ir);
  if (!code) return std::nullopt;
  ir::Module placeless = module;
  placeless.source.clear();  // a model gives the same artifact wherever its file lies
  Artifact artifact{.ir = ir::print(placeless), .ptx = std::move(code->ptx), .model = model};
  for (const Override& each : overrides) artifact.overrides.push_back(each.key + "=" + each.value);
  return Compiled{write_artifact(artifact), std::move(code->llvm_ir)};
}

std::optional<Override> parse_override(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) return std::nullopt;
  return Override{text.substr(0, equals), text.substr(equals + 1)};
}

std::string bug_text(std::string_view what) {
  return fmt::format(
      "internal error: {}\nThis is a bug in gacc; please report it with the model file and the command "
      "line.\n",
      what);
}

// Names the keys of a published model's file where the text's values are from, and each error once.
StepCompiler::Ended StepCompiler::wrong_model() const {
  const auto place = [&](Location at) {
    for (const Location& each : source_.origins)
      if (at.origin.empty() && each.line == at.line && each.column == at.column) at.origin = each.origin;
    return at;
  };
  Diag shown = fresh();
  for (const Report& report : diag_.reports()) {
    const Location at = place(report.at);
    const auto same = [&](const Report& each) {
      return each.at.origin == at.origin && each.text == report.text;
    };
    if (!at.origin.empty() && std::ranges::any_of(shown.reports(), same)) continue;
    Report& made = shown.error(report.kind, at, "{}", report.text);
    for (const Note& note : report.notes) made.note(place(note.at), note.text);
  }
  return CompileTrouble{false, shown.render()};
}

StepCompiler::Ended StepCompiler::read() {
  module_ = compile_model(source_.text, source_.file, overrides_, diag_, nullptr, strict);
  if (diag_.failed()) return wrong_model();
  if (!module_) return CompileTrouble{true, bug_text("the frontend gave up without a reason")};
  on_note(source_.notes + diag_.render_warnings());
  diag_ = fresh();
  on_phase("frontend");
  return {};
}

std::vector<LayerSummary> StepCompiler::summary() {
  std::vector<LayerSummary> layers;
  compile_model(source_.text, source_.file, overrides_, diag_, &layers);
  return layers;
}

StepCompiler::Ended StepCompiler::transform(const passes::PipelineOptions& pipeline) {
  options_ = pipeline.options;
  if (has_choice(*module_)) {
    if (Ended trouble = choose(false)) return trouble;
    on_phase("choice");
  }
  LongWork work("planning");
  passes::PipelineOptions told = pipeline;
  told.verify = passes::Verify::twice;
  told.on_pass = [&](std::string_view pass, size_t number, size_t of) {
    work.now(fmt::format("planning, pass {} of {}, {}", number, of, pass));
  };
  if (const passes::PipelineResult result = passes::run_pipeline(*module_, told, diag_); !result) {
    if (!result.internal_error.empty()) return CompileTrouble{true, result.internal_error};
    if (diag_.reports().back().kind != Kind::does_not_fit) return wrong_model();
    // Too small a budget: what would fit.
    const Diag refused = std::exchange(diag_, fresh());
    if (Ended trouble = choose(true)) return trouble;
    diag_ = refused;
    return wrong_model();
  }
  on_note(diag_.render_warnings());
  on_phase("passes");
  return {};
}

std::optional<ir::Module> StepCompiler::before(std::string_view pass, const std::vector<Override>& more,
                                               const passes::Options& options, std::string& refused) const {
  std::vector<Override> all = overrides_;
  all.insert(all.end(), more.begin(), more.end());
  Diag diag = fresh();
  std::optional<ir::Module> module = compile_model(source_.text, source_.file, all, diag);
  passes::PipelineOptions pipeline;
  pipeline.stop_after = passes::pass_before(pass);
  pipeline.verify = passes::Verify::never;
  pipeline.options = options;
  if (module && passes::run_pipeline(*module, pipeline, diag)) return module;
  if (refused.empty()) refused = diag.render();
  return std::nullopt;
}

// Micro-batch, accumulation and recompute under the budget: notes the choice and compiles the model again with
// it. Trouble when nothing fits. `known`: that nothing does.
StepCompiler::Ended StepCompiler::choose(bool known) {
  LongWork work("choosing the micro-batch and what is made again");
  std::string refused;  // why a candidate cannot be compiled at all
  const CompileUnchunked compile = [&](const std::vector<Override>& more) {
    return before("chunk-loss", more, options_, refused);
  };
  const BatchChoice choice = choose_batch(*module_, compile, options_, known);
  if (!choice.done) {
    if (choice.problem.empty()) return CompileTrouble{false, refused};
    diag_.error(Kind::does_not_fit, {}, "{}", choice.problem);
    return wrong_model();
  }
  on_note(choice.why);
  if (choice.overrides.empty()) return {};
  overrides_.insert(overrides_.end(), choice.overrides.begin(), choice.overrides.end());
  module_ = compile_model(source_.text, source_.file, overrides_, diag_);
  if (module_ && !diag_.failed()) return {};
  return wrong_model();
}

StepCompiler::Ended StepCompiler::generate(Compiled& compiled, bool shows_llvm_ir) {
  const LongWork work("emitting code for the GPU");
  std::optional<Compiled> made = make_artifact(*module_, source_.text, overrides_, diag_, shows_llvm_ir);
  if (!made)
    return CompileTrouble{true, bug_text(diag_.failed() ? diag_.reports().front().text
                                                        : "code generation gave up without a reason")};
  compiled = std::move(*made);
  on_phase("codegen");
  return {};
}

}  // namespace gacc
