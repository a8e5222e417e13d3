// PTX as text: assembled by ptxas for every target where there is a ptxas, and what must or must not stand in
// it.
#include "codegen/nvptx.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/codegen/groups.h"

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
  all.settings["train.micro_batch"] = int64_t{33};
  int count = 0;
  for (const ir::OpInfo* info : ir::all_ops()) {
    if (info->lowering == ir::Lowering::composite) continue;
    for (const ir::Example& example : ir::examples(*info))
      if (!ir::has_half(example)) append(all, example.module, fmt::format("e{}.", count++));
  }
  for (const auto& [name, text] : kGroups) {
    for (const char* columns : {"7", "256", "2048"})
      append(all, group_module(text, columns, "5"), fmt::format("e{}.", count++));
  }
  return all;
}

std::string find_ptxas() {
  for (const char* path : {"/usr/local/cuda/bin/ptxas", "/usr/bin/ptxas"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return std::system("command -v ptxas > /dev/null 2>&1") == 0 ? "ptxas" : "";
}

class Ptx : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Targets, Ptx, testing::ValuesIn(known_targets()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Ptx, AssemblesEverything) {
  const std::string ptxas = find_ptxas(), target(GetParam());
  if (ptxas.empty()) GTEST_SKIP() << "no ptxas on this machine: PTX for " << target << " was not assembled";
  Diag diag;
  const auto code = emit_nvptx(everything(), target, diag);
  ASSERT_TRUE(code) << diag.render();
  char folder[] = "/tmp/gacc-ptx-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/all.ptx", log = std::string(folder) + "/log";
  std::ofstream(path) << code->ptx;
  const int status = std::system(
      fmt::format("{} -O1 -arch={} -o {}/all.cubin {} > {} 2>&1", ptxas, target, folder, path, log).c_str());
  std::ifstream in(log);
  const std::string messages((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(status, 0) << messages.substr(0, 2000);
  if (status == 0) std::filesystem::remove_all(folder);
}

TEST(PtxText, WrittenMemoryIsNeverReadThroughTheConstantPath) {
  Diag diag;
  const auto code = emit_nvptx(everything(), "sm_80", diag);
  ASSERT_TRUE(code) << diag.render();
  EXPECT_EQ(code->ptx.find("ld.global.nc"), std::string::npos);
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
  const auto code = emit_nvptx(everything(), "sm_80", diag);
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
  ASSERT_EQ(code->entries.size(), 1U);
  EXPECT_NE(code->ptx.find(".entry " + code->entries[0]), std::string::npos);
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
