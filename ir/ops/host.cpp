// Copies between the arena and state in the host's memory (pass host-state, docs/ir.md R33).
#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

Types infer_copy(const OpView& op) {
  const Type to = op.operand(0), from = op.operand(1);
  if (to.dtype != from.dtype || elements(to.shape, 1) != elements(from.shape, 1))
    refuse(op, Kind::shape_mismatch, {0, 1}, "it copies as many numbers of one type");
  return {};
}

Cost copy_cost(const OpView& op) { return {.bytes = type_bytes(op.operand(0), 1)}; }

void copy_reference(EvalView& view) { view.result().data = view.operand(1).data; }

constexpr OpInfo copy(std::string_view name, std::string_view summary) {
  return {
      .name = name,
      .summary = summary,
      .operands = 2,
      .writes = operand_bits({0}),
      .discards = operand_bits({0}),
      .blocks = operand_bits({0, 1}),
      .infer = infer_copy,
      .lowering = Lowering::copy,
      .reference = copy_reference,
      .cost = copy_cost,
  };
}

}  // namespace

namespace {

Types infer_fetch(const OpView& op) { return {op.operand(0)}; }

}  // namespace

extern const OpInfo op_host_fetch = {
    .name = "host.fetch",
    .summary =
        "a copy of a frozen or half weight from the host's memory into the arena: a value that can be "
        "dropped and fetched again",
    .blocks = operand_bits({0}),
    .copies = true,
    .infer = infer_fetch,
    .lowering = Lowering::copy,
    .reference = [](EvalView& view) { view.result().data = view.operand(0).data; },
    .cost = copy_cost,
};

extern const OpInfo op_host_in =
    copy("host.in", "a copy from the host's memory into the arena; operands: a slot, a buffer on the host");

extern const OpInfo op_host_out =
    copy("host.out",
         "a copy from the arena into the host's memory; operands: a buffer on the host, a slot or a part");

}  // namespace gacc::ir
