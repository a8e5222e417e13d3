// The op table. ops.def names the ops; ops/<family>.cpp defines one OpInfo each, which says all that the op
// means. Passes and codegen ask the table and never compare names: an op of the list is `&op_add`.
#pragma once
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/module.h"
#include "ir/scalar.h"

namespace gacc::ir {

class GradBuilder;
class Builder;
class EvalView;

// The values of the forward op that its gradient reads; liveness and recompute follow from it.
enum class Saves : uint8_t { nothing, operands, result };
// half: operands and result in half precision. f32: reads what there is, half or f32, and gives f32. follow:
// as its operands are: half where all of them are, else f32. (docs/ir.md, half precision)
enum class Precision : uint8_t { half, f32, follow };
// The ops that recompute may clone.
enum class Recompute : uint8_t { cheap, costly, never };
// The execution of an op; codegen knows all of them but composite (domains: ir/kernel.h).
//   pointwise     one formula per element of the broadcast domain
//   row_reduce    [.., C] -> [.., 1] over the last axis
//   column_reduce [.., C] -> [C] over all other axes
//   total_reduce  any -> []
//   gemm          op(A) @ op(B)
//   alias         the result is its operand's storage under another shape; no launch
//   composite     no lowering of its own: `expand` writes it in the other kinds
//   handwritten   a loop nest written by hand (kernels/handwritten.h, codegen/emit/handwritten/)
//   copy          a copy between the arena and the host's memory; no code
enum class Lowering : uint8_t {
  pointwise,
  row_reduce,
  column_reduce,
  total_reduce,
  gemm,
  alias,
  composite,
  handwritten,
  copy
};
enum class Combine : uint8_t { sum, max, min };  // of the reduce kinds; max and min propagate NaN

struct AttrSpec {
  std::string_view name;
  Attr fallback;  // the default, whose alternative is also the attribute's type
};

struct Cost {
  int64_t flops = 0;
  int64_t bytes = 0;  // moved if nothing were fused
};

// An op in its place, for everything that only looks.
struct OpView {
  const Module& module;
  const Region& region;
  const Op& op;
  Type operand(size_t i) const { return operand_type(module, region, op.operands[i]); }
  const Type& result(size_t i = 0) const { return region[op.results[i]].type; }
  const Attr& attr(std::string_view name) const;  // the op's, else the table's default
  bool flag(std::string_view name) const { return std::get<bool>(attr(name)); }
  int64_t integer(std::string_view name) const { return std::get<int64_t>(attr(name)); }
  const std::vector<int64_t>& integers(std::string_view name) const {
    return std::get<std::vector<int64_t>>(attr(name));
  }
  double real(std::string_view name) const { return std::get<double>(attr(name)); }
  const std::vector<double>& reals(std::string_view name) const {
    return std::get<std::vector<double>>(attr(name));
  }
  const std::string& text(std::string_view name) const { return std::get<std::string>(attr(name)); }
};

// Writes the formula of a pointwise op: reads operand elements and attributes, gives one result per output.
// The outputs are the op's written buffers in operand order, then its result values in order.
struct FormulaView {
  ScalarRecorder& recorder;
  const OpView& op;
  Scalar operand(int i) const;  // an input, real or integer by the operand's dtype; a number is a constant
  void result(Scalar value) const;  // the next output; its kind must be that of the output's dtype
};

using Types = std::vector<Type>;  // of an op's results

// A set of operands by number, as bits.
constexpr uint32_t operand_bits(std::initializer_list<unsigned> operands) {
  uint32_t bits = 0;
  for (const unsigned operand : operands) bits |= 1U << operand;
  return bits;
}

struct OpInfo {
  std::string_view name, summary;
  int operands = 1;              // exact count; -n: n or more
  uint32_t writes = 0;           // operand_bits: buffers that this op writes (it may read them as well)
  int results = writes ? 0 : 1;  // what writes has none, is never cloned, and ends the flow of gradients
  uint32_t discards = 0;         // operand_bits: those of `writes` that are not read
  bool is_written(size_t operand) const { return (writes >> operand & 1U) != 0; }
  bool is_read(size_t operand) const { return (discards >> operand & 1U) == 0; }
  bool keeps_f32(size_t operand) const { return (keeps >> operand & 1U) != 0; }
  bool takes_blocks(size_t operand) const { return (blocks >> operand & 1U) != 0; }
  uint32_t keeps = 0;   // operand_bits: stay f32 where the op computes in half precision (statistics)
  uint32_t blocks = 0;  // operand_bits: may have a quantised type (R31)
  bool copies = false;  // every element of the result is one of the operands', as it was
  // Composite and handwritten: what the results have at an index of their first two axes follows from what the
  // operands have there, where those axes are theirs (ir/positions.h).
  bool local = false;
  // Handwritten: the result is operand 0 but for some elements, and lies in its place. So operand 0 must die there.
  bool in_place = false;
  // Ops that take rows or classes by number: the operand with the numbers, which are 0 .. numbered - 1.
  // Kernels do not check them; they come from the data, whose range the runtime checks (R17).
  int numbers = -1;
  int64_t (*numbered)(const OpView& op) = nullptr;
  std::vector<AttrSpec> attrs{};
  Types (*infer)(const OpView& op) = nullptr;  // called by infer_types; throws WrongOp (ir/ops/common.h)
  Combine combine = Combine::sum;              // reduce kinds
  void (*formula)(const FormulaView& view) = nullptr;  // pointwise kinds
  // Unary pointwise ops: dx from x (when saves == operands) or y (when saves == result), and dy. The table
  // then also knows the op `NAME.grad` with operands (saved, dy); see find_op.
  Scalar (*derivative)(Scalar saved, Scalar dy, const OpView& op) = nullptr;
  void (*gradient)(GradBuilder& g) = nullptr;  // every other differentiable op: written in ops
  // Composite: makes the same results in other ops and returns them, one operand per result. The new values
  // take over the names of the old ones, which the caller then removes. `op` must not lie in the region's op
  // list.
  std::vector<Operand> (*expand)(Builder& b, const Op& op) = nullptr;
  Lowering lowering = formula ? Lowering::pointwise : expand ? Lowering::composite : Lowering::handwritten;
  void (*reference)(EvalView& view) = nullptr;  // meaning in double; pointwise and reduce kinds need none
  Cost (*cost)(const OpView& op) = nullptr;     // null: one flop per element, all operands and results moved
  Saves saves = Saves::nothing;
  Precision precision = Precision::follow;
  Recompute recompute = writes ? Recompute::never : Recompute::cheap;
  bool activation = false;  // of one operand; model files call it by its name
  // Pointwise ops that set a parameter: the table then also knows NAME.half, which does the same and writes
  // the new operand 0 to a further buffer as well, of half type, its last operand.
  bool half_copy = false;
  bool accumulates = false;             // NAME.acc: adds what NAME computes to operand 0, a buffer
  const OpInfo* gradient_of = nullptr;  // NAME.grad: computes an operand's gradient of this op
  const OpInfo* half_of = nullptr;      // set in a NAME.half that the table made from NAME
  bool takes_operands(size_t count) const;
  std::string operand_count_text() const;  // "2" or "2 or more"
  // Returns false if gradients do not flow through it (of targets, counters, updates).
  bool has_gradient() const { return derivative != nullptr || gradient != nullptr; }
};

#define X(identifier, name) extern const OpInfo op_##identifier;
#include "ir/ops.def"

const std::vector<const OpInfo*>& all_ops();   // ops.def order, each followed by its NAME.grad and NAME.half
const OpInfo* find_op(std::string_view name);  // null when there is none
// Returns the op that adds what this one computes to a buffer; null when there is none.
const OpInfo* accumulating(const OpInfo& info);
// Returns the op's own attribute or the table's default; null when the op has no such attribute.
const Attr* find_attr(const Op& op, std::string_view name);
// Returns true if the op has a flag of that name, and it is set.
bool has_flag(const Op& op, std::string_view name);
// Lists the buffers that the op writes, in operand order.
std::vector<BufferId> written(const Op& op);

// The types of an op's results as its operands and attributes give them; or a diagnostic at op.at and nothing.
std::optional<Types> infer_types(const OpView& op, Diag& diag);

// The shape a pointwise op runs over: its result's, or that of the first buffer it writes.
const Shape& pointwise_domain(const OpView& op);
// The formula of a pointwise op in its place, with its attributes and numbers as constants.
ScalarProgram record(const OpView& op);

}  // namespace gacc::ir
