// Low-rank adapters on the disk. As llama.cpp has them they are a file NAME.gguf. As PEFT keeps them they are a folder
// with adapter_model.safetensors and adapter_config.json; a path that ends in .safetensors is such a file of tensors,
// and only beside one that is called adapter_model.safetensors there is a configuration. What is trained beside the
// adapters goes with PEFT's: whole modules, which are its modules_to_save, with the statistics of batch norms.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/weights/weights.h"

namespace gacc {

// The files of an adapter that is called so; the second one is "" where there is no configuration.
struct AdapterFiles {
  std::string tensors, configuration;
};
AdapterFiles adapter_files(const std::string& path);
// Returns true for a folder or file beside which an adapter_config.json is, and for a GGUF that says it is one.
bool is_adapter(const std::string& path);

// Fails where PEFT has no name for an adapter, which is of one whole matrix of the published weights, or for
// what is trained beside it.
Status check_adapters(const Plan& plan, const Weights& loaded, FileKind kind);
// Fails where a weight with an adapter is read by more layers than the adapter's.
Status check_merge(const Plan& plan);
// Says whether a parameter or statistic goes with the adapters: it is of one, or trained beside them.
bool is_in_adapter(const Plan& plan, const PlanBuffer& buffer);
// Takes the adapters, and what is trained beside them, from among the parameters, named as ours. `loaded`: the
// weights that the run began with (or none).
Result<std::vector<NamedTensor>> adapter_tensors(const Plan& plan, const Weights& loaded,
                                                 const std::vector<NamedTensor>& parameters);
// Returns the whole GGUF of an adapter for a base of that architecture.
Result<std::string> adapter_gguf(const Plan& plan, std::string_view architecture,
                                 const std::vector<NamedTensor>& parameters);
// Returns the text of their adapter_config.json, which names the folder that they were trained on.
Result<std::string> adapter_configuration(const Plan& plan, const Weights& loaded);

class Adapter {
 public:
  // Opens a file for the adapters of a plan. An error lists all that does not fit.
  Status open(const std::string& path, const Plan& plan);
  const std::vector<StoredTensor>& tensors() const { return file_.tensors(); }
  // Parameters that are trained beside the adapters and that the file lacks: they keep their start.
  const std::vector<std::string>& missing() const { return missing_; }
  // Returns what `write` writes of a session with that plan.
  std::vector<const PlanBuffer*> written(const Plan& plan) const { return buffers_of(sources_, plan); }
  // Overwrites the adapters, and what else the file has, of an initialised session. Not before it is open.
  Status write(Session& session) const { return write_sources(sources_, session); }

 private:
  void check_shared(const Plan& plan, const PlanBuffer& buffer, const nlohmann::ordered_json& config,
                    bool lacking, std::vector<std::string>& problems) const;

  WeightFile file_;
  std::vector<WeightSource> sources_;
  std::vector<std::string> missing_;
};

// Adds alpha / rank * B A, summed in double, to the rows of each adapter's weight, and drops the adapters. Not
// where check_merge fails.
void merge_adapters(const Plan& plan, std::vector<NamedTensor>& parameters);

}  // namespace gacc
