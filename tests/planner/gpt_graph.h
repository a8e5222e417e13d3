// The training graph of a GPT-like network as gacc-plan reads it, one micro-batch, parameters and their
// gradients outside the arena: 28 operations per block.
#pragma once
#include <string>

namespace gacc::passes::planner {

struct GptShape {
  int blocks = 12;
  double batch = 8, length = 1024, width = 768, heads = 12, words = 50257;
};
std::string gpt_graph(const GptShape& shape);

}  // namespace gacc::passes::planner
