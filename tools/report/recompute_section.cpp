// See recompute_section.h.
#include "tools/report/recompute_section.h"

namespace gacc::report {

std::string recompute_html(const ir::Module&) {
  return "<h2>What is computed twice</h2>\n<p>A plan may drop results of the forward pass and compute them "
         "again "
         "when the backward pass needs them: less memory for more work. This plan does not. Its recompute "
         "policy "
         "is <b>none</b>: every result is computed once and kept until it is no longer needed.</p>\n";
}

}  // namespace gacc::report
