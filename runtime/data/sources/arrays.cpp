// Arrays by the inputs' names: IDX and .npy files, one for each input, and NumPy's .npz, which holds them
// all. And MNIST's four IDX files in a folder.
#include <algorithm>
#include <filesystem>

#include "runtime/atomic_file.h"
#include "runtime/data/source.h"
#include "runtime/text.h"

namespace gacc {
namespace {

// MNIST's files: FOLDER/train-images-idx3-ubyte and whatever else the file may be called: with .gz, or, by
// some unpackers, with a dot for the last dash.
std::vector<std::string> mnist_files(const Spec& spec, bool test, bool labels) {
  std::vector<std::string> names;
  for (const std::string_view join : {"-", "."})
    for (const std::string_view ending : {"", ".gz"})
      names.push_back(fmt::format("{}/{}-{}{}{}-ubyte{}", spec.path, test ? "t10k" : "train",
                                  labels ? "labels" : "images", join, labels ? "idx1" : "idx3", ending));
  return names;
}

Result<std::string> find_file(const Spec& spec, bool labels) {
  std::error_code error;
  using std::filesystem::exists;
  const std::vector<std::string> names = mnist_files(spec, spec.option("split") == "test", labels);
  for (const std::string& name : names)
    if (exists(name, error)) return name;
  if (!exists(spec.path, error)) return Status::error("mnist: there is no folder {}", spec.path);
  return Status::error("mnist: the folder {} holds no {}, also not as .gz", spec.path,
                       names[0].substr(spec.path.size() + 1));
}

}  // namespace

const DataSource sources::idx{
    .name = "idx",
    .path = "",
    .says = "IDX arrays by the inputs' names; the first axis counts samples",
    .read = [](DataReader& r) { return r.read_named(parse_idx); },
};

const DataSource sources::npy{
    .name = "npy",
    .path = "",
    .says = "NumPy arrays by the inputs' names; the first axis counts samples",
    .keys = {kSplitRows},
    .read = [](DataReader& r) { return r.read_named(parse_npy); },
};

const DataSource sources::npz{
    .name = "npz",
    .path = "FILE",
    .says = "NumPy arrays by the inputs' names; the first axis counts samples",
    .keys = {kSplitRows},
    .read = [](DataReader& r) -> Status {
      const std::string& path = r.spec.path;
      const std::string bytes = GACC_TRY(read_file(path));
      std::vector<NamedArray> arrays;
      std::vector<std::string> present;
      std::vector<std::string> needed;
      for (size_t i = 0; i < r.names.size(); ++i)
        if (r.needed(i)) needed.push_back(r.names[i]);
      GACC_TRY(parse_npz(bytes, path, &needed, arrays, present));
      for (const std::string& name : needed)
        if (std::ranges::find(present, name) == present.end())
          return Status::error("{}: holds no array {}{}{}", path, in_quotes(name), hint(name, present),
                               present.empty() ? "; it is empty" : " (it has " + listed(present) + ")");
      for (NamedArray& named : arrays) {
        const auto at = static_cast<size_t>(std::ranges::find(r.names, named.name) - r.names.begin());
        GACC_TRY(r.give_split(at, fmt::format("{}:{}", path, in_quotes(named.name)), std::move(named.array)));
      }
      return {};
    },
};

const DataSource sources::mnist{
    .name = "mnist",
    .path = "DIR",
    .says = "IDX images to the first f32 input, labels to the first i32 one",
    .keys = {{"split", "train|test", "train", "which of the two sets"}},
    .files =
        [](const Spec& spec) {
          std::vector<std::string> files;
          for (const bool test : {false, true})
            for (const bool labels : {false, true})
              for (std::string& name : mnist_files(spec, test, labels)) files.push_back(std::move(name));
          return files;
        },
    .read = [](DataReader& r) -> Status {
      std::string paths[2];
      Array arrays[2];
      const size_t label = r.first_input(DType::i32);
      for (size_t i = 0; i < 2; ++i) {
        if (i == 1 && label < r.plan.inputs.size() && !r.needed(label)) break;
        paths[i] = GACC_TRY(find_file(r.spec, i == 1));
        const SharedFile file = GACC_TRY(DataReader::read_unzipped(paths[i]));
        GACC_TRY(parse_idx(file->text(), paths[i], arrays[i]));
      }
      return r.give_images(paths[0], std::move(arrays[0]), paths[1], std::move(arrays[1]));
    },
};

}  // namespace gacc
