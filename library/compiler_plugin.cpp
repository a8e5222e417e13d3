#include "library/compiler_plugin.h"

#include <exception>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "codegen/device_code.h"
#include "compiler/compile_step.h"
#include "compiler/published_source.h"

namespace gacc {
namespace {

// The artifact, or what is wrong.
CompileTrouble compile(const CompilerRequest& request, std::string& artifact, std::string& warnings) {
  const gacc_compile_options& given = request.options;
  std::vector<Override> overrides;
  for (const char* text : std::span(given.set, given.sets)) {
    const std::optional<Override> set = parse_override(text);
    if (!set) return {false, fmt::format("set {}: expected KEY=VALUE\n", text)};
    overrides.push_back(*set);
  }
  const std::string target = given.target == nullptr ? "sm_80" : given.target;
  if (Diag diag("target", ""); !codegen::check_target(target, diag))
    return {false, diag.reports().front().text + "\n"};
  PublishedOptions options{.overrides = overrides, .target = target};
  if (given.lora != 0) options.lora = given.lora;
  if (given.context != 0) options.context = given.context;
  options.pack = given.pack != 0;
  ModelSource source;
  if (request.text == nullptr) {
    const std::string families = given.families == nullptr ? "" : given.families;
    if (auto trouble = read_published(request.file, families, options, source)) return *trouble;
  } else {
    if (options.context || options.pack)
      return {false, fmt::format("{} goes with a published model\n", options.context ? "context" : "pack")};
    source = {.text = request.text, .file = request.file};
    if (options.lora) add_adapters(source, *options.lora, overrides);
  }
  StepCompiler compiler(source, overrides);
  compiler.on_note = [&](std::string_view note) {
    if (note.find("warning: ") != note.npos) warnings += note;
  };
  if (auto trouble = compiler.read()) return *trouble;
  passes::PipelineOptions pipeline;
  pipeline.options.target = target;
  if (auto trouble = compiler.transform(pipeline)) return *trouble;
  Compiled compiled;
  if (auto trouble = compiler.generate(compiled)) return *trouble;
  artifact = std::move(compiled.artifact);
  return {};
}

}  // namespace
}  // namespace gacc

extern "C" __attribute__((visibility("default"))) int gacc_compile_step(int abi,
                                                                        const gacc::CompilerRequest* request,
                                                                        gacc::gacc_take_fn take, void* to) {
  if (abi != gacc::kCompilerAbi) return -1;
  const auto trouble = [&](int status, const std::string& text) {
    take(to, gacc::kTroubleText, text.data(), text.size());
    return status;
  };
  try {
    std::string artifact, warnings;
    const gacc::CompileTrouble wrong = gacc::compile(*request, artifact, warnings);
    if (artifact.empty()) return trouble(wrong.bug ? 3 : 1, wrong.text);
    take(to, gacc::kArtifactText, artifact.data(), artifact.size());
    take(to, gacc::kWarningText, warnings.data(), warnings.size());
    return 0;
  } catch (const std::bad_alloc&) {
    return trouble(1, "out of memory\n");
  } catch (const std::exception& error) {
    return trouble(3, error.what());
  }
}
