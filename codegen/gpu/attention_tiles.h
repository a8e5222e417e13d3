// What attention's kernels by tensor cores are made of (attention_mma.cpp): a block's place, its own rows in
// registers, the tiles that pass by through shared memory, their products, masks and dropout.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "codegen/emit/special/attention_dropout.h"
#include "codegen/nvptx/tensor_cores.h"
#include "codegen/nvptx/threads.h"
#include "kernels/special/attention_call.h"

namespace gacc::codegen {

class AttentionTiles {
 protected:
  using Values = std::vector<Value*>;
  static constexpr int kThreads = 128;

  explicit AttentionTiles(Target& t)
      : t_(t),
        b_(t.b),
        s_(AttentionShape::of(t.body)),
        type_(t.body.slots[0].dtype),
        cores_(t.b, type_, s_.modern),
        row_bytes_(static_cast<int>(s_.row_bytes())) {}

  // --- where we are

  void begin(Value* row, bool gradient) {
    part_ = b_.CreateURem(row, t_.index(s_.rows()));
    Value* rest = b_.CreateUDiv(row, t_.index(s_.rows()));
    block_ = word_of(b_.CreateURem(rest, t_.index(s_.blocks())));
    rest = b_.CreateUDiv(rest, t_.index(s_.blocks()));
    head_ = kv_head_ = b_.CreateZExtOrTrunc(b_.CreateURem(rest, t_.index(s_.kv_heads)), b_.getInt64Ty());
    sample_ = b_.CreateZExtOrTrunc(b_.CreateUDiv(rest, t_.index(s_.kv_heads)), b_.getInt64Ty());
    if (s_.group() > 1) {
      first_head_ = b_.CreateMul(kv_head_, wide(s_.group()));
      head_ = b_.CreateAdd(first_head_, b_.CreateZExtOrTrunc(part_, b_.getInt64Ty()));
    }
    thread_ = gpu::special(b_, llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
    lane_ = b_.CreateAnd(thread_, word(31));
    if (s_.words != 0) dropout_.emplace(t_, s_, sample_);
    gradient_ = gradient;
    shared_ = gpu::shared_array(t_.module, b_.getInt8Ty(), static_cast<uint64_t>(2 * stage_bytes()),
                                t_.function->getName().str());
    // What a lane gives ldmatrix, from a tile's begin: row 0 .. 15 and the first or second 8 channels.
    Value *low = b_.CreateAnd(b_.CreateLShr(lane_, 3), word(1)), *high = b_.CreateLShr(lane_, 4);
    const auto from = [&](Value* down, Value* along) {
      Value* r = b_.CreateAdd(b_.CreateAnd(lane_, word(7)), b_.CreateShl(down, 3));
      return b_.CreateAdd(b_.CreateMul(r, word(row_bytes_)), b_.CreateShl(along, 4));
    };
    straight_ = from(high, low), turned_ = from(low, high);
  }

  // The block's positions, and the two rows of the thread's fragments.
  void place(Value* block) {
    first_ = b_.CreateMul(block, word(s_.block));
    Value* row = b_.CreateAdd(b_.CreateShl(b_.CreateLShr(thread_, 5), 4), b_.CreateLShr(lane_, 2));
    rows_[0] = b_.CreateAdd(first_, row);
    rows_[1] = b_.CreateAdd(rows_[0], word(8));
    column_ = b_.CreateShl(b_.CreateAnd(lane_, word(3)), 1);
  }

  // Causal queries that meet the most keys begin first.
  void place_queries() { place(s_.causal ? b_.CreateSub(word(s_.blocks() - 1), block_) : block_); }

  Value* exists(size_t half) { return b_.CreateICmpULT(rows_[half], word(s_.length)); }
  // Keys from here on are seen by none of the block's queries.
  Value* visible_keys() {
    return s_.causal ? least(b_.CreateAdd(first_, word(s_.block)), word(s_.length)) : word(s_.length);
  }

  // --- memory: 0 is qkv; the gradient's further operands:
  static constexpr int32_t kStatistics = 1, kDelta = 2, kDy = 3;
  int32_t result() const {
    const int32_t own = gradient_ ? 4 : 1;
    return s_.words == 0 ? own : own + 4;
  }

  // Positions' channels of this head.
  struct Rows {
    Value* begin;
    int64_t stride;  // bytes
  };
  // Query, key or value (0, 1, 2).
  Rows part(int64_t which, int32_t slot = 0) {
    Value* element = b_.CreateAdd(b_.CreateMul(sample_, wide(s_.length * s_.row())),
                                  b_.CreateMul(which == 0 ? head_ : kv_head_, wide(s_.channels)));
    element = b_.CreateAdd(element, wide(s_.begin(which)));
    return {offset(t_.operands[static_cast<size_t>(slot)], b_.CreateShl(element, 1)), 2 * s_.row()};
  }
  // [B,T,C]
  Rows output(int32_t slot) {
    Value* element = b_.CreateAdd(b_.CreateMul(sample_, wide(s_.length * s_.width())),
                                  b_.CreateMul(head_, wide(s_.channels)));
    return {offset(t_.operands[static_cast<size_t>(slot)], b_.CreateShl(element, 1)), 2 * s_.width()};
  }
  Value* row_of(const Rows& rows, Value* position) {
    return offset(rows.begin, b_.CreateMul(b_.CreateZExt(position, b_.getInt64Ty()), wide(rows.stride)));
  }
  // [B,H,2,T]: the largest of the query's scores, and the logarithm of their sum relative to it.
  Value* top_of(int32_t slot, Value* position) {
    Value* head = b_.CreateAdd(b_.CreateMul(sample_, wide(s_.heads)), head_);
    Value* element =
        b_.CreateAdd(b_.CreateMul(head, wide(2 * s_.length)), b_.CreateZExt(position, b_.getInt64Ty()));
    return offset(t_.operands[static_cast<size_t>(slot)], b_.CreateShl(element, 2));
  }
  Value* log_of(int32_t slot, Value* position) { return offset(top_of(slot, position), wide(4 * s_.length)); }
  // [B,T,H]
  Value* delta_of(Value* position) {
    Value* at =
        b_.CreateAdd(b_.CreateMul(sample_, wide(s_.length)), b_.CreateZExt(position, b_.getInt64Ty()));
    Value* element = b_.CreateAdd(b_.CreateMul(at, wide(s_.heads)), head_);
    return offset(t_.operands[kDelta], b_.CreateShl(element, 2));
  }
  Value* load(Value* address) { return b_.CreateAlignedLoad(b_.getFloatTy(), address, llvm::Align(4)); }
  void store(Value* value, Value* address) { b_.CreateAlignedStore(value, address, llvm::Align(4)); }

  // The warp's 16 rows as left factors, one for each 16 channels.
  std::vector<Values> own(const Rows& rows) {
    Value* begin[2];
    for (size_t half : {0, 1}) {
      Value* row = row_of(rows, least(rows_[half], word(s_.length - 1)));
      begin[half] = offset(row, b_.CreateZExt(b_.CreateShl(column_, 1), b_.getInt64Ty()));
    }
    std::vector<Values> fragments;
    for (int64_t channel = 0; channel < s_.channels; channel += 16) {
      Values& four = fragments.emplace_back();
      for (const int64_t right : {0, 8}) {
        for (Value* row : begin)
          four.push_back(b_.CreateAlignedLoad(b_.getInt32Ty(), offset(row, wide(2 * (channel + right))),
                                              llvm::Align(4)));
      }
    }
    return fragments;
  }

  // sums * scale of each row, as halves.
  void store(Value* const* sums, const Values& scale, const Rows& to) {
    for (size_t half : {0, 1}) {
      t_.branch(exists(half), [&] {
        Value* row = row_of(to, rows_[half]);
        row = offset(row, b_.CreateZExt(b_.CreateShl(column_, 1), b_.getInt64Ty()));
        for (size_t i = 2 * half; i < sums_of_channels(); i += 4) {
          Value* two = pair(b_.CreateFMul(sums[i], scale[half]), b_.CreateFMul(sums[i + 1], scale[half]));
          b_.CreateAlignedStore(two, offset(row, wide(static_cast<int64_t>(i / 4 * 16))), llvm::Align(4));
        }
      });
    }
  }

  // --- tiles: two in a stage, and, in the gradient, room for three statistics of their positions

  int tile_bytes() const { return static_cast<int>(s_.tile_bytes()); }
  int stage_bytes() const { return static_cast<int>(s_.stage_bytes(gradient_)); }
  Value* second(Value* buffer) { return b_.CreateAdd(buffer, word(tile_bytes())); }

  // Calls use(position, stage, carried) for the tiles that begin at low, low + tile, ... < high.
  Values walk(const std::array<Rows, 2>& rows, Value* low, Value* high, const Values& start,
              const std::function<Values(Value*, Value*, Values)>& use) {
    Value* base = b_.CreatePtrToInt(shared_, b_.getInt32Ty());
    const auto send = [&](Value* position, Value* stage) {
      for (size_t i : {0, 1}) send_tile(rows[i], position, i == 0 ? stage : second(stage));
      if (with_statistics_) send_statistics(position, stage);
      cores_.commit();
    };
    send(low, base);
    Values carried = {base, b_.CreateAdd(base, word(stage_bytes()))};  // this tile's stage and the next one's
    carried.insert(carried.end(), start.begin(), start.end());
    carried = t_.loop(low, high, word(s_.tile), carried, [&](Value* position, const Values& now) {
      cores_.wait(0);
      gpu::barrier(b_);
      Value* next = b_.CreateAdd(position, word(s_.tile));
      t_.branch(b_.CreateICmpULT(next, high), [&] { send(next, now[1]); });
      const Values after = use(position, now[0], Values(now.begin() + 2, now.end()));
      Values out = {now[1], now[0]};
      out.insert(out.end(), after.begin(), after.end());
      return out;
    });
    return Values(carried.begin() + 2, carried.end());
  }

  // The same for each head of queries that meets the block's keys, one after the other.
  Values walk_heads(const std::function<std::array<Rows, 2>()>& rows, Value* low, Value* high,
                    const Values& start, const std::function<Values(Value*, Value*, Values)>& use) {
    if (s_.group() == 1) return walk(rows(), low, high, start, use);
    return t_.loop(word(0), word(s_.group()), word(1), start, [&](Value* i, const Values& now) {
      head_ = b_.CreateAdd(first_head_, b_.CreateZExt(i, b_.getInt64Ty()));
      gpu::barrier(b_);  // the last tile of the head before is still in use
      return walk(rows(), low, high, now, use);
    });
  }

  // Chunks of 16 bytes, one after the other: a warp's threads all move one, or none does.
  void send_tile(const Rows& rows, Value* position, Value* to) {
    const int64_t chunks = s_.channels / 8, all = s_.tile * chunks;
    Value *row = b_.CreateUDiv(thread_, word(chunks)), *chunk = b_.CreateURem(thread_, word(chunks));
    for (int64_t first = 0; first < all; first += kThreads) {
      Value *mine = b_.CreateAdd(row, word(first / chunks)), *along = chunk;
      if (kThreads % chunks != 0) {
        Value* number = b_.CreateAdd(thread_, word(first));
        mine = b_.CreateUDiv(number, word(chunks)), along = b_.CreateURem(number, word(chunks));
      }
      const auto move = [&] {
        Value* at = b_.CreateAdd(position, mine);
        Value* from = row_of(rows, least(at, word(s_.length - 1)));
        Value* bytes = b_.CreateShl(along, 4);
        cores_.copy(b_.CreateAdd(b_.CreateAdd(to, b_.CreateMul(mine, word(row_bytes_))), bytes),
                    offset(from, b_.CreateZExt(bytes, b_.getInt64Ty())),
                    b_.CreateICmpULT(at, word(s_.length)));
      };
      if (all - first >= kThreads) {
        move();
      } else {
        t_.branch(b_.CreateICmpULT(thread_, word(all - first)), move);
      }
    }
  }

  // Tops of the tile's positions, then logarithms, then delta; a thread for each position.
  void send_statistics(Value* position, Value* stage) {
    t_.branch(b_.CreateICmpULT(thread_, word(s_.statistics())), [&] {
      Value* at = b_.CreateAdd(position, thread_);
      Value* row = least(at, word(s_.length - 1));
      Value* exists = b_.CreateICmpULT(at, word(s_.length));
      Value* to = b_.CreateAdd(b_.CreateAdd(stage, word(2 * tile_bytes())), b_.CreateShl(thread_, 2));
      for (Value* from : {top_of(kStatistics, row), log_of(kStatistics, row), delta_of(row)}) {
        cores_.copy_word(to, from, exists);
        to = b_.CreateAdd(to, word(4 * s_.statistics()));
      }
    });
  }
  // Top (0), logarithm (1) or delta (2) of the query in column `column` of the thread's fragment j.
  Value* statistic_of(Value* stage, int which, size_t j, size_t column) {
    const auto at = static_cast<int64_t>(2 * tile_bytes()) +
                    4 * (which * s_.statistics() + static_cast<int64_t>(8 * j + column));
    Value* address = b_.CreateAdd(b_.CreateAdd(stage, b_.CreateShl(column_, 2)), word(at));
    return b_.CreateAlignedLoad(b_.getFloatTy(), b_.CreateIntToPtr(address, b_.getPtrTy(3)), llvm::Align(4));
  }

  // --- products. Sums 4 j .. 4 j + 3 are of columns 8 j + column_ and the next one, in row 0, then in row 1.

  size_t sums_of_channels() const { return static_cast<size_t>(s_.channels / 2); }
  static void each(size_t half, size_t count, const std::function<void(size_t)>& f) {
    for (size_t i = 2 * half; i < count; i += 4) f(i), f(i + 1);
  }

  // left @ tile^T over channels: a column for every position of the tile.
  Values product(const std::vector<Values>& left, Value* tile) {
    Values sums(static_cast<size_t>(s_.tile / 2), real(0));
    for (size_t step = 0; step < left.size(); ++step) {
      for (size_t n = 0; n < static_cast<size_t>(s_.tile / 16); ++n) {
        const auto at = static_cast<int64_t>(n) * 16 * row_bytes_ + static_cast<int64_t>(32 * step);
        const Values right =
            cores_.load_matrices(b_.CreateAdd(b_.CreateAdd(tile, straight_), word(at)), false);
        cores_.multiply(left[step], right[0], right[1], &sums[8 * n]);
        cores_.multiply(left[step], right[2], right[3], &sums[8 * n + 4]);
      }
    }
    return sums;
  }

  // sums += left @ tile over positions: a column for every channel.
  void add_product(Value** sums, const std::vector<Values>& left, Value* tile) {
    for (size_t step = 0; step < left.size(); ++step) {
      for (size_t n = 0; n < static_cast<size_t>(s_.channels / 16); ++n) {
        const auto at = static_cast<int64_t>(step) * 16 * row_bytes_ + static_cast<int64_t>(32 * n);
        const Values right = cores_.load_matrices(b_.CreateAdd(b_.CreateAdd(tile, turned_), word(at)), true);
        cores_.multiply(left[step], right[0], right[1], sums + 8 * n);
        cores_.multiply(left[step], right[2], right[3], sums + 8 * n + 4);
      }
    }
  }

  // Sums as left factors, one for each 16 columns.
  std::vector<Values> packed(const Values& sums) {
    std::vector<Values> factors;
    for (size_t i = 0; i < sums.size(); i += 8) {
      Values& four = factors.emplace_back();
      for (size_t k = i; k < i + 8; k += 2) four.push_back(pair(sums[k], sums[k + 1]));
    }
    return factors;
  }
  Value* pair(Value* x, Value* y) {
    Value* both =
        b_.CreateInsertElement(llvm::PoisonValue::get(Math::with_lanes(b_.getFloatTy(), 2)), x, uint64_t{0});
    both = b_.CreateInsertElement(both, y, uint64_t{1});
    return b_.CreateBitCast(t_.half.narrow(both, type_), b_.getInt32Ty());
  }

  // --- what a query sees of a key. Columns begin at `tile`; rows are queries, or keys.

  Value* column_of(Value* tile, size_t i) {
    return b_.CreateAdd(b_.CreateAdd(tile, column_), word(static_cast<int64_t>(i / 4 * 8 + i % 2)));
  }

  // `otherwise` where a query does not see the key, or the key is none. Whole tiles that are seen are not
  // looked at.
  Values masked(const Values& values, Value* tile, Value* otherwise, bool rows_are_keys) {
    const bool ragged = !rows_are_keys && s_.length % s_.tile != 0;
    if (!s_.causal && !ragged) return values;
    const auto look = [&] {
      Values seen = values;
      for (size_t i = 0; i < values.size(); ++i) {
        Value *column = column_of(tile, i), *row = rows_[i % 4 / 2];
        Value* sees = rows_are_keys ? b_.CreateICmpULE(row, column)
                      : s_.causal   ? b_.CreateICmpULE(column, row)
                                    : b_.CreateICmpULT(column, word(s_.length));
        seen[i] = b_.CreateSelect(sees, values[i], otherwise);
      }
      return seen;
    };
    Value* last = b_.CreateAdd(tile, word(s_.tile - 1));
    Value* partly = rows_are_keys ? b_.CreateICmpULT(tile, b_.CreateAdd(first_, word(s_.block - 1)))
                    : s_.causal   ? b_.CreateICmpUGT(last, first_)
                                  : b_.CreateICmpUGE(last, word(s_.length));
    return t_.either(partly, look, [&] { return values; });
  }

  // Each value times dropout's factor.
  void drop(Values& values, Value* tile, bool rows_are_keys) {
    if (!dropout_) return;
    Value* head = b_.CreateMul(word_of(head_), word(s_.length));
    for (size_t i = 0; i < values.size(); ++i) {
      Value *row = rows_[i % 4 / 2], *column = column_of(tile, i);
      Value *query = rows_are_keys ? column : row, *key = rows_are_keys ? row : column;
      Value* element = b_.CreateAdd(b_.CreateMul(b_.CreateAdd(head, query), word(s_.length)), key);
      values[i] = b_.CreateFMul(values[i], dropout_->factor(b_.CreateZExt(element, b_.getInt64Ty())));
    }
  }

  // --- small things

  Value* real(double value) { return llvm::ConstantFP::get(b_.getFloatTy(), value); }
  Value* word(int64_t value) { return b_.getInt32(static_cast<uint32_t>(value)); }
  Value* wide(int64_t value) { return b_.getInt64(static_cast<uint64_t>(value)); }
  Value* word_of(Value* value) { return b_.CreateZExtOrTrunc(value, b_.getInt32Ty()); }
  Value* least(Value* x, Value* y) { return b_.CreateSelect(b_.CreateICmpULT(x, y), x, y); }
  Value* offset(Value* address, Value* bytes) { return b_.CreateInBoundsGEP(b_.getInt8Ty(), address, bytes); }

  Target& t_;
  llvm::IRBuilder<>& b_;
  const AttentionShape s_;
  const ir::DType type_;
  TensorCores cores_;
  // Of a tile's row in shared memory: 16 more than its channels, an odd multiple of 16, so that neither
  // copies nor ldmatrix meet a bank twice.
  const int row_bytes_;
  const double scale_ = 1 / std::sqrt(static_cast<double>(s_.channels));
  bool gradient_ = false;         // operands are the gradient's, and stages have room for statistics ...
  bool with_statistics_ = false;  // ... which are sent
  std::optional<AttentionDropout> dropout_;
  Value *part_ = nullptr, *block_ = nullptr, *sample_ = nullptr;  // sample, and all heads: i64
  // Of queries; of the keys that they meet; of the first queries that meet these.
  Value *head_ = nullptr, *kv_head_ = nullptr, *first_head_ = nullptr;
  Value *thread_ = nullptr, *lane_ = nullptr;
  Value *first_ = nullptr, *rows_[2] = {},
        *column_ = nullptr;  // i32: positions, and the first column's place
  llvm::GlobalVariable* shared_ = nullptr;
  Value *straight_ = nullptr, *turned_ = nullptr;
};

}  // namespace gacc::codegen
