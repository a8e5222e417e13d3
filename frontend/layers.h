// Layers to ops: walks the layer list, resolves names by scope, checks shapes, and appends the forward pass
// to a region. What a type of layer does is in frontend/layers/.
#pragma once
#include <map>

#include "frontend/frontend.h"
#include "frontend/model_file.h"
#include "frontend/parameters.h"

namespace gacc::frontend {

// A value on its way between layers. Without one, its layer is wrong and reported, and nothing more is reported about
// its users.
struct Flow {
  std::optional<ir::ValueId> value{};
  std::string label{};  // "`fc1`", "input `image`": who gives it, for messages
  Location at{};        // where that is written
  std::string defined_here() const { return label + " is defined here"; }  // the note at `at`
};

// The output of a layer: nothing when something about it is wrong, and reported.
struct Layer {
  Flow output{};
  std::optional<ir::BufferId> weight{};  // what `tied` shares
};

// The reason why an update with this batch_norm differs from the one big batch's.
Inexact inexact_batch_norm(const std::string& name, const Location& at);

// Returns the `offset` of a norm, a number of its op.
inline double offset_of(const Values& norm) { return static_cast<double>(norm.integer("offset")); }

// [B, extents of one sample].
ir::Shape with_batch(const ir::Shape& per_sample);

class LayerLowering {
 public:
  LayerLowering(ir::Builder builder, Parameters& parameters, const ModelFile& model);

  ir::Builder b;  // of the region
  Parameters& parameters;
  const ModelFile& model;

  // Makes the inputs of the region and lowers all layers; gives the last one's output.
  Flow run();
  // Takes the inputs that the region has.
  void take_inputs();
  // The output of a top-level layer or input, for the loss. Reports unknown names.
  Flow output(const Node& name) const { return resolve(name, top_); }
  const Flow* input(std::string_view name) const;
  const Flow* need_input(const Node& name) const;  // null, and reported, where there is none of that name
  // The documents of a window, as the input says that `attention.documents` names; null: no layer names one, or it is
  // wrong, and reported.
  struct Documents {
    ir::ValueId given, numbers, positions, spans;
    int64_t length;
  };
  const Documents* documents() const { return documents_ ? &*documents_ : nullptr; }
  ir::Type type(const Flow& flow) const { return b.type(*flow.value); }
  // Returns the number of rows of the tables that an input's numbers index; nothing when it indexes none.
  std::optional<int64_t> rows_of(std::string_view input) const;
  // The shape per sample, for messages: "[784]".
  std::string shape_of(const Flow& flow) const;
  // The reasons that an update differs from the one big batch's.
  const std::vector<Inexact>& inexact() const { return inexact_; }
  // All layers but sequential blocks, in the order in which they run.
  std::vector<LayerSummary> summary();

 private:
  friend class LayerContext;
  struct Scope {
    const Scope* parent = nullptr;
    std::string prefix{};                  // "block.0."
    bool frozen = false, trained = false;  // as a block around it says
    bool keep_f32 = false;                 // kept out of half precision
    const std::vector<LayerSpec>* specs = nullptr;
    std::map<std::string, Layer, std::less<>> layers{};
  };

  void find_documents(const std::vector<LayerSpec>& specs, const Node*& named);
  Flow list(const std::vector<LayerSpec>& specs, Flow x, Scope& scope);
  Layer lower(const LayerSpec& spec, std::vector<Flow> inputs, const Scope& scope);
  int32_t segment_for(const LayerSpec& spec);
  void take(const LayerSpec& spec, const Flow& x, ir::DType dtype) const;
  void check_size(const LayerSpec& spec, const Flow& output) const;
  void check_products(const LayerSpec& spec, size_t first_op);
  void check_adapted() const;

  // Each reports what it does not find.
  static const Layer* find(std::string_view name, const Scope& scope);
  Flow resolve(const Node& name, const Scope& scope) const;
  ir::BufferId tied_weight(const Node& name, const Scope& scope) const;
  void unknown(const Node& name, const Scope& scope, bool with_inputs) const;

  Diag& diag_;
  Scope top_;
  std::map<std::string, Flow, std::less<>> inputs_;
  std::optional<Documents> documents_;
  std::map<std::string, int64_t, std::less<>> table_rows_;  // by input: of the smallest table
  std::vector<Inexact> inexact_ = model.inexact;
  struct Lowered {
    const LayerSpec* spec;
    std::string path;
    ir::ValueId output;
  };
  std::vector<Lowered> done_;
  int64_t lowered_ = 0;
  int32_t units_ = 0;              // of recompute, so far
  int32_t units_per_segment_ = 1;  // more than one under policy sqrt
};

// The context in which the code of a layer or loss runs. It gives up on an error by an exception:
// `throw Refused(error(...).note(...))`.
struct LoweringContext {
  LayerLowering& layers;
  const Values& keys;
  const Flow input;
  ir::Builder& b = layers.b;
  const ModelFile& model = layers.model;

  ir::ValueId x() const { return *input.value; }
  ir::Shape shape() const { return b.type(x()).shape; }  // [B, ..]
  std::string shape_text() const { return layers.shape_of(input); }

  // The attributes of an op that are keys, and others.
  ir::Attrs attrs_of(std::string_view op, ir::Attrs others = {}) const;

  template <class... A>
  Report& error(Kind kind, const Location& at, fmt::format_string<A...> format, A&&... args) {
    return b.diag().error(kind, at, format, std::forward<A>(args)...);
  }
  // Refuses it, and says where its input is defined.
  template <class... A>
  [[noreturn]] void refuse(Kind kind, const Location& at, fmt::format_string<A...> format, A&&... args) {
    throw Refused(error(kind, at, format, std::forward<A>(args)...).note(input.at, input.defined_here()));
  }
};

// One layer while it is lowered: what the code of a layer type works with.
class LayerContext : public LoweringContext {
 public:
  LayerContext(LayerLowering& all, const LayerSpec& spec, std::vector<Flow> inputs,
               const LayerLowering::Scope& scope)
      : LoweringContext{all, spec.keys, inputs.front()},
        spec(spec),
        inputs(std::move(inputs)),
        path(scope.prefix + spec.name),
        scope_(scope) {}

  const LayerSpec& spec;
  const std::vector<Flow> inputs;
  const std::string path;  // "h.3.mlp.fc": the name of its output, and what its parameters' names begin with

  bool training() const { return b.region().kind == ir::RegionKind::step; }

  // Refuses an input whose samples are not f32, have no axis, are no image, or are not [positions, features].
  void need_floats() { layers.take(spec, input, ir::DType::f32); }
  void need_last_axis();
  void need_image() { need_axes(4, "images [C,H,W],"); }
  void need_positions() { need_axes(3, "positions and features, two axes;"); }
  // Refuses channels that do not divide into that many groups.
  void need_groups(int64_t channels, int64_t groups);

  // The parameter PATH.suffix, which `init` or, if its name ends in "bias", `bias_init` starts. `at`: the key
  // that sets its size, where there is one.
  ir::BufferId parameter(std::string_view suffix, ir::Shape shape, Parameters::Standard standard,
                         Fan fan = {}, std::string_view at = "");
  // The weight that a layer shares.
  ir::BufferId tied_weight(const Node& name) { return layers.tied_weight(name, scope_); }
  // x @ weight^T + bias, weight [out, in], named VALUE; parameters PATH + prefix + "weight" and "bias".
  ir::ValueId projection(const std::string& prefix, const std::string& value, ir::ValueId x, int64_t out,
                         bool biased);
  // Returns the table of the layer's adapters: its own key, or [lora]; null for none.
  const Values* adapting() const;
  // alpha / rank * x A^T B^T [.., out], with the parameters NAME.lora_A.weight and NAME.lora_B.weight: what is
  // added to the product with the rows of `weight` from `begin` on.
  ir::ValueId adapter(const Values& by, const std::string& name, ir::ValueId x, int64_t out,
                      std::string weight, int64_t begin = 0);

  // The activation that a key names, of x, as PATH.
  ir::ValueId activate(ir::ValueId x, std::string_view key = "activation");

  // The reasons that an update differs from the one big batch's.
  void inexact(Inexact what) { layers.inexact_.push_back(std::move(what)); }
  // The input that a layer takes numbers from chooses rows of a table: refused when it has more numbers.
  void choose_rows(int64_t rows, const Location& at);

  // Blocks: lowers the layers of the body from `x` on, their names under `prefix`; of a repeated one that
  // copy.
  Flow body(Flow x, const std::string& prefix, int64_t copy = 0);
  // Returns true if the layer's parameters are trained; of a repeated block, that copy's.
  bool trains(int64_t copy = 0) const;
  // Blocks: what is made from here on is a unit of recompute of its own, if the policy has such.
  void open_segment() { b.segment = layers.segment_for(spec); }

 private:
  void need_axes(size_t axes, std::string_view what);  // [B, ..]

  const LayerLowering::Scope& scope_;
};

}  // namespace gacc::frontend
