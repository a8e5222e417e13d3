// The gradient of an embedding in the emulator, as PTX and without a report: bit for bit the host's for every
// kind of tokens, and with as many loads as there are tokens.
#include <gtest/gtest.h>

#include "tests/codegen/emulated.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/host.h"

namespace gacc::codegen {
namespace {

constexpr int64_t kBatch = 6;

ir::Module gradient(const std::string& dtype, int64_t length, int64_t rows, int64_t columns,
                    int64_t padding = -1) {
  const std::string table = fmt::format("f32[{},{}]", rows, columns);
  ir::Module module = ir::parse_module(
      fmt::format(R"(set train.micro_batch = {}
    accum @g : {table}
    eval(%x : i32[B,{length}], %d : {dtype}[B,{length},{columns}]) {{
      %f = embedding.grad %x, %d : {table} {{rows = {rows}, padding = {padding}}}
      embedding.grad.acc @g, %x, %d {{rows = {rows}, padding = {padding}}}
      yield metric f %f
    }})",
                  kBatch, fmt::arg("table", table), fmt::arg("length", length), fmt::arg("dtype", dtype),
                  fmt::arg("columns", columns), fmt::arg("rows", rows), fmt::arg("padding", padding)));
  group_ops(module, module.eval);
  return module;
}

// The module's kernels for both.
class Both {
 public:
  explicit Both(ir::Module module) : module_(std::move(module)) {}

  // Runs them with these tokens; gives what the launch of the buffer's kernel loaded, in the emulator.
  uint64_t compare(int64_t batch, const std::function<int64_t(int64_t)>& token) {
    std::mt19937 random(5);
    auto inputs = ir::random_inputs(module_, batch, false, random);
    const ir::State state = ir::random_state(module_, random);
    int64_t n = 0;
    for (double& value : inputs.at("x").data) value = static_cast<double>(token(n++));
    for (double& value : inputs.at("d").data)
      value = std::round(value * 64) / 64 + 1.0 / 512;  // exact in f16
    Machine native(module_, host_.program, ir::RegionKind::eval, batch);
    native.set(inputs, state);
    host_.run(native, batch);
    Machine machine(module_, device_.program(), ir::RegionKind::eval, batch);
    machine.set(inputs, state);
    device_.run(machine, batch);
    for (const char* name : {"%f", "@g"}) EXPECT_EQ(machine.words(name), native.words(name)) << name;
    return device_.last_loads();
  }

 private:
  const ir::Module module_;
  const Host host_{module_};
  Device device_{module_};
};

TEST(EmbeddingEmulated, TheHostsBits) {
  // A row of its own for every warp, and several; lanes of one and four columns, and idle ones; a list that
  // is added up before all tokens were seen. With and without a row that gets nothing.
  for (const auto& [length, rows, columns, padding] :
       {std::array<int64_t, 4>{1, 3, 4, -1}, {1, 5, 7, 4}, {90, 9, 132, 0}, {20, 300, 33, -1}}) {
    for (const char* dtype : {"f32", "f16"}) {
      SCOPED_TRACE(fmt::format("T = {}, table {} x {}, {}", length, rows, columns, dtype));
      Both both(gradient(dtype, length, rows, columns, padding));
      for (const int64_t batch : {int64_t{1}, kBatch - 1, kBatch}) {
        SCOPED_TRACE(batch);
        const int64_t table = rows;  // lambdas do not take bindings
        both.compare(batch, [&](int64_t n) { return n * n * 7919 % table; });
        both.compare(batch, [&](int64_t) { return table - 1; });        // one token
        both.compare(batch, [&](int64_t n) { return n / 5 % table; });  // repeated
        if (HasFailure()) return;
      }
    }
  }
}

TEST(EmbeddingEmulated, LoadsGrowWithTheTokens) {
  for (const bool same : {false, true}) {
    std::vector<uint64_t> loads;
    for (const int64_t length : {64, 128, 256}) {
      Both both(gradient("f16", length, 300, 64));
      loads.push_back(both.compare(kBatch, [&](int64_t n) { return same ? 7 : n * n * 7919 % 300; }));
    }
    for (size_t i = 1; i < loads.size(); ++i)
      EXPECT_LT(static_cast<double>(loads[i]), 2.1 * static_cast<double>(loads[i - 1])) << same;
  }
}

}  // namespace
}  // namespace gacc::codegen
