#include "runtime/weights/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/atomic_file.h"

namespace gacc {
namespace {

constexpr int64_t kMostConfiguration = 10'000'000;  // bytes

std::string config_of(const std::string& folder) { return file_in(folder, "config.json"); }

}  // namespace

Result<std::string> config_for(const std::string& folder, const Plan& plan, std::string_view dtype) {
  const std::string path = config_of(folder);
  const std::string text = GACC_TRY(read_file(path, kMostConfiguration));
  auto config = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Status::error("{} is no JSON object", path);
  const auto before = config;
  const char* type = dtype == "F16" ? "float16" : dtype == "BF16" ? "bfloat16" : "float32";
  const bool newer = config.contains("dtype");  // transformers 5 calls it so, and reads both
  if (newer) config["dtype"] = type;
  if (!newer || config.contains("torch_dtype")) config["torch_dtype"] = type;
  const std::vector<int64_t>& logits = plan.predict.shape;  // [window, vocabulary]
  if (plan.predict.positions == "causal" && logits.size() == 2) {
    const auto is_other = [&](const char* key, const auto& right) {
      return config.contains(key) && config[key].is_number_integer() && !right(config[key].get<int64_t>());
    };
    if (is_other("vocab_size", [&](int64_t size) { return size == logits[1]; }))
      config["vocab_size"] = logits[1];
    // Scaled rotary positions are a function of their number.
    const auto scaled = [](const std::string& fact) { return fact.starts_with("scaling."); };
    if (std::ranges::none_of(plan.presumes, scaled))
      for (const char* key : {"max_position_embeddings", "n_positions"})
        if (is_other(key, [&](int64_t positions) { return positions >= logits[0]; })) config[key] = logits[0];
  }
  return config == before ? text : config.dump(2) + "\n";
}

}  // namespace gacc
