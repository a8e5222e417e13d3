// Shuffles, votes, barriers, warp reductions, ldmatrix and mma.
#include "emulator/decoder.h"

namespace gacc::emulator {

void Decoder::collective(const Parts& parts) {
  const std::string_view root = parts[0];
  if (root == "shfl") shuffle(parts);
  if (root == "vote") vote(parts);
  if (root == "bar" || root == "barrier") barrier(parts);
  if (root == "redux" || root == "match") reduce(parts);
  if (root == "ldmatrix") matrix_load(parts);
  if (root == "mma") mma();
  if (root == "activemask" && operands(1, 1)) emit(run_active_mask, destination(s_->operands[0], 4), {});
}

// shfl.sync.MODE.b32 d[|p], a, b, c, mask
void Decoder::shuffle(const Parts& parts) {
  Extra x;
  x.mode = parts[2] == "up" ? up : parts[2] == "down" ? down : parts[2] == "bfly" ? bfly : idx;
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
  Extra x;
  x.mode = parts[2] == "all"   ? vote_all
           : parts[2] == "any" ? vote_any
           : parts[2] == "uni" ? vote_uni
                               : vote_ballot;
  if (!operands(3, 3)) return;
  int p = source(s_->operands[1], kPredicate), mask = source(s_->operands[2], 4);
  emit(run_vote, destination(s_->operands[0], x.mode == vote_ballot ? uint8_t{4} : kPredicate), {p, mask}, x);
}

// bar.sync a[, n]; bar.arrive a, n; bar.red.OP.TYPE d, a[, n], {!}p; bar.warp.sync mask; barrier with .cta,
// .aligned
void Decoder::barrier(const Parts& parts) {
  if (parts[1] == "warp") {
    if (operands(1, 1)) emit(run_warp_barrier, -1, {source(s_->operands[0], 4)});
    return;
  }
  Extra x;
  x.aligned = parts[0] == "bar";
  bool red = false;
  for (const std::string_view part : parts) {
    if (part == "aligned") x.aligned = true;
    if (part == "red") red = true;
    if (part == "sync") x.mode = bar_sync;
    if (part == "arrive") x.mode = bar_arrive;
    if (part == "popc") x.mode = red_popc;
    if (part == "and") x.mode = red_and;
    if (part == "or") x.mode = red_or;
  }
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
  static const std::map<std::string_view, Mode> modes = {
      {"any", match_any}, {"add", sum},   {"min", minimum}, {"max", maximum},
      {"and", bit_and},   {"or", bit_or}, {"xor", bit_xor}};
  Extra x;
  x.mode = modes.at(parts[parts[0] == "match" ? 1 : 2]);
  x.sign = parts[3] == "s32";
  if (!operands(3, 3)) return;
  int a = source(s_->operands[1], 4), mask = source(s_->operands[2], 4);
  emit(run_reduce, destination(s_->operands[0], 4), {a, mask}, x);
}

// ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16 {…}, [a]
void Decoder::matrix_load(const Parts& parts) {
  Extra x;
  x.space = Space::generic;
  for (const std::string_view part : parts) {
    if (part == "x1") x.count = 1;
    if (part == "x2") x.count = 2;
    if (part == "x4") x.count = 4;
    if (part == "trans") x.transposed = true;
    if (part == "shared" || part == "shared::cta") x.space = Space::shared;
  }
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
void Decoder::mma() {
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
  if (!found) return fail(fmt::format("internal error: no fragments of `{}`", s_->opcode));
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
