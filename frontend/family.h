// Families of published models (docs/adding-a-family.md), read over a config.json or over what a GGUF says of itself.
#pragma once
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "frontend/expression.h"
#include "frontend/published.h"
#include "frontend/toml_tree.h"

namespace gacc::frontend {

// A value that a family gives a model file at one place: keys, and names of layers behind an "@", as
// "layers/@mix/layers/@attn/rope/theta"; ".../when": whether the table is there at all.
struct FamilyValue {
  std::string path;
  ConfigValue value{};  // null: it is left out
  std::set<std::string>
      keys{};  // of config.json that it comes from, also those that are not there; none: it is fixed
};

// A config.json as a family reads it.
struct FamilyReading {
  Node model{};                     // the model file
  std::vector<FamilyValue> values;  // of its expressions
  ConfigValues config{};            // what was read; of a GGUF what its metadata stand for
  ConfigValues unknown{};           // of `loaded`: what no expression reads, and may change the function
};

class Families {
 public:
  // Takes families, of which the first that matches counts. `problems` receives whole lines.
  Families(std::span<const Family> all, std::string& problems) : all_(all), problems_(problems) {}

  struct Chosen {
    const Family* family = nullptr;
    Node tree{};  // with those that it is based on
  };
  // Returns the family of a file, which messages call so; nothing and the reason where there is none.
  std::optional<Chosen> choose(const ConfigValues& config, const std::string& file, bool gguf);
  // Returns the family of that name, with those that it is based on.
  std::optional<Chosen> named(std::string_view name);
  // Evaluates the family's expressions. `loaded`: of a model that weights are loaded into. What only shapes and
  // training need may then be missing, and windows be longer than it says.
  std::optional<FamilyReading> read(const Chosen& chosen, const ConfigValues& config, const std::string& file,
                                    const PublishedOptions& options, bool loaded = false);

 private:
  std::optional<Node> parse(const Family& family);
  std::optional<Node> with_bases(const Family& family, Node root, std::vector<const Family*> seen = {});

  std::span<const Family> all_;
  std::string& problems_;
};

// Returns the part of a path for an item of a list: a layer's name behind "/@", else its number.
std::string place_of(const Node& item, size_t number);
// Says whether a place of a model file changes what given weights compute.
bool is_decisive(std::string_view path);
// Returns the places of a family's tree that expressions decide, and that change what given weights compute.
std::vector<std::string> decided_paths(const Node& family);
// Returns what a model file has at a place; null where it has nothing.
const Node* node_at(const Node& model, std::string_view path);
// Returns the same as a value; of ".../when" whether the table is there.
ConfigValue value_at(const Node& model, std::string_view path);

// Returns the name of a family, by which others are based on it.
std::string_view name_of(const Family& family);

}  // namespace gacc::frontend
