// See artifact_ir.h.
#include "codegen/artifact_ir.h"

#include <optional>
#include <string>

#include "ir/text/text.h"
#include "ir/verify.h"

namespace gacc {

Status read_ir(std::string_view text, ir::Module& module) {
  Diag diag("artifact", std::string(text));
  std::optional<ir::Module> parsed = ir::parse(text, diag);
  if (!parsed || !ir::verify(*parsed, diag))
    return Status::error("the artifact's IR is not sound:\n" + diag.render());
  if (parsed->phase < ir::Phase::planned) return Status::error("the artifact's IR has no memory plan");
  module = ir::unscheduled(std::move(*parsed));
  return {};
}

}  // namespace gacc
