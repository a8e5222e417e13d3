#include "runtime/weights/config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/atomic_file.h"
#include "runtime/weights/weights.h"

namespace gacc {
namespace {

using nlohmann::json;

constexpr int64_t kMostConfiguration = 10'000'000;  // bytes

// Architectures of which the keys say all that the function depends on. Others compute something besides, such as
// an embedding times a constant.
constexpr std::string_view kArchitectures[] = {"gpt2", "gpt_neox", "granite", "llama",  "mistral",
                                               "phi3", "qwen2",    "qwen3",   "smollm3"};

constexpr std::string_view kNeutral[] = {
#define GACC_NEUTRAL_KEY(name) name,
#include "ir/config_keys.def"
};

// Keys that the tensors show, or that only training asks for.
constexpr std::string_view kShown[] = {"architectures",
                                       "attention_bias",
                                       "attention_dropout",
                                       "attention_probs_dropout_prob",
                                       "attn_pdrop",
                                       "embd_pdrop",
                                       "embedding_dropout",
                                       "hidden_dropout",
                                       "hidden_dropout_prob",
                                       "hidden_size",
                                       "initializer_range",
                                       "intermediate_size",
                                       "max_position_embeddings",
                                       "max_window_layers",
                                       "mlp_bias",
                                       "n_embd",
                                       "n_inner",
                                       "n_layer",
                                       "n_positions",
                                       "num_hidden_layers",
                                       "resid_pdrop",
                                       "vocab_size"};

// Keys that must have one value, as it says nothing.
const struct {
  std::string_view key;
  double value;
} kPlain[] = {{"embedding_multiplier", 1}, {"full_attn_mod", 1},  {"interpolate_factor", 1},
              {"logit_scale", 1},          {"logits_scaling", 1}, {"residual_multiplier", 1},
              {"scale_attn_weights", 1}};

// Keys of which the model says what they are, and what it calls that.
const struct {
  std::string_view key, fact;
} kFacts[] = {{"activation_function", "activation"},
              {"head_dim", "head_dim"},
              {"hidden_act", "activation"},
              {"layer_norm_eps", "eps"},
              {"layer_norm_epsilon", "eps"},
              {"n_head", "heads"},
              {"num_attention_heads", "heads"},
              {"num_key_value_heads", "kv_heads"},
              {"original_max_position_embeddings", "scaling.original_max_position_embeddings"},
              {"partial_rotary_factor", "partial"},
              {"rms_norm_eps", "eps"},
              {"rope_theta", "theta"},
              {"rotary_emb_base", "theta"},
              {"rotary_pct", "partial"}};

// Values (JSON) that transformers takes where a config.json lacks the key: of one model_type, then of all others.
const struct {
  std::string_view type, key, fact, value;
} kDefaults[] = {{"gpt2", "activation_function", "activation", R"("gelu_new")"},
                 {"gpt2", "layer_norm_epsilon", "eps", "1e-05"},
                 {"gpt_neox", "hidden_act", "activation", R"("gelu")"},
                 {"gpt_neox", "layer_norm_eps", "eps", "1e-05"},
                 {"gpt_neox", "rotary_emb_base", "theta", "10000"},
                 {"gpt_neox", "rotary_pct", "partial", "0.25"},
                 {"gpt_neox", "use_parallel_residual", "config.use_parallel_residual", "true"},
                 {"phi3", "rms_norm_eps", "eps", "1e-05"},
                 {"smollm3", "rope_theta", "theta", "2000000"},
                 {"", "partial_rotary_factor", "partial", "1.0"},
                 {"", "hidden_act", "activation", R"("silu")"},
                 {"", "rms_norm_eps", "eps", "1e-06"},
                 {"", "rope_theta", "theta", "10000"}};

// The same of keys of scaled positions, for every type; null: what it is without the key follows from other keys.
const struct {
  std::string_view key, value;
} kScalingDefaults[] = {{"attention_factor", "null"}, {"beta_fast", "32"},        {"beta_slow", "1"},
                        {"high_freq_factor", "null"}, {"long_factor", "null"},    {"low_freq_factor", "null"},
                        {"mscale", "null"},           {"mscale_all_dim", "null"}, {"short_factor", "null"},
                        {"truncate", "true"}};
constexpr int64_t kUsualWindow = 4096;  // of classes whose file does not have the key

// Other names of what a fact says.
const std::map<std::string_view, std::string_view> kSynonyms = {{"gelu_fast", "gelu_tanh"},
                                                                {"gelu_new", "gelu_tanh"},
                                                                {"gelu_pytorch_tanh", "gelu_tanh"},
                                                                {"su", "longrope"},
                                                                {"swish", "silu"}};

// Names of the keys in a GGUF, after the name of its architecture.
const struct {
  std::string_view theirs, key;
} kMetadata[] = {{"attention.head_count", "num_attention_heads"},
                 {"attention.head_count_kv", "num_key_value_heads"},
                 {"attention.key_length", "head_dim"},
                 {"attention.layer_norm_epsilon", "layer_norm_eps"},
                 {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
                 {"attention.sliding_window", "sliding_window"},
                 {"rope.freq_base", "rope_theta"}};

bool says_nothing(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

class Comparison {
 public:
  Comparison(const json& config, const Plan& plan) : config_(config), plan_(plan) {
    for (const std::string& fact : plan.presumes) {
      const size_t equals = fact.find('=');
      facts_[fact.substr(0, equals)].push_back(fact.substr(std::min(equals + 1, fact.size())));
    }
  }

  // Returns what a GGUF has otherwise. It says all of its model, so no key has a default of a class.
  std::vector<std::string> problems_of_gguf() {
    for (const auto& [key, value] : config_.items()) compare(key, value);
    if (given("num_attention_heads") && !given("num_key_value_heads"))
      compare_fact("num_attention_heads", config_["num_attention_heads"], "kv_heads");
    if (has("scaling.rope_type") && rope().empty())
      add(fmt::format("rope.scaling.type is missing, {} in the model", facts_["scaling.rope_type"].front()));
    return problems_;
  }

  std::vector<std::string> problems() {
    for (const auto& [key, value] : config_.items()) compare(key, value);
    if (given("num_attention_heads") && !given("num_key_value_heads"))
      compare_fact("num_attention_heads", config_["num_attention_heads"], "kv_heads");
    if (!known_type()) return problems_;
    compare_missing();
    compare_scaling();
    if (slides() && !given("sliding_window")) {
      const bool hides = std::ranges::any_of(facts_["positions"], [](const std::string& positions) {
        return std::atoll(positions.c_str()) > kUsualWindow;
      });
      if (has("window"))
        compare_fact("sliding_window", kUsualWindow, "window", "missing, which is ");
      else if (hides)
        add(fmt::format("sliding_window is missing, which is {}; the model's positions see all before them",
                        kUsualWindow));
    }
    if (has("window") && !slides())
      add(fmt::format("it has no sliding_window; attention in the model has one of {}",
                      fmt::join(facts_["window"], " and ")));
    if (has("causal") && std::ranges::count(facts_["causal"], "false") > 0)
      add(fmt::format(
          "model_type is {}, whose positions see earlier ones only; attention in the model is not causal",
          config_["model_type"].dump()));
    return problems_;
  }

 private:
  bool given(const std::string& key) const { return config_.contains(key) && !config_[key].is_null(); }
  bool has(const std::string& fact) const { return facts_.contains(fact); }
  bool known_type() const {
    return given("model_type") && config_["model_type"].is_string() &&
           std::ranges::count(kArchitectures, config_["model_type"].get<std::string>()) > 0;
  }
  void add(std::string problem) { problems_.push_back(std::move(problem)); }

  // The model's values of a fact, of which one must be right.
  template <class F>
  void differs(std::string_view key, const std::string& value, const std::string& fact, const F& right) {
    if (!has(fact)) {
      if (fact == "theta") add(fmt::format("{} is {}; the model has no rotary positions", key, value));
      return;  // what is not there needs no value; parameters that it would need are missing
    }
    const std::vector<std::string>& said = facts_.at(fact);
    if (std::ranges::none_of(said, right))
      add(fmt::format("{} is {}, {} in the model", key, value, fmt::join(said, " and ")));
  }

  // `how` stands before the value in the problem.
  void compare_fact(std::string_view key, const json& value, const std::string& fact,
                    std::string_view how = "") {
    if (value.is_null()) return;
    differs(key, fmt::format("{}{}", how, value.dump()), fact, [&](const std::string& said) {
      if (value.is_string()) {
        const std::string text = value.get<std::string>();
        const auto ours = kSynonyms.find(text);
        return said == (ours == kSynonyms.end() ? std::string_view(text) : ours->second);
      }
      if (!value.is_number()) return json::parse(said, nullptr, /*allow_exceptions=*/false) == value;
      const double wanted = value.get<double>(), ours = std::strtod(said.c_str(), nullptr);
      return std::abs(ours - wanted) <= 1e-6 * std::abs(wanted);
    });
  }

  void compare_missing() {
    const std::string own = config_["model_type"].get<std::string>();
    std::vector<std::string_view> known;  // facts of which the type has a default of its own
    for (const auto& [type, key, fact, value] : kDefaults) {
      if (type.empty() ? std::ranges::count(known, fact) > 0 : own != type) continue;
      known.push_back(fact);
      // Both may stand among the positions, too.
      const auto elsewhere = [&](const char* name) { return rope().contains(name) || given(name); };
      const bool turned = (fact == "theta" && elsewhere("rope_theta")) ||
                          (fact == "partial" && elsewhere("partial_rotary_factor"));
      if (has(std::string(fact)) && !turned && !given(std::string(key)))
        compare_fact(key, json::parse(value), std::string(fact), "missing, which is ");
    }
  }

  // The table of positions, in one of both spellings; of both together the older one counts. An object.
  const json& rope() const {
    static const json none = json::object();
    for (const char* key : {"rope_scaling", "rope_parameters"})
      if (given(key) && config_[key].is_object() && !config_[key].empty()) return config_[key];
    return none;
  }
  bool is_scaled() const {
    const json type = rope().contains("rope_type") ? rope()["rope_type"] : rope().value("type", json());
    return !type.is_null() && type != "default";
  }

  // Compares what the table of scaled positions does not say, and the model does.
  void compare_scaling() {
    if (!has("scaling.rope_type")) return;
    if (!is_scaled()) {
      if (rope().empty())  // else compare_rope has said so
        add(fmt::format("rope_scaling is missing, {} in the model", facts_["scaling.rope_type"].front()));
      return;
    }
    const auto lacks = [&](const std::string& key) {
      return has("scaling." + key) && (!rope().contains(key) || rope()[key].is_null());
    };
    for (const auto& [key, value] : kScalingDefaults) {
      if (!lacks(std::string(key))) continue;
      if (value == "null")
        add(fmt::format("rope_scaling.{} is missing, {} in the model", key,
                        fmt::join(facts_["scaling." + std::string(key)], " and ")));
      else
        compare_fact(fmt::format("rope_scaling.{}", key), json::parse(value), "scaling." + std::string(key),
                     "missing, which is ");
    }
    const bool phi3 = config_.value("model_type", json()) == "phi3";
    const json positions = config_.value("max_position_embeddings", json(phi3 ? 4096 : 2048));
    json original = config_.value("original_max_position_embeddings", json());
    if (original.is_null()) original = rope().value("original_max_position_embeddings", json());
    if (original.is_null()) {
      original = phi3 ? json(4096) : positions;
      compare_fact("original_max_position_embeddings", original, "scaling.original_max_position_embeddings",
                   "missing, which is ");
    }
    if (lacks("factor") && positions.is_number() && original.is_number() && original != 0)
      compare_fact("max_position_embeddings", json(positions.get<double>() / original.get<double>()),
                   "scaling.factor", fmt::format("{}, and the factor of positions ", positions.dump()));
  }

  void unknown(const std::string& key, const json& value) {
    add(
        fmt::format("{} is {}, and what that changes is not known here. Where the model file does the same, "
                    "`[load.config]` with {} = {} says so",
                    shown_name(key), value.dump(), key, value.dump()));
  }

  void compare(const std::string& key, const json& value) {
    if (has("config." + key)) {
      differs(key, value.dump(), "config." + key,
              [&](const std::string& said) { return json::parse(said, nullptr, false) == value; });
      return;
    }
    if (std::ranges::count(kNeutral, key) + std::ranges::count(kShown, key) > 0) return;
    for (const auto& fact : kFacts)
      if (fact.key == key) return compare_fact(key, value, std::string(fact.fact));
    if (key == "model_type") return compare_type(value);
    if (key == "rope_parameters" || key == "rope_scaling") return compare_rope(key, value);
    if (key == "tie_word_embeddings") return compare_ties(value);
    if (key == "sliding_window") return compare_window(value);
    if (key == "use_sliding_window" || key == "layer_types") return compare_layers(key, value);
    if (key == "no_rope_layer_interval" && config_.contains("no_rope_layers")) return;
    if (key == "no_rope_layers" && value.is_array() &&
        std::ranges::all_of(value, [](const json& one) { return one == 1; }))
      return;
    if ((key == "attention_multiplier" || key == "query_pre_attn_scalar") && is_usual_scale(key, value))
      return;
    for (const auto& plain : kPlain)
      if (plain.key == key && (value == plain.value || value == (plain.value != 0))) return;
    const bool must_be_true = key == "scale_attn_weights" || key == "is_causal";
    if (!says_nothing(value) || must_be_true) unknown(key, value);
  }

  void compare_type(const json& value) {
    if (!value.is_null() && !known_type())
      add(fmt::format(
          "model_type is {}, and what it computes besides what its keys say is not known here. Where the "
          "model file does the same, `[load.config]` with model_type = {} says so",
          value.dump(), value.dump()));
  }

  // Both spellings: rope_scaling beside rope_theta, and rope_parameters, which has all of it.
  void compare_rope(const std::string& key, const json& value) {
    if (says_nothing(value)) return;
    if (!value.is_object()) return unknown(key, value);
    const auto type = value.contains("rope_type") ? value.find("rope_type") : value.find("type");
    const bool plain = type == value.end() || type->is_null() || *type == "default";
    if (plain && has("scaling.rope_type"))
      add(fmt::format("{} is {}; the model's rope is scaled", key, value.dump()));
    if (!plain && !has("scaling.rope_type"))
      return add(fmt::format("{} is {}; the model's rope is not scaled", key, value.dump()));
    const bool phi3 = config_.value("model_type", json()) == "phi3";  // early ones call longrope otherwise
    for (const auto& [part, number] : value.items()) {
      if (number.is_object()) return unknown(key, value);  // one for each type of layer
      const std::string fact = part == "rope_theta"              ? "theta"
                               : part == "partial_rotary_factor" ? "partial"
                                                                 : "scaling." + part;
      if (part == "type" || part == "rope_type")
        compare_fact(key + "." + part, phi3 && number == "yarn" ? json("longrope") : number,
                     "scaling.rope_type");
      else if (has(fact) || fact == "theta")
        compare_fact(key + "." + part, number, fact);
      else if (!plain && part != "finetuned" && !says_nothing(number))
        unknown(key + "." + part, number);
    }
  }

  // A tied model loads untied weights only where they are the same, which the tensors show.
  void compare_ties(const json& value) {
    if (value == false && !plan_.ties.empty())
      add(fmt::format("tie_word_embeddings is false; in the model {} is {}", plan_.ties.front().name,
                      plan_.ties.front().weight));
  }

  // Returns whether attention has a window. Mistral's class takes an absent one for 4096; the classes that know
  // use_sliding_window need it, and layers that have the window.
  bool slides() const {
    const auto value = [&](const char* key, const json& missing) { return config_.value(key, missing); };
    const json type = value("model_type", {}), layers = value("layer_types", {});
    const bool asks = type == "qwen2" || type == "qwen3";
    if (value("use_sliding_window", !asks) != true) return false;
    if (layers.is_array() ? std::ranges::count(layers, "sliding_attention") == 0
                          : asks && value("max_window_layers", 28) >= value("num_hidden_layers", 32))
      return false;
    return given("sliding_window") || (!config_.contains("sliding_window") && type == "mistral");
  }

  // A window as long as the model's positions hides nothing.
  void compare_window(const json& value) {
    if (says_nothing(value) || !slides()) return;
    if (!value.is_number()) return unknown("sliding_window", value);
    for (const std::string& length : has("positions") ? facts_["positions"] : std::vector<std::string>())
      if (std::strtod(length.c_str(), nullptr) > value.get<double>() && !has("window"))
        add(fmt::format("sliding_window is {}; the model's {} positions see all before them", value.dump(),
                        length));
    if (has("window")) compare_fact("sliding_window", value, "window");
  }
  void compare_layers(const std::string& key, const json& value) {
    const bool slides = key == "use_sliding_window" ? value == true : value.is_array();
    const auto is_all = [&](std::string_view word) {
      return std::ranges::all_of(value, [&](const json& one) { return one == word; });
    };
    if (key == "layer_types" && value.is_array() && !is_all("full_attention") && !is_all("sliding_attention"))
      return unknown(key, value);
    // sliding_window says what slides.
    if (!says_nothing(value) && !slides) unknown(key, value);
  }

  // The scale of scores as it is without the key: 1 / sqrt(head_dim), said as that or as head_dim.
  bool is_usual_scale(std::string_view key, const json& value) const {
    if (!value.is_number() || !has("head_dim")) return false;
    const double channels = std::strtod(facts_.at("head_dim").front().c_str(), nullptr);
    const double usual = key == "attention_multiplier" ? 1 / std::sqrt(channels) : channels;
    return std::abs(value.get<double>() - usual) <= 1e-6 * usual;
  }

  const json& config_;
  const Plan& plan_;
  std::map<std::string, std::vector<std::string>, std::less<>> facts_;
  std::vector<std::string> problems_;
};

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

Status compare_metadata(const Gguf& gguf, std::string_view file, const Plan& plan) {
  if (plan.presumes.empty()) return {};
  const std::string prefix = std::string(gguf.text("general.architecture").value_or("")) + ".";
  json config = json::object();
  const auto said = [&](std::string_view theirs) {
    const GgufEntry* entry = gguf.find(prefix + std::string(theirs));
    return entry == nullptr ? json() : json::parse(json_of(*entry), nullptr, /*allow_exceptions=*/false);
  };
  for (const auto& [theirs, key] : kMetadata)
    if (const json value = said(theirs); !value.is_null()) config[key] = value;
  const auto presumes = [&](std::string_view fact) {
    return std::ranges::any_of(plan.presumes,
                               [&](const std::string& each) { return each.starts_with(fact); });
  };
  if (presumes("theta=") && !config.contains("rope_theta")) config["rope_theta"] = 10000.0;  // as llama.cpp
  // Factors of positions may be tensors, which the table of names takes or refuses.
  const bool tensors = std::ranges::any_of(
      gguf.tensors, [](const GgufTensor& tensor) { return tensor.name.starts_with("rope_f"); });
  if (const json type = said("rope.scaling.type"); !tensors && type.is_string() && type != "none")
    config["rope_scaling"] = {{"rope_type", type}, {"factor", said("rope.scaling.factor")}};
  Comparison comparison(config, plan);
  std::vector<std::string> problems = comparison.problems_of_gguf();
  if (tensors)
    std::erase_if(problems, [](const std::string& each) { return each.starts_with("rope.scaling"); });
  return problems.empty()
             ? Status()
             : Status::error(problem_list(fmt::format("{} is of another model", file), problems));
}

Status compare_config(const std::string& folder, const Plan& plan) {
  const std::string path = config_of(folder);
  if (plan.presumes.empty() || !is_there(path)) return {};
  const std::string text = GACC_TRY(read_file(path, kMostConfiguration));
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Status::error("{} is no JSON object", path);
  const std::vector<std::string> problems = Comparison(config, plan).problems();
  if (problems.empty()) return {};
  return Status::error(
      "{}\n  (the file of weights itself, in place of the folder, is loaded without its config.json)",
      problem_list(path + " is of another model", problems));
}

}  // namespace gacc
