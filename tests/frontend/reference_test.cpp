// docs/model.md against the reader: it names all that the reader accepts, its examples compile, and its
// defaults are those that are used.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "frontend/frontend.h"
#include "frontend/layer_types.h"
#include "ir/text/text.h"

namespace gacc::frontend {
namespace {

// The tables of a model file by their headings, `[[layers]]` and `[inputs.x]` apart.
using Tables = std::map<std::string, std::string>;

const Tables kTables = {{"model", "name = \"m\"\n"},
                        {"loss", "type = \"cross_entropy\"\ntarget = \"y\"\n"},
                        {"optimizer", "type = \"sgd\"\n"}};
constexpr const char* kLinear = "[[layers]]\ntype = \"linear\"\nfeatures = 3\n";

std::string file(const Tables& tables, const std::string& input, const std::string& layers) {
  std::string text = "[inputs.x]\n" + input + "[inputs.y]\ndtype = \"i32\"\n" + layers;
  for (const auto& [name, lines] : tables) text += "[" + name + "]\n" + lines;
  return text;
}

// The module as text; "" and the reasons when the model is wrong.
std::string compiled(const std::string& text, std::string& problem) {
  Diag diag("m.toml", text);
  const auto module = compile_model(text, "m.toml", {}, diag);
  problem = diag.render();
  return module ? ir::print(*module) : "";
}

// A layer after two others, before a head; on the first kind of input that it takes.
std::string with_layer(const TypeSchema& type, const std::string& keys, std::string& problem) {
  std::string why;
  for (const char* input : {"shape = [16]\n", "shape = [8, 2]\n", "shape = [4, 4, 4]\n",
                            "shape = [16]\ndtype = \"i32\"\nrange = 100\n"}) {
    std::string layers;
    if (type_with(all_layers(), type).several)
      for (const char* name : {"a", "b"})
        layers += std::string("[[layers]]\ntype = \"activation\"\nfn = \"relu\"\ninput = \"x\"\nname = \"") +
                  name + "\"\n";
    layers += "[[layers]]\ntype = \"" + std::string(type.name) + "\"\n" + keys + "\n";
    layers += std::string("[[layers]]\ntype = \"flatten\"\n") + kLinear;
    if (std::string text = compiled(file(kTables, input, layers), problem); !text.empty()) return text;
    why += problem;
  }
  problem = why;
  return "";
}

std::string with_table(const std::string& name, const std::string& lines, std::string& problem) {
  Tables tables = kTables;
  tables[name] = lines;
  return compiled(file(tables, "shape = [4]\n", kLinear), problem);
}

std::string toml(const Key& key) {
  struct Text {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t integer) const { return std::to_string(integer); }
    std::string operator()(double real) const { return number_text(real); }
    std::string operator()(const std::string& word) const { return '"' + word + '"'; }
    std::string operator()(const std::vector<int64_t>&) const { return "[]"; }
    std::string operator()(const ir::Texts&) const { return "[]"; }
    std::string operator()(const std::vector<double>& two) const {
      return fmt::format("[{}, {}]", two.at(0), two.at(1));
    }
  };
  return fmt::format("{} = {}\n", key.name, std::visit(Text{}, *key.fallback.value));
}

TEST(Reference, NamesAllThatTheReaderAccepts) {
  std::ifstream page(std::string(GACC_SOURCE_DIR) + "/docs/model.md");
  std::stringstream text;
  text << page.rdbuf();
  const auto named = [&](std::string_view word) {
    EXPECT_NE(text.str().find(fmt::format("`{}`", word)), std::string::npos) << word;
  };
  for (const Table* table : all_tables()) {
    for (const Key& key : table->keys) named(key.name);
    for (const TypeSchema* type : table->types) {
      named(type->name);
      for (const Key& key : type->keys) named(key.name);
    }
  }
}

TEST(Reference, ExamplesCompile) {
  std::string problem;
  for (const TypeSchema* type : tables::layer.types)
    EXPECT_NE(with_layer(*type, std::string(type->example), problem), "") << type->name << "\n" << problem;
  for (const Table* table : {&tables::optimizer, &tables::schedule})
    for (const TypeSchema* type : table->types)
      EXPECT_NE(with_table(std::string(table->path),
                           fmt::format("type = \"{}\"\n{}\n", type->name, type->example), problem),
                "")
          << problem;
  for (const TypeSchema* type : tables::loss.types) {
    Tables tables = kTables;
    tables["loss"] = fmt::format("type = \"{}\"\n{}\n", type->name, type->example);
    const std::string shape = type->name == "cross_entropy" ? "dtype = \"i32\"\n" : "shape = [3]\n";
    std::string text = file(tables, "shape = [4]\n", kLinear);
    const std::string target(type->example.substr(10, type->example.find('"', 10) - 10));
    text.replace(text.find("[inputs.y]\ndtype = \"i32\"\n"), 25, "[inputs." + target + "]\n" + shape);
    EXPECT_NE(compiled(text, problem), "") << problem;
  }
  for (const Table* table : {&tables::model, &tables::train, &tables::precision, &tables::recompute,
                             &tables::launch, &tables::memory})
    EXPECT_NE(with_table(std::string(table->path), std::string(table->example) + "\n", problem), "")
        << problem;
}

// Writing a default out changes nothing.
TEST(Reference, DefaultsAreTheOnesUsed) {
  std::string problem;
  int checked = 0;
  const auto same = [&](const std::string& without, const std::string& with, const Key& key,
                        std::string_view where) {
    EXPECT_NE(without, "") << where << "\n" << problem;
    EXPECT_EQ(without, with) << where << ": " << key.name << "\n" << problem;
    ++checked;
  };
  for (const TypeSchema* type : tables::layer.types) {
    std::vector<Key> keys = type->keys;
    if (type->name == "linear") keys.insert(keys.end(), tables::layer.keys.begin(), tables::layer.keys.end());
    for (const Key& key : keys) {
      if (!key.fallback.value) continue;
      std::string example(type->example);
      if (key.name == "slope")  // only beside its activation
        example = type->name == "activation" ? "fn = \"leaky_relu\""
                  : type->name == "linear"   ? "features = 16\nactivation = \"leaky_relu\""
                                             : "channels = 8\nkernel = 3\nactivation = \"leaky_relu\"";
      if (example.find(fmt::format("{} =", key.name)) != std::string::npos) continue;
      same(with_layer(*type, example, problem), with_layer(*type, toml(key) + example, problem), key,
           type->name);
    }
  }
  for (const Table* table : {&tables::model, &tables::train, &tables::precision, &tables::launch}) {
    for (const Key& key : table->keys) {
      if (!key.fallback.value) continue;
      const std::string name(table->path);
      std::string lines = name == "model" ? "name = \"m\"\n" : "";
      if (name == "precision" && key.name != "compute") lines = "compute = \"f16\"\n";
      const std::string without = with_table(name, lines, problem);
      same(without, with_table(name, lines + toml(key), problem), key, name);
    }
  }
  for (const Table* table : {&tables::optimizer, &tables::schedule, &tables::loss}) {
    for (const TypeSchema* type : table->types) {
      std::vector<Key> keys = type->keys;
      keys.insert(keys.end(), table->keys.begin(), table->keys.end());
      for (const Key& key : keys) {
        if (!key.fallback.value) continue;
        const std::string name(table->path);
        std::string lines = fmt::format("type = \"{}\"\n{}\n", type->name, type->example);
        if (name == "loss")
          lines = fmt::format("type = \"{}\"\ntarget = \"{}\"\n", type->name,
                              type->name == "cross_entropy" ? "y" : "x");
        if (lines.find(std::string("\n") + std::string(key.name) + " =") != std::string::npos) continue;
        const std::string features = name == "loss" && type->name != "cross_entropy" ? "4" : "3";
        Tables tables = kTables;
        const auto text = [&](const std::string& more) {
          tables[name] = lines + more;
          return compiled(
              file(tables, "shape = [4]\n", "[[layers]]\ntype = \"linear\"\nfeatures = " + features + "\n"),
              problem);
        };
        const std::string without = text("");
        same(without, text(toml(key)), key, type->name);
      }
    }
  }
  EXPECT_GT(checked, 60);
}

}  // namespace
}  // namespace gacc::frontend
