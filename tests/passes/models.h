// Small modules in phase model that the pass tests share, and what it takes to run them in the reference.
#pragma once
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "ir/reference.h"
#include "ir/text/text.h"
#include "passes/analysis/check_plan.h"
#include "passes/pipeline.h"

namespace gacc::test {

using Tensors = std::map<std::string, ir::Tensor>;

std::string mlp();                         // two layers, relu, cross-entropy with an ignored target, adam
std::string residual();                    // layer_norm, a residual branch, gelu, mse, momentum sgd
std::string tied();                        // one weight used twice, sgd with decay
std::string sequence();                    // a head with bias over 5 positions, its loss in 3 parts
const std::vector<std::string>& models();  // all four, and the first with lamb and with the micro moment

ir::Module parse(const std::string& text);
// Parses and runs the passes up to `last`; "" runs none, "all" runs all. Fails the test on any report.
ir::Module compiled(const std::string& text, const std::string& last);
void run_passes(ir::Module& module, const std::vector<std::string>& passes);

// The passes after plan-memory.
extern const std::vector<std::string> schedule_passes;

// Values for every input of a region; i32 inputs count up and stay below 3, one in five is -100 when
// `ignored`.
Tensors random_inputs(const ir::Module& module, ir::RegionKind region, int64_t batch, uint32_t seed,
                      bool ignored = false);
// Rows [from, to) of every tensor.
Tensors rows(const Tensors& inputs, int64_t from, int64_t to);
// Random parameters; accumulators and state are what init leaves: zero, lr 0.1.
ir::State random_state(const ir::Module& module, uint32_t seed);

double largest_difference(const ir::Tensor& a,
                          const ir::Tensor& b);  // relative to the larger norm; NaN is a difference

}  // namespace gacc::test
