// The host's code against the reference evaluator: every op of the table, chains at the edges of vectors and
// tiles, random groups, and what the object cache relies on.
#include <gtest/gtest.h>

#include <cmath>

#include "codegen/host/jit.h"
#include "ir/text/text.h"
#include "tests/codegen/attention_cases.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/library.h"
#include "tests/codegen/simulator.h"
#include "tests/numeric/examples.h"

namespace gacc::codegen {
namespace {

using ir::Module;
using ir::RegionKind;

struct Compiled {
  ModuleKernels program;
  std::string object;
  std::unique_ptr<HostCode> code;
};

std::unique_ptr<Compiled> compile(const Module& module) {
  auto compiled = std::make_unique<Compiled>();
  std::string problem;
  std::optional<ModuleKernels> program = make_program(module, Purpose::host, problem);
  EXPECT_TRUE(program) << problem;
  if (!program) return nullptr;
  compiled->program = std::move(*program);
  compiled->object = compile_host(compiled->program, problem);
  EXPECT_EQ(problem, "");
  compiled->code = HostCode::load(compiled->object, compiled->program, problem);
  EXPECT_TRUE(compiled->code) << problem;
  return compiled->code ? std::move(compiled) : nullptr;
}

// All items at once, or in tasks of one tile, last task first.
Machine::Launch launch(const Module& module, RegionKind kind, const HostCode& code, int64_t batch,
                       bool in_tiles) {
  return [&module, kind, &code, batch, in_tiles](const BodyCall& call, char* const* operands,
                                                 const std::vector<int64_t>& extents) {
    if (call.function < 0) return run_library(module, kind, call, operands, batch, in_tiles);
    const HostFunction function = code.function(call.function);
    const int64_t items = call.items.at(batch), tile = in_tiles ? call.tile : std::max<int64_t>(items, 1);
    for (int64_t begin = (items - 1) / tile * tile; begin >= 0; begin -= tile) {
      function(operands, extents.data(), begin, std::min(begin + tile, items));
    }
  };
}

// f32 rounding of a few dependent operations; sums of n terms add some ulp more.
constexpr double kTolerance = 1e-5;

void check(const Module& module, RegionKind kind, int64_t batch,
           const std::map<std::string, ir::Tensor>& inputs, const ir::State& state, const Compiled& compiled,
           double tolerance = kTolerance) {
  ir::State after = state;
  const auto values = ir::evaluate(module, kind, batch, inputs, after);
  Machine machine(module, compiled.program, kind, batch), tiled(module, compiled.program, kind, batch);
  machine.set(inputs, state);
  machine.run(launch(module, kind, *compiled.code, batch, false));
  machine.expect_equal(values, after, tolerance);
  tiled.set(inputs, state);
  tiled.run(launch(module, kind, *compiled.code, batch, true));
  EXPECT_EQ(machine.words(), tiled.words()) << "the result depends on the cut into tasks";
  Machine tight(module, compiled.program, kind, batch);
  tight.reuse_memory();
  tight.set(inputs, state);
  tight.run(launch(module, kind, *compiled.code, batch, true));
  tight.expect_equal(values, after, tolerance);
}

void check_eval(const Module& module, std::vector<int64_t> batches, double tolerance = kTolerance,
                bool positive = false) {
  const auto compiled = compile(module);
  ASSERT_NE(compiled, nullptr);
  std::mt19937 random(7);
  for (const int64_t batch : batches) {
    auto inputs = ir::random_inputs(module, batch, positive, random);
    ir::State state = ir::random_state(module, random);
    for (auto& [name, tensor] : inputs) round(tensor);
    for (auto& [name, tensor] : state.buffers) round(tensor);
    check(module, RegionKind::eval, batch, inputs, state, *compiled, tolerance);
    if (testing::Test::HasFailure()) break;
  }
}

class HostOp : public testing::TestWithParam<const ir::OpInfo*> {};
INSTANTIATE_TEST_SUITE_P(Ops, HostOp, testing::ValuesIn(ir::all_ops()),
                         [](const auto& info) { return ir::test_name(info.param->name); });

TEST_P(HostOp, AgreesWithReference) {
  if (GetParam()->lowering == ir::Lowering::composite) return;  // `expand` writes them in the others
  if (GetParam()->lowering == ir::Lowering::copy) return;       // no code
  int checked = 0;
  for (ir::Example& example : ir::examples(*GetParam())) {
    if (ir::has_half(example)) continue;  // half_test.cpp
    ++checked;
    SCOPED_TRACE(example.text);
    const double tolerance = tolerance_of(example.module, kTolerance);
    check_eval(example.module, {1, 3, 4}, tolerance, /*positive=*/true);
    check_eval(example.module, {4}, tolerance);
  }
  EXPECT_TRUE(checked > 0 || GetParam()->half_of != nullptr) << "no example in f32";
}

class HostGroup : public testing::TestWithParam<Group> {};
INSTANTIATE_TEST_SUITE_P(Groups, HostGroup, testing::ValuesIn(kGroups),
                         [](const auto& info) { return info.param.name; });

TEST_P(HostGroup, AtTheEdges) {
  for (const char* columns : {"1", "2", "7", "16", "17", "63", "64", "65", "130", "1030"}) {
    for (const char* rows : {"1", "5"}) {
      SCOPED_TRACE(std::string("C = ") + columns + ", T = " + rows);
      const Module module = group_module(GetParam().text, columns, rows);
      check_eval(module, {1, 2, 33}, 3e-5);
      if (HasFailure()) return;
    }
  }
}

TEST(Host, LargerThanATile) {
  Module module = ir::parse_module(R"(set train.micro_batch = 3
    eval(%x : f32[B,70001]) {
      %y = tanh %x : f32[B,70001]
      %s = total_sum %y : f32[]
      %r = row_sum %x : f32[B,1]
      yield metric s %s, metric y %y, metric r %r
    })");
  check_eval(module, {1, 3}, 1e-4);  // sums of 2e5 terms
}

// Lengths of one vector, step or block, one less and one more; channels likewise.
TEST(Host, AttentionAtTheEdges) {
  for (const bool causal : {false, true}) {
    for (const bool dropout : {false, true}) {
      for (const auto& [length, heads, channels] : {std::array<int64_t, 3>{1, 2, 3},
                                                    {2, 1, 1},
                                                    {7, 1, 16},
                                                    {8, 3, 17},
                                                    {15, 1, 4},
                                                    {16, 2, 8},
                                                    {17, 2, 15},
                                                    {63, 1, 5},
                                                    {64, 2, 32},
                                                    {65, 1, 33},
                                                    {130, 1, 2}}) {
        if (dropout && length % 16 != 1) continue;
        SCOPED_TRACE(fmt::format("T = {}, {} heads of {}, causal {}, dropout {}", length, heads, channels,
                                 causal, dropout));
        check_eval(attention_module({length, heads, channels, causal, dropout}, 2), {1, 2}, 2e-5);
        if (HasFailure()) return;
      }
    }
  }
}

// Heads of keys that one, some and all heads of queries share.
TEST(Host, GroupedQueries) {
  for (const AttentionCase& c : {AttentionCase{9, 3, 5, true, false, 1},
                                 {17, 6, 8, false, true, 3},
                                 {65, 4, 16, true, true, 2},
                                 {33, 9, 4, true, false, 3},
                                 {8, 2, 3, false, false, 2}}) {
    SCOPED_TRACE(
        fmt::format("T = {}, {} heads of {}, {} of keys", c.length, c.heads, c.channels, c.kv_heads));
    check_eval(attention_module(c, 2), {1, 2}, 2e-5);
  }
}

// Windows shorter and longer than a step and a vector, alone and with dropout and shared heads.
TEST(Host, WindowsOfAttention) {
  for (const AttentionCase& c : {AttentionCase{2, 1, 4, true, false, 0, 1},
                                 {17, 6, 8, true, true, 3, 5},
                                 {65, 2, 16, true, false, 0, 1},
                                 {65, 4, 16, true, true, 2, 30},
                                 {130, 1, 5, true, false, 0, 64},
                                 {131, 1, 3, true, false, 0, 100},
                                 {64, 2, 32, true, false, 1, 63}}) {
    SCOPED_TRACE(fmt::format("T = {}, {} heads of {}, window {}", c.length, c.heads, c.channels, c.window));
    check_eval(attention_module(c, 2), {1, 2}, 2e-5);
  }
}

// Documents: within a vector, a step and a block, and over several; numbers that come again; positions of none.
TEST(Host, DocumentsOfAttention) {
  for (const Documents documents : {Documents::one, Documents::runs, Documents::scattered}) {
    for (const AttentionCase& shape : {AttentionCase{1, 1, 4, false, false},
                                       {17, 6, 8, true, true, 3},
                                       {65, 2, 5, false, false},
                                       {130, 4, 16, true, true, 2, 30},
                                       {131, 1, 3, true, false, 0, 100},
                                       {203, 1, 4, true, false},
                                       {203, 1, 4, false, true}}) {
      AttentionCase c = shape;
      c.documents = documents;
      SCOPED_TRACE(fmt::format("T = {}, {} heads of {}, window {}, documents {}", c.length, c.heads,
                               c.channels, c.window, static_cast<int>(documents)));
      const Module module = attention_module(c, 2);
      const auto compiled = compile(module);
      ASSERT_NE(compiled, nullptr);
      std::mt19937 random(7);
      auto inputs = ir::random_inputs(module, 2, false, random);
      set_documents(c, inputs, random);
      for (auto& [name, tensor] : inputs) round(tensor);
      check(module, RegionKind::eval, 2, inputs, ir::random_state(module, random), *compiled, 2e-5);
      if (HasFailure()) return;
    }
  }
}

TEST(Host, AttentionOfScoresFarFromZero) {
  const AttentionCase c{19, 2, 4, true, false};
  const Module module = attention_module(c, 2);
  const auto compiled = compile(module);
  ASSERT_NE(compiled, nullptr);
  std::mt19937 random(7);
  auto inputs = far_scores(c, 2, ir::random_inputs(module, 2, false, random));
  for (auto& [name, tensor] : inputs) round(tensor);
  check(module, RegionKind::eval, 2, inputs, ir::random_state(module, random), *compiled, 2e-3);
}

// 4,096 positions: long sums, many steps; small heads, for the reference's sake.
TEST(Host, LongAttention) { check_eval(attention_module({4096, 1, 2, true, false}, 1), {1}, 5e-5); }

// Groups made at random of what may follow: formulas over the domain, row results and their uses.
TEST(Host, RandomGroups) {
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    const int columns = std::array{1, 3, 16, 20, 40, 129}[random() % 6];
    const std::string wide = fmt::format("f32[B,{}]", columns), narrow = "f32[B,1]";
    std::string text =
        fmt::format("set train.micro_batch = 9\nparam @p : f32[{}]\neval(%x : {}, %w : {}, %r : {}) {{\n",
                    columns, wide, wide, narrow);
    std::vector<std::string> full = {"%x", "%w"}, per_row = {"%r"};
    const auto pick = [&](const std::vector<std::string>& from) { return from[random() % from.size()]; };
    for (int i = 0; i < 10; ++i) {
      const std::string name = fmt::format("%v{}", i);
      switch (random() % 6) {
        case 0:
          text += fmt::format("{} = {} {} : {}\n", name,
                              std::array{"tanh", "relu", "sigmoid", "neg"}[random() % 4], pick(full), wide),
              full.push_back(name);
          break;
        case 1:
          text +=
              fmt::format("{} = {} {}, {} : {}\n", name, std::array{"add", "sub", "maximum"}[random() % 3],
                          pick(full), pick(full), wide),
              full.push_back(name);
          break;
        case 2:
          text += fmt::format("{} = mul {}, {} : {}\n", name, pick(full), pick(per_row), wide),
              full.push_back(name);
          break;
        case 3:
          text += fmt::format("{} = add {}, @p : {}\n", name, pick(full), wide), full.push_back(name);
          break;
        case 4:
          text += fmt::format("{} = {} {} : {}\n", name,
                              std::array{"row_sum", "row_max", "row_min"}[random() % 3], pick(full), narrow),
              per_row.push_back(name);
          break;
        default:
          text += fmt::format("{} = tanh {} : {}\n", name, pick(per_row), narrow), per_row.push_back(name);
          break;
      }
    }
    text += fmt::format("yield metric a {}, metric b {}, metric c {}\n}}\n", full.back(), per_row.back(),
                        pick(full));
    SCOPED_TRACE(text);
    Module module = ir::parse_module(text);
    ASSERT_FALSE(HasFailure());
    group_ops(module, module.eval, [&] { return random() % 8 == 0; });
    check_eval(module, {1, 9}, 2e-4);  // sums of 129 values of up to 1e2 that cancel
    if (HasFailure()) return;
  }
}

// `when`: nothing changes where the flag is 0, and NaN in the rejected value does not leak.
TEST(Host, WhenKeepsOldBytes) {
  Module module = ir::parse_module(R"(param @w : f32[40]
    accum @g : f32[40] total sum
    state @ok : i32[] control
    eval(%x : f32[B,40], %nan : f32[40]) {
      store @w, %nan when(@ok)
      column_sum.acc @g, %x when(@ok)
    })");
  group_ops(module, module.eval);
  const auto compiled = compile(module);
  ASSERT_NE(compiled, nullptr);
  std::mt19937 random(7);
  auto inputs = ir::random_inputs(module, 1, false, random);
  for (auto& [name, tensor] : inputs) round(tensor);
  inputs["nan"].data.assign(40, std::nan(""));
  ir::State state = ir::random_state(module, random);
  for (auto& [name, tensor] : state.buffers) round(tensor);
  for (const double ok : {0.0, 1.0}) {
    state.buffers["ok"].data = {ok};
    check(module, RegionKind::eval, 1, inputs, state, *compiled);
  }
}

TEST(Host, EqualWorkIsOneFunction) {
  const Module module = ir::parse_module(R"(param @a : f32[64]
    param @b : f32[128,4]
    state @low : i32[] control
    state @high : i32[] control
    init() {
      random.normal @a, @low, @high {std = 0.5, stream = 7}
      random.normal @b, @low, @high {std = 0.25, stream = 8}
    })");
  std::string problem;
  const auto program = make_program(module, Purpose::host, problem);
  ASSERT_TRUE(program) << problem;
  EXPECT_EQ(program->functions.size(), 1U);
  // Streams and deviations differ, so they are arguments.
  EXPECT_GE(program->calls(RegionKind::init)[0].extents.size(), 4U);
  const auto compiled = compile(module);
  ASSERT_NE(compiled, nullptr);
  ir::State state;
  state.buffers["low"] = {{}, {12345}};
  state.buffers["high"] = {{}, {-9}};
  check(module, RegionKind::init, 1, {}, state, *compiled);
}

TEST(Host, ObjectsLoadAgain) {
  Module module = ir::parse_module("eval(%x : f32[B,40]) {\n%y = exp %x : f32[B,40]\nyield metric y %y\n}");
  const auto first = compile(module), second = compile(module);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->object, second->object);
  std::string problem;
  EXPECT_EQ(HostCode::load("not an object", first->program, problem), nullptr);
  EXPECT_NE(problem, "");
  problem.clear();
  EXPECT_EQ(HostCode::load(std::string_view(first->object).substr(0, 100), first->program, problem), nullptr);
  EXPECT_NE(problem, "");
}

// Vectors of the machine's width, masked at the end; nothing left for a library to do.
TEST(Host, CodeIsVectors) {
  const Module module = group_module(kGroups[0].text, "40", "1");
  std::string problem;
  const auto program = make_program(module, Purpose::host, problem);
  ASSERT_TRUE(program) << problem;
  const unsigned width = host_vectors() == "avx512" ? 16 : host_vectors() == "avx2" ? 8 : 4;
  const std::string text = host_llvm_ir(*program, width), lanes = std::to_string(width);
  EXPECT_NE(text.find("load <" + lanes + " x float>"), std::string::npos);
  EXPECT_NE(text.find("@llvm.masked.store.v" + lanes + "f32"), std::string::npos);
  for (const char* library : {"@exp", "@tanh", "@erf", "@llvm.exp", "@llvm.erf"})
    EXPECT_EQ(text.find(library), std::string::npos) << library;
}

}  // namespace
}  // namespace gacc::codegen
