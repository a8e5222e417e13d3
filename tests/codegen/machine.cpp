// Memory, matrix products and comparisons for the code generators' tests.
#include "runtime/blocks.h"
#include "tests/codegen/groups.h"
#include "tests/codegen/half_values.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cctype>
#include <cmath>

namespace gacc::codegen {

using ir::Operand;
using ir::Tensor;

namespace {

constexpr size_t kGuard = 64;  // words; keeps data aligned to 256 bytes relative to the allocation's start
constexpr uint32_t kGuardWord = 0xdeadbeef, kNothing = 0x7fc17fc1;  // NaN, of half types as well

double as_double(uint32_t word, ir::DType dtype) {
  if (dtype == ir::DType::i32) return static_cast<int32_t>(word);
  return std::bit_cast<float>(word);
}

uint32_t as_word(double value, ir::DType dtype) {
  if (dtype == ir::DType::i32) return static_cast<uint32_t>(static_cast<int64_t>(value));
  return std::bit_cast<uint32_t>(static_cast<float>(value));
}

}  // namespace

double Machine::get(const Memory& memory, size_t i) {
  const ir::DType dtype = memory.type.dtype;
  if (const BlockFormat* format = block_format(ir::dtype_text(dtype))) {
    float number = 0;
    dequantize(*format, reinterpret_cast<const std::byte*>(memory.words.data() + kGuard),
               static_cast<int64_t>(i), std::span(&number, 1));
    return number;
  }
  if (!is_narrow(dtype)) return as_double(memory.words[kGuard + i], dtype);
  return half_value(static_cast<uint16_t>(memory.words[kGuard + i / 2] >> (i % 2 * 16)), dtype);
}

void Machine::put(Memory& memory, size_t i, double value) {
  const ir::DType dtype = memory.type.dtype;
  if (!is_narrow(dtype)) {
    memory.words[kGuard + i] = as_word(value, dtype);
    return;
  }
  uint32_t& word = memory.words[kGuard + i / 2];
  const uint32_t bits = half_bits(value, dtype), shift = i % 2 * 16;
  word = (word & ~(0xffffu << shift)) | bits << shift;
}

Machine::Machine(const ir::Module& module, const ModuleKernels& program, ir::RegionKind kind, int64_t batch)
    : module_(module),
      region_(module.region(kind)),
      roots_(ir::facts(module_, region_)->root),
      calls_(program.calls(kind)),
      batch_(batch) {}

Machine::Memory& Machine::memory(const Operand& operand) {
  const Operand root = roots_(operand);
  const auto [place, fresh] = memory_.try_emplace(root);
  Memory& memory = place->second;
  if (fresh) {
    memory.type = ir::operand_type(module_, region_, root);
    memory.name = ir::operand_text(module_, region_, root);
    // Not zero, so that a missing store is seen.
    memory.elements = static_cast<size_t>(ir::elements(memory.type.shape, batch_));
    const int64_t bytes = ir::dtype_bytes(memory.type.dtype, static_cast<int64_t>(memory.elements));
    const auto words = static_cast<size_t>((bytes + 3) / 4);
    memory.words.assign(words + 2 * kGuard, kNothing);
    std::fill_n(memory.words.begin(), kGuard, kGuardWord);
    std::fill_n(memory.words.end() - kGuard, kGuard, kGuardWord);
  }
  return memory;
}

void Machine::fill(Memory& memory, const Tensor& tensor) {
  if (const BlockFormat* format = block_format(ir::dtype_text(memory.type.dtype))) {
    const std::vector<float> numbers(tensor.data.begin(), tensor.data.end());
    const Status done =
        quantize(*format, numbers, reinterpret_cast<std::byte*>(memory.words.data() + kGuard), memory.name);
    EXPECT_TRUE(done) << done.text();
    return;
  }
  for (size_t i = 0; i < tensor.data.size(); ++i) put(memory, i, tensor.data[i]);
}

void Machine::set(const std::map<std::string, Tensor>& inputs, const ir::State& state) {
  for (const ir::ValueId input : region_.inputs) {
    fill(memory(input), inputs.at(region_[input].name));
    memory(input).written = true;
  }
  for (size_t i = 0; i < module_.buffers.size(); ++i) {
    const ir::BufferId id{static_cast<int32_t>(i)};
    Memory& buffer = memory(id);
    buffer.written = true;
    const auto value = state.buffers.find(module_[id].name);
    if (value != state.buffers.end()) fill(buffer, value->second);
  }
}

void Machine::gemm(const BodyCall& call) {
  const ir::Op& op = region_.ops[call.kernel.members.front().op];
  const bool accumulates = op.info->writes != 0;
  const ir::OpView view{module_, region_, op};
  const size_t first = accumulates ? 1 : 0;
  const Operand result = accumulates ? op.operands[0] : Operand(op.results.front());
  const ir::Shape a_shape = view.operand(first).shape, b_shape = view.operand(first + 1).shape;
  const bool ta = view.flag("ta"), tb = view.flag("tb");
  const int64_t a_rows = ir::rows(a_shape, batch_), a_columns = ir::columns(a_shape);
  const int64_t b_rows = ir::rows(b_shape, batch_), b_columns = ir::columns(b_shape);
  const int64_t m = ta ? a_columns : a_rows, k = ta ? a_rows : a_columns, n = tb ? b_rows : b_columns;
  const Memory &a = memory(op.operands[first]), &b = memory(op.operands[first + 1]);
  Memory& c = memory(result);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = accumulates ? get(c, static_cast<size_t>(i * n + j)) : 0;
      for (int64_t p = 0; p < k; ++p) {
        sum += get(a, static_cast<size_t>(ta ? p * a_columns + i : i * a_columns + p)) *
               get(b, static_cast<size_t>(tb ? j * b_columns + p : p * b_columns + j));
      }
      put(c, static_cast<size_t>(i * n + j), sum);
    }
  }
}

std::map<Operand, Operand> Machine::reused(size_t number) {
  std::map<Operand, Operand> result;
  const BodyCall& call = calls_[number];
  const ir::Op& op = region_.ops[call.kernel.members.front().op];
  if (op.info->in_place) return {{op.results.front(), op.operands.front()}};
  if (!reuse_) return result;
  std::set<Operand> kept;  // roots that somebody reads later
  for (const ir::Yield& yield : region_.yields) kept.insert(roots_(yield.what));
  for (size_t later = number + 1; later < calls_.size(); ++later) {
    for (const Operand& read : calls_[later].kernel.reads) kept.insert(roots_(read));
  }
  for (const Operand& write : call.kernel.writes) {
    for (const Operand& read : call.kernel.reads) {
      if (ir::as_value(write) == nullptr || ir::as_value(read) == nullptr || kept.contains(roots_(read)))
        continue;
      if (!ir::may_reuse(region_, call.kernel, *ir::as_value(read), *ir::as_value(write))) continue;
      kept.insert(roots_(read));  // only one result can have it
      result[write] = read;
      break;
    }
  }
  return result;
}

void Machine::run(const Launch& launch) {
  for (size_t number = 0; number < calls_.size(); ++number) {
    const BodyCall& call = calls_[number];
    if (call.kernel.form == ir::KernelForm::alias) continue;
    for (const Operand& write : call.kernel.writes) memory(write).written = true;
    if (call.kernel.form == ir::KernelForm::gemm) {
      gemm(call);
      continue;
    }
    const std::map<Operand, Operand> taken = reused(number);
    std::vector<char*> operands;
    for (const Operand& operand : call.operands) {
      const auto other = taken.find(operand);
      Memory& place = memory(other == taken.end() ? operand : other->second);
      operands.push_back(reinterpret_cast<char*>(place.words.data() + kGuard));
    }
    std::vector<int64_t> extents;
    for (const Extent& extent : call.extents) extents.push_back(extent.at(batch_));
    launch(call, operands.data(), extents);
    for (const auto& [write, read] : taken) {
      memory(write).words = memory(read).words;
      memory(read).written = false;
    }
  }
}

void Machine::expect_tensor(const Memory& memory, const Tensor& tensor, double tolerance) const {
  ASSERT_EQ(memory.elements, tensor.data.size()) << memory.name;
  if (is_narrow(memory.type.dtype) && memory.elements % 2 == 1) {
    ASSERT_EQ(memory.words[kGuard + memory.elements / 2] >> 16, kNothing >> 16) << "after " << memory.name;
  }
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    const double got = get(memory, i), want = tensor.data[i];
    const bool good = std::isnan(want)
                          ? std::isnan(got)
                          : got == want || std::fabs(got - want) <= tolerance * (1 + std::fabs(want));
    ASSERT_TRUE(good) << memory.name << " element " << i << " is " << got << ", should be " << want
                      << " (batch " << batch_ << ")";
  }
}

void Machine::expect_equal(const std::map<std::string, Tensor>& values, const ir::State& state,
                           double tolerance) const {
  for (const auto& [operand, memory] : memory_) {
    for (size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(memory.words[i], kGuardWord) << "before " << memory.name;
      ASSERT_EQ(memory.words[memory.words.size() - 1 - i], kGuardWord) << "after " << memory.name;
    }
    if (!memory.written) continue;
    if (const ir::BufferId* id = ir::as_buffer(operand)) {
      const auto found = state.buffers.find(module_[*id].name);
      if (found != state.buffers.end()) expect_tensor(memory, found->second, tolerance);
    } else {
      expect_tensor(memory, values.at(region_[*ir::as_value(operand)].name), tolerance);
    }
  }
}

std::vector<uint32_t> Machine::words() const {
  std::vector<uint32_t> all;
  for (const auto& [operand, memory] : memory_)
    all.insert(all.end(), memory.words.begin(), memory.words.end());
  return all;
}

std::vector<uint32_t> Machine::words(const std::string& name) const {
  for (const auto& [operand, memory] : memory_)
    if (memory.name == name) return memory.words;
  return {};
}

void group_ops(const ir::Module& module, ir::Region& region, std::function<bool()> stop) {
  int32_t number = 0;
  std::vector<size_t> group;
  for (size_t i = 0; i < region.ops.size(); ++i) {
    group.push_back(i);
    if (group.size() > 1 && ((stop && stop()) || !ir::may_fuse(module, region, group))) {
      ++number;
      group = {i};
    }
    region.ops[i].kernel = number;
  }
}

ir::Module group_module(std::string text, const std::string& columns, const std::string& rows) {
  const auto number = [](const std::string& digits) { return std::stoll(digits); };
  const std::map<char, std::string> extents = {{'C', columns},
                                               {'T', rows},
                                               {'S', std::to_string(2 * number(rows))},
                                               {'W', std::to_string(2 * number(columns) + 3)}};
  const auto in_word = [&](size_t at) { return std::isalnum(static_cast<unsigned char>(text[at])) != 0; };
  for (size_t at = text.size() - 1; at-- > 1;) {
    const auto extent = extents.find(text[at]);
    if (extent != extents.end() && !in_word(at - 1) && !in_word(at + 1)) text.replace(at, 1, extent->second);
  }
  ir::Module module = ir::parse_module("set train.micro_batch = 33\n" + text);
  group_ops(module, module.eval);
  return module;
}

}  // namespace gacc::codegen
