// The bytes of a file as tokens.
#include "runtime/data/source.h"

namespace gacc {

const DataSource sources::text{
    .name = "text",
    .path = "FILE",
    .says = "bytes as tokens, cut into windows",
    .keys = {{"split", "train|test", "",
              "`train` is the first 90 % of the file, `test` the rest (default: all)"}},
    .read = [](DataReader& r) { return r.read_windows("u8"); },
};

}  // namespace gacc
