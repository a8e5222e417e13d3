// A library with the driver's names that counts calls and passes them on to the real one: what gacc asks of
// the driver is then known on any machine, GPU or emulator. GACC_REAL_CUDA is the real library, GACC_COUNTS
// the file that receives "NAME COUNT" lines when the process ends. Each function is a jump, so arguments need
// no naming; x86-64 only. Only for runs that count: NVIDIA's libraries load libcuda.so.1 by its name as well,
// and look up far more than gacc does (cuBLASLt does not start on a driver without cuLinkCreate_v2).
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/cuda/cuda_driver.h"

#define GACC_COUNTED(member, symbol, parameters)                          \
  extern "C" {                                                            \
  __attribute__((visibility("hidden"), used)) void* gacc_real_##symbol;   \
  __attribute__((visibility("hidden"), used)) long gacc_counted_##symbol; \
  }                                                                       \
  asm(".text\n.globl " #symbol "\n.type " #symbol ",@function\n" #symbol  \
      ":\n  lock incq gacc_counted_" #symbol "(%rip)\n  jmp *gacc_real_" #symbol "(%rip)\n");
// By which NVIDIA's libraries find most of the driver's functions: those calls are not counted.
#define GACC_PASSED_ON(F) F(, cuGetProcAddress, ) F(, cuGetProcAddress_v2, )
GACC_CUDA_FUNCTIONS(GACC_COUNTED)
GACC_PASSED_ON(GACC_COUNTED)
#undef GACC_COUNTED

namespace {

int no_device() { return gacc::cuda::kErrorNoDevice; }

struct Counter {
  Counter() {
    const char* path = std::getenv("GACC_REAL_CUDA");
    void* library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    const auto find = [&](const char* name) {
      void* found = library != nullptr ? dlsym(library, name) : nullptr;
      return found != nullptr ? found : reinterpret_cast<void*>(&no_device);
    };
#define GACC_COUNTED(member, symbol, parameters) gacc_real_##symbol = find(#symbol);
    GACC_CUDA_FUNCTIONS(GACC_COUNTED)
    GACC_PASSED_ON(GACC_COUNTED)
#undef GACC_COUNTED
  }
  ~Counter() {
    const char* path = std::getenv("GACC_COUNTS");
    std::FILE* file = path != nullptr ? std::fopen(path, "w") : nullptr;
    if (file == nullptr) return;
#define GACC_COUNTED(member, symbol, parameters) std::fprintf(file, #symbol " %ld\n", gacc_counted_##symbol);
    GACC_CUDA_FUNCTIONS(GACC_COUNTED)
#undef GACC_COUNTED
    std::fclose(file);
  }
} counter;

}  // namespace
