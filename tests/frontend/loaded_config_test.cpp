// What a config.json beside loaded weights says, against the model that another one was compiled to: each key that a
// family reads, alone and in pairs, left out on one side and changed on the other.
#include "frontend/loaded_config.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "frontend/family.h"
#include "frontend/frontend.h"
#include "ir/text/text.h"

namespace gacc {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kWindow = 16;

// Small models, each with keys that matter.
std::map<std::string, Json> configs() {
  const Json llama = {{"model_type", "llama"},
                      {"vocab_size", 40},
                      {"hidden_size", 16},
                      {"intermediate_size", 24},
                      {"num_hidden_layers", 2},
                      {"num_attention_heads", 4},
                      {"num_key_value_heads", 2},
                      {"head_dim", 4},
                      {"hidden_act", "silu"},
                      {"rms_norm_eps", 1e-5},
                      {"max_position_embeddings", 64},
                      {"rope_theta", 5e4},
                      {"tie_word_embeddings", true},
                      {"attention_bias", true},
                      {"mlp_bias", true},
                      {"attention_dropout", 0.0},
                      {"initializer_range", 0.02},
                      {"pad_token_id", 3}};
  const auto with = [](Json config, const Json& changes) {
    config.update(changes);
    return config;
  };
  const auto without = [](Json config, std::initializer_list<const char*> keys) {
    for (const char* key : keys) config.erase(key);
    return config;
  };
  const Json plain = without(llama, {"attention_bias", "mlp_bias"});
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 4.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8}};
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0},           {"beta_fast", 16.0},
                     {"beta_slow", 2.0},    {"mscale", 1.5},           {"mscale_all_dim", 0.5},
                     {"truncate", false},   {"attention_factor", 1.25}};
  const Json longrope = {{"type", "longrope"}, {"short_factor", {1.0, 1.5}}, {"long_factor", {1.0, 4.0}}};
  const Json newer = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 7e4}};
  Json qwen2 = with(plain, {{"model_type", "qwen2"},
                            {"use_sliding_window", true},
                            {"sliding_window", 6},
                            {"max_window_layers", 0}});
  qwen2.erase("head_dim");
  return {
      {"llama", llama},
      {"llama3", with(llama, {{"rope_scaling", llama3}})},
      {"llama yarn", with(llama, {{"rope_scaling", yarn}})},
      {"llama longrope", with(plain, {{"rope_scaling", with(longrope, {{"factor", 4.0}})},
                                      {"original_max_position_embeddings", 8}})},
      {"llama newer", with(without(llama, {"rope_theta"}), {{"rope_parameters", newer}})},
      {"mistral", with(plain, {{"model_type", "mistral"}, {"sliding_window", 6}})},
      {"qwen2", qwen2},
      {"qwen3",
       with(plain, {{"model_type", "qwen3"}, {"attention_bias", true}, {"use_sliding_window", false}})},
      {"phi3", with(plain, {{"model_type", "phi3"},
                            {"sliding_window", 6},
                            {"partial_rotary_factor", 0.5},
                            {"resid_pdrop", 0.0},
                            {"embd_pdrop", 0.0},
                            {"original_max_position_embeddings", 8}})},
      {"phi3 longrope",
       with(plain,
            {{"model_type", "phi3"}, {"rope_scaling", longrope}, {"original_max_position_embeddings", 8}})},
      {"gpt2",
       {{"model_type", "gpt2"},
        {"vocab_size", 40},
        {"n_embd", 16},
        {"n_head", 2},
        {"n_layer", 2},
        {"n_positions", 32},
        {"n_inner", 24},
        {"activation_function", "relu"},
        {"layer_norm_epsilon", 1e-6},
        {"attn_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"resid_pdrop", 0.0},
        {"tie_word_embeddings", false},
        {"scale_attn_weights", true}}},
      {"gpt_neox",
       {{"model_type", "gpt_neox"},
        {"vocab_size", 40},
        {"hidden_size", 16},
        {"intermediate_size", 24},
        {"num_hidden_layers", 2},
        {"num_attention_heads", 2},
        {"hidden_act", "relu"},
        {"layer_norm_eps", 1e-6},
        {"rotary_pct", 0.5},
        {"rotary_emb_base", 5e4},
        {"use_parallel_residual", false},
        {"max_position_embeddings", 64},
        {"attention_bias", true},
        {"tie_word_embeddings", false},
        {"hidden_dropout", 0.0},
        {"attention_dropout", 0.0}}},
  };
}

struct Made {
  std::vector<std::string> presumes;
  bool tied = false;
  std::string function;  // the text of what a prediction computes
  std::string tensors;   // names and shapes of its parameters
};

// The model of a config; nothing where it is refused.
std::optional<Made> made_of(const Json& config) {
  std::string problems;
  const auto model = published_model(config.dump(), "config.json", built_in_families(),
                                     {.folder = "small", .context = kWindow}, problems);
  if (!model) return std::nullopt;
  Diag diag("m.toml", model->text);
  std::optional<ir::Module> module = compile_model(model->text, "m.toml", {}, diag);
  if (!module) return std::nullopt;
  Made made{*module->results.load_presumes, !module->results.load_tied->empty(), "", ""};
  for (const ir::Buffer& buffer : module->buffers)
    if (buffer.kind == ir::BufferKind::param)
      made.tensors += fmt::format("{} {}\n", buffer.name, fmt::join(buffer.type.shape, ","));
  const std::string text = ir::print(*module);
  const size_t predict = text.find("predict(");
  made.function = text.substr(predict, text.find("\n}", predict) - predict);
  // A row that is not trained has the same numbers.
  for (size_t at; (at = made.function.find("{padding")) != std::string::npos;)
    made.function.erase(at - 1, made.function.find('}', at) + 2 - at);
  return made;
}

// Another value of a key.
std::vector<Json> others(const std::string& key, const Json& value) {
  if (value.is_boolean()) return {!value.get<bool>()};
  if (value.is_number_integer()) return {value.get<int64_t>() * 2};
  if (value.is_number()) return {value.get<double>() == 0.5 ? 1.0 : value.get<double>() * 2};
  if (key == "activation_function" || key == "hidden_act") return {"gelu_new", "silu"};
  if (value.is_array()) {
    Json list = value;
    list.back() = list.back().get<double>() * 2;
    return {list};
  }
  return {};
}

struct Counts {
  int errors = 0, same = 0, refused = 0, shown = 0;
};

// Returns the first line in which two texts differ, of both.
std::string difference(const std::string& a, const std::string& b) {
  std::istringstream one(a), two(b);
  std::string left, right;
  while (left == right && std::getline(one, left) && std::getline(two, right)) continue;
  return left + "\n" + right;
}

// Compiles one config and loads the other: both are the same function, or the tensors are others, which loading them
// tells, or an error names one of the keys.
void check(const Json& compiled, const Json& loaded, const std::vector<std::string>& keys,
           const std::string& what, Counts& counts) {
  static std::map<std::string, std::optional<Made>> made;  // many are asked for again
  const auto once = [](const Json& config) -> const std::optional<Made>& {
    const auto [found, added] = made.try_emplace(config.dump());
    if (added) found->second = made_of(config);
    return found->second;
  };
  const std::optional<Made>&ours = once(compiled), &theirs = once(loaded);
  if (!ours) return;
  const std::vector<std::string> problems =
      config_problems(loaded.dump(), /*gguf=*/false, {ours->presumes, ours->tied});
  if (problems.empty()) {
    if (theirs && ours->tensors != theirs->tensors) {
      ++counts.shown;
      return;
    }
    if (theirs && ours->function != theirs->function)
      ADD_FAILURE() << what << ": silent\n" << difference(ours->function, theirs->function);
    ++counts.same;
    return;
  }
  ++(theirs ? counts.errors : counts.refused);
  if (theirs && ours->function == theirs->function && ours->tied == theirs->tied)
    ADD_FAILURE() << what << " is the same function, and refused: " << problems.front();
  std::string all;
  for (const std::string& problem : problems) all += problem + "\n";
  const bool named = std::ranges::any_of(keys, [&](const std::string& key) {
    const std::string name = key.substr(key.rfind('.') + 1);
    return all.find(name == "rope_type" ? "type" : name) != std::string::npos;  // which has two spellings
  });
  EXPECT_TRUE(named) << what << ": " << all;
}

Json changed(const Json& flat, const std::string& pointer, const Json* value) {
  Json other = flat;
  if (value == nullptr)
    other.erase(pointer);
  else
    other[pointer] = *value;
  return other;
}

std::string key_of(std::string pointer) {
  pointer.erase(0, 1);
  std::ranges::replace(pointer, '/', '.');
  return pointer;
}

TEST(LoadedConfig, AKeyThatIsMissingOrAnotherIsAnErrorOrTheSameFunction) {
  for (const auto& [name, config] : configs()) {
    Counts counts;
    ASSERT_TRUE(made_of(config)) << name;
    check(config, config, {}, name, counts);
    EXPECT_EQ(counts.same, 1) << name << " is not its own model";
    // Lists stay whole.
    Json flat;
    const Json values = config.flatten();
    for (const auto& [pointer, value] : values.items())
      if (value.is_primitive()) {
        const size_t number = pointer.find_last_of('/');
        const bool item = pointer.find_first_not_of("0123456789", number + 1) == std::string::npos;
        if (!item) flat[pointer] = value;
      }
    const auto whole = [&given = config](const Json& changes) {
      Json made = changes.unflatten();
      if (given.contains("rope_scaling"))
        for (const char* list : {"short_factor", "long_factor"})
          if (given["rope_scaling"].contains(list)) made["rope_scaling"][list] = given["rope_scaling"][list];
      return made;
    };
    std::vector<std::pair<std::string, Json>> keys;
    for (const auto& [pointer, value] : flat.items())
      if (pointer != "/model_type") keys.emplace_back(pointer, value);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto& [pointer, value] = keys[i];
      const std::string key = key_of(pointer);
      const Json without = whole(changed(flat, pointer, nullptr));
      check(config, without, {key}, name + " without " + key, counts);
      check(without, config, {key}, name + " with " + key, counts);
      for (const Json& other : others(key, value)) {
        const Json with = whole(changed(flat, pointer, &other));
        check(config, with, {key}, fmt::format("{} with {} = {}", name, key, other.dump()), counts);
        check(with, without, {key}, fmt::format("{} with {} = {}, loaded without", name, key, other.dump()),
              counts);
        check(without, with, {key}, fmt::format("{} without {}, loaded with {}", name, key, other.dump()),
              counts);
      }
      // In pairs: two keys are left out. Every fifth pair is enough here.
      for (size_t j = i + 1 + i % 5; j < keys.size(); j += 5) {
        const Json less = whole(changed(changed(flat, pointer, nullptr), keys[j].first, nullptr));
        check(config, less, {key, key_of(keys[j].first)},
              fmt::format("{} without {} and {}", name, key, key_of(keys[j].first)), counts);
      }
    }
    fmt::print("{}: {} errors, {} that the family refuses, {} that the tensors show, {} the same function\n",
               name, counts.errors, counts.refused, counts.shown, counts.same);
  }
}

}  // namespace
}  // namespace gacc
