// docs/ops.md: one section per op, all from the table.
#include <fmt/ranges.h>

#include "ir/op_info.h"
#include "ir/text/text.h"

namespace gacc::ir {

namespace {

std::string_view lowering_text(Lowering lowering) {
  constexpr std::string_view texts[] = {"pointwise",
                                        "row reduction",
                                        "column reduction",
                                        "total reduction",
                                        "matrix product",
                                        "alias (no launch)",
                                        "composite (`expand` writes it in other ops)",
                                        "a kernel of its own",
                                        "a copy between the arena and the host"};
  return texts[static_cast<size_t>(lowering)];
}

std::string gradient_text(const OpInfo& info) {
  if (!info.has_gradient()) return "none";
  constexpr std::string_view saves[] = {"nothing", "the operands", "the result"};
  const std::string reads = fmt::format("reads {} of the forward op", saves[static_cast<size_t>(info.saves)]);
  return info.derivative != nullptr ? fmt::format("`{}.grad`, {}", info.name, reads)
                                    : fmt::format("written in ops, {}", reads);
}

std::string section(const OpInfo& info) {
  constexpr std::string_view precisions[] = {"half", "f32", "as its operands"};
  constexpr std::string_view recomputes[] = {"cheap", "costly", "never"};
  std::string out = fmt::format("## `{}`\n\n{}.\n\n", info.name, info.summary);
  out += fmt::format("- operands: {}, results: {}", info.operand_count_text(), info.results);
  if (info.writes != 0) {
    std::vector<int> written;
    for (int i = 0; i < info.operands; ++i)
      if (info.is_written(i)) written.push_back(i);
    out += fmt::format("; writes operand {}{}", fmt::join(written, ", "),
                       info.discards != 0 ? " without reading it" : "");
  }
  out += '\n';
  for (const AttrSpec& attr : info.attrs)
    out += fmt::format("- attribute `{}`, default {}\n", attr.name, attr_text(attr.fallback));
  out += fmt::format("- runs as: {}; precision: {}; recompute: {}\n", lowering_text(info.lowering),
                     precisions[static_cast<size_t>(info.precision)],
                     recomputes[static_cast<size_t>(info.recompute)]);
  out += fmt::format("- gradient: {}\n\n", gradient_text(info));
  return out;
}

}  // namespace

std::string ops_markdown() {
  std::string out =
      "# Ops\n\n"
      "Printed from the op table by `gacc-opt --list-ops --markdown`; do not edit. How to add one: "
      "adding-an-op.md.\n"
      "Pointwise ops broadcast (ir.md, R9). Buffers that an op writes come first among its operands.\n\n";
  for (const OpInfo* info : all_ops()) out += section(*info);
  out.pop_back();
  return out;
}

}  // namespace gacc::ir
