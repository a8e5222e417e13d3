// Predictions in parts: where the output of one sample has no room, `predict` stops at the last value of which
// all that follows works row by row, and `answer` goes on with some of its rows.
//
//   predict(%x) {                                      predict(%x) {
//     ..                                                 ..
//     %h = .. : f32[B,T,C]                               %h = .. : f32[B,T,C]
//     %out = matmul %h, @w : f32[B,T,V]          →       yield rows %h
//     yield output %out                                }
//   }                                                  answer(%h : f32[T,C], %answer.rows : i32[B,n]) {
//                                                        %h.part = embedding %answer.rows, %h : f32[B,n,C]
//                                                        %out = matmul %h.part, @w : f32[B,n,V]
//                                                        yield output %out, rows %h
//                                                      }
#pragma once
#include <vector>

#include "ir/module.h"

namespace gacc::passes {

// A place between two kernels of predict: the ops from this one on work row by row, and read of the ops before
// them `rows` alone.
struct RowCut {
  size_t op = 0;
  ir::ValueId rows{};
};
// Lists the cuts of a fused module, the latest first.
std::vector<RowCut> row_cuts(const ir::Module& module);

// Moves the ops behind the cut to `answer`, for `size` rows of one sample at a time.
void cut_predict(ir::Module& module, const RowCut& cut, int64_t size, Diag& diag);

}  // namespace gacc::passes
