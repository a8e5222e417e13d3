// The textual IR (.gir). print and parse are exact inverses: parse(print(m)) equals m, and print(parse(t)) is
// t for every t that print made. Grammar in docs/ir.md.
#pragma once
#include "ir/module.h"

namespace gacc::ir {

struct PrintOptions {
  bool locations = false;  // end each line in loc(line:column why)
};
std::string print(const Module& module, PrintOptions options = {});
std::string print(const Module& module, const Region& region, const Op& op,
                  PrintOptions options = {});  // one line

// Returns a setting's or an attribute's value as the text has it.
std::string attr_text(const Attr& attr);

// Reads one module; everything wrong is reported to `diag` (whose file and source are the text's). The module
// is well-formed (names, types and arity checked), but not yet verified against its phase.
std::optional<Module> parse(std::string_view text, Diag& diag);

// Returns the page docs/ops.md, printed from the op table.
std::string ops_markdown();

}  // namespace gacc::ir
