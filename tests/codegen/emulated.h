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
      std::map<const char*, int64_t> bytes;  // a result may have the bytes of an operand
      for (size_t i = 0; i < call.operands.size(); ++i) {
        int64_t& most = bytes[operands[i]];
        most = std::max(most, ir::type_bytes(ir::operand_type(module, module.eval, call.operands[i]), batch));
      }
      std::map<const char*, uint64_t> places;
      for (const auto& [operand, size] : bytes) places[operand] = emulator.allocate(size);
      std::vector<uint64_t> arguments;
      for (size_t i = 0; i < call.operands.size(); ++i) {
        arguments.push_back(places.at(operands[i]));
        if (slots[i].read) {
          ASSERT_TRUE(emulator.write(arguments[i], operands[i], bytes.at(operands[i])));
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
      longest_of_blocks[code.program.functions[function].name] = emulator.last().longest_of_blocks;
      for (size_t i = 0; i < call.operands.size(); ++i) {
        if (slots[i].written && !broken) {
          ASSERT_TRUE(emulator.read(arguments[i], operands[i], bytes.at(operands[i])));
        }
      }
      for (const auto& [operand, place] : places) emulator.release(place);
    });
    return loads;
  }

  const DeviceCode& code;
  std::map<std::string, uint64_t> executed;                        // warp instructions so far, by kernel
  std::map<std::string, std::vector<uint64_t>> longest_of_blocks;  // of its last launch, by kernel
  bool broken = false;  // the text was damaged: results are not looked at
  emulator::Emulator emulator;
  std::unique_ptr<emulator::LoadedModule> loaded;
};

// A module's kernels for a GPU, emulated without a report.
class Device {
 public:
  explicit Device(const ir::Module& module, const char* target = "sm_80")
      : module_(module), code_(emitted(module, target)), gpu_(code_) {}

  const ModuleKernels& program() const { return code_.program; }
  void run(Machine& machine, int64_t batch) {
    gpu_.run(module_, machine, batch);
    for (const emulator::Report& report : gpu_.emulator.reports()) ADD_FAILURE() << report.render();
  }
  // Returns the loads of global memory of the last launch.
  uint64_t last_loads() const { return gpu_.emulator.last().loads; }
  // Returns true if results have the host's bits: no kernel adds up rows in another order or takes approximate units.
  bool exact() const {
    return std::ranges::all_of(code_.program.functions,
                               [](const Body& body) { return body.form == ir::KernelForm::pointwise; }) &&
           code_.ptx.find(".approx") == std::string::npos && code_.ptx.find("div.full") == std::string::npos;
  }

 private:
  static DeviceCode emitted(const ir::Module& module, const char* target) {
    Diag diag;
    std::optional<DeviceCode> code = emit_nvptx(module, target, diag);
    EXPECT_TRUE(code) << diag.render();
    return std::move(code).value();
  }

  const ir::Module& module_;
  const DeviceCode code_;
  Emulated gpu_;
};

}  // namespace gacc::codegen
