#include "runtime/cuda/gemm_choices.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace gacc::cuda {

using nlohmann::json;

const ChosenAlgorithm* GemmChoices::find(const ChosenAlgorithm::Key& product) const {
  const auto at = std::ranges::find_if(products, [&](const auto& p) { return p.product == product; });
  return at == products.end() ? nullptr : &*at;
}

std::string gemm_choices_text(const GemmChoices& choices) {
  // One product a line, so that two files can be compared. The algorithm is text: JSON's numbers need not
  // hold 64 bits.
  std::vector<std::string> lines;
  for (const ChosenAlgorithm& p : choices.products)
    lines.push_back(fmt::format(
        "\n  {{\"product\": [{}], \"algorithm\": \"{:016x}\", \"workspace_bytes\": {}, \"candidates\": {}, "
        "\"microseconds\": {:.3f}}}",
        fmt::join(p.product, ", "), fmt::join(p.algorithm.data, ""), p.workspace_bytes, p.candidates,
        p.microseconds));
  return fmt::format("{{\"gpu\": {},\n \"library\": {},\n \"products\": [{}]}}\n", json(choices.gpu).dump(),
                     json(choices.library).dump(), fmt::join(lines, ","));
}

Status parse_gemm_choices(std::string_view text, GemmChoices& choices) {
  choices = {};
  try {
    const json object = json::parse(text);
    choices.gpu = object.at("gpu").get<std::string>();
    choices.library = object.at("library").get<std::string>();
    for (const json& entry : object.at("products")) {
      ChosenAlgorithm p;
      p.product = entry.at("product").get<ChosenAlgorithm::Key>();
      const auto words = entry.at("algorithm").get<std::string>();
      if (words.size() != 16 * std::size(p.algorithm.data) ||
          words.find_first_not_of("0123456789abcdef") != std::string::npos)
        return Status::error("\"{}\" is no algorithm: expected {} hexadecimal digits", words,
                             16 * std::size(p.algorithm.data));
      for (size_t i = 0; i < std::size(p.algorithm.data); ++i)
        p.algorithm.data[i] = std::stoull(words.substr(16 * i, 16), nullptr, 16);
      p.workspace_bytes = entry.at("workspace_bytes").get<int64_t>();
      p.candidates = entry.at("candidates").get<int64_t>();
      p.microseconds = entry.at("microseconds").get<double>();
      if (p.workspace_bytes < 0) return Status::error("a workspace of {} bytes", p.workspace_bytes);
      choices.products.push_back(p);
    }
  } catch (const json::exception& error) {
    return Status::error("{}", error.what());
  }
  return {};
}

}  // namespace gacc::cuda
