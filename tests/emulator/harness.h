// Runs kernels in tests: loads a PTX file of this folder, packs parameters, moves vectors in and out.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "emulator/emulator.h"

namespace gacc::emulator {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Machine {
  Emulator emulator;
  std::unique_ptr<LoadedModule> module;

  explicit Machine(const std::string& text) {
    Status status = emulator.load(text, module);
    EXPECT_TRUE(status.ok()) << status.text();
  }
  template <class T>
  uint64_t put(const std::vector<T>& values, const std::string& name = "memory") {
    uint64_t address = emulator.allocate(static_cast<int64_t>(values.size() * sizeof(T)), name);
    EXPECT_TRUE(emulator.write(address, values.data(), static_cast<int64_t>(values.size() * sizeof(T))));
    return address;
  }
  template <class T>
  uint64_t room(size_t count, const std::string& name = "memory") {
    return emulator.allocate(static_cast<int64_t>(count * sizeof(T)), name);
  }
  template <class T>
  std::vector<T> get(uint64_t address, size_t count) {
    std::vector<T> values(count);
    EXPECT_TRUE(emulator.read(address, values.data(), static_cast<int64_t>(count * sizeof(T))));
    return values;
  }
  // Parameters in order, each of its own size.
  template <class... P>
  void run(const std::string& name, Dim3 grid, Dim3 block, int64_t shared, bool cooperative, P... params) {
    const Kernel* kernel = module ? module->find(name) : nullptr;
    ASSERT_NE(kernel, nullptr) << name;
    std::vector<uint8_t> packed(static_cast<size_t>(kernel->info.param_bytes));
    [[maybe_unused]] size_t i = 0;
    [[maybe_unused]] auto pack = [&](auto value) {
      ASSERT_LT(i, kernel->info.params.size());
      ASSERT_EQ(kernel->info.params[i].bytes, static_cast<int64_t>(sizeof value))
          << name << " parameter " << i;
      std::memcpy(packed.data() + kernel->info.params[i++].offset, &value, sizeof value);
    };
    (pack(params), ...);
    Status status = emulator.launch(*kernel, grid, block, shared, packed, cooperative);
    EXPECT_TRUE(status.ok()) << status.text();
  }
  std::string reports() const {
    std::string text;
    for (const Report& report : emulator.reports()) text += report.render() + "\n";
    return text;
  }
};

}  // namespace gacc::emulator
