// What type inference refuses, and how it says so. Users meet most of these through the frontend's own
// checks; here they are the last line, for IR text and for mistakes of passes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "ir/text/text.h"
#include "ir/verify/verify.h"
#include "tests/numeric/examples.h"

namespace gacc::ir {
namespace {

// The first report about one op over the operands below; "" when it is accepted. Result types are read from
// the text, so an op with a wrong operand is refused by `infer` before they are compared.
std::string refusal(const std::string& op) {
  const std::string text =
      "module @m phase(accumulated) {\nparam @w : f32[5,4]\nparam @b : f32[5]\nstate @n : i32[]\nstate @f : "
      "f32[]\n"
      "state @k : i32[5] control\nupdate { }\neval(%x : f32[B,4], %t : f32[B,2,4], %r : f32[B,1], %i : "
      "i32[B,1], %v "
      ": i32[B]) {\n" +
      op + "\n}\n}\n";
  Diag diag("test", text);
  std::optional<Module> module = parse(text, diag);
  if (module && verify(*module, diag)) return "";
  const Report& report = diag.reports().front();
  return fmt::format("{} [{}]", report.text, kind_text(report.kind));
}

TEST(Refusals, Pointwise) {
  EXPECT_EQ(refusal("%y = add %x, @b : f32[B,4]"),
            "`add`: `%x` is f32[B,4], `@b` is f32[5]; the shapes do not agree [shape-mismatch]");
  EXPECT_EQ(refusal("%y = add @b, %x : f32[B,4]"),
            "`add`: `@b` is f32[5], `%x` is f32[B,4]; the shapes do not agree [shape-mismatch]");
  EXPECT_EQ(refusal("%y = add %x, %i : f32[B,4]"), "`add`: `%i` is i32[B,1]; it must be f32 [type-mismatch]");
  EXPECT_EQ(refusal("%y = add %i, 0.5 : i32[B,1]"),
            "`add`: `0.5` is a number; it must be i32 [type-mismatch]");
  EXPECT_EQ(refusal("%y = exp %i : f32[B,1]"), "`exp`: `%i` is i32[B,1]; it takes floats [type-mismatch]");
  EXPECT_EQ(refusal("%y = select %x, %x, 0.0 : f32[B,4]"),
            "`select`: `%x` is f32[B,4]; it must be i32 [type-mismatch]");
  EXPECT_EQ(refusal("%y = select %i, %x, %i : f32[B,4]"),
            "`select`: `%i` is i32[B,1]; it must be f32 [type-mismatch]");
  EXPECT_EQ(refusal("%y = is_finite %i : i32[B,1]"),
            "`is_finite`: `%i` is i32[B,1]; it takes floats [type-mismatch]");
  EXPECT_EQ(refusal("%y = cast %x : f32[B,4] {to = \"u8\"}"),
            "`cast`: there is no element type \"u8\" [unknown-value]");
  EXPECT_EQ(refusal("%y = column %v : i32[B]"),
            "`column`: `%v` is i32[B]; it needs a last axis of known extent [shape-mismatch]");
  EXPECT_EQ(refusal("%y = broadcast %x : f32[B,3,4] {shape = [-1, 3, 4]}"),
            "`broadcast`: `%x` is f32[B,4]; it does not repeat to [B,3,4] [shape-mismatch]");
  EXPECT_EQ(refusal("%y = relu.grad %r, %x : f32[B,1]"),
            "`relu.grad`: `%r` is f32[B,1], `%x` is f32[B,4]; the gradient does not fit [shape-mismatch]");
  EXPECT_EQ(refusal("%y = relu.grad %x, %i : f32[B,4]"),
            "`relu.grad`: `%i` is i32[B,1]; it takes floats [type-mismatch]");
}

TEST(Refusals, Reductions) {
  EXPECT_EQ(refusal("%y = row_sum %v : i32[B]"),
            "`row_sum`: `%v` is i32[B]; it needs a last axis of known extent [shape-mismatch]");
  EXPECT_EQ(refusal("%y = row_sum 1.0 : f32[]"), "`row_sum`: a number cannot be reduced [shape-mismatch]");
  EXPECT_EQ(refusal("%y = column_sum @b : f32[5]"),
            "`column_sum`: `@b` is f32[5]; there is nothing to sum over [shape-mismatch]");
  EXPECT_EQ(refusal("column_sum.acc @b, %x"),
            "`column_sum.acc`: `@b` is f32[5], `%x` is f32[B,4]; the buffer must be [4] [shape-mismatch]");
  EXPECT_EQ(refusal("%y = total_sum %x : f32[] {parts = 0}"),
            "`total_sum`: parts is 0; it must be 1 to 65536 [out-of-range]");
  EXPECT_EQ(refusal("total_sum.acc @n, %x"),
            "`total_sum.acc`: `%x` is f32[B,4]; it must be i32 [type-mismatch]");
  EXPECT_EQ(refusal("total_sum.acc @b, %x"),
            "`total_sum.acc`: `@b` is f32[5]; the buffer must have one element [shape-mismatch]");
}

TEST(Refusals, ShapesAndProducts) {
  EXPECT_EQ(refusal("%y = reshape %x : f32[B,5] {shape = [-1, 5]}"),
            "`reshape`: `%x` is f32[B,4]; it has another number of elements than [B,5] [shape-mismatch]");
  EXPECT_EQ(refusal("%y = reshape %x : f32[4] {shape = [4]}"),
            "`reshape`: `%x` is f32[B,4]; it has another number of elements than [4] [shape-mismatch]");
  EXPECT_EQ(refusal("%y = matmul %x, @w : f32[B,4]"),
            "`matmul`: `%x` is f32[B,4], `@w` is f32[5,4]; the inner extents are 4 and 5 [shape-mismatch]");
  EXPECT_EQ(
      refusal("%y = matmul %t, %x : f32[4,4] {ta}"),
      "`matmul`: `%t` is f32[B,2,4], `%x` is f32[B,4]; the inner extents are B*2 and B [shape-mismatch]");
  EXPECT_EQ(refusal("%y = matmul @w, %x : f32[5,4] {tb}"),
            "`matmul`: `@w` is f32[5,4], `%x` is f32[B,4]; the batch extent can only be the first of the "
            "result [shape-mismatch]");
  EXPECT_EQ(refusal("%y = matmul %x, %i : f32[B,1]"),
            "`matmul`: `%i` is i32[B,1]; it takes floats [type-mismatch]");
  EXPECT_EQ(refusal("%y = matmul @f, @w : f32[]"),
            "`matmul`: `@f` is f32[], `@w` is f32[5,4]; scalars have no matrix [shape-mismatch]");
  EXPECT_EQ(refusal("matmul.acc @w, %x, %x {ta}"),
            "`matmul.acc`: `@w` is f32[5,4]; the product is [4,4] [shape-mismatch]");
}

TEST(Refusals, DeltaRules) {
  EXPECT_EQ(refusal("%y, %r2 = delta_rule 1.0, %t, %t, %t, %t : f32[B,2,4], f32[B,2,4]"),
            "`delta_rule`: `1.0` is a number; it must be [B,T,C] [shape-mismatch]");
  EXPECT_EQ(refusal("%y, %r2 = delta_rule %x, %t, %t, %t, %t : f32[B,2,4], f32[B,2,4]"),
            "`delta_rule`: `%x` is f32[B,4]; it must be [B,T,C] [shape-mismatch]");
  EXPECT_EQ(refusal("%y, %r2 = delta_rule %t, %t, %t, %t, %t : f32[B,2,4], f32[B,2,4] {heads = 3}"),
            "`delta_rule`: `%t` is f32[B,2,4]; 4 channels do not divide into 3 heads [shape-mismatch]");
  EXPECT_EQ(
      refusal("%y, %r2 = delta_rule %t, %t, %t, %t, %t : f32[B,2,4], f32[B,2,4] {heads = 4, key_heads = 3}"),
      "`delta_rule`: 4 heads of values do not divide into 3 of keys [out-of-range]");
  EXPECT_EQ(refusal("%y, %r2 = delta_rule %t, %t, %t, %t, %t : f32[B,2,4], f32[B,2,4] {heads = 2}"),
            "`delta_rule`: `%t` is f32[B,2,4]; it must be f32[B,2,2] [shape-mismatch]");
  EXPECT_EQ(refusal("%y = delta_rule.grad.decay %t, %t : f32[B,2,4] {chunk = 0, heads = 4}"),
            "`delta_rule.grad.decay`: chunk is 0, not at least 1 [out-of-range]");
}

TEST(Refusals, LossesAndNorms) {
  EXPECT_EQ(refusal("%y, %m, %l, %c = cross_entropy %x, %v : f32[B,1], f32[B,1], f32[B,1], i32[B,1]"),
            "`cross_entropy`: `%x` is f32[B,4], `%v` is i32[B]; the target must be [B,1] [shape-mismatch]");
  EXPECT_EQ(refusal("%y, %m, %l, %c = cross_entropy %x, %r : f32[B,1], f32[B,1], f32[B,1], i32[B,1]"),
            "`cross_entropy`: `%r` is f32[B,1]; it must be i32 [type-mismatch]");
  EXPECT_EQ(refusal("%y, %m, %l, %c = cross_entropy %x, %i : f32[B,1], f32[B,1], f32[B,1], i32[B,1] "
                    "{label_smoothing = 1.5}"),
            "`cross_entropy`: label_smoothing is 1.5; it must be 0 to 1 [out-of-range]");
  EXPECT_EQ(
      refusal("%y, %m, %l, %c, %n, %a = weighted_cross_entropy %x, %i, @b : f32[B,1], f32[B,1], f32[B,1], "
              "i32[B,1], f32[B,1], f32[B,1]"),
      "`weighted_cross_entropy`: `%x` is f32[B,4], `@b` is f32[5]; the weights must be [4] "
      "[shape-mismatch]");
  EXPECT_EQ(refusal("%y = cross_entropy.grad %x, %t, %r, %i, 1.0 : f32[B,4]"),
            "`cross_entropy.grad`: `%x` is f32[B,4], `%t` is f32[B,2,4]; it has one element a row "
            "[shape-mismatch]");
  EXPECT_EQ(refusal("%y, %m, %s = layer_norm %x, @b, @b : f32[B,4], f32[B,1], f32[B,1]"),
            "`layer_norm`: `%x` is f32[B,4], `@b` is f32[5]; it must have the shape [4] [shape-mismatch]");
  EXPECT_EQ(refusal("%y = softmax %i : f32[B,1]"),
            "`softmax`: `%i` is i32[B,1]; it takes floats [type-mismatch]");
}

TEST(Refusals, Writes) {
  EXPECT_EQ(refusal("store @b, @w"),
            "`store`: `@b` is f32[5], `@w` is f32[5,4]; the shapes do not agree [shape-mismatch]");
  EXPECT_EQ(refusal("add.acc @n, @f"), "`add.acc`: `@f` is f32[]; it must be i32 [type-mismatch]");
  EXPECT_EQ(refusal("fill @n {value = 0.5}"), "`fill`: `@n` is i32[], the value is 0.5 [type-mismatch]");
  EXPECT_EQ(refusal("random.normal @n, @n, @n"),
            "`random.normal`: `@n` is i32[]; it must be f32 [type-mismatch]");
  EXPECT_EQ(refusal("random.normal @b, @f, @n"),
            "`random.normal`: `@f` is f32[]; it must be i32 [type-mismatch]");
  EXPECT_EQ(refusal("random.normal @b, @k, @n"),
            "`random.normal`: `@k` is i32[5]; it must be a scalar [shape-mismatch]");
  EXPECT_EQ(refusal("random.normal @b, @n, @n {stream = 3000000000}"),
            "`random.normal`: stream 3000000000 is not an i32 [out-of-range]");
  EXPECT_EQ(refusal("sgd @b, @w, @f"),
            "`sgd`: `@b` is f32[5], `@w` is f32[5,4]; the shapes do not agree [shape-mismatch]");
  EXPECT_EQ(refusal("sgd @b, @b, @b"), "`sgd`: `@b` is f32[5]; it must be a scalar [shape-mismatch]");
  EXPECT_EQ(
      refusal("sgd_momentum @b, @f, @b, @f, @n"),
      "`sgd_momentum`: `@b` is f32[5], `@f` is f32[]; it must be a buffer of that shape [shape-mismatch]");
  EXPECT_EQ(refusal("sgd_momentum @w, @w, @w, @f, @k"),
            "`sgd_momentum`: `@k` is i32[5]; it must be a scalar [shape-mismatch]");
}

// Every op of the table, with one operand of each of its examples made wrong: integers for floats and the
// other way round, or one more axis. Most are refused; accepted_operands.txt lists what is not (GACC_BLESS=1
// rewrites it).
std::string accepted_operands() {
  std::string accepted;
  for (const OpInfo* info : all_ops()) {
    std::set<std::string> lines;
    for (const Example& example : examples(*info)) {
      for (size_t i = 0; i < example.op().operands.size(); ++i) {
        for (const bool axis : {false, true}) {
          Module module = example.module;
          Type* type = nullptr;
          const Operand& operand = module.eval.ops.front().operands[i];
          if (const ValueId* value = as_value(operand)) type = &module.eval[*value].type;
          if (const BufferId* buffer = as_buffer(operand)) type = &module[*buffer].type;
          if (type == nullptr) continue;
          if (axis)
            type->shape.push_back(7);
          else
            type->dtype = is_float(type->dtype) ? DType::i32 : DType::f32;
          Diag diag;
          const Op& op = module.eval.ops.front();
          const auto types = infer_types({module, module.eval, op}, diag);
          EXPECT_NE(types.has_value(), diag.failed()) << example.text;
          if (types)
            lines.insert(fmt::format("{} operand {}: another {}\n", info->name, i, axis ? "shape" : "dtype"));
        }
      }
    }
    for (const std::string& line : lines) accepted += line;
  }
  return accepted;
}

TEST(Refusals, OperandsOfAnotherKind) {
  const std::filesystem::path path = GACC_ACCEPTED_OPERANDS;
  const std::string accepted = accepted_operands();
  if (std::getenv("GACC_BLESS") != nullptr) std::ofstream(path) << accepted;
  std::stringstream expected;
  expected << std::ifstream(path).rdbuf();
  EXPECT_EQ(accepted, expected.str());
}

}  // namespace
}  // namespace gacc::ir
