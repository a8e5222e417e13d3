// Low-rank adapters on the disk, as PEFT keeps them: a folder with adapter_model.safetensors and
// adapter_config.json. A path that ends in .safetensors is such a file of tensors; only beside one that is
// called adapter_model.safetensors there is a configuration.
#pragma once
#include <string>
#include <vector>

#include "runtime/weights/weights.h"

namespace gacc {

// The files of an adapter that is called so; the second one is "" where there is no configuration.
struct AdapterFiles {
  std::string tensors, configuration;
};
AdapterFiles adapter_files(const std::string& path);

// Whether the plan has adapters that PEFT can name: each is of one whole matrix of the published weights.
Status check_adapters(const Plan& plan);
// Fails where a file could not be put in place later.
Status prepare_adapter(const std::string& path);
// Takes the adapters from among the parameters, named as ours.
Status save_adapter(const std::string& path, const Plan& plan, const std::vector<NamedTensor>& parameters);

class Adapter {
 public:
  // Opens a file for the adapters of a plan. An error lists all that does not fit.
  Status open(const std::string& path, const Plan& plan);
  const std::vector<StoredTensor>& tensors() const { return file_.tensors(); }
  // Overwrites the adapters of an initialised session. Not before it is open.
  Status write(Session& session) const;

 private:
  WeightFile file_;
  std::vector<std::pair<const PlanBuffer*, const StoredTensor*>> sources_;
};

// Adds alpha / rank * B A, summed in double, to the rows of each adapter's weight, and drops the adapters.
void merge_adapters(const Plan& plan, std::vector<NamedTensor>& parameters);

}  // namespace gacc
