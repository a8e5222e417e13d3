// A look at training data before the first launch: how many samples, which classes, how large the numbers are; and
// what about them makes training pointless or hard.
#pragma once
#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/plan.h"

namespace gacc {

struct DataSummary {
  std::string text;                   // "540 samples; x [4]: 0.1 to 7.9; label: 3 classes, 32 to 35 % each"
  std::vector<std::string> warnings;  // sentences without an end, each about one thing
};

// Reads all of the data, but of a column that is on disk only the first samples. `facts` name the columns of a table.
DataSummary summarise(const Dataset& data, const Plan& plan, const DataFacts& facts);

}  // namespace gacc
