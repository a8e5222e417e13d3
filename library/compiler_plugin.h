// The compiler as libgacc.so loads it: libgacc-compiler.so exports one function, of C types alone.
#pragma once
#include <cstddef>

#include "library/gacc.h"

namespace gacc {

constexpr int kCompilerAbi = 5;  // raised with every change of the types below
constexpr const char* kCompilerEntry = "gacc_compile_step";

// The texts that the compiler gives to the caller's `take`, one call for each text, before it returns.
enum CompilerOutput : int { kArtifactText, kTroubleText, kWarningText };

struct CompilerRequest {
  const char *text, *file;  // the model, and what messages call it; without a text a published model's path
  gacc_compile_options options;
};

extern "C" {
using gacc_take_fn = void (*)(void* to, CompilerOutput what, const char* bytes, size_t size);
// 0; 1 when the model or what was asked for is wrong; 3 for a bug of gacc; -1 when the ABI differs.
using gacc_compile_step_fn = int (*)(int abi, const CompilerRequest* request, gacc_take_fn take, void* to);
}

}  // namespace gacc
