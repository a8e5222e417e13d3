// Shuffles, votes, barriers, warp reductions, ldmatrix and mma.
#include "runtime/emulator/decoder.h"

namespace gacc::emulator {

bool Decoder::collective(const Parts& parts) {
  std::string_view root = parts[0];
  if (root == "shfl") return shuffle(parts), true;
  if (root == "vote") return vote(parts), true;
  if (root == "bar" || root == "barrier") return barrier(parts), true;
  if (root == "redux" || root == "match") return reduce(parts), true;
  if (root == "ldmatrix") return matrix_load(parts), true;
  if (root == "mma") return mma(parts), true;
  if (s_->opcode == "activemask.b32") {
    if (operands(1, 1)) emit(run_active_mask, destination(s_->operands[0], 4), {});
    return true;
  }
  return false;
}

// shfl.sync.MODE.b32 d[|p], a, b, c, mask
void Decoder::shuffle(const Parts& parts) {
  if (parts.size() != 4 || parts[1] != "sync" || parts[3] != "b32") return unknown(s_->opcode);
  Extra x;
  if (parts[2] == "up")
    x.mode = up;
  else if (parts[2] == "down")
    x.mode = down;
  else if (parts[2] == "bfly")
    x.mode = bfly;
  else if (parts[2] == "idx")
    x.mode = idx;
  else
    return unknown(parts[2]);
  if (!operands(5, 6)) return;
  const auto& list = s_->operands;
  size_t at = list.size() - 4;
  if (at == 2 && list[1].kind != Kind::discard) x.registers.push_back(destination(list[1], kPredicate));
  int d = destination(list[0], 4);
  int a = source(list[at], 4), b = source(list[at + 1], 4), c = source(list[at + 2], 4),
      mask = source(list[at + 3], 4);
  emit(run_shuffle, d, {a, b, c, mask}, x);
}

// vote.sync.MODE.pred p, {!}q, mask; vote.sync.ballot.b32 d, {!}q, mask
void Decoder::vote(const Parts& parts) {
  if (parts.size() != 4 || parts[1] != "sync") return unknown(s_->opcode);
  Extra x;
  if (parts[2] == "all")
    x.mode = vote_all;
  else if (parts[2] == "any")
    x.mode = vote_any;
  else if (parts[2] == "uni")
    x.mode = vote_uni;
  else if (parts[2] == "ballot")
    x.mode = vote_ballot;
  else
    return unknown(parts[2]);
  if (parts[3] != (x.mode == vote_ballot ? "b32" : "pred")) return unknown(parts[3]);
  if (!operands(3, 3)) return;
  int p = source(s_->operands[1], kPredicate), mask = source(s_->operands[2], 4);
  emit(run_vote, destination(s_->operands[0], x.mode == vote_ballot ? uint8_t{4} : kPredicate), {p, mask}, x);
}

// bar.sync a[, n]; bar.arrive a, n; bar.red.OP.TYPE d, a[, n], {!}p; bar.warp.sync mask; barrier with .cta,
// .aligned
void Decoder::barrier(const Parts& parts) {
  Extra x;
  x.mode = -1;
  x.aligned = parts[0] == "bar";
  bool red = false;
  Type type;
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (part == "cta") {
    } else if (part == "warp" && parts.size() == 3 && parts[2] == "sync") {
      if (operands(1, 1)) emit(run_warp_barrier, -1, {source(s_->operands[0], 4)});
      return;
    } else if (part == "aligned")
      x.aligned = true;
    else if (part == "sync" && !red)
      x.mode = bar_sync;
    else if (part == "arrive")
      x.mode = bar_arrive;
    else if (part == "red")
      red = true;
    else if (red && part == "popc")
      x.mode = red_popc;
    else if (red && part == "and")
      x.mode = red_and;
    else if (red && part == "or")
      x.mode = red_or;
    else if (red && (part == "u32" || part == "pred")) {
    } else
      return unknown(part);
  }
  if (x.mode < 0) return unknown(s_->opcode);
  const auto& list = s_->operands;
  size_t first = red ? 1 : 0;
  size_t fixed = red ? 3 : x.mode == bar_arrive ? 2 : 1;
  if (!operands(fixed, red ? 4 : 2)) return;
  int which = source(list[first], 4);
  bool counted = list.size() > (red ? 3u : 1u);
  int threads = counted ? source(list[first + 1], 4) : -1;
  int d = -1;
  bool negated = false;
  if (red) {
    Operand p = list.back();
    negated = p.negated;
    p.negated = false;
    x.base = source(p, kPredicate);
    d = destination(list[0], x.mode == red_popc ? uint8_t{4} : kPredicate);
  }
  emit(run_barrier, d, {which, threads}, x).value = negated;
}

// redux.sync.OP.TYPE d, a, mask; match.any.sync.b32 d, a, mask
void Decoder::reduce(const Parts& parts) {
  Extra x;
  x.mode = -1;
  if (s_->opcode == "match.any.sync.b32")
    x.mode = match_any;
  else if (parts[0] == "redux" && parts.size() == 4 && parts[1] == "sync") {
    bool bits = parts[3] == "b32", number = parts[3] == "u32" || parts[3] == "s32";
    x.sign = parts[3] == "s32";
    if (number && parts[2] == "add")
      x.mode = sum;
    else if (number && parts[2] == "min")
      x.mode = minimum;
    else if (number && parts[2] == "max")
      x.mode = maximum;
    else if (bits && parts[2] == "and")
      x.mode = bit_and;
    else if (bits && parts[2] == "or")
      x.mode = bit_or;
    else if (bits && parts[2] == "xor")
      x.mode = bit_xor;
  }
  if (x.mode < 0) return unknown(s_->opcode);
  if (!operands(3, 3)) return;
  int a = source(s_->operands[1], 4), mask = source(s_->operands[2], 4);
  emit(run_reduce, destination(s_->operands[0], 4), {a, mask}, x);
}

// ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16 {…}, [a]
void Decoder::matrix_load(const Parts& parts) {
  Extra x;
  bool shape = false, type = false;
  x.space = Space::generic;
  x.count = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (part == "sync" || part == "aligned") {
    } else if (part == "m8n8")
      shape = true;
    else if (part == "x1")
      x.count = 1;
    else if (part == "x2")
      x.count = 2;
    else if (part == "x4")
      x.count = 4;
    else if (part == "trans")
      x.transposed = true;
    else if (part == "shared" || part == "shared::cta")
      x.space = Space::shared;
    else if (part == "b16")
      type = true;
    else
      return unknown(part);
  }
  if (!shape || !type || x.count == 0) return unknown(s_->opcode);
  if (!operands(2, 2)) return;
  const Operand& to = s_->operands[0];
  std::vector<Operand> elements = to.kind == Kind::vector ? to.elements : std::vector<Operand>{to};
  if (elements.size() != x.count)
    return fail(fmt::format("`{}` with {} registers", s_->opcode, elements.size()));
  for (const Operand& element : elements) x.registers.push_back(destination(element, 4));
  set_address(s_->operands[1], x);
  emit(run_load_matrix, -1, {}, x);
}

// mma.sync.aligned.m16n8kK.row.col.f32.T.T.f32 d, a, b, c
void Decoder::mma(const Parts& parts) {
  struct Known {
    const char* name;
    MatrixKind kind;
    size_t a, b;
  };
  static constexpr Known known[] = {
      {"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", mma_f16_k8, 2, 1},
      {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", mma_f16_k16, 4, 2},
      {"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", mma_bf16_k8, 2, 1},
      {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", mma_bf16_k16, 4, 2},
      {"mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", mma_tf32_k4, 2, 1},
      {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", mma_tf32_k8, 4, 2}};
  const Known* found = nullptr;
  for (const Known& k : known)
    if (s_->opcode == k.name) found = &k;
  if (!found)
    return unknown(parts.back() == "f32" ? parts[std::min<size_t>(3, parts.size() - 1)] : parts.back());
  if (!operands(4, 4)) return;
  Extra x;
  x.mode = found->kind;
  size_t sizes[] = {4, found->a, found->b, 4};
  for (size_t i = 0; i < 4; ++i) {
    const Operand& operand = s_->operands[i];
    std::vector<Operand> elements =
        operand.kind == Kind::vector ? operand.elements : std::vector<Operand>{operand};
    if (elements.size() != sizes[i])
      return fail(fmt::format("`{}` with fragments of another size", s_->opcode));
    for (const Operand& element : elements)
      x.registers.push_back(i == 0 ? destination(element, 4) : source(element, 4));
  }
  emit(run_mma, -1, {}, x);
}

}  // namespace gacc::emulator
