// libFuzzer target for the textual IR: any text gives a module or diagnostics; a module can be verified, and
// printed text reads back as the same text.
#include "ir/diag.h"
#include "ir/text/text.h"
#include "ir/verify.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  gacc::Diag diag("f.gir", text);
  std::optional<gacc::ir::Module> module = gacc::ir::parse(text, diag);
  if (module.has_value() == diag.failed()) __builtin_trap();
  (void)diag.render();
  if (!module) return 0;
  (void)gacc::ir::verify(*module, diag);
  std::string printed = gacc::ir::print(*module);
  gacc::Diag again("f.gir", printed);
  std::optional<gacc::ir::Module> reread = gacc::ir::parse(printed, again);
  if (!reread || gacc::ir::print(*reread) != printed) __builtin_trap();
  return 0;
}
