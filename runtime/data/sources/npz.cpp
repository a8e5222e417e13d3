// NumPy's .npz: arrays of the inputs' names in one file.
#include <algorithm>

#include "runtime/atomic_file.h"
#include "runtime/data/source.h"
#include "runtime/data/text.h"

namespace gacc {

const DataSource sources::npz{
    .name = "npz",
    .path = "FILE",
    .says = "NumPy arrays by the inputs' names; the first axis counts samples",
    .read = [](DataReader& r) -> Status {
      const std::string& path = r.spec.path;
      const std::string bytes = GACC_TRY(read_file(path));
      std::vector<NamedArray> arrays;
      std::vector<std::string> present;
      GACC_TRY(parse_npz(bytes, path, &r.names, arrays, present));
      for (size_t i = 0; i < r.names.size(); ++i)
        if (r.needed(i) && std::ranges::find(present, r.names[i]) == present.end())
          return Status::error("{}: holds no array {}{}{}", path, quoted(r.names[i]),
                               hint(r.names[i], present),
                               present.empty() ? "; it is empty" : " (it has " + listed(present) + ")");
      for (NamedArray& named : arrays) {
        const auto at = static_cast<size_t>(std::ranges::find(r.names, named.name) - r.names.begin());
        r.give(at, fmt::format("{}:{}", path, quoted(named.name)), std::move(named.array));
      }
      return {};
    },
};

}  // namespace gacc
