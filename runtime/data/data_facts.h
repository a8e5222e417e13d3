// Facts that a run learns from its training data, and that later data (for --eval, or for another run)
// are held to: how the columns of a csv file are called, what stands for a missing field, and the statistics
// of normalize = "data". It is kept with the parameters, as strings of safetensors' __metadata__
// ("gacc.inputs.NAME.columns": a JSON list), and in checkpoints.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan.h"
#include "runtime/safetensors.h"
#include "runtime/status.h"

namespace gacc {

struct InputFacts {
  std::string dtype;                  // the data's own, of an f32 input: u8 is scaled, other types are not
  std::vector<std::string> columns;   // csv: their names, one an element of the input
  std::vector<double> fill;           // csv: the columns' means, for missing=mean
  std::vector<double> mean, std;      // normalize = "data": one along the first axis of the input
  std::vector<std::string> values{};  // csv: the words that stand for 0, 1, 2 …
  std::vector<double> weights{};      // loss.class_weights = "balanced": one a class
  bool operator==(const InputFacts&) const = default;
};

using DataFacts = std::map<std::string, InputFacts, std::less<>>;  // by the input's name

Metadata to_metadata(const DataFacts& facts);

// Reads the facts of the plan's inputs; other keys are left alone. `source` begins the error.
Status read_facts(const Metadata& metadata, std::string_view source, const Plan& plan, DataFacts& facts);

// Returns the numbers of the state loss.class_weights where the facts know them: all by one power of two, so that the
// largest is 1 to 2, which changes no bit of a mean. Else nothing.
std::vector<float> class_weights(const DataFacts& facts, const Plan& plan);
// Returns n / (k count) for each class of so many: k classes have a count, in n targets that are classes. 0 for others.
std::vector<double> balanced_weights(std::string_view dtype, std::span<const std::byte> targets,
                                     int64_t classes);

// Mean and population deviation of `values` (elements of `dtype`, samples first) along the first axis of
// `shape`, in double, after the 1/255 of u8. A deviation of 0 is taken as 1.
void learn_statistics(std::string_view dtype, std::span<const std::byte> values,
                      std::span<const int64_t> shape, InputFacts& facts);

}  // namespace gacc
