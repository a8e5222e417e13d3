// The machine as kernel emitters see it: arguments, instructions, and the schedule, i.e. how rows, columns and parts
// are walked and how partial results of a row are brought together. The host's target walks vectors of lanes in
// loops; a GPU's is one thread of many. Kernels themselves (kernels.cpp) are written once.
#pragma once
#include <functional>
#include <memory>

#include "codegen/emit/half_values.h"
#include "codegen/emit/math.h"
#include "kernels/program.h"

namespace llvm {
class TargetMachine;
}

namespace gacc::codegen {

using namespace kernels;

// A place where formulas are evaluated: `lanes` neighbouring columns of one row.
struct Point {
  Value* row = nullptr;     // index type
  Value* column = nullptr;  // of the first lane
  Value* mask = nullptr;    // which lanes exist; null: all
  unsigned lanes = 1;
  int turn = -1;  // the number of the thread's vector, of those that it keeps in registers (Body::held)
};

struct Reduction {
  ir::Combine how;
  llvm::Type* type;  // float or i32
};

class Target {
 public:
  Target(llvm::Module& module, const Body& body, std::unique_ptr<const Instructions> has);
  virtual ~Target() = default;

  using OnRow = std::function<void(Value* row)>;
  using OnPoint = std::function<void(const Point&)>;
  using Terms = std::vector<Value*>;  // one for each reduction
  using OnTerms = std::function<Terms(const Point&)>;

  // The function's prologue and end. Between them `operand` and `extent` hold.
  virtual void begin(const std::string& name) = 0;
  void end() { b.CreateRetVoid(); }

  // Every point of the domain that this call owns; `on_row` comes before the points of each row.
  virtual void points(const OnRow& on_row, const OnPoint& on_point) = 0;
  // Every row it owns.
  virtual void rows(const OnRow& on_row) = 0;
  // Every block of columns that this call owns, in its part of the rows: up to 4 points side by side (rows
  // are not set), and of the part every `step`th row from `first` on, `at_once` of them read before any is
  // stored. on_block gives each point's sums, one after the other; on_sums gets those of whole parts, for
  // lanes that stand at `index` of a result.
  struct Columns {
    std::vector<Point> points;
    Value *first, *last, *step;
    int at_once = 1;
  };
  using OnColumns = std::function<std::vector<Value*>(const Columns&)>;
  using OnSums = std::function<void(const Point&, Value* index, const Terms&)>;
  virtual void column_blocks(const std::vector<Reduction>& reductions, const OnColumns& on_block,
                             const OnSums& on_sums) = 0;
  // Every item it owns, one after the other (host) or a thread each (device). extents[0] is their number.
  virtual void items(const std::function<void(Value* item)>& on_item) = 0;
  // Every part it owns (total_reduce).
  virtual void parts(const std::function<void(Value* part)>& on_part) = 0;
  // Combines what on_point returns over columns [low, high) of `row`, in an order that depends only on the
  // range. The results are scalars, known to everybody who works on this row or part. Without reductions it
  // is just the walk.
  Terms reduce(Value* row, Value* low, Value* high, const std::vector<Reduction>& reductions,
               const OnTerms& on_point);
  // The same over all columns of rows [first, last).
  Terms reduce_rows(Value* first, Value* last, const std::vector<Reduction>& reductions, const OnRow& on_row,
                    const OnTerms& on_point);
  // Returns the rows (flat: elements) of a part among `count`: the first, and the one behind the last.
  std::pair<Value*, Value*> part_rows(Value* part, Value* count);
  // Done once for the row or part: stores of scalars.
  virtual void once(const std::function<void()>& store) = 0;

  // for (i = low; i < high; i += step) carried = body(i, carried). Comparisons are unsigned on indices >= 0.
  using Carried = std::vector<Value*>;
  Carried loop(Value* low, Value* high, Value* step, Carried carried,
               const std::function<Carried(Value*, const Carried&)>& body);
  // for (i = low; i < high; i += step) body(i)
  void each(Value* low, Value* high, Value* step, const std::function<void(Value*)>& body) {
    loop(low, high, step, {}, [&](Value* i, const Carried&) { return body(i), Carried{}; });
  }
  // `condition` null: always.
  void branch(Value* condition, const std::function<void()>& then);
  // Both sides give values of the same types.
  Carried either(Value* condition, const std::function<Carried()>& yes, const std::function<Carried()>& no);

  // Slots of half type are read as f32, and written rounded to nearest even. Those in blocks are read as f32, lanes of
  // one block.
  Value* load(int32_t slot, Value* index, const Point& point);                   // lanes side by side
  Value* load_one(int32_t slot, Value* index) { return load(slot, index, {}); }  // a scalar
  // The same in two steps: lanes as they lie in memory, and these as values in registers.
  Value* load_bits(int32_t slot, Value* index, const Point& point);
  Value* widen(int32_t slot, Value* bits);
  // Returns the same lanes of half types, an even number, as if they had been loaded again: what is computed with
  // them is computed again, too, instead of waiting in registers of 32 bits.
  Value* anew(Value* lanes);
  // Host, bf16: the neighbours at index and index + 1, each in all lanes.
  std::vector<Value*> load_pair(int32_t slot, Value* index, unsigned lanes);
  // `count` elements of every lane, all side by side: element j of a lane is at index + lane * count + j.
  std::vector<Value*> load_runs(int32_t slot, Value* index, unsigned count, const Point& point);
  void store_runs(int32_t slot, Value* index, const std::vector<Value*>& values, const Point& point);
  // Elements base + offset: `base` one index, `offset` an i32 in every lane (or one), not negative where
  // `mask` holds. A lane without mask reads nothing and is 0; mask may be null.
  Value* gather(int32_t slot, Value* base, Value* offset, Value* mask);
  void store(int32_t slot, Value* index, Value* value, const Point& point);
  void store_one(int32_t slot, Value* index, Value* value) { store(slot, index, value, {}); }

  Value* index(int64_t value) { return llvm::ConstantInt::get(index_type, static_cast<uint64_t>(value)); }
  // The low 32 bits of an index.
  Value* word(Value* index) {
    return b.CreateTrunc(b.CreateZExtOrTrunc(index, b.getInt64Ty()), b.getInt32Ty());
  }
  // The smaller and the larger of two unsigned numbers.
  Value* smaller(Value* x, Value* y) { return b.CreateSelect(b.CreateICmpULT(x, y), x, y); }
  Value* larger(Value* x, Value* y) { return b.CreateSelect(b.CreateICmpUGT(x, y), x, y); }
  // Emits a hand-written kernel by_tiles, between begin and end; false: this target has none for the op.
  virtual bool emit_by_tiles() { return false; }
  const Threads& threads() const { return *instructions->threads(); }  // of a GPU

  // Returns the value as a result of this type holds it: of half types the nearest one, as f32.
  // A block rounds its numbers together, when it is stored.
  Value* round(Value* value, ir::DType dtype) {
    return is_narrow(dtype) && !ir::is_blocks(dtype) ? half.round(value, dtype) : value;
  }

  // Returns the type of values in registers: float for all reals.
  llvm::Type* type_of(ir::DType dtype) {
    return ir::is_float(dtype) ? b.getFloatTy() : static_cast<llvm::Type*>(b.getInt32Ty());
  }
  Value* splat(Value* value, unsigned lanes);
  Value* iota(llvm::Type* element, unsigned lanes);  // 0, 1, 2, ... (0 for one lane)
  Value* real(double value, unsigned lanes = 1) {
    return splat(llvm::ConstantFP::get(b.getFloatTy(), value), lanes);
  }
  Value* integer(int64_t value, unsigned lanes = 1) {
    return splat(b.getInt32(static_cast<uint32_t>(value)), lanes);
  }
  // Returns the columns of the point's lanes, i32.
  Value* columns_of(const Point& point) {
    return b.CreateAdd(splat(word(point.column), point.lanes), iota(b.getInt32Ty(), point.lanes));
  }
  Value* row_count() { return extents[0]; }
  Value* column_count() { return extents[1]; }

  llvm::Module& module;
  const Body& body;
  llvm::IRBuilder<> b;
  const std::unique_ptr<const Instructions> instructions;
  Math math;
  Half half;
  llvm::Function* function = nullptr;
  llvm::Type* index_type = nullptr;
  std::vector<Value*> operands;   // addresses
  std::vector<Value*> extents;    // index type
  std::vector<Value*> constants;  // lifted constants: the extents' low 32 bits, null for the others

 protected:
  // The steps of a reduction: accumulators at the start (each reduction's, `copies` times), one walk over
  // columns that adds to them, and the way from accumulators to scalars.
  Carried start(const std::vector<Reduction>& reductions);
  virtual Carried walk(Value* row, Value* low, Value* high, const std::vector<Reduction>& reductions,
                       Carried accumulators, const OnTerms& on_point) = 0;
  virtual Value* across_threads(ir::Combine, Value* scalar) { return scalar; }
  Terms finish(const std::vector<Reduction>& reductions, Carried accumulators);
  // One point's terms onto the first accumulator of each reduction; lanes that its mask excludes stay as they
  // are.
  void accumulate(const std::vector<Reduction>& reductions, const Terms& terms, const Point& point,
                  Carried& accumulators);

  // The lanes of `point`, each `count` times.
  Point spread(const Point& point, unsigned count);
  llvm::Type* memory_type(ir::DType dtype) {
    return is_narrow(dtype) ? b.getIntNTy(8 * static_cast<unsigned>(ir::dtype_bytes(dtype))) : type_of(dtype);
  }
  virtual llvm::Align alignment(const Point& point, ir::DType dtype) const = 0;
  unsigned lanes_ = 1, copies_ = 1;  // of accumulators
  // Reduces the lanes of a vector pairwise: halves onto halves.
  Value* across_lanes(ir::Combine how, Value* vector);
};

// Emits body into target.module as the function `name`. False and a sentence in `problem` for a hand-written kernel
// without an emitter, which is a bug.
[[nodiscard]] bool emit_kernel(Target& target, const std::string& name, std::string& problem);

// Checks the module and tidies its functions: shares equal expressions, moves invariant ones out of loops.
// False and a sentence in `problem` when the module is broken, which is a bug of an emitter.
bool optimize(llvm::Module& module, llvm::TargetMachine* machine, std::string& problem);

}  // namespace gacc::codegen
