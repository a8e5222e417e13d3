#include "runtime/weights/saved.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "runtime/atomic_file.h"
#include "runtime/byte_order.h"
#include "runtime/long_work.h"
#include "runtime/weights/adapters.h"
#include "runtime/weights/config.h"
#include "runtime/weights/gguf_template.h"

namespace gacc {
namespace {

constexpr std::string_view kWeights = "model.safetensors", kConfiguration = "config.json";
// Files beside the weights that generation and tokenizers read.
constexpr std::string_view kBeside[] = {
    "added_tokens.json", "chat_template.jinja",     "chat_template.json",    "generation_config.json",
    "merges.txt",        "sentencepiece.bpe.model", "spiece.model",          "special_tokens_map.json",
    "tokenizer.json",    "tokenizer.model",         "tokenizer_config.json", "vocab.json",
    "vocab.txt"};
constexpr int64_t kMostBeside = int64_t{1} << 30;  // bytes of one of them

// Writes the tensors' file at a path.
using TensorWriter = std::function<Status(const std::string&)>;

Status write_adapter(const SaveForm& form, const Plan& plan, const Weights& loaded,
                     const TensorWriter& write) {
  const std::string text = GACC_TRY(adapter_configuration(plan, loaded));
  AtomicFolder folder;  // of a path that is not there: it comes with both files, or not at all
  const bool is_new = !form.path.ends_with(".safetensors") && !is_there(form.path);
  if (is_new) GACC_TRY(folder.open(form.path, {}));
  const AdapterFiles files = adapter_files(is_new ? folder.file("") : form.path);
  AtomicFile configuration;  // takes its place last, beside the tensors that it tells of
  const bool configures = !files.configuration.empty();
  if (configures) GACC_TRY(folder.named(configuration.open(files.configuration)));
  if (configures) GACC_TRY(folder.named(configuration.write(text)));
  GACC_TRY(folder.named(write(files.tensors)));
  if (configures) GACC_TRY(folder.named(configuration.commit()));
  return is_new ? folder.commit() : Status();
}

Status write_folder(const SaveForm& form, const Plan& plan, const Weights& loaded,
                    const TensorWriter& write) {
  AtomicFolder folder;
  GACC_TRY(folder.open(form.path, files_of_folder()));
  const std::string config = GACC_TRY(config_for(loaded.folder(), plan, form.dtype));
  GACC_TRY(folder.named(write_file_atomically(folder.file(kConfiguration), config)));
  for (const std::string_view name : kBeside)
    if (const std::string from = file_in(loaded.folder(), name); is_there(from))
      GACC_TRY(
          folder.named(write_file_atomically(folder.file(name), GACC_TRY(read_file(from, kMostBeside)))));
  GACC_TRY(folder.named(write(folder.file(kWeights))));
  return folder.commit();
}

Status write_all_of(const SaveForm& form, const Plan& plan, const Weights& loaded,
                    const TensorWriter& write) {
  if (form.adapter) return write_adapter(form, plan, loaded, write);
  return form.is_folder() ? write_folder(form, plan, loaded, write) : write(form.path);
}

// ---- what can be known before there are parameters

// Says what an adapter's base is, or a GGUF's pattern: the file of --like, else for adapters the one that was loaded.
Status open_like(const SaveForm& form, const Plan& plan, const Weights& loaded, GgufTemplate& like) {
  const auto refuse = [&](std::string_view why) {
    return Status::error("{} {}: {}", form.option, form.path, why);
  };
  if (!plan.gguf) return refuse(kNoGguf);
  const bool takes_loaded =
      form.adapter && form.like.empty() && loaded.is_open() && loaded.kind() == FileKind::gguf;
  if (form.like.empty() && !takes_loaded)
    return refuse(form.adapter
                      ? "--like BASE.gguf says which model it is an adapter of"
                      : "--like BASE.gguf names the file that gives it metadata and types of tensors");
  // The types of a base do not matter to its adapter.
  return like.open(takes_loaded ? loaded.file().path() : form.like, plan, form.merge, !form.adapter);
}

Status check_gguf(const SaveForm& form, const Plan& plan, const Weights& loaded) {
  GgufTemplate like;
  GACC_TRY(open_like(form, plan, loaded, like));
  if (!form.adapter && !plan.adapters.empty() && !form.merge)
    return Status::error(
        "{} {}: the model has adapters. --merge adds them to the weights, --save-adapter writes them alone",
        form.option, form.path);
  if (form.adapter && like.architecture().empty())
    return Status::error("{} {}: its base has no general.architecture", form.option, form.path);
  return check_writable(form.path);
}

Status write_gguf(const SaveForm& form, const Plan& plan, const Weights& loaded,
                  std::vector<NamedTensor>& tensors) {
  GgufTemplate like;
  GACC_TRY(open_like(form, plan, loaded, like));
  if (!form.adapter) return like.write(form.path, plan, tensors);
  return write_file_atomically(form.path, GACC_TRY(adapter_gguf(plan, like.architecture(), tensors)));
}

Status check_adapter(const SaveForm& form, const Plan& plan, const Weights& loaded) {
  const FileKind kind = is_gguf(form.path) ? FileKind::gguf : FileKind::published;
  if (const Status status = check_adapters(plan, loaded, kind); !status)
    return Status::error("{}: {}", form.option, status.text());
  if (kind == FileKind::gguf) return check_gguf(form, plan, loaded);
  if (!form.path.ends_with(".safetensors") && !is_there(form.path)) return check_writable(form.path);
  if (is_there(file_in(form.path, kConfiguration)))
    return Status::error(
        "{} {}: the folder holds a model, of which the adapter would become a part: name another",
        form.option, form.path);
  const AdapterFiles files = adapter_files(form.path);
  for (const std::string& file : {files.tensors, files.configuration}) GACC_TRY(check_writable(file));
  return {};
}

Status check_folder(const SaveForm& form, const Plan& plan, const Weights& loaded) {
  const auto refuse = [&](const std::string& why) {
    return Status::error(
        "{} {}: {}\n  (a path that is no folder, such as {}.safetensors, gets the weights alone)",
        form.option, form.path, why, form.path.substr(0, form.path.find_last_not_of('/') + 1));
  };
  if (loaded.folder().empty())
    return refuse(
        "a folder has config.json and the tokenizer's files of the folder that was loaded, and there "
        "is none: load the folder of the published model, not a file of weights");
  if (!is_there(file_in(loaded.folder(), kConfiguration)))
    return refuse(fmt::format("{} was loaded, and has no config.json", loaded.folder()));
  if (const Status status = loaded.check_same_model(plan); !status) return refuse(status.text());
  GACC_TRY(config_for(loaded.folder(), plan, form.dtype).status());
  for (const std::string_view name : kBeside)
    if (const std::string from = file_in(loaded.folder(), name); is_there(from))
      GACC_TRY(read_file(from, kMostBeside).status());
  return AtomicFolder().open(form.path, files_of_folder());
}

}  // namespace

bool SaveForm::is_folder() const {
  std::error_code ignored;
  return !adapter && (path.ends_with('/') || std::filesystem::is_directory(path, ignored));
}

const std::vector<std::string_view>& files_of_folder() {
  static const std::vector<std::string_view> files = [] {
    std::vector<std::string_view> all(std::begin(kBeside), std::end(kBeside));
    all.insert(all.end(), {kWeights, kConfiguration});
    return all;
  }();
  return files;
}

Status check_save(const SaveForm& form, const Plan& plan, const Weights& loaded) {
  if (form.adapter) return check_adapter(form, plan, loaded);
  const bool adapts = !plan.adapters.empty();
  if (form.merge && !adapts) return Status::error("--merge: the model has no adapters");
  if (form.merge) GACC_TRY(check_merge(plan));
  if (is_gguf(form.path)) return check_gguf(form, plan, loaded);
  if (!form.like.empty())
    return Status::error("--like {}: {} {} is no GGUF, and only a file NAME.gguf is written like another one",
                         form.like, form.option, form.path);
  if (form.names_published()) {
    if (adapts && !form.merge)
      return Status::error(
          "--save-as published: the model has adapters. --merge adds them to the weights, --save-adapter "
          "writes them alone");
    GACC_TRY(check_published(plan, loaded));
  }
  return form.is_folder() ? check_folder(form, plan, loaded) : check_writable(form.path);
}

Result<std::vector<NamedTensor>> parameters_for(const std::vector<SaveForm>& forms, const Plan& plan,
                                                Session& session) {
  // Reads all where ranks share state: the others do not know what the first one writes.
  const bool all = plan.shard > 0 || !std::ranges::all_of(forms, &SaveForm::adapter);
  if (all) return session.parameters();
  return session.parameters([&](const PlanBuffer& buffer) { return is_in_adapter(plan, buffer); });
}

Status save_parameters(const SaveForm& form, const Plan& plan, const Weights& loaded,
                       std::vector<NamedTensor>& tensors, Metadata metadata, std::string* kept) {
  const LongWork work(fmt::format("writing {}", form.path));
  for (const NamedTensor& tensor : tensors) {
    const std::string_view bytes = bytes_of(std::span(tensor.data));
    GACC_TRY(check_finite({tensor.name, "F32", tensor.shape, bytes}, form.path + " is not written"));
  }
  if (is_gguf(form.path)) {
    if (form.merge) merge_adapters(plan, tensors);
    return write_gguf(form, plan, loaded, tensors);
  }
  std::vector<NamedTensor> adapters;
  if (form.adapter) {
    adapters = GACC_TRY(adapter_tensors(plan, loaded, tensors));
    metadata.clear();
  } else {
    if (form.merge) merge_adapters(plan, tensors);
    if (form.names_published())
      GACC_TRY(to_published(plan, loaded, tensors));
    else
      mark_own_names(plan, metadata);
  }
  const std::vector<NamedTensor>& written = form.adapter ? adapters : tensors;
  const std::string dtype = form.adapter ? "F32" : form.dtype;
  if (kept != nullptr) {
    *kept = GACC_TRY(safetensors_bytes(form.path, written, metadata, dtype));
    return write_saved(form, plan, loaded, *kept);
  }
  return write_all_of(form, plan, loaded, [&](const std::string& path) {
    return save_safetensors(path, written, metadata, dtype);
  });
}

Status write_saved(const SaveForm& form, const Plan& plan, const Weights& loaded, std::string_view kept) {
  return write_all_of(form, plan, loaded,
                      [&](const std::string& path) { return write_file_atomically(path, kept); });
}

}  // namespace gacc
