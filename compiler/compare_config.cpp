#include "compiler/compare_config.h"

#include "compiler/gguf_config.h"
#include "frontend/loaded_config.h"
#include "runtime/atomic_file.h"
#include "runtime/gguf.h"
#include "runtime/text.h"
#include "runtime/weights/weights.h"

namespace gacc {

Status compare_config(const std::string& weights, const Plan& plan) {
  const bool gguf = is_gguf(weights);
  const std::string config = gguf ? weights : file_in(weights, "config.json");
  const bool others = weights.ends_with(".json") || weights.ends_with(".safetensors");
  if (plan.presumes.empty() || (gguf ? !plan.gguf : others || !is_there(config))) return {};
  const std::string text = GACC_TRY(gguf ? said_by_gguf(weights) : read_file(config, kMostConfig));
  const ModelRecord model{.presumes = plan.presumes, .tied = !plan.ties.empty()};
  const std::vector<std::string> problems = config_problems(text, gguf, model);
  if (problems.empty()) return {};
  std::string said = problem_list(config + " is of another model", problems);
  if (!gguf)
    said += "\n  (the file of weights itself, in place of the folder, is loaded without its config.json)";
  return Status::error("{}", said);
}

}  // namespace gacc
