// The outputs of --save, --save-best and their like: parameters in a file, in the whole folder of a published model, or
// adapters alone; as safetensors, or as a GGUF where the path says so.
#pragma once
#include <string>
#include <vector>

#include "runtime/weights/weights.h"

namespace gacc {

struct SaveForm {
  std::string option{};  // for messages: "--save"
  // Names the target. One that ends in "/", or is a folder, becomes the whole folder of a published model: weights,
  // config.json and the tokenizer's files of the folder that was loaded.
  std::string path{};
  bool adapter = false;       // the adapters alone, as PEFT has them; the path is theirs (adapters.h)
  bool merge = false;         // adds the adapters to the weights
  bool published = false;     // under the names of [load], as in every folder
  std::string dtype = "F32";  // of the numbers, but for adapters and GGUFs: "F32", "F16" or "BF16"
  std::string like{};         // the GGUF after whose pattern one is written

  bool is_folder() const;
  bool names_published() const { return published || is_folder(); }
};

// Returns the files of a folder that is written so, which it may have: "config.json" ...
const std::vector<std::string_view>& files_of_folder();

// Fails where parameters cannot be written so, before there are any. `loaded`: the weights that the run began with (or
// none).
Status check_save(const SaveForm& form, const Plan& plan, const Weights& loaded);
// Returns the parameters of an initialised session that are written so. With memory.shard all ranks have to call it.
Result<std::vector<NamedTensor>> parameters_for(const std::vector<SaveForm>& forms, const Plan& plan,
                                                Session& session);
// Writes an initialised session's parameters, and may change them on the way. Fails where a number is not finite: no
// file takes the place of a good one with weights that are of no use. `metadata` is of the data. `kept` gets the bytes
// of the tensors' file.
Status save_parameters(const SaveForm& form, const Plan& plan, const Weights& loaded,
                       std::vector<NamedTensor>& tensors, Metadata metadata, std::string* kept = nullptr);
// Writes the same with the bytes that were kept.
Status write_saved(const SaveForm& form, const Plan& plan, const Weights& loaded, std::string_view kept);

}  // namespace gacc
