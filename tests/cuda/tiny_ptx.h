// The kernels of tests/cuda/tiny_artifact.h, written by hand: thread 0 of the only block does the work. And a
// built-in matrix product of the simplest kind, 8 x 8 tiles, one thread an element.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

namespace gacc::test {

// Returns an entry in which thread 0 runs `body`, with the parameters in %d1, %d2 and so on.
inline std::string lone_thread(const std::string& name, const std::vector<std::string>& parameters,
                               const std::string& body) {
  std::string list, loads;
  for (size_t i = 0; i < parameters.size(); ++i) {
    list += (i > 0 ? ", .param .u64 " : ".param .u64 ") + parameters[i];
    loads += fmt::format("ld.param.u64 %d{}, [{}];\n", i + 1, parameters[i]);
  }
  return ".visible .entry " + name + "(" + list +
         ")\n{\n.reg .pred %p<5>; .reg .b32 %r<6>; .reg .f32 %f<16>; .reg .b64 %d<14>;\n"
         "mov.u32 %r1, %tid.x;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra DONE;\n" +
         loads + body + "DONE:\nret;\n}\n";
}

// Returns an entry that does `each` for the samples x that are marked, with x in %f3; `before` begins the sums and
// `after` stores them.
inline std::string over_samples(const std::string& name, std::vector<std::string> sums,
                                const std::string& before, const std::string& each,
                                const std::string& after) {
  sums.insert(sums.begin(), {"x", "mark"});
  sums.emplace_back("batch");
  const std::string loop = R"(
LOOP:
setp.eq.u64 %p2, %d{0}, 0;
@%p2 bra STORE;
ld.global.s32 %r3, [%d2];
setp.eq.s32 %p3, %r3, -1;
@%p3 bra NEXT;
ld.global.f32 %f3, [%d1];
{1}
NEXT:
add.s64 %d1, %d1, 4;
add.s64 %d2, %d2, 4;
sub.s64 %d{0}, %d{0}, 1;
bra LOOP;
STORE:
)";
  return lone_thread(name, sums, before + fmt::format(fmt::runtime(loop), sums.size(), each) + after);
}

// Part of the program, so that a test that was built elsewhere has it.
inline std::string tiny_ptx() {
  return "// for tests/cuda/tiny_artifact.h\n.version 7.0\n.target sm_75\n.address_size 64\n" +
         lone_thread("tiny_init", {"w", "frozen", "seed"}, R"(
ld.global.s32 %r2, [%d3];
cvt.rn.f32.s32 %f1, %r2;
add.rn.f32 %f1, %f1, 0f3F800000;
st.global.f32 [%d1], %f1;
mov.f32 %f2, 0f40000000;
st.global.f32 [%d1+4], %f2;
mov.f32 %f3, 0f40400000;
st.global.f32 [%d2], %f3;
)") +
         // sum += x[i], count += 1
         over_samples("tiny_sum", {"sum", "count"}, "ld.global.f32 %f1, [%d3];\nld.global.s32 %r2, [%d4];\n",
                      "add.rn.f32 %f1, %f1, %f3;\nadd.s32 %r2, %r2, 1;\n",
                      "st.global.f32 [%d3], %f1;\nst.global.s32 [%d4], %r2;\n") +
         // gradient += (x[i], -x[i])
         over_samples("tiny_gradient", {"gradient"},
                      "ld.global.f32 %f1, [%d3];\nld.global.f32 %f2, [%d3+4];\n",
                      "add.rn.f32 %f1, %f1, %f3;\nsub.rn.f32 %f2, %f2, %f3;\n",
                      "st.global.f32 [%d3], %f1;\nst.global.f32 [%d3+4], %f2;\n") +
         // positive += 1 where x[i] > 0
         over_samples("tiny_positive", {"positive"}, "ld.global.f32 %f1, [%d3];\n",
                      "setp.gt.f32 %p4, %f3, 0f00000000;\n@%p4 add.rn.f32 %f1, %f1, 0f3F800000;\n",
                      "st.global.f32 [%d3], %f1;\n") +
         lone_thread("tiny_update",
                     {"w", "gradient", "sum", "count", "lr", "loss", "norm", "rate", "ok", "updates",
                      "old_sum", "old_count"},
                     R"(
ld.global.s32 %r2, [%d4];
st.global.s32 [%d12], %r2;
cvt.rn.f32.s32 %f1, %r2;
div.rn.f32 %f1, 0f3F800000, %f1;
ld.global.f32 %f2, [%d2];
ld.global.f32 %f3, [%d2+4];
mul.rn.f32 %f2, %f2, %f1;
mul.rn.f32 %f3, %f3, %f1;
ld.global.f32 %f4, [%d3];
st.global.f32 [%d11], %f4;
mul.rn.f32 %f4, %f4, %f1;
st.global.f32 [%d6], %f4;
mul.rn.f32 %f5, %f2, %f2;
mul.rn.f32 %f6, %f3, %f3;
add.rn.f32 %f5, %f5, %f6;
sqrt.rn.f32 %f5, %f5;
st.global.f32 [%d7], %f5;
ld.global.f32 %f7, [%d5];
st.global.f32 [%d8], %f7;
abs.f32 %f8, %f5;
setp.lt.f32 %p2, %f8, 0f7F800000;
selp.s32 %r3, 1, 0, %p2;
st.global.s32 [%d9], %r3;
@!%p2 bra DONE;
mul.rn.f32 %f2, %f2, %f7;
mul.rn.f32 %f3, %f3, %f7;
ld.global.f32 %f9, [%d1];
ld.global.f32 %f10, [%d1+4];
sub.rn.f32 %f9, %f9, %f2;
sub.rn.f32 %f10, %f10, %f3;
st.global.f32 [%d1], %f9;
st.global.f32 [%d1+4], %f10;
ld.global.s32 %r4, [%d10];
add.s32 %r4, %r4, 1;
st.global.s32 [%d10], %r4;
mov.f32 %f11, 0f00000000;
st.global.f32 [%d2], %f11;
st.global.f32 [%d2+4], %f11;
st.global.f32 [%d3], %f11;
mov.u32 %r5, 0;
st.global.s32 [%d4], %r5;
)") +
         R"(
// C[m, n] = A[m, k] @ B[n, k]^T
.visible .entry tiny_gemm_nt(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 m, .param .u64 n, .param .u64 k)
.maxntid 64, 1, 1
{
.reg .pred %p<4>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %d<24>;
ld.param.u64 %d1, [a];
ld.param.u64 %d2, [b];
ld.param.u64 %d3, [c];
ld.param.u64 %d4, [m];
ld.param.u64 %d5, [n];
ld.param.u64 %d6, [k];
mov.u32 %r1, %ctaid.x;
cvt.u64.u32 %d7, %r1;
add.s64 %d8, %d5, 7;
shr.u64 %d8, %d8, 3;
div.u64 %d9, %d7, %d8;
rem.u64 %d10, %d7, %d8;
mov.u32 %r2, %tid.x;
cvt.u64.u32 %d11, %r2;
shr.u64 %d12, %d11, 3;
and.b64 %d13, %d11, 7;
mad.lo.s64 %d9, %d9, 8, %d12;
mad.lo.s64 %d10, %d10, 8, %d13;
setp.ge.u64 %p1, %d9, %d4;
@%p1 bra DONE;
setp.ge.u64 %p2, %d10, %d5;
@%p2 bra DONE;
mul.lo.s64 %d14, %d9, %d6;
shl.b64 %d14, %d14, 2;
add.s64 %d1, %d1, %d14;
mul.lo.s64 %d15, %d10, %d6;
shl.b64 %d15, %d15, 2;
add.s64 %d2, %d2, %d15;
mov.f32 %f1, 0f00000000;
LOOP:
setp.eq.u64 %p3, %d6, 0;
@%p3 bra STORE;
ld.global.f32 %f2, [%d1];
ld.global.f32 %f3, [%d2];
fma.rn.f32 %f1, %f2, %f3, %f1;
add.s64 %d1, %d1, 4;
add.s64 %d2, %d2, 4;
sub.s64 %d6, %d6, 1;
bra LOOP;
STORE:
mad.lo.s64 %d16, %d9, %d5, %d10;
shl.b64 %d16, %d16, 2;
add.s64 %d3, %d3, %d16;
st.global.f32 [%d3], %f1;
DONE:
ret;
}
)";
}

}  // namespace gacc::test
