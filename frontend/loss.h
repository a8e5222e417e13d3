// The loss of a region: the sum over its counted elements, and their count.
#pragma once
#include "frontend/layers.h"

namespace gacc::frontend {

// The metrics that the runtime makes of all answers at once, and the most classes of a confusion matrix.
inline constexpr std::string_view judged_metrics[] = {"f1", "auc", "balanced_accuracy"};
inline constexpr int64_t kMostConfused = 20;

// Appends loss and count (and, with `metrics`, the metrics) after the forward pass whose last output is
// `output`, and yields them. Adds what the runtime must know of the target to the module's settings.
void lower_loss(LayerLowering& layers, Flow output, bool metrics);

// Makes `measure` of `eval`: the part behind the value `output`, which predict yields, too.
void build_measure(ir::Module& module, ir::ValueId output);

// One loss while it is lowered: what the code of a loss works with. The division by the count of the whole
// window is update's.
struct LossContext : LoweringContext {
  Flow target;
  bool metrics;  // whether they are measured in this region

  std::string_view name() const { return model.loss.type->schema.name; }

  // A loss of two arrays of the same shape: `each` gives the loss of each element of output and target.
  using Each = ir::ValueId (*)(LossContext& loss, const ir::Operand& x, const ir::Operand& wanted);
  void elements(Each each);

  // Yields the sums of both as loss and count.
  void sum(ir::ValueId each, ir::ValueId counted);
  // Adds the sum of `each` as a metric, which the runtime divides.
  void add_metric(const std::string& name, ir::Operand each);
  // The target under another shape.
  ir::Operand reshaped(std::string_view suffix, const ir::Shape& shape);
  // 1 where a position belongs to a document, else 0, for values of this shape; nothing where none has positions of
  // documents.
  std::optional<ir::Operand> in_document(const ir::Shape& shape);
  // The value, or 0 where the position belongs to no document.
  ir::ValueId counted(const std::string& name, ir::ValueId each);
  // f32 state that the runtime fills with the setting of its name before `init`.
  ir::BufferId given(const std::string& name, const std::vector<double>& values, const Location& at);
  // The same of numbers that the runtime learns, as the setting says.
  ir::BufferId given(const std::string& name, const ir::Attr& setting, const ir::Type& type,
                     const Location& at);
  // Refuses a window whose count is no i32, a key that does not have one number for each of `columns`, metrics
  // that cannot be measured beside this loss.
  void need_count(int64_t per_sample);
  void need_weights(std::string_view key, int64_t columns);
  void need_metrics();

  void measure(const std::string& metric, const ir::Operand& x, const ir::Operand& wanted);
  // Returns the first metric of the model that no sums over samples make; null where there is none.
  const Node* judged() const;
  // Yields the answers that the runtime judges (runtime/session/judgement.h).
  void yield_answers(const ir::Operand& what);
};

}  // namespace gacc::frontend
