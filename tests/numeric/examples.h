// Examples of every op, taken from its golden: each op of that name there, alone in a module of its own.
#pragma once
#include <random>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/reference.h"

namespace gacc::ir {

// One op in `eval`. What it reads are inputs called a0, a1, ..; what it writes are buffers called w0, w1, ..
struct Example {
  std::string text;  // the op as its golden writes it, for messages
  Module module;
  const Op& op() const { return module.eval.ops.front(); }
};
// All ops called `name` in tests/golden/ops/GOLDEN.gir; a NAME.grad and a NAME.half are shown by NAME's
// golden.
std::vector<Example> examples(const OpInfo& info);
bool has_half(const Example& example);  // a half value or buffer
// For parameterised tests: "column_sum.acc" -> "column_sum_acc".
std::string test_name(std::string_view op);

// A module from text (without its `module` line and braces), or a failed expectation.
Module parse_module(const std::string& body);

// Values for the inputs of `eval`: floats away from 0 (where abs and relu bend), positive if asked; integers
// 0..3, which are classes, targets, flags and indices alike.
std::map<std::string, Tensor> random_inputs(const Module& module, int64_t batch, bool positive,
                                            std::mt19937& random);
State random_state(const Module& module, std::mt19937& random);
Tensor random_tensor(const Type& type, int64_t batch, bool positive, std::mt19937& random);

}  // namespace gacc::ir
