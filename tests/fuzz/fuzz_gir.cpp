// libFuzzer target for the textual IR: any text gives a module or diagnostics; a module can be verified, and
// printed text reads back as the same text. The two halves of a golden are texts of their own.
#include "ir/diag.h"
#include "ir/text/text.h"
#include "ir/verify/verify.h"
#include "tests/fuzz/check.h"

namespace {

void read_and_print(const std::string& text) {
  gacc::Diag diag("f.gir", text);
  std::optional<gacc::ir::Module> module = gacc::ir::parse(text, diag);
  if (module.has_value() == diag.failed()) __builtin_trap();
  (void)diag.render();
  if (!module) return;
  (void)gacc::ir::verify(*module, diag);
  std::string printed = gacc::ir::print(*module);
  gacc::Diag again("f.gir", printed);
  std::optional<gacc::ir::Module> reread = gacc::ir::parse(printed, again);
  if (!reread || gacc::ir::print(*reread) != printed) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size), separator = "// ----- expected\n";
  const size_t end = text.find(separator);
  read_and_print(text.substr(0, end));
  if (end != std::string::npos) read_and_print(text.substr(end + separator.size()));
  return 0;
}
