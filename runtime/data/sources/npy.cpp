// NumPy's .npy files by the inputs' names.
#include "runtime/data/source.h"

namespace gacc {

const DataSource sources::npy{
    .name = "npy",
    .path = "",
    .says = "NumPy arrays by the inputs' names; the first axis counts samples",
    .read = [](DataReader& r) { return r.read_named(parse_npy); },
};

}  // namespace gacc
