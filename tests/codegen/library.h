// Runs a call that on the host is a library's (codegen/host/library.h), its tasks from the last to the first
// or in order.
#pragma once
#include <gtest/gtest.h>

#include "codegen/host/library.h"
#include "kernels/program.h"

namespace gacc::codegen {

inline void run_library(const ir::Module& module, ir::RegionKind kind, const BodyCall& call,
                        char* const* operands, int64_t batch, bool backwards) {
  const ir::Region& region = module.region(kind);
  const auto library = host::make_library_call({module, region, region.ops[call.kernel.members.front().op]});
  ASSERT_NE(library, nullptr);
  const int64_t tasks = library->tasks(batch);
  for (int64_t i = 0; i < tasks; ++i)
    EXPECT_TRUE(library->run(operands, batch, backwards ? tasks - 1 - i : i));
}

}  // namespace gacc::codegen
