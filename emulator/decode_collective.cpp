// Shuffles, ballots, barriers, ldmatrix and mma.
#include "emulator/decoder.h"

namespace gacc::emulator {

// shfl.sync.MODE.b32 d[|p], a, b, c, mask
void Decoder::shuffle(const Parts& parts) {
  Extra x;
  x.mode = parts[2] == "up" ? up : parts[2] == "down" ? down : parts[2] == "bfly" ? bfly : idx;
  if (!operands(5, 6)) return;
  const auto& list = s_->operands;
  const size_t at = list.size() - 4;
  if (at == 2 && list[1].kind != Kind::discard) x.registers.push_back(destination(list[1], kPredicate));
  const int d = destination(list[0], 4);
  const int a = source(list[at], 4), b = source(list[at + 1], 4), c = source(list[at + 2], 4),
            mask = source(list[at + 3], 4);
  emit(run_shuffle, d, {a, b, c, mask}, x);
}

// vote.sync.ballot.b32 d, {!}q, mask
void Decoder::ballot(const Parts&) {
  if (!operands(3, 3)) return;
  const int p = source(s_->operands[1], kPredicate), mask = source(s_->operands[2], 4);
  emit(run_ballot, destination(s_->operands[0], 4), {p, mask});
}

// bar.sync a[, n]; bar.arrive a, n; bar.warp.sync mask; barrier with .cta, .aligned
void Decoder::barrier(const Parts& parts) {
  if (parts[1] == "warp") {
    if (operands(1, 1)) emit(run_warp_barrier, -1, {source(s_->operands[0], 4)});
    return;
  }
  const auto has = [&](std::string_view word) { return std::ranges::find(parts, word) != parts.end(); };
  Extra x;
  x.aligned = parts[0] == "bar" || has("aligned");
  x.mode = has("arrive") ? bar_arrive : bar_sync;
  const auto& list = s_->operands;
  if (!operands(x.mode == bar_arrive ? 2 : 1, 2)) return;
  const int which = source(list[0], 4);
  emit(run_barrier, -1, {which, list.size() > 1 ? source(list[1], 4) : -1}, x);
}

// ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16 {…}, [a]
void Decoder::matrix_load(const Parts& parts) {
  Extra x;
  for (const std::string_view part : parts) {
    if (part == "x1") x.count = 1;
    if (part == "x2") x.count = 2;
    if (part == "x4") x.count = 4;
    if (part == "trans") x.transposed = true;
    if (part == "shared" || part == "shared::cta") x.space = Space::shared;
  }
  if (!operands(2, 2)) return;
  const Operand& to = s_->operands[0];
  const std::vector<Operand> elements = elements_of(to);
  if (elements.size() != x.count)
    return fail(fmt::format("`{}` with {} registers", s_->opcode, elements.size()));
  for (const Operand& element : elements) x.registers.push_back(destination(element, 4));
  x.at = address(s_->operands[1], x.space);
  emit(run_load_matrix, -1, {}, x);
}

// mma.sync.aligned.m16n8kK.row.col.f32.T.T.f32 d, a, b, c
void Decoder::mma(const Parts& parts) {
  if (!operands(4, 4)) return;
  const size_t a = parts[3] == "m16n8k16" ? 4 : 2;
  const size_t sizes[] = {4, a, a / 2, 4};
  Extra x;
  x.brain = parts[7] == "bf16";
  for (size_t i = 0; i < 4; ++i) {
    const std::vector<Operand> elements = elements_of(s_->operands[i]);
    if (elements.size() != sizes[i])
      return fail(fmt::format("`{}` with fragments of another size", s_->opcode));
    for (const Operand& element : elements)
      x.registers.push_back(i == 0 ? destination(element, 4) : source(element, 4));
  }
  emit(run_mma, -1, {}, x);
}

}  // namespace gacc::emulator
