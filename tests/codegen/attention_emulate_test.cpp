// Attention on a GPU: its PTX in the emulator against the double reference, without one report. By tensor
// cores, at the edges of tiles and blocks, and that a missing barrier or a lax wait is noticed; by teams of
// threads, at the edges of teams, warps and steps.
#include <queue>

#include "kernels/handwritten/attention_call.h"
#include "tests/codegen/attention_cases.h"
#include "tests/codegen/emulated.h"
#include "tests/codegen/half_modules.h"

namespace gacc::codegen {
namespace {

using ir::DType;
using ir::RegionKind;

struct Machine16 {
  DType dtype;
  const char* target;
  bool cores;  // it has tensor cores for the type
};

class MmaAttention : public testing::TestWithParam<Machine16> {};
INSTANTIATE_TEST_SUITE_P(Machines, MmaAttention,
                         testing::Values(Machine16{DType::f16, "sm_75", true},
                                         Machine16{DType::bf16, "sm_75", false},
                                         Machine16{DType::f16, "sm_80", true},
                                         Machine16{DType::bf16, "sm_80", true}),
                         [](const auto& info) {
                           return fmt::format("{}_{}", ir::dtype_text(info.param.dtype), info.param.target);
                         });

bool by_tensor_cores(const DeviceCode& code) {
  return std::any_of(code.program.functions.begin(), code.program.functions.end(),
                     [](const Body& body) { return body.by_tiles; });
}

// Both results and the gradient, twice with the same bits.
void check_twice(const ir::Module& module, const DeviceCode& code, int64_t batch, double error,
                 const AttentionCase* far = nullptr, const AttentionCase* packed = nullptr) {
  std::mt19937 random(11);
  Data data = random_data(module, batch, random);
  if (far != nullptr) data.inputs = far_scores(*far, batch, data.inputs);
  if (packed != nullptr) set_documents(*packed, data.inputs, random);
  ir::State after = data.state;
  const auto values = ir::evaluate(module, RegionKind::eval, batch, data.inputs, after);
  Emulated gpu(code);
  std::vector<uint32_t> words;
  for (int run = 0; run < 2; ++run) {
    Machine machine(module, code.program, RegionKind::eval, batch);
    machine.set(data.inputs, data.state);
    gpu.run(module, machine, batch);
    ASSERT_TRUE(gpu.emulator.reports().empty()) << gpu.emulator.reports().front().render();
    machine.expect_equal(values, after, error);
    if (run == 1) {
      EXPECT_EQ(machine.words(), words);
    }
    words = machine.words();
  }
}

// As close as the other kernels (half_test.cpp).
// Those without tensor cores are slow to emulate, and have that test: one case is enough.
void check(const AttentionCase& c, const Machine16& on, int64_t batch, bool cores) {
  if (!on.cores && c.length != 17 && c.length != 5) return;
  SCOPED_TRACE(fmt::format("T = {}, {} heads of {}, {} of keys, causal {}, dropout {}, window {}", c.length,
                           c.heads, c.channels, c.kv_heads, c.causal, c.dropout, c.window) +
               fmt::format(", documents {}", static_cast<int>(c.documents)));
  const auto module = to_half(attention_module(c, batch), on.dtype);
  ASSERT_TRUE(module);
  Diag diag;
  const auto code = emit_nvptx(*module, on.target, diag);
  ASSERT_TRUE(code) << diag.render();
  ASSERT_EQ(by_tensor_cores(*code), cores);
  check_twice(*module, *code, batch, 4 * tolerance(on.dtype), nullptr, &c);
}

TEST_P(MmaAttention, AtTheEdges) {
  for (const AttentionCase& c : {AttentionCase{1, 1, 16, false, false},
                                 {3, 2, 16, true, false},
                                 {16, 1, 32, false, true},
                                 {17, 1, 32, true, true},
                                 {33, 2, 48, true, false},
                                 {64, 1, 64, true, false},
                                 {65, 1, 64, false, false},
                                 {100, 1, 16, false, true},
                                 {130, 1, 16, true, true},
                                 {129, 1, 64, true, false}}) {
    check(c, GetParam(), c.length < 20 ? 2 : 1, GetParam().cores);
    if (HasFailure()) return;
  }
}

TEST_P(MmaAttention, WideHeads) {
  for (const AttentionCase& c : {AttentionCase{37, 1, 80, true, false},
                                 {19, 1, 96, false, true},
                                 {70, 1, 128, true, false},
                                 {35, 1, 112, true, true}}) {
    check(c, GetParam(), 1, GetParam().cores);
    if (HasFailure()) return;
  }
}

// Heads of keys that some or all heads of queries share: what passes through shared memory for one head of
// queries must be used up before the next one's comes.
TEST_P(MmaAttention, GroupedQueries) {
  for (const AttentionCase& c : {AttentionCase{17, 3, 16, true, false, 1},
                                 {5, 4, 16, false, true, 2},
                                 {130, 2, 16, true, false, 1},
                                 {70, 3, 64, true, false, 1},
                                 {35, 2, 112, true, false, 1},
                                 {33, 6, 32, false, false, 2}}) {
    check(c, GetParam(), c.length < 20 ? 2 : 1, GetParam().cores);
    if (HasFailure()) return;
  }
}

// Windows within a tile, of whole tiles, and over several; of one position, which sees itself alone.
TEST_P(MmaAttention, Windows) {
  for (const AttentionCase& c : {AttentionCase{17, 1, 32, true, true, 0, 5},
                                 {5, 2, 16, true, false, 1, 3},
                                 {130, 1, 16, true, false, 0, 1},
                                 {130, 1, 16, true, true, 0, 20},
                                 {129, 2, 64, true, false, 1, 64},
                                 {200, 1, 64, true, false, 0, 65},
                                 {70, 3, 64, true, false, 1, 33},
                                 {100, 1, 112, true, false, 0, 40}}) {
    check(c, GetParam(), c.length < 20 ? 2 : 1, GetParam().cores);
    if (HasFailure()) return;
  }
}

// Scores of another scale, and capped: with the tile's masks, dropout, shared heads and wide ones.
TEST_P(MmaAttention, Capped) {
  for (AttentionCase c : {AttentionCase{17, 1, 32, true, true},
                          {5, 2, 16, true, false, 1},
                          {33, 2, 48, false, false},
                          {129, 2, 64, true, false, 1, 64},
                          {70, 1, 128, true, false}}) {
    c.scale = 1.5, c.softcap = 0.75;
    check(c, GetParam(), c.length < 20 ? 2 : 1, GetParam().cores);
    if (HasFailure()) return;
  }
}

// Documents within a tile and over several, with a tail of none; numbers in any order; all of the window.
TEST_P(MmaAttention, Documents) {
  using enum Documents;
  for (const AttentionCase& c : {AttentionCase{17, 1, 32, true, true, 0, 0, runs},
                                 {5, 2, 16, false, false, 1, 0, scattered},
                                 {17, 4, 64, false, true, 1, 0, scattered},
                                 {130, 1, 16, true, false, 0, 0, runs},
                                 {130, 2, 16, false, false, 1, 0, runs},
                                 {129, 1, 64, true, false, 0, 0, one},
                                 {200, 1, 64, true, false, 0, 65, runs},
                                 {140, 1, 64, false, false, 0, 0, scattered},
                                 {70, 1, 112, true, true, 0, 0, runs},
                                 {100, 1, 48, false, true, 0, 0, runs}}) {
    check(c, GetParam(), c.length < 20 ? 2 : 1, GetParam().cores);
    if (HasFailure()) return;
  }
}

// Heads that are not of whole fragments, or too wide for a thread's registers, have the other kernels.
TEST_P(MmaAttention, OtherHeads) {
  for (const AttentionCase& c : {AttentionCase{5, 1, 8, true, false}, {5, 1, 144, true, false}})
    check(c, GetParam(), 1, false);
}

// Scores far apart: the running maximum moves late, and probabilities vanish.
TEST(MmaAttentionValues, LargeScores) {
  const auto module = to_half(attention_module({96, 1, 16, false, false}, 1), DType::f16);
  ASSERT_TRUE(module);
  Diag diag;
  const auto code = emit_nvptx(*module, "sm_80", diag);
  ASSERT_TRUE(code) << diag.render();
  std::mt19937 random(5);
  Data data = random_data(*module, 1, random);
  std::vector<double>& qkv = data.inputs.at("qkv").data;
  for (size_t i = 0; i < qkv.size(); ++i) {
    const size_t position = i / 48, channel = i % 48;
    if (channel < 32)
      qkv[i] = nearest_half(qkv[i] * (channel < 16 ? 4.0 : static_cast<double>(position) / 4), DType::f16);
  }
  ir::State after = data.state;
  const auto values = ir::evaluate(*module, RegionKind::eval, 1, data.inputs, after);
  Emulated gpu(*code);
  Machine machine(*module, code->program, RegionKind::eval, 1);
  machine.set(data.inputs, data.state);
  gpu.run(*module, machine, 1);
  EXPECT_EQ(gpu.emulator.reports().size(), 0U);
  // Positions are 96 / 4 times larger than above, and so are the queries' gradients and their errors.
  machine.expect_equal(values, after, 16 * tolerance(DType::f16));
}

TEST(MmaAttentionValues, ScoresFarFromZero) {
  const AttentionCase c{19, 1, 16, true, false};
  const auto module = to_half(attention_module(c, 1), DType::f16);
  ASSERT_TRUE(module);
  Diag diag;
  const auto code = emit_nvptx(*module, "sm_80", diag);
  ASSERT_TRUE(code) << diag.render();
  ASSERT_TRUE(by_tensor_cores(*code));
  check_twice(*module, *code, 1, 2.5, &c);  // of d_q, which is 1024 times a difference of weights
}

void expect_reports(const AttentionCase& c, const std::function<size_t(std::string&)>& spoil) {
  const auto module = to_half(attention_module(c, 1), DType::f16);
  Diag diag;
  const auto code = emit_nvptx(*module, "sm_80", diag);
  ASSERT_TRUE(code) << diag.render();
  std::string ptx = code->ptx;
  ASSERT_GE(spoil(ptx), 1U);
  std::mt19937 random(5);
  const Data data = random_data(*module, 1, random);
  Emulated gpu(*code, ptx);
  gpu.broken = true;
  Machine machine(*module, code->program, RegionKind::eval, 1);
  machine.set(data.inputs, data.state);
  gpu.run(*module, machine, 1);
  EXPECT_GT(gpu.emulator.reports().size(), 0U) << "not noticed";
}

// Takes barriers out: those behind a wait for copies, or all others.
size_t without_barriers(std::string& ptx, bool behind_waits) {
  size_t found = 0;
  for (size_t at = 0; (at = ptx.find("bar.sync", at)) != std::string::npos; ++at) {
    const bool waits = ptx.substr(at - 90, 90).find("wait_group") != std::string::npos;
    if (waits != behind_waits) continue;
    ptx.erase(at, ptx.find(';', at) + 1 - at);
    ++found;
  }
  return found;
}

constexpr AttentionCase kLong{130, 1, 16, true, false}, kShared{130, 2, 16, true, false, 1};

// The tests above can fail.
TEST(MmaAttentionRules, MissingBarriersAreNoticed) {
  expect_reports(kLong, [](std::string& ptx) { return without_barriers(ptx, true); });
}
TEST(MmaAttentionRules, MissingBarriersBetweenHeadsAreNoticed) {
  expect_reports(kShared, [](std::string& ptx) { return without_barriers(ptx, false); });
}
TEST(MmaAttentionRules, LaxWaitsAreNoticed) {
  expect_reports(kLong, [](std::string& ptx) {
    const std::string strict = "cp.async.wait_group 0";
    size_t found = 0;
    for (size_t at = 0; (at = ptx.find(strict, at)) != std::string::npos; ++at, ++found)
      ptx.replace(at, strict.size(), "cp.async.wait_group 5");
    return found;
  });
}

// Heads that a thread has to itself, and teams of 2 to 32; in chunks of 4, 2 and 1; some members with a chunk
// less than others; warps with positions past the end, steps with rows past it.
struct TeamCase {
  AttentionCase shape;
  int64_t batch;
  const char* target;
  friend void PrintTo(const TeamCase& c, std::ostream* out) {
    *out << fmt::format("T {}, {} heads of {}, causal {}, dropout {}, window {}, documents {}",
                        c.shape.length, c.shape.heads, c.shape.channels, c.shape.causal, c.shape.dropout,
                        c.shape.window, static_cast<int>(c.shape.documents));
  }
};
class TeamAttention : public testing::TestWithParam<TeamCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, TeamAttention,
    testing::Values(
        TeamCase{{1, 1, 1, false, false}, 1, "sm_80"}, TeamCase{{3, 2, 24, true, false}, 2, "sm_80"},
        TeamCase{{70, 1, 8, true, false}, 1, "sm_80"}, TeamCase{{9, 1, 16, true, true}, 1, "sm_86"},
        TeamCase{{5, 1, 17, false, true}, 1, "sm_75"}, TeamCase{{67, 1, 20, true, true}, 1, "sm_90"},
        TeamCase{{33, 1, 64, true, false}, 1, "sm_80"}, TeamCase{{13, 2, 80, false, false}, 1, "sm_80"},
        TeamCase{{17, 1, 127, true, true}, 1, "sm_80"}, TeamCase{{7, 1, 128, false, true}, 1, "sm_80"},
        TeamCase{{6, 1, 256, true, false}, 1, "sm_80"}, TeamCase{{5, 1, 510, false, true}, 1, "sm_80"},
        TeamCase{{6, 1, 512, true, true}, 1, "sm_80"},
        // Heads of keys that several heads of queries share.
        TeamCase{{9, 3, 8, true, true, 1}, 2, "sm_80"}, TeamCase{{33, 6, 20, true, false, 2}, 1, "sm_80"},
        TeamCase{{5, 4, 64, false, false, 2}, 1, "sm_75"}, TeamCase{{6, 2, 128, true, true, 1}, 1, "sm_90"},
        // Windows.
        TeamCase{{70, 1, 8, true, false, 0, 9}, 1, "sm_80"},
        TeamCase{{33, 6, 20, true, true, 2, 4}, 1, "sm_80"},
        TeamCase{{67, 1, 20, true, true, 0, 40}, 1, "sm_90"},
        TeamCase{{40, 1, 64, true, false, 0, 1}, 2, "sm_80"},
        TeamCase{{6, 1, 256, true, false, 0, 2}, 1, "sm_80"},
        // Documents.
        TeamCase{{70, 1, 8, true, false, 0, 0, Documents::runs}, 2, "sm_80"},
        TeamCase{{67, 2, 20, false, true, 1, 0, Documents::scattered}, 1, "sm_90"},
        TeamCase{{33, 6, 20, true, true, 2, 4, Documents::runs}, 1, "sm_80"},
        TeamCase{{131, 1, 64, false, false, 0, 0, Documents::runs}, 1, "sm_80"},
        TeamCase{{35, 1, 8, true, false, 0, 0, Documents::one}, 1, "sm_75"},
        // More channels than are kept in registers.
        TeamCase{{3, 1, 514, true, true}, 1, "sm_80"}));

// The grid of attention by tensor cores: GPT-2's heads and length, narrower heads.
struct Grid {
  Grid(const char* target, int64_t batch) : batch(batch) {
    module = to_half(attention_module({1024, 12, 16, true, false}, batch), DType::f16).value();
    Diag diag;
    code = emit_nvptx(module, target, diag);
  }
  // Runs samples [first, first + count); `data` has all of them. Returns what the gradient is.
  std::vector<uint32_t> run(const Data& data, int64_t first, int64_t count) {
    Data some = data;
    for (auto& [_, tensor] : some.inputs) {
      const auto each = static_cast<std::ptrdiff_t>(tensor.data.size()) / batch;
      tensor.data = {tensor.data.begin() + first * each, tensor.data.begin() + (first + count) * each};
      tensor.shape[0] = count;
    }
    Machine machine(module, code->program, RegionKind::eval, count);
    machine.set(some.inputs, some.state);
    Emulated gpu(*code);
    gpu.run(module, machine, count);
    for (const emulator::Report& report : gpu.emulator.reports()) ADD_FAILURE() << report.render();
    for (const Body& body : code->program.functions)
      if (body.by_tiles) longest_of_blocks.push_back(gpu.longest_of_blocks.at(body.name));
    const std::vector<uint32_t> guarded = machine.words("%d");
    const auto guard = (std::ssize(guarded) - count * 1024 * 3 * 12 * 16 / 2) / 2;
    return {guarded.begin() + guard, guarded.end() - guard};
  }

  const int64_t batch;
  ir::Module module;
  std::optional<DeviceCode> code;
  std::vector<std::vector<uint64_t>> longest_of_blocks;  // of the forward kernel, then of the gradient's
};

// Blocks of 30 heads take turns on an RTX 3090, half of the micro-batch's. Three samples are a group and six heads.
TEST(AttentionGrid, GroupsOfHeadsChangeNoBit) {
  Grid grid("sm_86", 5);
  ASSERT_TRUE(grid.code);
  ASSERT_EQ(grid.code->program.functions.front().shape.as<AttentionShape>().together, 30);
  std::mt19937 random(5);
  const Data data = random_data(grid.module, grid.batch, random);
  std::vector<uint32_t> alone;
  for (int64_t sample = 0; sample < 3; ++sample) {
    const std::vector<uint32_t> one = grid.run(data, sample, 1);
    alone.insert(alone.end(), one.begin(), one.end());
  }
  EXPECT_EQ(grid.run(data, 0, 3), alone);
}

// Gives each block, in order, to the slot that is free first, for as many clocks as its longest warp has instructions.
// Returns the time of the last one's end over what it would be if all slots ended together.
double makespan_over_ideal(const std::vector<uint64_t>& blocks, size_t slots) {
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> free(std::greater<>{},
                                                                            std::vector<uint64_t>(slots));
  uint64_t end = 0, sum = 0;
  for (const uint64_t block : blocks) {
    const uint64_t begin = free.top();
    free.pop();
    free.push(begin + block);
    end = std::max(end, begin + block);
    sum += block;
  }
  return static_cast<double>(end) * static_cast<double>(slots) / static_cast<double>(sum);
}

// On an H100 four blocks of 64 threads are on each of 132 multiprocessors. With heads outermost the last head's 16
// blocks begin when the others have ended.
TEST(AttentionGrid, EndsEvenly) {
  constexpr size_t kSlots = 132 * 4;
  Grid grid("sm_90a", 16);
  ASSERT_TRUE(grid.code);
  std::mt19937 random(5);
  grid.run(random_data(grid.module, 16, random), 0, 16);
  ASSERT_EQ(grid.longest_of_blocks.size(), 2);
  for (const std::vector<uint64_t>& blocks : grid.longest_of_blocks) {
    const double ratio = makespan_over_ideal(blocks, kSlots);
    RecordProperty("makespan over ideal", std::to_string(ratio));
    EXPECT_LE(ratio, 1.04);
  }
}

TEST_P(TeamAttention, AtTheEdges) {
  const TeamCase& c = GetParam();
  const ir::Module module = attention_module(c.shape, c.batch);
  Diag diag;
  const auto code = emit_nvptx(module, c.target, diag);
  ASSERT_TRUE(code) << diag.render();
  check_twice(module, *code, c.batch, 2e-5, nullptr, &c.shape);
}

// Warp instructions of attention and its gradient.
double attention_instructions(const AttentionCase& c, std::optional<DType> half) {
  const ir::Module module = half ? *to_half(attention_module(c, 1), *half) : attention_module(c, 1);
  Diag diag;
  const auto code = emit_nvptx(module, "sm_80", diag);
  EXPECT_TRUE(code) << diag.render();
  std::mt19937 random(11);
  Data data = random_data(module, 1, random);
  set_documents(c, data.inputs, random);
  Emulated gpu(*code);
  Machine machine(module, code->program, RegionKind::eval, 1);
  machine.set(data.inputs, data.state);
  gpu.run(module, machine, 1);
  double sum = 0;
  for (const auto& [name, instructions] : gpu.executed)
    if (name.find("attention") != std::string::npos) sum += static_cast<double>(instructions);
  EXPECT_GT(sum, 0);
  return sum;
}

TEST(AttentionOfDocuments, SkipsTilesOfOtherDocuments) {
  for (const std::optional<DType> half : {std::optional<DType>(), std::optional(DType::f16)}) {
    AttentionCase c{half ? 1024 : 512, 1, half ? 64 : 8, true, false};
    const double whole = attention_instructions(c, half);
    c.documents = Documents::one;
    const double one = attention_instructions(c, half);
    c.documents = Documents::eight;
    const double eight = attention_instructions(c, half);
    fmt::print("{}: {} without, {} with one, {} with eight\n", half ? "f16" : "f32", whole, one, eight);
    SCOPED_TRACE(
        fmt::format("{}: {} without, {} with one, {} with eight", half ? "f16" : "f32", whole, one, eight));
    EXPECT_LE(one, 1.03 * whole);
    EXPECT_LE(eight, 0.3 * one);
  }
}

TEST(TeamAttentionValues, ScoresFarFromZero) {
  const AttentionCase c{19, 1, 16, true, false};
  const ir::Module module = attention_module(c, 1);
  Diag diag;
  const auto code = emit_nvptx(module, "sm_80", diag);
  ASSERT_TRUE(code) << diag.render();
  check_twice(module, *code, 1, 2e-3, &c);
}

}  // namespace
}  // namespace gacc::codegen
