// libFuzzer target for the model file: any bytes give a module or diagnostics, never a crash, a hang or a
// leak. The bytes after a first line that starts with "set " are the file; that line holds overrides,
// KEY=VALUE each.
#include <algorithm>
#include <cstdint>

#include "frontend/frontend.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<gacc::Override> overrides;
  if (text.starts_with("set ")) {
    std::string_view line = text.substr(4, text.find('\n') - std::min<size_t>(4, text.find('\n')));
    text.remove_prefix(std::min(text.size(), text.find('\n')));
    while (!line.empty() && overrides.size() < 8) {
      const std::string_view one = line.substr(0, line.find(' '));
      line.remove_prefix(std::min(line.size(), one.size() + 1));
      const size_t equals = one.find('=');
      if (equals == std::string_view::npos) continue;
      overrides.push_back({std::string(one.substr(0, equals)), std::string(one.substr(equals + 1))});
    }
  }
  gacc::Diag diag("model.toml", std::string(text));
  const std::optional<gacc::ir::Module> module = gacc::compile_model(text, "model.toml", overrides, diag);
  if (module.has_value() == diag.failed()) __builtin_trap();  // a module, or the reasons why there is none
  if (diag.render().empty() == diag.failed()) __builtin_trap();
  return 0;
}
