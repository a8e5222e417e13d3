// Builders: the way to add ops. Types are inferred, names derived and locations carried along.
#pragma once
#include <initializer_list>

#include "ir/op_info.h"

namespace gacc::ir {

// Appends ops to a region (or inserts before `at`, when given). A failed inference is reported to `diag` and
// yields a value of type f32[], so that building goes on and all errors are found in one run.
class Builder {
 public:
  Builder(Module& module, Region& region, Diag& diag)
      : origin(natural_origin(region.kind)), module_(module), region_(region), diag_(diag) {}

  // Ops made from here on stand for that op, or beside it: they have its place, segment, precision and
  // origin. The one way to make an op from an op.
  Builder& like(const Op& op) {
    location = op.at;
    segment = op.segment;
    keep_f32 = op.keep_f32;
    origin = op.origin;
    return *this;
  }
  // Ops made from here on are part of that op's gradient, in no segment.
  Builder& gradient_of(const Op& op) {
    location = op.at;
    segment = -1;
    origin = Origin::gradient;
    return *this;
  }
  // Fields of the ops made from here on: their place in the model file, their segment (-1: none), ...
  Location location{};
  int32_t segment = -1;
  bool keep_f32 = false;          // ... that they are kept out of half precision (Op::keep_f32), ...
  Origin origin;                  // ... why they are there: the region's own, unless said, ...
  std::optional<Operand> when{};  // ... and their predicate.

  // One result. `name` is the wanted value name; `attrs` are dropped where they equal the default.
  ValueId make(std::string_view op, std::string name, std::vector<Operand> operands, Attrs attrs = {});
  // Any number of results, one name each.
  std::vector<ValueId> make_n(std::string_view op, std::vector<std::string> names,
                              std::vector<Operand> operands, Attrs attrs = {});
  // x under another shape of as many elements; x itself where it has that shape.
  Operand reshaped(std::string name, const Operand& x, const Shape& shape);
  // No result: the op only writes buffers.
  void effect(std::string_view op, std::vector<Operand> operands, Attrs attrs = {});
  void yield(Yield what) { region_.yields.push_back(std::move(what)); }

  Type type(const Operand& operand) const { return operand_type(module_, region_, operand); }
  const std::string& name(ValueId value) const { return region_[value].name; }
  Module& module() { return module_; }
  Region& region() { return region_; }
  Diag& diag() { return diag_; }
  // The index into region.ops at which new ops go; none: the end.
  std::optional<size_t> at{};

 private:
  Module& module_;
  Region& region_;
  Diag& diag_;
};

// The argument of OpInfo::gradient: the forward op, the gradients of its results, and a place to add those of its
// operands. Contributions to one operand are summed, by `add` within the op and by autodiff over ops.
class GradBuilder {
 public:
  // Implemented by passes/autodiff. d_results[i] is empty when nothing depends on result i.
  GradBuilder(Builder& builder, const Op& op, std::vector<std::optional<Operand>> d_results)
      : b(builder), op_(op), d_results_(std::move(d_results)), contributions_(op.operands.size()) {}

  Builder& b;
  const Op& op() const { return op_; }
  OpView view() { return {b.module(), b.region(), op_}; }
  const Operand& operand(size_t i) const { return op_.operands[i]; }
  Operand result(size_t i = 0) const { return op_.results[i]; }
  const std::optional<Operand>& d_result(size_t i = 0) const { return d_results_[i]; }
  // Returns true if anything wants this operand's gradient.
  bool wanted(size_t i) const { return wanted_.empty() || wanted_[i]; }
  void want(std::vector<bool> wanted) { wanted_ = std::move(wanted); }
  // A name for an intermediate of operand i's gradient: "d.fc1" for operand %fc1, "d.fc1.weight" for
  // @fc1.weight.
  std::string d_name(size_t i) const;
  // d operand(i) += contribution. Its shape is operand i's; or the result's, where operand i was broadcast:
  // then it is summed down (column_sum, row_sum or total_sum); or a smaller one that broadcasts to it: then
  // it is repeated.
  void add(size_t i, Operand contribution);
  // Adds the op's gradient by the table: NAME.grad of its derivative, or OpInfo::gradient. False, with a
  // diagnostic, when it has none.
  [[nodiscard]] bool run();
  const std::vector<std::optional<Operand>>& contributions() const { return contributions_; }

 private:
  const Op& op_;
  std::vector<std::optional<Operand>> d_results_;
  std::vector<std::optional<Operand>> contributions_;
  std::vector<bool> wanted_;
};

}  // namespace gacc::ir
