// Published models: what a config.json is read as, and that nothing in it is skipped in silence.
#include "frontend/published.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "frontend/expression.h"
#include "frontend/model_file.h"
#include "ir/op_info.h"

namespace gacc {
namespace {

using Json = nlohmann::ordered_json;

const std::filesystem::path kConfigs = GACC_SOURCE_DIR "/tests/frontend/configs";

Json config_of(const std::string& name) {
  std::ifstream file(kConfigs / (name + ".json"));
  return Json::parse(file);
}

std::optional<std::string> read(const Json& config, std::string& problems,
                                const PublishedOptions& options = {}, std::vector<Family> more = {}) {
  problems.clear();
  more.insert(more.end(), built_in_families().begin(), built_in_families().end());
  auto model = published_model(config.dump(), "config.json", more, options, problems);
  return model ? std::optional(std::move(model->text)) : std::nullopt;
}

std::string problems_of(const Json& config, const PublishedOptions& options = {}) {
  std::string problems;
  EXPECT_FALSE(read(config, problems, options)) << config.dump(2);
  return problems;
}

// The module of a model file; none and a failure when it is wrong.
std::optional<ir::Module> compiled(const std::string& text) {
  Diag diag("m.toml", text);
  std::optional<ir::Module> module = compile_model(text, "m.toml", {}, diag);
  EXPECT_TRUE(module) << diag.render() << text;
  EXPECT_EQ(diag.render_warnings(), "");
  return module;
}

PublishedOptions named(std::optional<int64_t> context = {}, std::optional<int64_t> lora = {}) {
  return {.folder = "model", .context = context, .lora = lora};
}

struct Known {
  const char* name;
  int64_t parameters;
};
constexpr Known known[] = {{"gpt2", 124439808},          {"pythia-160m", 162322944},
                           {"smollm2-135m", 134515008},  {"tinyllama-1.1b", 1100048384},
                           {"llama-2-7b", 6738415616},   {"llama-3-8b", 8030261248},
                           {"llama-3.2-1b", 1235814400}, {"mistral-7b", 7241732096},
                           {"qwen2.5-0.5b", 494032768},  {"qwen3-0.6b", 596049920},
                           {"phi-3-mini", 3821079552},   {"smollm3-3b", 3075098624},
                           {"olmo2-7b", 7298617344},     {"granite-3.3-8b", 8170864640},
                           {"gemma-2-2b", 2614341888},   {"gemma-3-1b", 999885952}};

TEST(Published, HaveTheParametersThatArePublished) {
  for (const auto& [name, expected] : known) {
    std::string problems;
    const auto text = read(config_of(name), problems, named());
    ASSERT_TRUE(text) << name << "\n" << problems;
    const auto module = compiled(*text);
    ASSERT_TRUE(module) << name;
    int64_t parameters = 0;
    for (const ir::Buffer& buffer : module->buffers)
      if (buffer.kind == ir::BufferKind::param) parameters += ir::elements(buffer.type.shape, 1);
    EXPECT_EQ(parameters, expected) << name;
  }
}

// What a key may be instead; of the same type where that makes sense.
std::vector<Json> others(const Json& value) {
  if (value.is_boolean()) return {!value.get<bool>()};
  if (value.is_number_integer()) return {value.get<int64_t>() + 1, value.get<int64_t>() * 2 + 2};
  if (value.is_number()) return {value.get<double>() + 0.25};
  if (value.is_string()) return {value.get<std::string>() + "x"};
  if (value.is_array()) return {Json::array({"another"})};
  return {3, "word"};
}

const Family* family_named(const std::string& name) {
  for (const Family& family : built_in_families())
    if (family.file == name + ".toml") return &family;
  return nullptr;
}

bool is_ignored(const std::string& key, const Family* family) {
  constexpr std::string_view neutral[] = {
#define GACC_NEUTRAL_KEY(name) name,
#include "frontend/config_keys.def"
  };
  const auto fits = [&](const std::string& pattern) {
    return frontend::matches_glob(pattern, key) || key.starts_with(pattern + ".");
  };
  for (const std::string_view name : neutral)
    if (fits(std::string(name))) return true;
  while (family != nullptr) {
    Diag diag(family->file, family->text);
    const auto root = frontend::parse_toml(family->text, diag);
    if (const frontend::Node* ignored = root->find("ignored"))
      for (const frontend::Node& pattern : ignored->items)
        if (fits(pattern.text)) return true;
    const frontend::Node* base = root->find("base");
    family = base == nullptr ? nullptr : family_named(base->text);
  }
  return false;
}

// The model file without the comments that name keys.
std::string without_comments(const std::string& text) {
  std::string plain;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) plain += line.substr(0, line.find("   # ")) + "\n";
  return plain;
}

// The published shapes, and with what else a family may have.
std::vector<std::pair<std::string, Json>> enumerated() {
  std::vector<std::pair<std::string, Json>> all;
  for (const auto& [name, _] : known) all.emplace_back(name, config_of(name));
  const auto with = [&](const char* name, const char* what, const Json& changes) {
    Json config = config_of(name);
    config.update(changes);
    all.emplace_back(fmt::format("{} {}", name, what), config);
  };
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"finetuned", true},     {"beta_fast", 16.0},
                     {"beta_slow", 2.0},    {"mscale", 1.5}, {"mscale_all_dim", 0.5}, {"truncate", false}};
  with("llama-3-8b", "yarn",
       {{"rope_scaling", yarn}, {"original_max_position_embeddings", 2048}, {"partial_rotary_factor", 1}});
  with("llama-3-8b", "grown",
       {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"attention_factor", 1.25}}}});
  with("qwen2.5-0.5b", "sliding",
       {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 0}});
  with("mistral-7b", "sliding", {{"sliding_window", 64}});
  with("pythia-160m", "linear", {{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}});
  with("phi-3-mini", "longrope",
       {{"rope_scaling",
         {{"type", "longrope"},
          {"short_factor", std::vector<double>(48, 1.0)},
          {"long_factor", std::vector<double>(48, 2.0)}}},
        {"max_position_embeddings", 131072},
        {"original_max_position_embeddings", 4096},
        {"partial_rotary_factor", 1.0},
        {"mlp_bias", false},  // as Phi 4 mini has these
        {"lm_head_bias", false},
        {"full_attn_mod", 1},
        {"interpolate_factor", 1}});
  const auto sliding = [](size_t layers) {
    std::vector<std::string> types(layers, "full_attention");
    types[1] = "sliding_attention";
    return types;
  };
  with("smollm3-3b", "sliding",
       {{"use_sliding_window", true}, {"sliding_window", 64}, {"layer_types", sliding(36)}});
  with("smollm3-3b", "every third",
       {{"no_rope_layers", nullptr},
        {"no_rope_layer_interval", 3},
        {"use_sliding_window", true},
        {"sliding_window", 64}});
  with("gemma-2-2b", "one", {{"layer_types", sliding(26)}, {"final_logit_softcapping", nullptr}});
  with("gemma-3-1b", "linear",
       {{"rope_local_base_freq", nullptr},
        {"rope_theta", nullptr},
        {"rope_parameters",
         {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}}}});
  with("gpt2", "medium", {{"n_special", 0}, {"predict_special_tokens", true}, {"_num_labels", 1}});
  return all;
}

// Keys that other keys switch off: windows of no layer, and the positions of a scaling that is none.
bool says_nothing(const Json& config, const std::string& key) {
  if (key == "original_max_position_embeddings") return config["rope_scaling"].is_null();
  if (key == "no_rope_layer_interval") return !config["no_rope_layers"].is_null();
  if (config["model_type"] == "smollm3" && config["sliding_window"].is_null())
    return key == "use_sliding_window" || key == "sliding_window";
  if (!config.contains("use_sliding_window") || !config.contains("max_window_layers")) return false;
  const bool slides = config["use_sliding_window"],
             none = config["max_window_layers"] >= config["num_hidden_layers"];
  return (key == "use_sliding_window" && none) ||
         (!slides && (key == "sliding_window" || key == "max_window_layers"));
}

// Each key changed by itself gives another model file, or an error that names it; so does a key that is new. What bounds
// the window shows when a longer one is asked for.
TEST(Published, EveryKeyChangesTheModelOrIsAnError) {
  for (const auto& [name, config] : enumerated()) {
    const Family* family = family_named(config["model_type"].get<std::string>());
    ASSERT_NE(family, nullptr) << name;
    std::string problems;
    const auto model = read(config, problems, named());
    ASSERT_TRUE(model) << name << problems;
    const std::string bound = problems_of(config, named(int64_t{1} << 40));
    const Json flat = config.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      std::string key = pointer.substr(1);
      std::ranges::replace(key, '/', '.');
      if (is_ignored(key, family)) continue;
      if (says_nothing(config, key)) continue;
      for (const Json& other : others(value)) {
        Json changed = flat;
        changed[pointer] = other;
        const auto text = read(changed.unflatten(), problems, named());
        const size_t last = key.find_last_not_of("0123456789");
        const std::string first = key.substr(0, key[last] == '.' ? last : key.size());
        const bool shows = text ? without_comments(*text) != without_comments(*model) ||
                                      problems_of(changed.unflatten(), named(int64_t{1} << 40)) != bound
                                : problems.find(first) != std::string::npos;
        EXPECT_TRUE(shows) << name << ": " << key << " = " << other << "\n" << problems;
      }
    }
    Json more = config;
    more["brand_new"] = 0.5;
    EXPECT_NE(problems_of(more, named()).find("config.json: error: `brand_new` = 0.5:"), std::string::npos);
  }
}

// A key that is left out has the default that transformers gives it, or is missing by name.
TEST(Published, AKeyLessIsADefaultOrAnError) {
  for (const auto& [name, config] : enumerated()) {
    for (const auto& [key, value] : config.items()) {
      Json less = config;
      less.erase(key);
      std::string problems;
      if (const auto text = read(less, problems, named()))
        compiled(*text);
      else
        EXPECT_NE(problems.find("`" + key), std::string::npos) << name << " without " << key << "\n"
                                                               << problems;
    }
  }
}

TEST(Published, BothSpellingsOfTransformersAreRead) {
  Json config = config_of("llama-3.2-1b");
  std::string problems;
  const auto old = read(config, problems, named());
  Json rope = config["rope_scaling"];
  rope["rope_theta"] = config["rope_theta"];
  rope["type"] = rope["rope_type"];  // stays where transformers 5 rewrites an older file
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = rope;
  config["dtype"] = "bfloat16";
  config.erase("torch_dtype");
  const auto now = read(config, problems, named());
  ASSERT_TRUE(old && now) << problems;
  const auto ops = [](const std::string& text) { return compiled(text)->step.ops.size(); };
  EXPECT_EQ(ops(*old), ops(*now));
  const auto rope_of = [](const std::string& text) {
    const size_t at = text.find("rope = {");
    return text.substr(at, text.find('#', at) - at);
  };
  EXPECT_EQ(rope_of(*old), rope_of(*now));
  EXPECT_NE(rope_of(*now).find("theta = 500000.0"), std::string::npos) << *now;
}

// transformers 4.57 writes both names, 5 writes a key among the positions and beside them.
TEST(Published, WhatAFileSaysTwiceAgrees) {
  Json neox = config_of("pythia-160m"), phi3 = config_of("phi-3-mini"), llama = config_of("llama-3.2-1b");
  llama["rope_parameters"] = llama["rope_scaling"];
  llama["rope_parameters"]["rope_theta"] = llama["rope_theta"];
  llama["rope_parameters"]["partial_rotary_factor"] = 1;
  llama["original_max_position_embeddings"] = llama["rope_scaling"]["original_max_position_embeddings"];
  llama.erase("rope_scaling");
  neox["rope_theta"] = neox.value("rotary_emb_base", 10000.0);
  neox["partial_rotary_factor"] = neox.value("rotary_pct", 0.25);
  for (const char* key : {"rope_theta", "rope_scaling"}) phi3.erase(key);
  phi3["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.75}};
  phi3["partial_rotary_factor"] = 0.75;
  for (const auto& [config, key, other] : {std::tuple(neox, "rope_theta", 20000.0),
                                           {neox, "partial_rotary_factor", 0.5},
                                           {llama, "rope_theta", 20000.0},
                                           {llama, "partial_rotary_factor", 0.5},
                                           {llama, "original_max_position_embeddings", 4096},
                                           {phi3, "partial_rotary_factor", 0.5}}) {
    std::string problems;
    EXPECT_TRUE(read(config, problems, named())) << problems;
    Json changed = config;
    changed[key] = other;
    EXPECT_NE(problems_of(changed, named()).find(std::string("`") + key + "`"), std::string::npos) << key;
  }
}

TEST(Published, WhatAFamilyCannotExpressIsNamedWithItsValue) {
  const auto with = [](const char* name, const char* key, const Json& value) {
    Json config = config_of(name);
    config[key] = value;
    return problems_of(config, named());
  };
  for (const auto& [problems, expected] : {
           std::pair(with("llama-2-7b", "hidden_act", "quick_gelu"),
                     "`hidden_act` = \"quick_gelu\" cannot be expressed; known are [\"relu\", "),
           std::pair(with("llama-2-7b", "hidden_size", "4096"),
                     "config.json: error: `hidden_size` = \"4096\""),
           std::pair(with("llama-2-7b", "max_position_embeddings", "x"),
                     "`max_position_embeddings` = \"x\" is no number of positions"),
           std::pair(with("llama-2-7b", "rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}),
                     "`rope_scaling.type` = \"dynamic\" cannot be expressed"),
           std::pair(with("phi-3-mini", "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}),
                     "`rope_scaling.type` = \"linear\" cannot be expressed"),
           std::pair(with("llama-2-7b", "rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"other", 1}}),
                     "`rope_scaling.other` = 1:"),
           std::pair(with("gpt2", "scale_attn_weights", false),
                     "`scale_attn_weights` = false cannot be expressed"),
           std::pair(with("llama-2-7b", "architectures", Json::array({"LlamaForSequenceClassification"})),
                     "`architectures` = [\"LlamaForSequenceClassification\"] cannot be expressed"),
           std::pair(with("llama-2-7b", "quantization_config", {{"bits", 4}}),
                     "`quantization_config.bits` = 4:"),
           std::pair(with("llama-2-7b", "more", std::string(78, 'a') + "\u00e9"), "a...: llama.toml"),
           std::pair(with("llama-2-7b", "a\nb", 1), "config.json: error: `a\\nb` = 1:"),
           std::pair(with("llama-2-7b", "model_type", "lama"), "\"lama\"; did you mean \"llama\"?"),
           std::pair(with("llama-2-7b", "model_type", 7), "no `model_type`"),
       })
    EXPECT_NE(problems.find(expected), std::string::npos) << problems;
}

TEST(Published, HalfAFileIsNoModel) {
  const std::string whole = config_of("gpt2").dump(2);
  for (const std::string& text :
       {whole.substr(0, whole.size() / 2), std::string("[1, 2]"), std::string("")}) {
    std::string problems;
    EXPECT_FALSE(published_model(text, "config.json", built_in_families(), {}, problems));
    EXPECT_EQ(problems.find("config.json: error: it is no JSON"), 0U) << problems;
  }
}

TEST(Published, TheWindowIsAtMostThePositions) {
  std::string problems;
  Json config = config_of("smollm2-135m");
  for (const auto& [asked, wanted] :
       {std::pair<std::optional<int64_t>, const char*>({}, "shape = [1024]"), {4096, "shape = [4096]"}}) {
    const auto text = read(config, problems, named(asked));
    ASSERT_TRUE(text) << problems;
    EXPECT_NE(text->find(wanted), std::string::npos) << *text;
  }
  EXPECT_NE(problems_of(config, named(8193)).find("more than the 8192 positions"), std::string::npos);
  config["max_position_embeddings"] = 256;
  EXPECT_NE(read(config, problems, named())->find("shape = [256]"), std::string::npos);
  // A shorter window takes the first of the learned positions.
  const auto text = read(config_of("gpt2"), problems, named(64));
  ASSERT_TRUE(text) << problems;
  const auto module = compiled(*text);
  ASSERT_TRUE(module);
  EXPECT_EQ((*module)[*module->find_buffer("wpe.weight")].type.shape, (ir::Shape{1024, 768}));
}

// A window of attention that is shorter than the sequence is the layer's, a longer one is none.
TEST(Published, WindowsOfAttentionAreTheLayers) {
  const auto windows = [](const Json& config, int64_t context) {
    std::string problems;
    const auto text = read(config, problems, named(context));
    EXPECT_TRUE(text) << problems;
    std::set<int64_t> found;
    if (const auto module = text ? compiled(*text) : std::nullopt)
      for (const ir::Op& op : module->step.ops)
        if (op.info->name == "attention")
          found.insert(
              ir::find_attr(op, "window") == nullptr ? 0 : std::get<int64_t>(*ir::find_attr(op, "window")));
    return found;
  };
  EXPECT_EQ(windows(config_of("phi-3-mini"), 2048), std::set<int64_t>{2047});
  EXPECT_EQ(windows(config_of("phi-3-mini"), 2047), std::set<int64_t>{0});
  Json mistral = config_of("mistral-7b");
  mistral["sliding_window"] = 100;
  EXPECT_EQ(windows(mistral, 128), std::set<int64_t>{100});
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(windows(mistral, 8192), std::set<int64_t>{0});
  mistral.erase("sliding_window");  // the class's default
  EXPECT_EQ(windows(mistral, 8192), std::set<int64_t>{4096});
  Json qwen = config_of("qwen2.5-0.5b");
  qwen["sliding_window"] = 100;
  EXPECT_EQ(windows(qwen, 128), std::set<int64_t>{0});
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 0;
  EXPECT_EQ(windows(qwen, 128), std::set<int64_t>{100});
  qwen["max_window_layers"] = qwen["num_hidden_layers"];
  EXPECT_EQ(windows(qwen, 128), std::set<int64_t>{0});
  qwen["max_window_layers"] = 3;  // the others from there on have it
  EXPECT_NE(problems_of(qwen, named(128)).find("`max_window_layers` = 3"), std::string::npos);
  // A name for each layer counts more than the number.
  Json& layers = qwen["layer_types"] = Json::array();
  for (int i = 0; i < qwen["num_hidden_layers"]; ++i) layers.push_back("sliding_attention");
  EXPECT_EQ(windows(qwen, 128), std::set<int64_t>{100});
  layers[0] = "full_attention";
  EXPECT_NE(
      problems_of(qwen, named(128)).find("`layer_types` = [\"full_attention\", \"sliding_attention\", "),
      std::string::npos);
}

TEST(Published, AdaptersAreOfTheBlocks) {
  for (const auto& [name, _] : known) {
    std::string problems;
    const auto text = read(config_of(name), problems, named({}, 4));
    ASSERT_TRUE(text) << problems;
    EXPECT_NE(text->find("rank = 4\nalpha = 8\n"), std::string::npos) << *text;
    const auto module = compiled(*text);
    ASSERT_TRUE(module);
    for (const ir::Buffer& buffer : module->buffers) {
      if (buffer.kind != ir::BufferKind::param) continue;
      EXPECT_EQ(buffer.trainable, buffer.name.find(".lora_") != std::string::npos) << buffer.name;
    }
  }
}

TEST(Published, MoreFamiliesComeFirst) {
  std::string problems;
  Json config = {{"model_type", "mine"}, {"width", 3}, {"kind", "a"}, {"bias", nullptr}};
  const Family mine{"mine.toml",
                    "match = [\"mine\"]\nignored = [\"note.*\"]\n"
                    "[model]\nname = \"mine-${width * 2}\"\n[inputs.x]\nshape = [\"${width}\"]\n"
                    "[inputs.y]\nshape = [2]\n[[layers]]\ntype = \"linear\"\nfeatures = 2\n"
                    "bias = \"${bias ?? false}\"\nactivation = '${kind == \"a\" ? \"relu\" : none}'\n"
                    "[loss]\ntype = \"mse\"\ntarget = \"y\"\n[optimizer]\ntype = \"sgd\"\n"};
  config["note"] = {{"author", "me"}};
  const auto text = read(config, problems, named(), {mine});
  ASSERT_TRUE(text) << problems;
  compiled(*text);
  EXPECT_NE(text->find("name = \"mine-6\""), std::string::npos) << *text;
  EXPECT_NE(text->find("bias = false\nactivation = \"relu\"   # kind = \"a\""), std::string::npos) << *text;
  config["kind"] = "b";
  EXPECT_EQ(read(config, problems, named(), {mine})->find("\nactivation"), std::string::npos);
  EXPECT_FALSE(read(config, problems, named(), {{"no.toml", "[model]\n"}}));
  EXPECT_NE(problems.find("no.toml: error: a family needs `match`"), std::string::npos) << problems;
}

// A family says what it has otherwise than its base; a name that has a problem is reported once.
TEST(Published, AFamilyMayChangeAnother) {
  std::string problems;
  Json config = config_of("llama-2-7b");
  config["model_type"] = "mine";
  config["architectures"] = Json::array({"Mine"});
  config["note"] = 1;
  config["wide"] = true;
  const std::string head = "# Mine.\nmatch = [\"mine\"]\nbase = \"llama\"\nignored = [\"note\"]\n";
  const Family mine{"dir/mine.toml",
                    head + "[let]\nclass = '\"Mine\"'\nbiased = '${wide}'\nattention_biases = '${biased}'\n"};
  const auto text = read(config, problems, named(), {mine});
  ASSERT_TRUE(text) << problems;
  EXPECT_TRUE(text->starts_with("# Mine.\n")) << *text;
  EXPECT_NE(text->find("bias = true   # wide"), std::string::npos) << *text;
  compiled(*text);
  config.erase("wide");
  EXPECT_FALSE(read(config, problems, named(), {mine}));
  EXPECT_EQ(problems.find("`wide`"), problems.rfind("there is no `wide`") + 12) << problems;
  EXPECT_EQ(std::ranges::count(problems, '\n'), 1) << problems;
  // One of the base's lines is named by the base's file.
  config["wide"] = true;
  config["hidden_act"] = "other";
  EXPECT_FALSE(read(config, problems, named(), {mine}));
  EXPECT_NE(problems.find("llama.toml:"), std::string::npos) << problems;
  // A table that has itself in it is none.
  const std::string inside =
      "[let]\nclass = '\"Mine\"'\n[let.a]\nb = \"${a}\"\n[[layers]]\ntype = \"linear\"\nx = \"${a}\"\n";
  EXPECT_FALSE(read(config, problems, named(), {{"mine.toml", head + inside}}));
  EXPECT_NE(problems.find("names a in itself"), std::string::npos) << problems;
  // A family of a built-in name changes the built-in one; bases that go round are none.
  Json llama = config_of("llama-2-7b");
  llama["note"] = 1;
  EXPECT_TRUE(read(llama, problems, named(),
                   {{"llama.toml", "match = [\"llama\"]\nbase = \"llama\"\nignored = [\"note\"]\n"}}))
      << problems;
  EXPECT_FALSE(read(config, problems, named(), {{"mine.toml", "match = [\"mine\"]\nbase = \"mine\"\n"}}));
  EXPECT_NE(problems.find("mine.toml:2: error: there is no other family `mine`"), std::string::npos)
      << problems;
}

TEST(Expressions, ComputeWithKeys) {
  const auto lookup = [](const std::string& name) -> std::optional<frontend::ConfigValue> {
    using Value = frontend::ConfigValue;
    if (name == "n") return Value{int64_t{12}};
    if (name == "x") return Value{0.5};
    if (name == "s") return Value{std::string("silu")};
    if (name == "yes") return Value{true};
    if (name == "nothing") return Value{};
    if (name == "o.k") return Value{std::vector<Value>{{int64_t{1}}, {int64_t{1}}}};
    return {};
  };
  const auto value = [&](const char* text) {
    const frontend::Evaluated result = frontend::evaluate(text, lookup);
    return result.problem.empty() ? value_text(result.value) : "! " + result.problem;
  };
  for (const auto& [text, expected] : std::initializer_list<std::pair<const char*, const char*>>{
           {"n", "12"},
           {"n / 4 + 1", "4"},
           {"n / 5", "2.4"},
           {"n % 5 - 2 * 3", "-4"},
           {"-(n - 2.5)", "-9.5"},
           {"2 + 3 * 4 == 14", "true"},
           {"n >= 12 && n < 13 && !(n != 12)", "true"},
           {"missing ?? n", "12"},
           {"missing ?? o.missing ?? 7", "7"},
           {"missing == null", "true"},
           {"missing(gone)", "true"},
           {"missing(nothing)", "false"},
           {"nothing ?? 3", "3"},
           {"yes ? 'a' : missing", "\"a\""},
           {"missing ?? false ? 1 : 2", "2"},
           {"s == 'silu' ? \"a\" : s == 'b' ? 'c' : unknown", "\"a\""},
           {"s == 'b' ? 1 : unknown", "! `s` = \"silu\" cannot be expressed"},
           {"activation(s)", "\"silu\""},
           {"one_of(s, 'gelu', 'silu')", "\"silu\""},
           {"one_of(s, 'gelu', 'relu')",
            "! `s` = \"silu\" cannot be expressed; known are [\"gelu\", \"relu\"]"},
           {"activation('new')",
            "! this cannot be expressed; known are [\"relu\", \"gelu\", \"gelu_new\", \"gelu_fast\", "
            "\"gelu_pytorch_tanh\", \"silu\", \"swish\", \"sigmoid\", \"tanh\"]"},
           {"sqrt(n * 3)", "6"},
           {"every(o.k, 1)", "true"},
           {"every(o.k, 2)", "false"},
           {"yes || missing", "true"},
           {"none", "null"},
           {"missing", "! there is no `missing`"},
           {"missing + 1", "! there is no `missing`"},
           {"n +", "! it ends too early"},
           {"n n", "! `n` is not expected"},
           {"(n", "! `)` is missing"},
           {"n / 0", "! division by 0"},
           {"s * 2", "! \"silu\" is no number"},
           {"n ? 1 : 2", "! 12 is neither true nor false"},
           {"f(n)", "! there is no function `f` of 1 arguments"},
       })
    EXPECT_EQ(value(text), expected) << text;
  // The condition reads both branches, a fallback only what it takes.
  EXPECT_EQ(frontend::evaluate("yes ? n : x", lookup).read, (std::set<std::string>{"n", "x", "yes"}));
  EXPECT_EQ(frontend::evaluate("n ?? x", lookup).read, (std::set<std::string>{"n"}));
}

}  // namespace
}  // namespace gacc
