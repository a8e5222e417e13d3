// From a model file's text to an artifact, step by step: what gaccc and the library's compiler share.
//
//   StepCompiler compiler({text, "model.toml"}, overrides);
//   compiler.read();  compiler.transform(pipeline);  compiler.generate(compiled);
//
// Each of these ends in nothing, or in what is wrong, and then the compiler is of no further use.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/frontend.h"
#include "passes/pipeline.h"
#include "runtime/no_copy.h"

namespace gacc {

struct Compiled {
  std::string artifact;
  std::string llvm_ir{};  // empty unless it is asked for
};
// Returns a scheduled module with its machine code. `model` and `overrides`: the record of the model that an artifact
// carries (Artifact::model). Nothing and a diagnostic when code generation fails, which is a bug.
std::optional<Compiled> make_artifact(const ir::Module& module, const std::string& model,
                                      const std::vector<Override>& overrides, Diag& diag,
                                      bool shows_llvm_ir = false);

struct CompileTrouble {
  bool bug = false;  // of gacc; else the model, or what was asked for, is wrong
  std::string text;  // whole lines, as the programs print them
};
// Returns the message about a bug: `what` went wrong, and the request to report it.
std::string bug_text(std::string_view what);

// KEY=VALUE of --set; nothing when it is not of that form.
std::optional<Override> parse_override(const std::string& text);

struct ModelSource {
  std::string text;
  std::string file;                 // what messages call it
  std::vector<Location> origins{};  // of a published model: places of the text that have a key of its file
  std::string precision_because{};  // likewise: why it computes in precision.compute
  std::string notes{};              // likewise: whole lines, which on_note receives
};

class StepCompiler : NoCopy {
 public:
  StepCompiler(ModelSource source, std::vector<Override> overrides)
      : source_(std::move(source)), overrides_(std::move(overrides)), diag_(fresh()) {}

  // Makes errors of the frontend's warnings.
  bool strict = false;
  // Receives warnings, and what was chosen where the model leaves that open; and the name of each phase that
  // is done.
  std::function<void(std::string_view)> on_note = [](std::string_view) {};
  std::function<void(std::string_view)> on_phase = [](std::string_view) {};

  using Ended = std::optional<CompileTrouble>;
  // The model file, to a module of phase `model`.
  Ended read();
  // The passes, after micro-batch and recompute are chosen where the model leaves that open.
  Ended transform(const passes::PipelineOptions& pipeline);
  // The artifact of a scheduled module.
  Ended generate(Compiled& compiled, bool shows_llvm_ir = false);

  ir::Module& module() { return *module_; }
  const ir::Module& module() const { return *module_; }
  const passes::Options& options() const { return options_; }
  const ModelSource& source() const { return source_; }
  std::vector<LayerSummary> summary();
  // Returns the model with more overrides as the pass gets it; or nothing, and the first reason in `refused`.
  std::optional<ir::Module> before(std::string_view pass, const std::vector<Override>& more,
                                   const passes::Options& options, std::string& refused) const;

 private:
  Diag fresh() const { return Diag(source_.file, source_.text); }
  Ended wrong_model() const;
  Ended choose(bool known);

  ModelSource source_;
  std::vector<Override> overrides_;  // given, then what `choose` chose
  Diag diag_;
  std::optional<ir::Module> module_;
  passes::Options options_;
};

}  // namespace gacc
