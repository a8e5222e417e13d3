// What ranks must agree on before the first launch: that none of them has failed, and that they are alike.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "runtime/collective.h"

namespace gacc {

// Name and value: what must be the same on all ranks.
using Facts = std::vector<std::pair<std::string, std::string>>;

// The same answer on all ranks: an error where one has failed (`mine`), or where one's facts are not those of
// rank 0; it names that rank, unless all say the same.
Status agree(Collective& ranks, const Status& mine, const Facts& facts);

}  // namespace gacc
