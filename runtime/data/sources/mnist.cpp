// MNIST's four files in a folder.
#include <sys/stat.h>

#include "runtime/data/source.h"

namespace gacc {
namespace {

// FOLDER/train-images-idx3-ubyte and whatever else the file may be called: with .gz, or, by some unpackers,
// with a dot for the last dash.
std::vector<std::string> mnist_files(const Spec& spec, bool test, bool labels) {
  std::vector<std::string> names;
  for (const std::string_view join : {"-", "."})
    for (const std::string_view ending : {"", ".gz"})
      names.push_back(fmt::format("{}/{}-{}{}{}-ubyte{}", spec.path, test ? "t10k" : "train",
                                  labels ? "labels" : "images", join, labels ? "idx1" : "idx3", ending));
  return names;
}

bool exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

Result<std::string> find_file(const Spec& spec, bool labels) {
  const std::vector<std::string> names = mnist_files(spec, spec.option("split") == "test", labels);
  for (const std::string& name : names)
    if (exists(name)) return name;
  if (!exists(spec.path)) return Status::error("mnist: there is no folder {}", spec.path);
  return Status::error("mnist: the folder {} holds no {}, also not as .gz", spec.path,
                       names[0].substr(spec.path.size() + 1));
}

}  // namespace

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
      const size_t label = r.first_input("i32");
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
