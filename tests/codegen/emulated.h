// A module's PTX in the emulator, kernel by kernel, every operand in an allocation of its own size.
#pragma once
#include <gtest/gtest.h>

#include "codegen/device_code.h"
#include "emulator/emulator.h"
#include "tests/codegen/machine.h"

namespace gacc::codegen {

struct Emulated {
  explicit Emulated(const DeviceCode& code) : Emulated(code, code.ptx) {}
  // Another text of the same kernels.
  Emulated(const DeviceCode& code, const std::string& ptx) : code(code) {
    const Status status = emulator.load(ptx, loaded);
    EXPECT_TRUE(status.ok()) << status.text();
  }

  // Runs `eval` of the module; gives each kernel's loads of global memory. What is reported stays in the emulator.
  std::vector<std::pair<std::string, uint64_t>> run(const ir::Module& module, Machine& machine,
                                                    int64_t batch) {
    std::vector<std::pair<std::string, uint64_t>> loads;
    machine.run([&](const BodyCall& call, char* const* operands, const std::vector<int64_t>& extents) {
      const auto function = static_cast<size_t>(call.function);
      const std::vector<Slot>& slots = code.program.functions[function].slots;
      std::vector<uint64_t> arguments;
      std::vector<int64_t> bytes;
      for (size_t i = 0; i < call.operands.size(); ++i) {
        bytes.push_back(ir::type_bytes(ir::operand_type(module, module.eval, call.operands[i]), batch));
        arguments.push_back(emulator.allocate(bytes[i]));
        if (slots[i].read) {
          ASSERT_TRUE(emulator.write(arguments[i], operands[i], bytes[i]));
        }
      }
      for (const int64_t extent : extents) arguments.push_back(static_cast<uint64_t>(extent));
      emulator::Dim3 grid, block;
      grid.x = static_cast<uint32_t>((call.items.at(batch) + call.per_block - 1) / call.per_block);
      block.x = static_cast<uint32_t>(call.block);
      const auto* first = reinterpret_cast<const uint8_t*>(arguments.data());
      const uint64_t before = emulator.executed();
      const Status run = emulator.launch(*loaded->find(code.program.functions[function].name), grid, block, 0,
                                         std::vector<uint8_t>(first, first + 8 * arguments.size()));
      ASSERT_TRUE(run.ok()) << run.text();
      loads.emplace_back(code.program.functions[function].name, emulator.last().loads);
      executed[code.program.functions[function].name] += emulator.executed() - before;
      for (size_t i = 0; i < call.operands.size(); ++i) {
        if (slots[i].written && !broken) {
          ASSERT_TRUE(emulator.read(arguments[i], operands[i], bytes[i]));
        }
        emulator.release(arguments[i]);
      }
    });
    return loads;
  }

  const DeviceCode& code;
  std::map<std::string, uint64_t> executed;  // warp instructions so far, by kernel
  bool broken = false;                       // the text was damaged: results are not looked at
  emulator::Emulator emulator;
  std::unique_ptr<emulator::LoadedModule> loaded;
};

}  // namespace gacc::codegen
