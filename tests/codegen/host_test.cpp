// The host's code against the reference evaluator where device_test does not go: attention of every kind, random
// groups, and what the object cache relies on.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/codegen/attention_cases.h"
#include "tests/codegen/check.h"

namespace gacc::codegen {
namespace {

using ir::Module;
using ir::RegionKind;

TEST(Host, LargerThanATile) {
  Module module = ir::parse_module(R"(set train.micro_batch = 3
    eval(%x : f32[B,70001]) {
      %y = tanh %x : f32[B,70001]
      %s = total_sum %y : f32[]
      %r = row_sum %x : f32[B,1]
      yield metric s %s, metric y %y, metric r %r
    })");
  check_eval(module, {1, 3}, 1e-4, On::host);  // sums of 2e5 terms
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
        check_eval(attention_module({length, heads, channels, causal, dropout}, 2), {1, 2}, 2e-5, On::host);
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
    check_eval(attention_module(c, 2), {1, 2}, 2e-5, On::host);
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
    check_eval(attention_module(c, 2), {1, 2}, 2e-5, On::host);
  }
}

// Forward and gradient of attention on the host, whose elements may be off by so much.
void check_attention(const AttentionCase& c, double bound) {
  const Module module = attention_module(c, 2);
  std::mt19937 random(7);
  Data data = random_data(module, 2, random, false);
  set_documents(c, data.inputs, random);
  Check(module, On::host)(2, data, bound);
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
      check_attention(c, 2e-5);
      if (HasFailure()) return;
    }
  }
}

// Scores of another scale, and capped where most of them would be far beyond.
TEST(Host, CappedAttention) {
  for (const AttentionCase& shape : {AttentionCase{9, 3, 5, true, false, 1},
                                     {17, 6, 8, true, true, 3, 5},
                                     {65, 2, 16, false, false},
                                     {130, 1, 5, true, false, 0, 64, Documents::runs}}) {
    for (const auto& [scale, softcap] : {std::pair{2.0, 0.0}, {0.0, 1.0}, {2.0, 0.75}, {0.5, 50.0}}) {
      AttentionCase c = shape;
      c.scale = scale, c.softcap = softcap;
      SCOPED_TRACE(fmt::format("T = {}, {} heads of {}, scale {}, softcap {}", c.length, c.heads, c.channels,
                               scale, softcap));
      check_attention(c, 3e-5);
      if (HasFailure()) return;
    }
  }
}

TEST(Host, AttentionOfScoresFarFromZero) {
  const AttentionCase c{19, 2, 4, true, false};
  const Module module = attention_module(c, 2);
  std::mt19937 random(7);
  Data data = random_data(module, 2, random, false);
  data.inputs = far_scores(c, 2, data.inputs);
  Check(module, On::host)(2, data, 2e-3);
}

// 4,096 positions: long sums, many steps; small heads, for the reference's sake.
TEST(Host, LongAttention) { check_eval(attention_module({4096, 1, 2, true, false}, 1), {1}, 5e-5, On::host); }

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
    check_eval(module, {1, 9}, 2e-4, On::host);  // sums of 129 values of up to 1e2 that cancel
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
  std::mt19937 random(7);
  Data data = random_data(module, 1, random, false);
  data.inputs["nan"].data.assign(40, std::nan(""));
  Check check(module);
  for (const double ok : {0.0, 1.0}) {
    data.state.buffers["ok"].data = {ok};
    check(1, data, 1e-5);
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
  Check check(module, On::host);
  const ModuleKernels& program = check.host().program;
  EXPECT_EQ(program.functions.size(), 1U);
  // Streams and deviations differ, so they are arguments.
  EXPECT_GE(program.calls(RegionKind::init)[0].extents.size(), 4U);
  Data data;
  data.state.buffers["low"] = {{}, {12345}};
  data.state.buffers["high"] = {{}, {-9}};
  check(1, data, 1e-5, RegionKind::init);
}

TEST(Host, ObjectsLoadAgain) {
  Module module = ir::parse_module("eval(%x : f32[B,40]) {\n%y = exp %x : f32[B,40]\nyield metric y %y\n}");
  const Host first(module), second(module);
  EXPECT_EQ(first.objects, second.objects);
  for (const std::string_view text :
       {std::string_view("not an archive"), std::string_view(first.objects).substr(0, 100),
        std::string_view("!<arch>\n"),
        std::string_view(first.objects).substr(0, first.objects.size() - 100)}) {
    std::string problem;
    EXPECT_EQ(HostCode::load(text, first.program, problem), nullptr);
    EXPECT_NE(problem, "");
  }
}

TEST(Host, AnObjectIsTheSameWhoeverMakesIt) {
  std::string ops, yields;
  for (const char* op :
       {"neg", "abs", "square", "sqrt", "reciprocal", "exp", "log", "sin", "cos", "relu", "tanh", "erf"}) {
    ops += fmt::format("%{0} = {0} %x : f32[B,40]\n", op);
    yields += fmt::format("{1} metric {0} %{0}", op, yields.empty() ? "yield" : ",");
  }
  const Module module = ir::parse_module(fmt::format("eval(%x : f32[B,40]) {{\n{}{}\n}}", ops, yields));
  const Host in_order(module);
  ASSERT_EQ(in_order.program.functions.size(), 12u);
  std::string problem;
  int64_t objects = 0;
  const auto backwards_on_threads = [&](int64_t tasks, const std::function<void(int64_t)>& task) {
    std::vector<std::thread> threads;
    for (int64_t i = objects = tasks; i-- > 0;) threads.emplace_back(task, i);
    for (std::thread& thread : threads) thread.join();
  };
  EXPECT_EQ(compile_host(in_order.program, problem, backwards_on_threads), in_order.objects);
  EXPECT_GT(objects, 1);
}

}  // namespace
}  // namespace gacc::codegen
