// Arithmetic, conversions, comparisons, moves, addresses and control flow.
#include "runtime/emulator/decoder.h"

namespace gacc::emulator {

bool Decoder::scalar(const Parts& parts) {
  std::string_view root = parts[0];
  if (root == "mov") return move(parts), true;
  if (root == "setp") return set_predicate(parts), true;
  if (root == "cvta") return address_conversion(parts), true;
  if (root == "bra" || root == "ret" || root == "exit" || root == "trap" || root == "brkpt" ||
      root == "nanosleep" || root == "prefetch" || root == "prefetchu" || root == "pmevent" ||
      root == "isspacep")
    return control(parts), true;
  if (const LaneOp* op = find_lane_op(s_->opcode)) return lanes(*op, root == "cvt"), true;
  return false;
}

void Decoder::lanes(const LaneOp& op, bool convert) {
  const auto& list = s_->operands;
  if (!operands(op.sources + 1u, op.sources + 1u)) return;
  int s[4] = {};
  for (int i = 0; i < op.sources; ++i) s[i] = source(list[static_cast<size_t>(i) + 1], op.source[i], convert);
  int d = destination(list[0], op.result, convert);
  switch (op.sources) {
    case 1:
      emit_lanes(op, d, {s[0]});
      break;
    case 2:
      emit_lanes(op, d, {s[0], s[1]});
      break;
    case 3:
      emit_lanes(op, d, {s[0], s[1], s[2]});
      break;
    default:
      emit_lanes(op, d, {s[0], s[1], s[2], s[3]});
  }
  // cvt.s8.s32 into a wider register extends the sign of its destination type.
  if (convert)
    finish(list[0], d,
           op.name.find(".s8.") != std::string::npos || op.name.find(".s16.") != std::string::npos ||
               op.name.find(".s32.") != std::string::npos);
}

// setp.CMP[.and|.or|.xor][.ftz].type p[|q], a, b[, c]: p = (a CMP b) BOOL c, q = !(a CMP b) BOOL c.
void Decoder::set_predicate(const Parts& parts) {
  std::string name;
  std::string_view combine;
  for (std::string_view part : parts) {
    if (part == "and" || part == "or" || part == "xor")
      combine = part;
    else
      name.append(name.empty() ? "" : ".").append(part);
  }
  const LaneOp* op = find_lane_op(name);
  if (!op) return unknown(s_->opcode);
  size_t extra = combine.empty() ? 0 : 1;
  if (!operands(3 + extra, 4 + extra)) return;
  const auto& list = s_->operands;
  size_t at = list.size() - 2 - extra;  // 1, or 2 with |q
  int a = source(list[at], op->source[0]), b = source(list[at + 1], op->source[1]);
  int p = destination(list[0], kPredicate);
  if (at == 1 && combine.empty()) return emit_lanes(*op, p, {a, b});
  int plain = temporary(kPredicate), opposite = temporary(kPredicate);
  int c = combine.empty() ? -1 : source(list[at + 2], kPredicate);
  emit_lanes(*op, plain, {a, b});
  emit_lanes(*find_lane_op("not.pred"), opposite, {plain});
  if (combine.empty()) {
    emit(run_move, p, {plain});
    emit(run_move, destination(list[1], kPredicate), {opposite});
    return;
  }
  const LaneOp& logic = *find_lane_op(fmt::format("{}.pred", combine));
  int q = at == 2 ? destination(list[1], kPredicate) : -1;
  if (q >= 0) emit_lanes(logic, opposite, {opposite, c});
  emit_lanes(logic, p, {plain, c});
  if (q >= 0) emit(run_move, q, {opposite});
}

void Decoder::move(const Parts& parts) {
  Type type;
  if (parts.size() != 2 || !parse_type(parts[1], type)) return unknown(s_->opcode);
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
    for (const Operand& element : elements) {
      if (to.kind != Kind::vector)
        x.registers.push_back(source(element, each));
      else
        x.registers.push_back(element.kind == Kind::discard ? -1 : destination(element, each));
    }
    if (to.kind == Kind::vector)
      emit(run_unpack, -1, {source(from, bytes)}, x);
    else
      emit(run_pack, destination(to, bytes), {}, x);
    return;
  }
  if (from.kind == Kind::special &&
      (from.name == "%clock" || from.name == "%clock64" || from.name == "%globaltimer" ||
       from.name == "%clock_hi" || from.name == "%globaltimer_lo")) {
    emit(run_clock, destination(to, bytes), {});
    return;
  }
  emit(run_move, destination(to, bytes), {source(from, bytes)});
}

// cvta.SPACE and cvta.to.SPACE: shared, local and param windows lie at fixed generic addresses.
void Decoder::address_conversion(const Parts& parts) {
  bool to = parts.size() > 1 && parts[1] == "to";
  size_t at = to ? 2 : 1;
  if (parts.size() != at + 2 || (parts[at + 1] != "u64" && parts[at + 1] != "u32"))
    return unknown(s_->opcode);
  uint64_t window = 0;
  if (parts[at] == "shared" || parts[at] == "shared::cta")
    window = kSharedWindow;
  else if (parts[at] == "local")
    window = kLocalWindow;
  else if (parts[at] == "param")
    window = kParamWindow;
  else if (parts[at] != "global" && parts[at] != "const")
    return unknown(parts[at]);
  if (parts[at + 1] == "u32") return fail("generic addresses have 64 bits");
  if (!operands(2, 2)) return;
  const Operand& from = s_->operands[1];
  // The address of a parameter is generic here already.
  if (from.kind == Kind::symbol && window == kParamWindow) window = 0;
  emit_lanes(*find_lane_op(to ? "sub.u64" : "add.u64"), destination(s_->operands[0], 8),
             {source(from, 8), constant(8, window)});
}

void Decoder::control(const Parts& parts) {
  std::string_view root = parts[0];
  bool uniform = parts.size() == 2 && parts[1] == "uni";
  if (root == "bra") {
    if (parts.size() > 1 && !uniform) return unknown(s_->opcode);
    if (operands(1, 1)) emit(run_branch, -1, {});
  } else if (root == "ret" || root == "exit") {
    if (parts.size() > 1 && !uniform) return unknown(s_->opcode);
    if (operands(0, 0)) emit(run_exit, -1, {});
  } else if (root == "trap" || root == "brkpt") {
    if (parts.size() > 1) return unknown(s_->opcode);
    emit(run_trap, -1, {});
  } else if (root == "isspacep") {
    unknown(s_->opcode);
  } else {
    emit(run_nothing, -1, {});  // hints
  }
}

}  // namespace gacc::emulator
