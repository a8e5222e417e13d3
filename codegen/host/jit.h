// Kernels as native code of this machine: emitted as vectors of its width, compiled in memory to objects
// of an archive and linked into the process. The archive's bytes can be kept: loading them again skips all code
// generation.
//
//   auto program = make_program(module, Purpose::host, problem);
//   std::string objects = compile_host(*program, problem);  // or from the cache, when host_key is the same
//   auto code = HostCode::load(objects, *program, problem);
//   code->function(call.function)(operands, extents, begin, end);
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/program.h"

namespace llvm::orc {
class LLJIT;
}

namespace gacc::codegen {

using namespace kernels;

// operands: the address of each BodyCall::operands entry. extents: the values of BodyCall::extents at this batch.
// Works on items [begin, end) of BodyCall::unit; both are multiples of BodyCall::tile or the end itself.
using HostFunction = void (*)(char* const* operands, const int64_t* extents, int64_t begin, int64_t end);

// 32 hexadecimal digits of what an object depends on: the parts given, the CPU, its features and LLVM. Parts are kept
// apart: {"ab", "c"} differs from {"a", "bc"}.
std::string host_key(std::initializer_list<std::string_view> parts);
// "avx512", "avx2" or "sse": the vectors that kernels use here, for messages.
std::string_view host_vectors();

// Calls task(i) for every i in [0, tasks), on whatever threads, and returns when all are done.
using RunTasks = std::function<void(int64_t tasks, const std::function<void(int64_t)>& task)>;
void run_in_order(int64_t tasks, const std::function<void(int64_t)>& task);

// An archive of object files with all functions of `program`; "" and a sentence in `problem` when LLVM fails. Each
// object is a task of `run`; the archive's bytes do not depend on which thread makes it.
std::string compile_host(const ModuleKernels& program, std::string& problem,
                         const RunTasks& run = run_in_order);

class HostCode {
 public:
  // Links `objects`, which compile_host made of an equal program on an equal machine (host_key). Null and a
  // sentence in `problem` when the bytes are no such archive.
  static std::unique_ptr<HostCode> load(std::string_view objects, const ModuleKernels& program,
                                        std::string& problem);
  ~HostCode();
  // index: BodyCall::function, not negative. Valid as long as this lives.
  HostFunction function(int32_t index) const { return functions_[index]; }

 private:
  HostCode();
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::vector<HostFunction> functions_;
};

}  // namespace gacc::codegen
