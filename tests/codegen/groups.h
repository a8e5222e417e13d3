// Fused groups of every form, with extents to be filled in: what both targets' tests run at the edges of
// vectors, warps and tiles.
#pragma once
#include <algorithm>

#include "tests/codegen/machine.h"
#include "tests/numeric/examples.h"

namespace gacc::codegen {

struct Group {
  const char *name, *text;  // C and T stand for extents, S for 2 T, W for 2 C + 3
  friend void PrintTo(const Group& group, std::ostream* out) { *out << group.name; }  // ctest's names
};

inline const Group kGroups[] = {
    {"flat", R"(eval(%x : f32[B,C], %y : f32[B,C]) {
       %a = add %x, %y : f32[B,C]
       %b = gelu %a : f32[B,C]
       %c = mul %b, 0.5 : f32[B,C]
       yield metric c %c
     })"},
    {"bias", R"(param @b : f32[C]
     eval(%x : f32[B,C], %r : f32[B,1]) {
       %a = add %x, @b : f32[B,C]
       %c = relu %a : f32[B,C]
       %d = mul %c, %r : f32[B,C]
       yield metric c %c, metric d %d
     })"},
    {"period", R"(param @p : f32[T,C]
     param @q : f32[C]
     eval(%x : f32[B,T,C]) {
       %a = add %x, @p : f32[B,T,C]
       %c = mul %a, @q : f32[B,T,C]
       %d = add %a, @p : f32[B,T,C]
       yield metric c %c, metric d %d
     })"},
    {"position", R"(param @p : f32[T,C]
     eval(%x : f32[B,T,C]) {
       %a = add %x, @p : f32[B,T,C]
       yield metric a %a
     })"},
    {"softmax", R"(eval(%x : f32[B,C]) {
       %m = row_max %x : f32[B,1]
       %s = sub %x, %m : f32[B,C]
       %e = exp %s : f32[B,C]
       %t = row_sum %e : f32[B,1]
       %l = log %t : f32[B,1]
       %y = div %e, %t : f32[B,C]
       yield metric l %l, metric e %e, metric y %y
     })"},
    {"row_period", R"(param @p : f32[T,1]
     eval(%x : f32[B,T,C]) {
       %s = row_sum %x : f32[B,T,1]
       %m = mul %s, @p : f32[B,T,1]
       %y = sub %x, %m : f32[B,T,C]
       yield metric y %y, metric s %s
     })"},
    {"channel_rows", R"(param @p : f32[T,1]
     param @q : f32[T,1]
     eval(%x : f32[B,T,C]) {
       %a = sub %x, @p : f32[B,T,C]
       %m = mul %a, @q : f32[B,T,C]
       %s = row_sum %m : f32[B,T,1]
       yield metric m %m, metric s %s
     })"},
    {"channels", R"(param @p : f32[T,1,1]
     param @q : f32[T,1,1]
     param @s : f32[]
     eval(%x : f32[B,T,3,C], %y : f32[B,T,3,C]) {
       %a = mul %x, @p : f32[B,T,3,C]
       %b = add %a, @q : f32[B,T,3,C]
       %c = add %b, %y : f32[B,T,3,C]
       %d = mul %c, @s : f32[B,T,3,C]
       yield metric b %b, metric d %d
     })"},
    {"when", R"(param @w : f32[C]
     accum @g : f32[C] total sum
     state @ok : i32[] control
     state @also : i32[] control
     eval(%x : f32[B,C]) {
       column_sum.acc @g, %x when(@ok)
       store @w, 2.0 when(@also)
     })"},
    {"chain", R"(eval(%x : f32[B,C], %r : f32[B,1]) {
       %a = sigmoid %x : f32[B,C]
       %m = row_max %a : f32[B,1]
       %b = sub %a, %m : f32[B,C]
       %s = row_min %b : f32[B,1]
       %c = mul %b, %s : f32[B,C]
       %d = tanh %c : f32[B,C]
       %e = mul %d, %r : f32[B,C]
       yield metric e %e
     })"},
    {"bias_grad", R"(accum @g : f32[C] total sum
     eval(%x : f32[B,C], %dy : f32[B,C]) {
       %d = relu.grad %x, %dy : f32[B,C]
       column_sum.acc @g, %d
       yield metric d %d
     })"},
    {"norm", R"(param @g : f32[T,C]
     accum @n : f32[] total sum
     eval(%r : f32[B,1]) {
       %s = square @g : f32[T,C]
       %p = total_sum %s : f32[4] {parts = 4}
       %t = total_sum %p : f32[]
       total_sum.acc @n, %t
       yield metric t %t
     })"},
    {"parts", R"(accum @g : f32[C]
     eval(%x : f32[B,T,C], %y : f32[B,T,C]) {
       %d = mul %x, %y : f32[B,T,C]
       %p = column_sum %d : f32[3,C] {parts = 3}
       %q = column_sum %x : f32[3,C] {parts = 3}
       column_sum.acc @g, %p
       yield metric d %d, metric p %p, metric q %q
     })"},
    // Kernels of their own.
    {"permute", R"(eval(%x : f32[B,T,3,C], %y : f32[B,C,T]) {
       %a = permute %x : f32[B,C,T,3] {axes = [2, 0, 1]}
       %b = permute %x : f32[B,3,T,C] {axes = [1, 0, 2]}
       %c = permute %y : f32[B,T,C] {axes = [1, 0]}
       yield metric a %a, metric b %b, metric c %c
     })"},
    {"concat", R"(eval(%x : f32[B,T,C], %y : f32[B,T,3]) {
       %a = concat %x, %y, %x : f32[B,T,W] {axis = 1}
       %b = concat %x, %x : f32[B,S,C] {axis = 0}
       %c = slice %a : f32[B,T,C] {axis = 1, from = 3, size = C}
       yield metric a %a, metric b %b, metric c %c
     })"},
    {"embedding", R"(param @t : f32[4,C]
     accum @g : f32[4,C] total sum
     eval(%x : i32[B,T], %d : f32[B,T,C]) {
       %a = embedding %x, @t : f32[B,T,C]
       %b = embedding.grad %x, %d : f32[4,C] {rows = 4}
       embedding.grad.acc @g, %x, %d {rows = 4}
       yield metric a %a, metric b %b
     })"},
    {"loss", R"(accum @n : f32[] total sum
     eval(%x : f32[B,C], %r : f32[B,1]) {
       %m = mul %x, %r : f32[B,C]
       total_sum.acc @n, %m
     })"},
};

// The group with its extents, as kernels.
ir::Module group_module(std::string text, const std::string& columns, const std::string& rows);

// f32 rounding of a few dependent operations (`real`); where half types are written, an ulp of theirs.
inline double tolerance_of(const ir::Module& module, double real) {
  double result = real;
  const auto look = [&](const ir::Type& type) {
    if (type.dtype == ir::DType::f16) result = std::max(result, 0x1p-10);
    if (type.dtype == ir::DType::bf16) result = std::max(result, 0x1p-7);
  };
  for (const ir::Value& value : module.eval.values) look(value.type);
  for (const ir::Buffer& buffer : module.buffers) look(buffer.type);
  return result;
}

}  // namespace gacc::codegen
