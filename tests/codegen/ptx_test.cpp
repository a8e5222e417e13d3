// PTX as text: assembled by ptxas for every target where there is a ptxas, and what must or must not stand in
// it.
#include "codegen/device_code.h"

#include <sstream>

#include "tests/codegen/attention_cases.h"
#include "tests/codegen/conv_cases.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/half_modules.h"
#include "tests/codegen/ptxas.h"

namespace gacc::codegen {
namespace {

using ir::Module;

// Adds every op of every example, each a kernel of its own, and the fused groups' ops, into one module.
void append(Module& all, const Module& from, const std::string& prefix) {
  std::map<ir::Operand, ir::Operand> moved;
  ir::Region& region = all.eval;
  const auto move = [&](const ir::Operand& operand) -> ir::Operand {
    if (ir::as_number(operand) != nullptr) return operand;
    if (const auto known = moved.find(operand); known != moved.end()) return known->second;
    if (const ir::BufferId* id = ir::as_buffer(operand)) {
      ir::Buffer buffer = from[*id];
      buffer.name = prefix + buffer.name;
      return moved[operand] = all.add_buffer(buffer);
    }
    const ir::Value& value = from.eval[*ir::as_value(operand)];
    return moved[operand] = region.add_value(prefix + value.name, value.type);
  };
  for (const ir::ValueId input : from.eval.inputs)
    region.inputs.push_back(std::get<ir::ValueId>(move(input)));
  const int32_t first = static_cast<int32_t>(region.ops.size()) + 1;
  for (ir::Op op : from.eval.ops) {
    for (ir::Operand& operand : op.operands) operand = move(operand);
    for (ir::ValueId& result : op.results) result = std::get<ir::ValueId>(move(result));
    if (op.when) op.when = move(*op.when);
    op.kernel += first;
    region.ops.push_back(std::move(op));
  }
  for (ir::Yield yield : from.eval.yields) {
    yield.what = move(yield.what);
    yield.metric = prefix + yield.metric;
    region.yields.push_back(std::move(yield));
  }
}

Module everything() {
  Module all;
  all.settings.train.micro_batch = int64_t{33};
  int count = 0;
  for (const ir::OpInfo* info : ir::all_ops()) {
    if (info->lowering == ir::Lowering::composite || info->lowering == ir::Lowering::copy) continue;
    for (const ir::Example& example : ir::examples(*info))
      if (!ir::has_half(example)) append(all, example.module, fmt::format("e{}.", count++));
  }
  for (const auto& [name, text] : kGroups) {
    for (const char* columns : {"7", "256", "2048"})
      append(all, group_module(text, columns, "5"), fmt::format("e{}.", count++));
  }
  return all;
}

class Ptx : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Targets, Ptx, testing::ValuesIn(known_targets()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Ptx, AssemblesEverything) {
  const std::string target(GetParam());
  if (find_ptxas().empty())
    GTEST_SKIP() << "no ptxas on this machine: PTX for " << target << " was not assembled";
  Diag diag;
  const auto code = emit_nvptx(everything(), target, diag);
  ASSERT_TRUE(code) << diag.render();
  assemble(code->ptx, target, "-O1");
}

// Attention's kernels with their gradients, for widths of heads that are shared out among targets: a width
// takes a second to assemble.
class AttentionPtx : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Targets, AttentionPtx, testing::ValuesIn(known_targets()),
                         [](const auto& info) { return std::string(info.param); });

void assemble_attention(Module all, const std::string& target, const std::string& with,
                        const std::string& without, int spilled = 0) {
  // Only attention itself, each a kernel of its own.
  std::erase_if(all.eval.ops, [](const ir::Op& op) { return !op.info->name.starts_with("attention"); });
  for (size_t i = 0; i < all.eval.ops.size(); ++i) all.eval.ops[i].kernel = static_cast<int32_t>(i);
  Diag diag;
  const auto code = emit_nvptx(all, target, diag);
  ASSERT_TRUE(code) << diag.render();
  EXPECT_NE(code->ptx.find(with), std::string::npos);
  EXPECT_EQ(code->ptx.find(without), std::string::npos);
  // By tensor cores a causal forward has a second pass, for values that are not finite. Where the tile is that of
  // sm_86 it keeps two words of a thread out of registers.
  const bool narrow = with == "mma.sync" && (target == "sm_86" || target == "sm_89");
  expect_no_spills(code->ptx, target, all.eval.ops.size(), narrow ? 32 : spilled);
}

// Every width that tensor cores take.
TEST_P(AttentionPtx, TensorCoresWithoutSpills) {
  const std::string target(GetParam());
  if (find_ptxas().empty())
    GTEST_SKIP() << "no ptxas on this machine: PTX for " << target << " was not assembled";
  Module all, capped;
  for (Module* module : {&all, &capped}) module->settings.train.micro_batch = int64_t{2};
  int64_t count = 0;
  std::vector<int64_t> widths = {64};
  if (target == "sm_75") widths = {16, 64, 96, 128};
  if (target == "sm_80") widths = {32, 48, 80, 112, 128};
  for (const int64_t channels : widths) {
    for (const bool dropout : {false, true}) {
      const bool bf16 = dropout && target != "sm_75";
      const auto module =
          to_half(attention_module({256, 1, channels, !dropout || channels % 32 == 0, dropout}, 2),
                  bf16 ? ir::DType::bf16 : ir::DType::f16);
      ASSERT_TRUE(module);
      append(all, *module, fmt::format("e{}.", count++));
    }
    for (const double softcap : {0.0, 50.0}) {
      AttentionCase grouped{256, 3, channels, true, false, 1};
      grouped.softcap = softcap;
      const auto half = to_half(attention_module(grouped, 2), ir::DType::f16);
      ASSERT_TRUE(half);
      append(softcap > 0 ? capped : all, *half, fmt::format("e{}.", count++));
    }
  }
  assemble_attention(std::move(all), target, "mma.sync", "shfl.sync.idx");
  // With a cap the gradient on sm_90 keeps ten words of a thread out of registers: the derivatives of the scores.
  assemble_attention(std::move(capped), target, "mma.sync", "shfl.sync.idx",
                     target.starts_with("sm_90") ? 40 : 0);
}

// Threads alone and teams of every size, whole and ragged; f32, and bf16 where tensor cores do not take it.
TEST_P(AttentionPtx, TeamsWithoutSpills) {
  const std::string target(GetParam());
  if (find_ptxas().empty())
    GTEST_SKIP() << "no ptxas on this machine: PTX for " << target << " was not assembled";
  static const std::map<std::string_view, std::vector<int64_t>> shares = {
      {"sm_75", {4, 12, 32, 64, 96, 160, 510}},
      {"sm_80", {7, 16, 40, 64, 100, 128, 384}},
      {"sm_86", {8, 24, 48, 64, 80, 127, 192}},
      {"sm_89", {11, 31, 33, 64, 112, 126, 256}},
      {"sm_90", {9, 17, 63, 64, 72, 128, 512}}};
  const auto found = shares.find(target);
  Module all;
  all.settings.train.micro_batch = int64_t{2};
  int64_t count = 0;
  for (const int64_t channels : found == shares.end() ? std::vector<int64_t>{64} : found->second) {
    for (const bool both : {false, true}) {
      Module module = attention_module({256, 2, channels, both, both}, 2);
      if (target == "sm_75" && channels == 32) module = *to_half(module, ir::DType::bf16);
      append(all, module, fmt::format("e{}.", count++));
    }
    append(all, attention_module({256, 4, channels, true, false, 2}, 2), fmt::format("e{}.", count++));
  }
  assemble_attention(std::move(all), target, "shfl.sync.idx", "mma.sync");
}

class ConvPtx : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Targets, ConvPtx, testing::ValuesIn(known_targets()),
                         [](const auto& info) { return std::string(info.param); });

// Every tile, and what takes the most registers: gathered operands, strides, large kernels, groups, odd rows.
TEST_P(ConvPtx, ProductsWithoutSpills) {
  const std::string target(GetParam());
  if (find_ptxas().empty())
    GTEST_SKIP() << "no ptxas on this machine: PTX for " << target << " was not assembled";
  std::vector<ConvCase> cases = {{3, 64, 64, 64, {7, 7}, 2, 3, 1, 1, 64, 16},
                                 {128, 256, 16, 16, {3, 3}, 2, 1, 1, 1, 64, 16},
                                 {256, 256, 8, 8, {3, 3}, 1, 1, 1, 1, 64, 8},
                                 {48, 80, 15, 13, {5, 5}, 1, 2, 2, 2, 33, 11},
                                 {16, 384, 64, 64, {16, 16}, 16, 0, 1, 1, 64, 16}};
  for (const ConvTile& tile : kConvTiles) cases.push_back(tile.c);
  for (const ir::DType dtype : {ir::DType::f16, ir::DType::f32}) {
    for (const ConvCase& c : cases) {
      SCOPED_TRACE(fmt::format("{}, {}", c.text(), ir::dtype_text(dtype)));
      Diag diag;
      const auto code = emit_nvptx(conv_module(c, dtype), target, diag);
      ASSERT_TRUE(code) << diag.render();
      expect_no_spills(code->ptx, target, 3);
    }
  }
}

TEST(PtxText, WrittenMemoryIsNeverReadThroughTheConstantPath) {
  Diag diag;
  const auto code = emit_nvptx(everything(), "sm_80", diag, /*shows_llvm_ir=*/true);
  ASSERT_TRUE(code) << diag.render();
  // Through that path goes a table of constants alone.
  for (size_t at = 0; (at = code->ptx.find("ld.global.nc", at)) != std::string::npos; ++at) {
    const size_t name = code->ptx.rfind(".entry ", at);
    EXPECT_TRUE(std::string_view(code->ptx).substr(name).starts_with(".entry rope"))
        << code->ptx.substr(at, 60);
  }
  EXPECT_EQ(code->llvm_ir.find("noalias"), std::string::npos);
  // 16-byte accesses where rows allow it; a limit for the registers; collectives.
  for (const char* text : {"ld.global.v4.", "st.global.v4.", ".maxntid", "shfl.sync.bfly.b32", "bar.sync"}) {
    EXPECT_NE(code->ptx.find(text), std::string::npos) << text;
  }
  // Nothing is left for a library to do, and nothing is approximate.
  for (const char* text : {".extern .func", ".approx", ".ftz", "call.uni"})
    EXPECT_EQ(code->ptx.find(text), std::string::npos) << text;
}

TEST(PtxText, CollectivesAreConvergent) {
  Diag diag;
  const auto code = emit_nvptx(everything(), "sm_80", diag, /*shows_llvm_ir=*/true);
  ASSERT_TRUE(code);
  std::istringstream lines(code->llvm_ir);
  std::string line;
  int collectives = 0;
  std::set<std::string> groups;
  while (std::getline(lines, line)) {
    if (line.find("asm sideeffect") != std::string::npos) {
      ++collectives;
      groups.insert(line.substr(line.rfind('#')));
    } else if (line.rfind("attributes #", 0) == 0 &&
               groups.contains(line.substr(11, line.find(' ', 11) - 11))) {
      EXPECT_NE(line.find("convergent"), std::string::npos) << line;
    }
  }
  EXPECT_GT(collectives, 0);
}

TEST(PtxText, EqualKernelsAreEmittedOnce) {
  const Module module = ir::parse_module(R"(set train.micro_batch = 32
    eval(%x : f32[B,64], %y : f32[B,128]) {
      %a = relu %x : f32[B,64]
      %b = relu %y : f32[B,128]
      yield metric a %a, metric b %b
    })");
  Diag diag;
  const auto code = emit_nvptx(module, "sm_80", diag);
  ASSERT_TRUE(code) << diag.render();
  ASSERT_EQ(code->program.functions.size(), 1U);
  EXPECT_NE(code->ptx.find(".entry " + code->program.functions[0].name), std::string::npos);
  EXPECT_EQ(code->program.calls(ir::RegionKind::eval).size(), 2U);
  const auto again = emit_nvptx(module, "sm_80", diag);
  EXPECT_EQ(code->ptx, again->ptx);
}

TEST(PtxText, UnknownTargetsAreRefused) {
  const auto refuse = [](std::string_view target) {
    Diag diag;
    EXPECT_FALSE(emit_nvptx(Module{}, target, diag));
    return diag.render();
  };
  EXPECT_NE(refuse("sm_81").find("unknown target \"sm_81\"; did you mean \"sm_80\"?"), std::string::npos)
      << refuse("sm_81");
  EXPECT_NE(refuse("gfx90a").find("sm_75 sm_80 sm_86 sm_89 sm_90 sm_90a"), std::string::npos);
  if (known_targets().size() == 6) {
    EXPECT_NE(refuse("sm_100").find("--target sm_90"), std::string::npos);
  }
}

}  // namespace
}  // namespace gacc::codegen
