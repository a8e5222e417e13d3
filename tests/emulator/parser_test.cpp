// What the parser accepts beyond the ordinary, and how it refuses the rest: one line that names it.
#include "tests/emulator/harness.h"

namespace gacc::emulator {
namespace {

std::string refused(const std::string& body, const std::string& before = "") {
  std::vector<KernelInfo> kernels;
  Status status = list_kernels(".version 7.0\n.target sm_80\n.address_size 64\n" + before +
                                   ".visible .entry k(.param .u64 p)\n{\n" + body + "\n}\n",
                               kernels);
  return status.text();
}

TEST(Parser, UnknownIsNamedWithItsLine) {
  EXPECT_EQ(refused(".reg .b32 %r<3>;\nfrobnicate.b32 %r1, %r2;"),
            "line 7: unknown opcode or modifier `frobnicate.b32`");
  EXPECT_EQ(refused(".reg .f32 %f<3>;\nadd.rq.f32 %f1, %f2, %f2;"),
            "line 7: unknown opcode or modifier `add.rq.f32`");
  EXPECT_EQ(refused(".reg .b32 %r<3>;\nld.global.L9::x.b32 %r1, [p];"),
            "line 7: unknown opcode or modifier `L9::x` in `ld.global.L9::x.b32`");
  EXPECT_NE(
      refused(".reg .b32 %r<3>;\nmma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1},{%r1},{%r1},{%r1};")
          .find("m8n8k4"),
      std::string::npos);
  EXPECT_EQ(refused(".reg .b32 %r<3>; .reg .b64 %rd<3>;\natom.global.and.u32 %r1, [%rd1], %r2;"),
            "line 7: unknown opcode or modifier `atom.global.and.u32`");
  EXPECT_EQ(refused(".reg .b32 %r<3>;\nmma.sync.aligned.m16n8k8.col.row.f32.f16.f16.f32 "
                    "{%r1},{%r1},{%r1},{%r1};"),
            "line 7: unknown opcode or modifier `mma.sync.aligned.m16n8k8.col.row.f32.f16.f16.f32`");
  EXPECT_EQ(refused(".reg .b64 %rd<3>; .shared .b8 s[16];\ncp.async.cg.shared.global [s], [%rd1], 4;"),
            "line 7: cp.async.cg copies 16 bytes");
  EXPECT_EQ(refused(".reg .b16 %h<3>; .reg .pred %p<3>;\nsetp.lt.f16 %p1|%p2, %h1, %h2;"),
            "line 7: `setp.lt.f16` writes one predicate");
  EXPECT_EQ(refused("bra NOWHERE;"), "line 6: label `NOWHERE` is not defined");
  EXPECT_NE(refused(".reg .b32 %r<3>;\nadd.s32 %r1, %r9, 1;").find("unknown register `%r9`"),
            std::string::npos);
  EXPECT_NE(refused(".reg .b64 %rd<3>;\nadd.s32 %rd1, %rd2, 1;").find("wrong kind or width (`%rd2`)"),
            std::string::npos);
  EXPECT_EQ(refused("", ".func f() { ret; }\n"), "line 4: `.func` is not expected here");
}
TEST(Parser, NestedScopesAndLiterals) {
  EXPECT_EQ(refused(".reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .f32 %f<4>;\n"
                    "{ .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd1; { .reg .b32 tmp; mov.b32 tmp, 0x1F; L: bra "
                    "M; M: bra L; } }\n"
                    "L: add.f32 %f1, %f2, 0f3F800000; add.f32 %f1, %f1, 0fBF800000; mov.u32 %r1, "
                    "0b101; mov.u32 %r2, 017U; bra.uni L;"),
            "");
}
TEST(Parser, ListsParametersAndSharedMemory) {
  std::vector<KernelInfo> kernels;
  Status status = list_kernels(
      ".version 7.0\n.target sm_80, debug\n.address_size 64\n.extern .shared .align 16 .b8 dyn[];\n"
      ".visible .entry k(.param .u32 a, .param .align 8 .b8 b[24], .param .u64 .ptr .global .align 16 "
      "c)\n.maxntid 64, 2, 1\n"
      "{ .reg .b32 %r<9>; .shared .align 4 .b8 s[40]; mov.u32 %r1, s; mov.u32 %r2, dyn; ret; }",
      kernels);
  ASSERT_TRUE(status.ok()) << status.text();
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].params.size(), 3u);
  EXPECT_EQ(kernels[0].params[1].offset, 8);
  EXPECT_EQ(kernels[0].param_bytes, 40);
  EXPECT_EQ(kernels[0].shared_bytes, 48);
  EXPECT_EQ(kernels[0].max_threads, 128);
}
// Every prefix and many small damages of a real file are read or refused, never more.
TEST(Parser, DamagedFiles) {
  std::string text = read_text(GACC_EMULATOR_TESTS "/kernels/kernels.ptx").substr(0, 9000);
  std::vector<KernelInfo> kernels;
  for (size_t n = 0; n < text.size(); n += 37) (void)list_kernels(text.substr(0, n), kernels);
  for (size_t n = 0; n < text.size(); n += 29) {
    std::string damaged = text;
    damaged[n] = "{};:[]%.0x@"[n % 11];
    (void)list_kernels(damaged, kernels);
  }
}

}  // namespace
}  // namespace gacc::emulator
