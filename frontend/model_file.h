// The model file as plain structs: what the schema allows, checked value by value, with places for later
// messages. Names are not resolved and shapes not computed here; that is layers.cpp.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "frontend/toml_tree.h"
#include "ir/module.h"

namespace gacc::frontend {

class TableReader;

struct Named {
  std::string name;
  Location at{};
};

struct InputSpec {
  std::string name;
  Location at{};      // of the name
  bool sound = true;  // false: its type is wrong and reported
  Location shape_at{};
  ir::Shape shape{};  // per sample
  ir::DType dtype = ir::DType::f32;
  std::optional<int64_t> range{};  // i32: values are 0..range-1
  Location range_at{};
  bool normalize_data = false;        // normalize = "data": the training data's mean and deviation
  std::vector<double> mean{}, std{};  // normalize: empty, one number, or one per element of the first axis
};

// How a parameter starts. `amount` is the standard deviation of normal, the half-width of uniform.
struct InitSpec {
  enum class Form : uint8_t {
    standard,
    zeros,
    ones,
    normal,
    uniform,
    kaiming_normal,
    kaiming_uniform,
    xavier_normal,
    xavier_uniform
  };
  Form form = Form::standard;
  double amount = 0;
  Location at{};
};

// Layer types by how they are lowered; `other` is one that cannot be, because something about it is wrong.
enum class LayerKind : uint8_t {
  linear,
  activation,
  softmax,
  log_softmax,
  flatten,
  reshape,
  permute,
  dropout,
  attention,
  layer_norm,
  rms_norm,
  embedding,
  position_embedding,
  conv2d,
  pool2d,
  global_avg_pool2d,
  batch_norm,
  group_norm,
  add,
  mul,
  concat,
  sequential,
  residual,
  other
};

// Windows over images: conv2d and pooling; `groups` also of group_norm. Index 0 is along H, 1 along W.
struct WindowSpec {
  int64_t channels = 1, groups = 1;
  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
  bool same = false;  // padding so that a stride of 1 keeps the size
  Location channels_at{}, kernel_at{}, groups_at{};
};

struct LayerSpec {
  LayerKind kind = LayerKind::other;
  std::string type;
  std::string name;
  Location at{};  // of the layer's table
  Location type_at{}, name_at{};
  bool sound = true;  // false: something about it is wrong and reported; nothing can be said about its output
  std::vector<Named> inputs{};  // as named by `input` or `inputs`; empty: the previous layer
  InitSpec init{}, bias_init{};
  bool trainable = true;
  bool full = false;       // precision = "f32"
  bool recompute = false;  // a segment of its own under recompute.policy "marked"
  int64_t features = 0;    // linear
  Location features_at{};
  bool bias = true;
  std::optional<Named> tied{};
  std::string activation{};  // linear: "" for none; activation: fn
  double slope = 0.01;       // of leaky_relu
  ir::Shape shape{};         // reshape
  Location shape_at{};
  std::vector<int64_t> axes{};  // permute: of a sample; concat: one
  Location axes_at{};
  int64_t vocab = 0;  // embedding
  Location vocab_at{};
  double eps = 1e-5;  // of norms
  double p = 0;       // dropout, attention: probability of a zero
  int64_t heads = 1;  // attention
  Location heads_at{};
  bool causal = false;
  WindowSpec window{};
  double momentum = 0.1;            // batch_norm
  bool compensate = false;          // batch_norm: accumulation = "compensate"
  std::vector<LayerSpec> layers{};  // sequential, residual
  std::optional<int64_t> repeat{};  // sequential
  Location repeat_at{};
};

struct LossSpec {
  std::string type{};
  Location at{};
  bool sound = true;
  Named target{};
  std::optional<Named> input{};
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  std::vector<double> class_weights{};  // cross_entropy: empty, or one for each class
  std::vector<double> pos_weight{};     // bce_with_logits: empty, one number, or one along the last axis
  Location weights_at{};                // of the one that there is
  double delta = 1;                     // huber
};

// What can be measured, and for which losses.
struct MetricSpec {
  std::string_view name;
  std::vector<std::string_view> losses;
};
const std::vector<MetricSpec>& known_metrics();
std::vector<std::string_view> metric_names();

// One of [[optimizer.groups]]: parameters that decay or learn otherwise.
struct GroupSpec {
  std::vector<Named> match{};  // fnmatch patterns over whole parameter names
};

// Why an update is not the one big batch's, where that is said, and what would be exact.
struct Inexact {
  std::string name{};
  Location at{};
  std::string instead{};
};

struct ModelFile {
  std::string name;
  std::vector<Named> metrics{};
  std::vector<InputSpec> inputs{};
  std::vector<LayerSpec> layers{};
  LossSpec loss{};
  std::vector<GroupSpec> groups{};
  int64_t micro_batch = 1, accumulate = 1;
  std::string recompute_policy = "none";
  Location micro_batch_at{}, require_at{};
  std::vector<Inexact>
      inexact{};  // what [optimizer] and [train] say; layers add theirs when they are lowered
  Location inputs_at{}, layers_at{};
  // The scalars that passes and the artifact need, by dotted key, defaults filled in.
  ir::Attrs settings{};
};

// Each reads its tables and reports to `diag`; what could not be read keeps its default.
ModelFile read_model(const Node& root, Diag& diag);
std::vector<LayerSpec> read_layers(const Node& list, const std::vector<InputSpec>& inputs, Diag& diag);
void read_training(const Node& root, ModelFile& model, Diag& diag);  // [train] ... [memory]
// [[optimizer.groups]] of the table [optimizer].
void read_groups(TableReader& optimizer, ModelFile& model);
// Gives each parameter the first group that matches its name. A pattern that matches none is an error.
void assign_groups(const ModelFile& model, ir::Module& module, Diag& diag);
// Puts what makes an update differ from the big batch's (model.inexact, then `layers`) into the settings for
// the plan; with train.require = "exact" each is an error.
void judge_equivalence(const ModelFile& model, const std::vector<Inexact>& layers, ir::Attrs& settings,
                       Diag& diag);

}  // namespace gacc::frontend
