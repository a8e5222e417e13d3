// The handlers the decoder picks from, by family.
#pragma once
#include <algorithm>

#include "emulator/warp.h"

namespace gacc::emulator {

// exec_memory.cpp
void run_load(Warp&, const Instr&);
void run_store(Warp&, const Instr&);
void run_load_param(Warp&, const Instr&);
void run_copy_async(Warp&, const Instr&);
void run_copy_commit(Warp&, const Instr&);
void run_copy_wait(Warp&, const Instr&);
// exec_atomic.cpp
void run_atomic(Warp&, const Instr&);
void run_fence(Warp&, const Instr&);
// exec_scalar.cpp
void run_lanes1(Warp&, const Instr&);
void run_lanes2(Warp&, const Instr&);
void run_lanes3(Warp&, const Instr&);
void run_lanes4(Warp&, const Instr&);
void run_divide(Warp&, const Instr&);
void run_move(Warp&, const Instr&);    // copies whether a lane was written, too
void run_resize(Warp&, const Instr&);  // value: 1 extends the sign
void run_pack(Warp&, const Instr&);
void run_unpack(Warp&, const Instr&);
void run_clock(Warp&, const Instr&);
void run_branch(Warp&, const Instr&);
void run_trap(Warp&, const Instr&);
void run_nothing(Warp&, const Instr&);
// exec_collective.cpp; Extra::mode is one of these
enum Mode {
  up,
  down,
  bfly,
  idx,
  vote_all,
  vote_any,
  vote_uni,
  vote_ballot,
  bar_sync,
  bar_arrive,
  red_popc,
  red_and,
  red_or,
  sum,
  minimum,
  maximum,
  bit_and,
  bit_or,
  bit_xor,
  match_any
};
void run_shuffle(Warp&, const Instr&);
void run_vote(Warp&, const Instr&);
void run_active_mask(Warp&, const Instr&);
void run_warp_barrier(Warp&, const Instr&);
void run_reduce(Warp&, const Instr&);
void run_barrier(Warp&, const Instr&);
// exec_matrix.cpp; Extra::mode is one of these
enum MatrixKind { mma_f16_k8, mma_f16_k16, mma_bf16_k8, mma_bf16_k16, mma_tf32_k4, mma_tf32_k8 };
void run_load_matrix(Warp&, const Instr&);
void run_mma(Warp&, const Instr&);

}  // namespace gacc::emulator
