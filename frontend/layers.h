// Layers to ops: walks the layer list, resolves names by scope, checks shapes, and appends the forward pass
// to a region.
#pragma once
#include <map>

#include "frontend/frontend.h"
#include "frontend/parameters.h"

namespace gacc::frontend {

// What flows between layers. Without a value it stands for the output of something that is wrong and
// reported: nothing is said about what uses it.
struct Flow {
  std::optional<ir::ValueId> value{};
  std::string label{};  // "`fc1`", "input `image`": who gives it, for messages
  Location at{};        // where that is written
  std::string defined_here() const { return label + " is defined here"; }  // the note at `at`
};

// [B, extents of one sample].
ir::Shape with_batch(const ir::Shape& per_sample);

class LayerLowering {
 public:
  LayerLowering(ir::Builder& builder, Parameters& parameters, const ModelFile& model);

  // Makes the inputs of the region and lowers all layers; gives the last one's output.
  Flow run();
  // A top-level layer or input, for the loss. Reports unknown names.
  std::optional<Flow> find_output(const Named& name) const;
  const Flow* input(std::string_view name) const;
  // How many rows the tables have that an input's numbers choose from; nothing when it goes into none.
  std::optional<int64_t> rows_of(std::string_view input) const;
  // The shape per sample, for messages: "[784]".
  std::string shape_of(const Flow& flow) const;
  // What in the layers makes an update differ from the one big batch's.
  const std::vector<Inexact>& inexact() const { return inexact_; }
  // All layers but sequential blocks, in the order in which they run.
  std::vector<LayerSummary> summary() const;

 private:
  struct Layer {  // what a scope knows of a layer that has been lowered
    Flow output{};
    std::optional<ir::BufferId> weight{};
  };
  struct Scope {
    const Scope* parent = nullptr;
    std::string prefix{};  // "block.0."
    bool trainable = true;
    bool full = false;  // kept out of half precision
    const std::vector<LayerSpec>* specs = nullptr;
    std::map<std::string, Layer, std::less<>> layers{};
  };

  // layers.cpp
  Flow list(const std::vector<LayerSpec>& specs, Flow x, Scope& scope);
  Layer lower(const LayerSpec& spec, std::vector<Flow> inputs, const Scope& scope);
  Flow sequential(const LayerSpec& spec, Flow x, const Scope& scope);
  Flow residual(const LayerSpec& spec, const Flow& x, const Scope& scope);
  int32_t segment_for(const LayerSpec& spec);
  bool takes_floats(const LayerSpec& spec, const Flow& x) const;
  bool has_last_axis(const LayerSpec& spec, const Flow& x) const;
  bool within_limits(const LayerSpec& spec, const Flow& output) const;
  bool products_fit(const LayerSpec& spec, size_t first_op) const;
  const ir::Type& type(const Flow& flow) const;
  Flow wrong() const { return {}; }

  // layers_names.cpp; each reports what it does not find
  Flow resolve(const Named& name, const Scope& scope) const;
  std::optional<ir::BufferId> tied_weight(const LayerSpec& spec, const Scope& scope) const;
  void unknown(const Named& name, const Scope& scope, bool with_inputs) const;

  // layers_dense.cpp
  Layer linear(const LayerSpec& spec, const Flow& x, const Scope& scope);
  Layer layer_norm(const LayerSpec& spec, const Flow& x, const Scope& scope);
  Layer rms_norm(const LayerSpec& spec, const Flow& x, const Scope& scope);
  ir::ValueId activation(const LayerSpec& spec, const std::string& name, ir::ValueId x);
  Flow elementwise(const LayerSpec& spec, const std::vector<Flow>& inputs, const Scope& scope);

  // layers_layout.cpp
  Flow reshape(const LayerSpec& spec, const Flow& x, const Scope& scope);
  Flow permute(const LayerSpec& spec, const Flow& x, const Scope& scope);
  Flow concat(const LayerSpec& spec, const std::vector<Flow>& inputs, const Scope& scope);

  // layers_sequence.cpp
  Flow dropout(const LayerSpec& spec, const Flow& x, const Scope& scope);
  Layer attention(const LayerSpec& spec, const Flow& x, const Scope& scope);
  // Whether a layer draws random numbers here: p > 0, and not in eval.
  bool drops(const LayerSpec& spec) const { return spec.p > 0 && b_.region().kind != ir::RegionKind::eval; }
  // NAME.weight [out, in] and NAME.bias [out]: x @ weight^T + bias. `name` is the layer's path or lies below.
  std::optional<ir::ValueId> projection(const LayerSpec& spec, const std::string& name,
                                        const std::string& value, ir::ValueId x, int64_t out,
                                        const Scope& scope);

  // layers_embedding.cpp
  Layer embedding(const LayerSpec& spec, const Flow& tokens, const Scope& scope);
  Layer position_embedding(const LayerSpec& spec, const Flow& x, const Scope& scope);
  bool within_table(const LayerSpec& spec, const Flow& tokens);

  // layers_vision.cpp
  struct Affine {
    ir::BufferId weight, bias;
  };
  Layer conv2d(const LayerSpec& spec, const Flow& x, const Scope& scope);
  Flow pool(const LayerSpec& spec, const Flow& x, const Scope& scope);
  Flow global_pool(const LayerSpec& spec, const Flow& x, const Scope& scope);
  Layer batch_norm(const LayerSpec& spec, const Flow& x, const Scope& scope);
  Layer group_norm(const LayerSpec& spec, const Flow& x, const Scope& scope);
  std::optional<Affine> affine(const LayerSpec& spec, const Flow& x, const Scope& scope);  // [C] each
  bool is_image(const LayerSpec& spec, const Flow& x) const;
  bool window_fits(const LayerSpec& spec, const Flow& x) const;

  ir::Builder& b_;
  Parameters& parameters_;
  const ModelFile& model_;
  Diag& diag_;
  Scope top_;
  std::map<std::string, Flow, std::less<>> inputs_;
  std::map<std::string, int64_t, std::less<>> table_rows_;  // by input: of the smallest table
  std::vector<Inexact> inexact_;
  struct Lowered {
    const LayerSpec* spec;
    std::string path;
    ir::ValueId output;
  };
  std::vector<Lowered> done_;
  int64_t lowered_ = 0;
  bool too_many_ = false;
  int32_t units_ = 0;              // of recompute, so far
  int32_t units_per_segment_ = 1;  // more than one under policy sqrt
};

}  // namespace gacc::frontend
