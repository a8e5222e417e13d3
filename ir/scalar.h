// Scalar formulas: the meaning of one element of a pointwise op, written once with ordinary operators.
// A formula is recorded as a small expression graph; the double reference interprets it, and codegen emits it
// for the GPU and for the host. So the three can differ in rounding only, never in meaning.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace gacc::ir {

// Kinds of a node's value: real (f32 in kernels, double in the reference), integer (i32), truth.
enum class ScalarKind : uint8_t { real, integer, truth };

enum class ScalarOp : uint8_t {
#define GACC_SCALAR(name, arguments, rule, value) name,
#include "ir/scalar_ops.def"
};

struct ScalarNode {
  ScalarOp op;
  ScalarKind kind;
  double value = 0;  // constant, operand index, or elements of a sample
  int32_t args[5] = {-1, -1, -1, -1, -1};
};

// A recorded formula: nodes in evaluation order and the indices of its results.
struct ScalarProgram {
  std::vector<ScalarNode> nodes;
  std::vector<int32_t> results;
};

class ScalarRecorder;

// A handle to a node of the formula being recorded. Numbers convert to constants, which take the kind of what
// they meet; an operation on constants alone is folded.
class Scalar {
 public:
  Scalar(double constant) : constant_(constant) {}  // NOLINT: formulas read like mathematics
  Scalar(ScalarRecorder* recorder, int32_t node) : recorder_(recorder), node_(node) {}
  ScalarRecorder* recorder_ = nullptr;  // null: a constant not yet placed in a formula
  int32_t node_ = -1;
  double constant_ = 0;
};

Scalar operator+(Scalar a, Scalar b);
Scalar operator-(Scalar a, Scalar b);
Scalar operator*(Scalar a, Scalar b);
Scalar operator/(Scalar a, Scalar b);
Scalar operator-(Scalar a);
Scalar operator<(Scalar a, Scalar b);
Scalar operator<=(Scalar a, Scalar b);
Scalar operator>(Scalar a, Scalar b);
Scalar operator==(Scalar a, Scalar b);
Scalar operator!=(Scalar a, Scalar b);
Scalar operator&&(Scalar a, Scalar b);
Scalar operator||(Scalar a, Scalar b);
Scalar abs(Scalar a);
Scalar sqrt(Scalar a);
Scalar exp(Scalar a);
Scalar log(Scalar a);
Scalar tanh(Scalar a);
Scalar erf(Scalar a);
Scalar sin(Scalar a);
Scalar cos(Scalar a);
Scalar floor(Scalar a);
Scalar max(Scalar a, Scalar b);
Scalar min(Scalar a, Scalar b);
Scalar is_finite(Scalar a);
Scalar select(Scalar condition, Scalar a, Scalar b);
Scalar to_real(Scalar a);
Scalar to_integer(Scalar a);
Scalar uniform(Scalar seed_lo, Scalar seed_hi, Scalar stream, Scalar ordinal, Scalar index);
// first_lo or a seed must be a formula's value rather than a constant.
Scalar sample_uniform(Scalar seed_lo, Scalar seed_hi, Scalar stream, Scalar first_lo, Scalar first_hi,
                      int64_t elements_of_sample);

// Records formulas. Identical nodes are shared, so a formula may repeat a subexpression freely.
class ScalarRecorder {
 public:
  Scalar input(int operand, ScalarKind kind);
  Scalar column() { return leaf(ScalarOp::column); }
  Scalar element() { return leaf(ScalarOp::element); }
  Scalar samples() { return leaf(ScalarOp::samples); }
  // Places constants and checks kinds; `value` as in ScalarNode.
  Scalar node(ScalarOp op, std::span<const Scalar> args, double value = 0);
  void result(Scalar value,
              ScalarKind wanted = ScalarKind::real);  // constants become `wanted`; others must be it
  void repeat(size_t i) { program_.results.push_back(program_.results[i]); }  // result i once more
  size_t results() const { return program_.results.size(); }
  ScalarProgram take();

 private:
  Scalar leaf(ScalarOp op) { return {this, add({.op = op, .kind = ScalarKind::integer})}; }
  int32_t place(Scalar value, ScalarKind wanted);
  int32_t add(const ScalarNode& node);
  ScalarProgram program_;
};

// The reference meaning in double. inputs[i] is operand i's element (integers exactly, as double).
// results receives program.results.size() values; samples is B.
void evaluate(const ScalarProgram& program, std::span<const double> inputs, int64_t column, int64_t element,
              std::span<double> results, int64_t samples = 1);

// The uniform numbers of both random operations, for references: word 0 of the counter as a real in (0, 1).
double uniform_value(const uint32_t counter[4], const uint32_t key[2]);
double sample_uniform_value(const uint32_t key[2], uint32_t stream, uint64_t ordinal, uint32_t element);

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 4 words per counter.
struct Philox {
  uint32_t word[4];
};
Philox philox(const uint32_t counter[4], const uint32_t key[2]);

}  // namespace gacc::ir
