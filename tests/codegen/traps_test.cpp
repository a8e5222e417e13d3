// Rules without which LLVM's NVPTX back end makes wrong or slow code of a merged kernel (the traps of
// notes/codegen.md); ptx_test.cpp has those of single kernels. Each test fails without its rule: a `noalias`
// on the arena, an asm call that is not convergent, IR atomics for the grid barrier.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "codegen/device_code.h"
#include "tests/compiler/compiled.h"

namespace gacc::codegen {
namespace {

DeviceCode code_for(std::string_view target) {
  const std::string model = test::classifier(
      "64", test::linear(96, "activation = \"gelu\"") + test::layer("layer_norm") + test::linear(7),
      "type = \"adamw\"", "micro_batch = 16\n[launch]\nmode = \"persistent\"");
  Diag diag;
  const ir::Module module = test::compiled(model, {}, std::string(target));
  std::optional<DeviceCode> code = emit_nvptx(module, target, diag, /*shows_llvm_ir=*/true);
  EXPECT_TRUE(code) << diag.render();
  return code ? std::move(*code) : DeviceCode{};
}

size_t count(const std::string& text, std::string_view what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

class Traps : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Targets, Traps, testing::Values("sm_75", "sm_80", "sm_90"),
                         [](const auto& info) { return std::string(info.param); });

// Trap 1: reads of a pointer that is only read and `noalias` become ld.global.nc, even after a barrier.
TEST_P(Traps, MemoryIsReadAnewAfterABarrier) {
  const DeviceCode code = code_for(GetParam());
  EXPECT_EQ(code.ptx.find("ld.global.nc"), std::string::npos);
  EXPECT_EQ(code.llvm_ir.find("noalias"), std::string::npos);
}

// Trap 2: a collective that is not convergent is duplicated or moved into branches.
TEST_P(Traps, CollectivesAreConvergentAndStandOnce) {
  const DeviceCode code = code_for(GetParam());
  std::istringstream lines(code.llvm_ir);
  std::set<std::string> groups;
  size_t collectives = 0, barriers = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" asm ") != std::string::npos) {
      ++collectives;
      barriers += count(line, "bar.sync");
      groups.insert(line.substr(line.rfind('#')));
    } else if (line.rfind("attributes #", 0) == 0 &&
               groups.contains(line.substr(11, line.find(' ', 11) - 11))) {
      EXPECT_NE(line.find("convergent"), std::string::npos) << line;
    }
  }
  EXPECT_GT(collectives, 0U);
  EXPECT_EQ(count(code.ptx, "bar.sync"), barriers);
}

// LLVM 19 cannot select acquiring loads and fences, LLVM 22 drops `release` from atomics: the grid barrier is
// assembly, in one piece.
TEST_P(Traps, GridBarrierReleasesAndAcquires) {
  const DeviceCode code = code_for(GetParam());
  const size_t arrive = code.ptx.find("atom.add.release.gpu.global.u32");
  const size_t wait = code.ptx.find("ld.acquire.gpu.global.u32");
  ASSERT_NE(arrive, std::string::npos);
  ASSERT_NE(wait, std::string::npos);
  EXPECT_LT(arrive, wait);
  // One barrier in each merged kernel, in a loop over the phases, and no other atomics.
  EXPECT_EQ(count(code.ptx, "atom.add.release.gpu.global.u32"), count(code.ptx, "_persistent("));
  EXPECT_EQ(count(code.ptx, "atom."), count(code.ptx, "_persistent("));
  for (const char* other : {"atom.global.add", "\tred.", "membar", "fence"})
    EXPECT_EQ(code.ptx.find(other), std::string::npos) << other;
}

// Trap 4 and more: divisions and roots are IEEE's unless asked for. What the merged kernel is made of stands
// inside it: no calls through the stack, no jump tables, no copies of tables in local memory.
TEST_P(Traps, NothingIsCalledCopiedOrApproximate) {
  const DeviceCode code = code_for(GetParam());
  for (const char* text : {"call.uni", "call ", ".func", "brx.idx", ".local", "ld.local", ".approx", ".ftz"})
    EXPECT_EQ(code.ptx.find(text), std::string::npos) << text;
  for (const char* text : {"step_persistent", ".minnctapersm 1", "div.rn.f32", "sqrt.rn.f32"})
    EXPECT_NE(code.ptx.find(text), std::string::npos) << text;
}

// Without FPOpFusion::Strict the back end writes `add.f32` and `mul.f32`, which ptxas may fuse: the bits of
// the CPU would be lost.
TEST_P(Traps, NothingIsLeftToBeFused) {
  const DeviceCode code = code_for(GetParam());
  for (const char* text : {"\tadd.f32", "\tsub.f32", "\tmul.f32", "\tfma.f32"})
    EXPECT_EQ(code.ptx.find(text), std::string::npos) << text;
  EXPECT_NE(code.ptx.find("\tadd.rn.f32"), std::string::npos);
}

}  // namespace
}  // namespace gacc::codegen
