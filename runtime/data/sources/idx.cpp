// IDX files by the inputs' names.
#include "runtime/data/source.h"

namespace gacc {

const DataSource sources::idx{
    .name = "idx",
    .path = "",
    .says = "IDX arrays by the inputs' names; the first axis counts samples",
    .read = [](DataReader& r) { return r.read_named(parse_idx); },
};

}  // namespace gacc
