// A launch's inputs from a program's own arrays: checked and converted as data of a file are.
#pragma once
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/data/dataset.h"

namespace gacc {

struct UserArray {
  std::string_view name;             // of the plan's input
  std::string_view dtype;            // as in Column
  std::span<const std::byte> bytes;  // samples first, without gaps
};

class UserBatch {
 public:
  // The plan must outlive the batch.
  explicit UserBatch(const Plan& plan)
      : plan_(plan), converted_(plan.inputs.size()), inputs_(plan.inputs.size()) {}

  // `samples` samples for a launch of the program, from the arrays, in any order: one for each input; for
  // predict those that it reads, and the others are not looked at. What normalize = "data" needs is in
  // `facts`, or it is an error. On an error the batch is of no use. `first`: the number of the first sample among
  // all that the caller was given, for messages.
  Status fill(std::span<const UserArray> arrays, int64_t samples, const DataFacts& facts, Program program,
              int64_t first = 0);
  // In the plan's order; valid until the next fill, and as long as the arrays.
  std::span<const std::span<const std::byte>> inputs() const { return inputs_; }

 private:
  Status take(size_t input, const UserArray& array, int64_t samples, const DataFacts& facts, int64_t first);

  const Plan& plan_;
  std::vector<std::vector<std::byte>> converted_;  // of the inputs that need it
  std::vector<std::span<const std::byte>> inputs_;
};

}  // namespace gacc
