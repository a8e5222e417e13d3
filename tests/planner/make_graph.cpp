// Writes the GPT training graphs that scripts/bench/planner measures: make_graph BLOCKS [WIDTH HEADS].
#include <cstdio>
#include <cstdlib>

#include "tests/planner/gpt_graph.h"

int main(int argc, char** argv) {
  gacc::passes::planner::GptShape shape;
  if (argc > 1) shape.blocks = std::atoi(argv[1]);
  if (argc > 3) shape.width = std::atof(argv[2]), shape.heads = std::atof(argv[3]);
  const std::string text = gacc::passes::planner::gpt_graph(shape);
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}
