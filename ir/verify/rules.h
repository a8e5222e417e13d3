// The verifier's groups of rules, a file each, and how they report. docs/ir.md numbers the rules.
#pragma once
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "ir/op_info.h"

namespace gacc::ir {

// Reports broken rules: broken("R7", op.at, "step writes `@{}`", name).
class Broken {
 public:
  explicit Broken(Diag& diag) : diag_(diag), before_(diag.reports().size()) {}
  template <class... A>
  void operator()(std::string_view rule, const Location& at, fmt::format_string<A...> format,
                  A&&... args) const {
    diag_.error(Kind::invalid_ir, at, "{}: {}", rule, fmt::format(format, std::forward<A>(args)...));
  }
  // Returns true if nothing has been reported since this was made.
  bool none() const { return diag_.reports().size() == before_; }
  // Returns one that reports to the same place, and has seen nothing.
  Broken anew() const { return Broken(diag_); }
  Diag& diag() const { return diag_; }

 private:
  Diag& diag_;
  size_t before_;
};

// The base of a group that checks one region.
struct RegionRules {
  const Module& module;
  const Region& region;
  const Broken& broken;

  std::string text(const Operand& operand) const { return operand_text(module, region, operand); }
  bool at_least(Phase phase) const { return module.phase >= phase; }
};

// R1: messages show names.
void verify_name(const Location& at, const std::string& name, const Broken& broken);
// R1, R9, R11, R13, R25, R31, of buffers.
void verify_buffers(const Module& module, const Broken& broken);
// R15, of buffers that keep the rules above.
void verify_buffer_places(const Module& module, const Broken& broken);
// R28: the settings of a planned module, which the runtime follows.
void verify_settings(const Module& module, const Broken& broken);
// R33, of buffers.
void verify_host_buffers(const Module& module, const Broken& broken);

// The others are of a region whose buffers are valid; each needs those above it.
// R1, R2, R8, R9, R31: names, and values that are defined before their use.
void verify_definitions(const Module& module, const Region& region, const Broken& broken);
// R3 to R5, R8, R9, R12, R13: each op against the table.
void verify_ops(const Module& module, const Region& region, const Broken& broken);
// R6, R7: what is written, and when.
void verify_writes(const Module& module, const Region& region, const Broken& broken);
// R16: clones.
void verify_clones(const Module& module, const Region& region, const Broken& broken);
// R10, R26, R32, R34: what a region yields, and takes over from another.
void verify_yields(const Module& module, const Region& region, const Broken& broken);
// R33: copies of state between the arena and the host's memory.
void verify_host_state(const Module& module, const Region& region, const Broken& broken);
// R17: numbers that choose rows or classes.
void verify_numbers(const Module& module, const Region& region, const Broken& broken);
// R14, R15, R25: kernels and places of values.
void verify_places(const Module& module, const Region& region, const Broken& broken);
// R18 to R24: the schedule. The rest of the region is valid, and the module is scheduled.
void verify_schedule(const Module& module, const Region& region, const Broken& broken);

}  // namespace gacc::ir
