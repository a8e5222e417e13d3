// A file of tokens.
#include "runtime/data/source.h"

namespace gacc {

const DataSource sources::tokens{
    .name = "tokens",
    .path = "FILE",
    .says = "little-endian u16 tokens, cut into windows",
    .read = [](DataReader& r) { return r.read_windows("u16"); },
};

}  // namespace gacc
