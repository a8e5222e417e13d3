// Arithmetic, conversions, comparisons, moves, addresses and control flow.
#include "emulator/decoder.h"

namespace gacc::emulator {

void Decoder::lanes(const LaneOp& op, bool convert) {
  const auto& list = s_->operands;
  if (!operands(op.sources + 1u, op.sources + 1u)) return;
  std::vector<int> sources;
  for (size_t i = 0; i < op.sources; ++i) sources.push_back(source(list[i + 1], op.source[i], convert));
  const int d = destination(list[0], op.result, convert);
  emit_lanes(op, d, sources);
  // cvt.s8.s32 into a wider register extends the sign of its destination type.
  if (convert) finish(list[0], d, split_opcode(op.name).rbegin()[1][0] == 's');
}

// setp.CMP.type p[|q], a, b: p = a CMP b, q = !p. Of a pair of halves p is for the low ones and q for the
// high.
void Decoder::set_predicate(const Parts&) {
  const bool pairs = s_->opcode.ends_with("f16x2");
  const LaneOp* op = find_lane_op(pairs ? s_->opcode.substr(0, s_->opcode.size() - 2) : s_->opcode);
  if (!op) return fail(fmt::format("unknown opcode or modifier `{}`", s_->opcode));
  if (pairs) return set_predicates_of_pairs(*op);
  if (!operands(3, 4)) return;
  const auto& list = s_->operands;
  const size_t at = list.size() - 2;  // 1, or 2 with |q
  if (at == 2 && op->name.find("f16") != std::string::npos)
    return fail(fmt::format("`{}` writes one predicate", s_->opcode));
  const int a = source(list[at], op->source[0]), b = source(list[at + 1], op->source[1]);
  const int p = destination(list[0], kPredicate);
  emit_lanes(*op, p, {a, b});
  if (at == 2) emit_lanes(*find_lane_op("not.pred"), destination(list[1], kPredicate), {p});
}

void Decoder::set_predicates_of_pairs(const LaneOp& op) {
  if (!operands(4, 4)) return;
  const auto& list = s_->operands;
  constexpr uint8_t kHalf = 2, kPair = 4;  // bytes
  int halves[2][2];                        // of a and b: low, high
  for (size_t i = 0; i < 2; ++i) {
    Extra parts;
    for (int& half : halves[i]) parts.registers.push_back(half = temporary(kHalf));
    emit(run_unpack, -1, {source(list[2 + i], kPair)}, parts);
  }
  for (const size_t half : {0, 1})
    emit_lanes(op, destination(list[half], kPredicate), {halves[0][half], halves[1][half]});
}

void Decoder::move(const Parts& parts) {
  Type type;
  parse_type(parts[1], type);
  if (!operands(2, 2)) return;
  const Operand& to = s_->operands[0];
  const Operand& from = s_->operands[1];
  auto bytes = type.bits == 1 ? kPredicate : static_cast<uint8_t>(type.bytes());
  if (to.kind == Kind::vector || from.kind == Kind::vector) {
    const auto& elements = to.kind == Kind::vector ? to.elements : from.elements;
    if (bytes == kPredicate || (elements.size() != 2 && elements.size() != 4) ||
        (to.kind == Kind::vector && from.kind == Kind::vector))
      return fail(fmt::format("`{}` with these vectors is not supported", s_->opcode));
    auto each = static_cast<uint8_t>(bytes / elements.size());
    if (each < 2) return fail(fmt::format("`{}` of bytes is not supported", s_->opcode));
    Extra x;
    for (const Operand& element : elements)
      if (to.kind != Kind::vector)
        x.registers.push_back(source(element, each));
      else
        x.registers.push_back(element.kind == Kind::discard ? -1 : destination(element, each));
    if (to.kind == Kind::vector)
      emit(run_unpack, -1, {source(from, bytes)}, x);
    else
      emit(run_pack, destination(to, bytes), {}, x);
    return;
  }
  emit(run_move, destination(to, bytes), {source(from, bytes)});
}

// cvta.SPACE and cvta.to.SPACE: shared and local windows lie at fixed generic addresses.
void Decoder::cvta(const Parts& parts) {
  const bool to = parts[1] == "to";
  const std::string_view space = parts[to ? 2 : 1];
  uint64_t window = 0;  // of global and constant memory
  if (space == "shared" || space == "shared::cta")
    window = kSharedWindow;
  else if (space == "local")
    window = kLocalWindow;
  if (!operands(2, 2)) return;
  const Operand& from = s_->operands[1];
  emit_lanes(*find_lane_op(to ? "sub.u64" : "add.u64"), destination(s_->operands[0], 8),
             {source(from, 8), constant(8, window)});
}

void Decoder::control(const Parts& parts) {
  const bool branch = parts[0] == "bra";
  if (!operands(branch, branch)) return;
  Instr& in = emit(branch ? run_branch : parts[0] == "trap" ? run_trap : run_exit, -1, {});
  if (branch) in.target = static_cast<uint32_t>(s_->operands[0].target);
}

}  // namespace gacc::emulator
