// The kernels of a module as code of this machine.
#pragma once
#include <gtest/gtest.h>

#include "codegen/host/jit.h"
#include "codegen/host/library.h"
#include "tests/codegen/machine.h"

namespace gacc::codegen {

struct Host {
  explicit Host(const ir::Module& module) : module(module) {
    std::string problem;
    program = make_program(module, Purpose::host, problem).value();
    objects = compile_host(program, problem);
    code = HostCode::load(objects, program, problem);
    EXPECT_TRUE(code) << problem;
  }

  // Runs a region's calls: all items at once, or in tasks of one tile, last task first.
  void run(Machine& machine, int64_t batch, bool in_tiles = false,
           ir::RegionKind kind = ir::RegionKind::eval) const {
    machine.run([&](const BodyCall& call, char* const* operands, const std::vector<int64_t>& extents) {
      if (call.function < 0) return run_library(module.region(kind), call, operands, batch, in_tiles);
      const int64_t items = call.items.at(batch), tile = in_tiles ? call.tile : std::max<int64_t>(items, 1);
      for (int64_t begin = (items - 1) / tile * tile; begin >= 0; begin -= tile)
        code->function(call.function)(operands, extents.data(), begin, std::min(begin + tile, items));
    });
  }

  const ir::Module& module;
  ModuleKernels program;
  std::string objects;
  std::unique_ptr<HostCode> code;

 private:
  // A call that is a library's (codegen/host/library.h).
  void run_library(const ir::Region& region, const BodyCall& call, char* const* operands, int64_t batch,
                   bool backwards) const {
    const auto library =
        host::make_library_call({module, region, region.ops[call.kernel.members.front().op]}, 1);
    ASSERT_NE(library, nullptr);
    const int64_t tasks = library->tasks(batch);
    for (int64_t i = 0; i < tasks; ++i)
      EXPECT_TRUE(library->run(operands, batch, backwards ? tasks - 1 - i : i, 0));
  }
};

}  // namespace gacc::codegen
