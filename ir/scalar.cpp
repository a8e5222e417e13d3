// Recording and interpreting scalar formulas, and the counter-based random generator they may call.
#include "ir/scalar.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "ir/diag.h"

namespace gacc::ir {

namespace {

// A formula that mixes kinds is a mistake in the op table, not of the user.
[[noreturn]] void broken_formula(std::string_view what) { internal_error(fmt::format("op table: {}", what)); }

enum class Rule : uint8_t { leaf, arithmetic, real, compare, test, logic, choice, convert, random };
struct Operation {
  int arguments;
  Rule rule;
};
constexpr Operation kOperations[] = {
#define GACC_SCALAR(name, arguments, rule, value) {arguments, Rule::rule},
#include "ir/scalar_ops.def"
};
const Operation& operation(ScalarOp op) { return kOperations[static_cast<size_t>(op)]; }

// The kinds that an operation by each rule takes and makes; nothing: that which its arguments share.
struct Kinds {
  std::optional<ScalarKind> wanted{}, given{};
};
constexpr Kinds kKinds[] = {{},  // leaf
                            {},  // arithmetic
                            {ScalarKind::real, ScalarKind::real},
                            {{}, ScalarKind::truth},                   // compare
                            {ScalarKind::real, ScalarKind::truth},     // test
                            {ScalarKind::truth, ScalarKind::truth},    // logic
                            {},                                        // choice
                            {},                                        // convert
                            {ScalarKind::integer, ScalarKind::real}};  // random

double nan_aware(double a, double b, bool larger) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return larger ? std::fmax(a, b) : std::fmin(a, b);
}

uint32_t word_of(double integer) { return static_cast<uint32_t>(static_cast<int64_t>(integer)); }

double uniform_of(const double* a) {
  const auto index = static_cast<uint64_t>(static_cast<int64_t>(a[4]));
  const uint32_t counter[4] = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                               word_of(a[3]), word_of(a[2])};
  const uint32_t key[2] = {word_of(a[0]), word_of(a[1])};
  return uniform_value(counter, key);
}

double sample_uniform_of(const double* a, int64_t elements_of_sample, int64_t element) {
  const uint32_t key[2] = {word_of(a[0]), word_of(a[1])};
  const uint64_t first = uint64_t{word_of(a[4])} << 32 | word_of(a[3]);
  return sample_uniform_value(key, word_of(a[2]), first + static_cast<uint64_t>(element / elements_of_sample),
                              static_cast<uint32_t>(element % elements_of_sample));
}

double apply(ScalarOp op, [[maybe_unused]] const double* a) {
  switch (op) {
#define GACC_SCALAR(name, arguments, rule, value) \
  case ScalarOp::name:                            \
    return value;
#include "ir/scalar_ops.def"
  }
  return 0;
}

// Returns the recorder of the formula that one of the arguments is in; null when none is.
ScalarRecorder* recorder_of(std::span<const Scalar> args) {
  ScalarRecorder* found = nullptr;
  for (const Scalar& arg : args) {
    if (arg.recorder_ == nullptr) continue;
    if (found != nullptr && found != arg.recorder_)
      broken_formula("a formula uses a value of another formula");
    found = arg.recorder_;
  }
  return found;
}

template <class... A>
Scalar make(ScalarOp op, A... arguments) {
  const Scalar args[] = {arguments...};
  if (ScalarRecorder* recorder = recorder_of(args)) return recorder->node(op, args);
  const double values[] = {arguments.constant_...};
  return {apply(op, values)};
}

}  // namespace

Scalar operator+(Scalar a, Scalar b) { return make(ScalarOp::add, a, b); }
Scalar operator-(Scalar a, Scalar b) { return make(ScalarOp::sub, a, b); }
Scalar operator*(Scalar a, Scalar b) { return make(ScalarOp::mul, a, b); }
Scalar operator/(Scalar a, Scalar b) { return make(ScalarOp::div, a, b); }
Scalar operator-(Scalar a) { return make(ScalarOp::neg, a); }
Scalar operator<(Scalar a, Scalar b) { return make(ScalarOp::less, a, b); }
Scalar operator<=(Scalar a, Scalar b) { return make(ScalarOp::less_equal, a, b); }
Scalar operator>(Scalar a, Scalar b) { return make(ScalarOp::less, b, a); }
Scalar operator==(Scalar a, Scalar b) { return make(ScalarOp::equal, a, b); }
Scalar operator!=(Scalar a, Scalar b) { return make(ScalarOp::not_equal, a, b); }
Scalar operator&&(Scalar a, Scalar b) { return make(ScalarOp::logic_and, a, b); }
Scalar operator||(Scalar a, Scalar b) { return make(ScalarOp::logic_or, a, b); }
Scalar abs(Scalar a) { return make(ScalarOp::abs, a); }
Scalar sqrt(Scalar a) { return make(ScalarOp::sqrt, a); }
Scalar exp(Scalar a) { return make(ScalarOp::exp, a); }
Scalar log(Scalar a) { return make(ScalarOp::log, a); }
Scalar tanh(Scalar a) { return make(ScalarOp::tanh, a); }
Scalar erf(Scalar a) { return make(ScalarOp::erf, a); }
Scalar sin(Scalar a) { return make(ScalarOp::sin, a); }
Scalar cos(Scalar a) { return make(ScalarOp::cos, a); }
Scalar floor(Scalar a) { return make(ScalarOp::floor, a); }
Scalar max(Scalar a, Scalar b) { return make(ScalarOp::max, a, b); }
Scalar min(Scalar a, Scalar b) { return make(ScalarOp::min, a, b); }
Scalar is_finite(Scalar a) { return make(ScalarOp::is_finite, a); }
Scalar to_real(Scalar a) { return make(ScalarOp::to_real, a); }
Scalar to_integer(Scalar a) { return make(ScalarOp::to_integer, a); }
Scalar select(Scalar condition, Scalar a, Scalar b) {
  if (condition.recorder_ == nullptr) return condition.constant_ != 0 ? a : b;
  return make(ScalarOp::select, condition, a, b);
}
Scalar uniform(Scalar seed_lo, Scalar seed_hi, Scalar stream, Scalar ordinal, Scalar index) {
  return make(ScalarOp::uniform, seed_lo, seed_hi, stream, ordinal, index);
}

Scalar sample_uniform(Scalar seed_lo, Scalar seed_hi, Scalar stream, Scalar first_lo, Scalar first_hi,
                      int64_t elements_of_sample) {
  const Scalar args[] = {seed_lo, seed_hi, stream, first_lo, first_hi};
  ScalarRecorder* recorder = recorder_of(args);
  if (recorder == nullptr) broken_formula("a random number of constants alone");
  return recorder->node(ScalarOp::sample_uniform, args, static_cast<double>(elements_of_sample));
}

Scalar ScalarRecorder::input(int operand, ScalarKind kind) {
  return {this, add({.op = ScalarOp::input, .kind = kind, .value = static_cast<double>(operand)})};
}

int32_t ScalarRecorder::add(const ScalarNode& node) {
  for (size_t i = 0; i < program_.nodes.size(); ++i) {
    const ScalarNode& old = program_.nodes[i];
    // Bits, so that 0 and -0 stay apart and NaN equals itself.
    if (old.op == node.op && old.kind == node.kind && std::equal(old.args, old.args + 5, node.args) &&
        std::bit_cast<uint64_t>(old.value) == std::bit_cast<uint64_t>(node.value))
      return static_cast<int32_t>(i);
  }
  program_.nodes.push_back(node);
  return static_cast<int32_t>(program_.nodes.size()) - 1;
}

int32_t ScalarRecorder::place(Scalar value, ScalarKind wanted) {
  if (value.recorder_ == nullptr) {
    if (wanted == ScalarKind::integer && value.constant_ != std::trunc(value.constant_))
      broken_formula(fmt::format("{} stands where an integer is needed", value.constant_));
    return add({.op = ScalarOp::constant, .kind = wanted, .value = value.constant_});
  }
  if (value.recorder_ != this) broken_formula("a formula uses a value of another formula");
  if (program_.nodes[value.node_].kind != wanted)
    broken_formula("a formula mixes real, integer and truth values");
  return value.node_;
}

Scalar ScalarRecorder::node(ScalarOp op, std::span<const Scalar> args, double value) {
  const auto [arguments, rule] = operation(op);
  if (static_cast<int>(args.size()) != arguments)
    broken_formula("an operation with the wrong number of arguments");
  // The kind that arguments of one kind share: that of the first which has one.
  ScalarKind shared = ScalarKind::real;
  for (size_t i = rule == Rule::choice ? 1 : 0; i < args.size(); ++i) {
    if (args[i].recorder_ == nullptr) continue;
    shared = program_.nodes[args[i].node_].kind;
    break;
  }
  if (rule == Rule::leaf) broken_formula("a leaf is not an operation");
  if (rule == Rule::arithmetic && shared == ScalarKind::truth) broken_formula("arithmetic on truth values");
  const Kinds& kinds = kKinds[static_cast<size_t>(rule)];
  const ScalarKind wanted = kinds.wanted.value_or(shared);
  ScalarKind given = kinds.given.value_or(shared);
  if (rule == Rule::convert) {
    given = op == ScalarOp::to_real ? ScalarKind::real : ScalarKind::integer;
    if (shared == given) return args[0];
  }
  ScalarNode node{.op = op, .kind = given, .value = value};
  for (size_t i = 0; i < args.size(); ++i)
    node.args[i] = place(args[i], rule == Rule::choice && i == 0 ? ScalarKind::truth : wanted);
  return {this, add(node)};
}

void ScalarRecorder::result(Scalar value, ScalarKind wanted) {
  program_.results.push_back(place(value, wanted));
}

ScalarProgram ScalarRecorder::take() { return std::exchange(program_, {}); }

void evaluate(const ScalarProgram& program, std::span<const double> inputs, int64_t column, int64_t element,
              std::span<double> results, int64_t samples) {
  std::vector<double> values;
  const auto value_of = [&](const ScalarNode& node) {
    switch (node.op) {
      case ScalarOp::input:
        return inputs[static_cast<size_t>(node.value)];
      case ScalarOp::constant:
        return node.value;
      case ScalarOp::column:
        return static_cast<double>(column);
      case ScalarOp::element:
        return static_cast<double>(element);
      case ScalarOp::samples:
        return static_cast<double>(samples);
      default:
        break;
    }
    double args[5] = {};
    for (int k = 0; k < operation(node.op).arguments; ++k) args[k] = values[node.args[k]];
    if (node.op != ScalarOp::sample_uniform) return apply(node.op, args);
    return sample_uniform_of(args, static_cast<int64_t>(node.value), element);
  };
  for (const ScalarNode& node : program.nodes) values.push_back(value_of(node));
  for (size_t i = 0; i < program.results.size(); ++i) results[i] = values[program.results[i]];
}

Philox philox(const uint32_t counter[4], const uint32_t key[2]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
    const auto high0 = static_cast<uint32_t>(p0 >> 32), low0 = static_cast<uint32_t>(p0);
    const auto high1 = static_cast<uint32_t>(p1 >> 32), low1 = static_cast<uint32_t>(p1);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9;  // the golden ratio and sqrt(3) - 1: Weyl steps of the key
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

double uniform_value(const uint32_t counter[4], const uint32_t key[2]) {
  return ((philox(counter, key).word[0] >> 9) + 0.5) * 0x1p-23;
}

double sample_uniform_value(const uint32_t key[2], uint32_t stream, uint64_t ordinal, uint32_t element) {
  const uint32_t counter[4] = {element, static_cast<uint32_t>(ordinal >> 32), static_cast<uint32_t>(ordinal),
                               stream};
  return uniform_value(counter, key);
}

}  // namespace gacc::ir
