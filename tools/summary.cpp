// See summary.h.
#include "tools/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "codegen/plan_writer.h"

namespace gacc {

namespace {

using Row = std::array<std::string, 5>;

std::string trained_text(const LayerSummary& layer) {
  if (layer.parameters == 0) return "";
  return layer.trained == layer.parameters ? "yes" : layer.trained == 0 ? "no" : "in part";
}

}  // namespace

std::string summary_text(const std::vector<LayerSummary>& layers) {
  std::vector<Row> rows = {{"layer", "type", "output per sample", "parameters", "trained"}};
  int64_t parameters = 0, trained = 0;
  for (const LayerSummary& layer : layers) {
    parameters += layer.parameters;
    trained += layer.trained;
    const std::string type =
        layer.tied.empty() ? layer.type : fmt::format("{}, tied to {}", layer.type, layer.tied);
    rows.push_back({layer.name, type, ir::shape_text(layer.output),
                    layer.parameters == 0 ? "" : count_text(layer.parameters), trained_text(layer)});
  }
  rows.push_back({"total", "", "", count_text(parameters), ""});
  rows.push_back({"trained", "", "", count_text(trained), ""});
  rows.push_back({"frozen", "", "", count_text(parameters - trained), ""});
  std::array<size_t, 5> width{};
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    const std::string line = fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}  {}", row[0], width[0], row[1],
                                         width[1], row[2], width[2], row[3], width[3], row[4]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace gacc
