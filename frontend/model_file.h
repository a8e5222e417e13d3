// The model file, read: what each table says, by the schema, with places for later messages. Names are not
// resolved and shapes not computed here; that is layers.cpp. Values point into the tree that they were read
// from.
#pragma once
#include <memory>

#include "frontend/layer_types.h"

namespace gacc::frontend {

class Parameters;

struct InputSpec {
  std::string name;
  Location at{};      // of the name
  bool valid = true;  // false: its type is wrong and reported
  Values keys{};

  // Returns how many values an i32 input has: `range`, or the number of its `values`; 0 where neither is given.
  int64_t range() const {
    return keys.has("range") ? keys.integer("range") : std::ssize(keys.nodes("values"));
  }
  const Location& range_at() const { return keys.at(keys.has("range") ? "range" : "values"); }
};

struct LayerSpec {
  const LayerType* type = nullptr;  // null: unknown, and reported
  Values keys{};
  std::string name;
  Location name_at{};
  bool valid = true;  // false: something about it is wrong and reported; nothing can be said about its output
  // Lists of what is in a block: one, or one for each table of its `pattern`. Copy n has number n mod their count.
  std::vector<std::vector<LayerSpec>> bodies{};
  std::vector<std::shared_ptr<const Node>> made{};  // trees of bodies that the file does not have as they are
};

struct LossSpec {
  const LossType* type = nullptr;  // null: unknown, and reported
  Values keys{};
  bool valid = false;
};

// Why an update is not the one big batch's, where that is said, and what would be exact.
struct Inexact {
  std::string name{};
  Location at{};
  std::string instead{};
};

struct ModelFile {
  Values file{};  // the tables of which the rest was made
  std::vector<InputSpec> inputs{};
  std::vector<LayerSpec> layers{};
  LossSpec loss{};
  bool adapts = false;  // a layer or [lora] adds adapters
  int64_t micro_batch = 1, accumulate = 1;
  std::vector<Inexact> inexact{};  // what [optimizer] says; layers add theirs when they are lowered
  ir::Settings settings{};         // defaults filled in

  std::span<const Node> metrics() const { return file.table("model").nodes("metrics"); }
  std::span<const Node> predicted() const { return file.table("predict").nodes("layer"); }  // one or none
  Location micro_batch_at() const { return file.table("train").at("micro_batch"); }
};

// Each reads its tables and reports to `diag`; what could not be read keeps its default.
ModelFile read_model(const Node& root, const Table& table, Diag& diag);  // `table`: of the whole file
std::vector<LayerSpec> read_layers(const Node& list, const std::vector<InputSpec>& inputs, Diag& diag);
void read_training(ModelFile& model, Diag& diag);  // [train] ... [memory]
// Gives each parameter the first group that matches its name. A pattern that matches none is an error.
void assign_groups(const ModelFile& model, ir::Module& module, Diag& diag);
// Returns true if a layer among these, or inside of them, has adapters of its own.
bool adapts(const std::vector<LayerSpec>& layers);
// Returns true if a pattern matches the name: `*` crosses dots, and a backslash is itself.
bool matches_glob(const std::string& pattern, const std::string& name);
// [load]: what needs no parameters.
void read_load(const Values& load, ir::Settings& settings, Diag& diag);
void read_gguf(const Values& gguf, ir::Settings& settings, Diag& diag);
// Gives each parameter its name in weights from elsewhere. A pattern that matches none is an error.
void assign_loads(const ModelFile& model, const Parameters& parameters, ir::Module& module, Diag& diag);
// Notes what weights from elsewhere must be like beyond their shapes, and which weights layers share.
void note_presumptions(const ModelFile& model, const Parameters& parameters, ir::Module& module, Diag& diag);
// Puts what makes an update differ from the big batch's into the results for the plan; with train.require =
// "exact" each is an error.
void judge_equivalence(const ModelFile& model, const std::vector<Inexact>& all, ir::Results& results,
                       Diag& diag);

}  // namespace gacc::frontend
