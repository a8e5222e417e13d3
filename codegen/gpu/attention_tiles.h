// The parts of attention's kernels by tensor cores (attention_mma.cpp): a block's place, its own rows in
// registers, the tiles that pass by through shared memory, their products, masks and dropout.
#pragma once
#include <array>
#include <limits>
#include <map>
#include <optional>

#include "codegen/emit/handwritten/attention_dropout.h"
#include "codegen/gpu/block_code.h"
#include "codegen/nvptx/tensor_cores.h"
#include "kernels/handwritten/attention_call.h"

namespace gacc::codegen {

class AttentionTiles : protected BlockCode {
 protected:
  explicit AttentionTiles(Target& t)
      : BlockCode(t),
        s_(t.body.shape.as<AttentionShape>()),
        type_(t.body.slots[0].dtype),
        cores_(t.b, type_, s_.modern),
        row_bytes_(static_cast<int>(s_.row_bytes())) {}

  // --- where we are

  // Blocks of a head differ in their work, so a grid that ended with all blocks of one head would end late. Rows of the
  // domain are heads of keys, some together (AttentionShape::together); of these first the blocks that have the most
  // work, of all heads, then the next ones.
  void begin(Value* row, bool gradient) {
    part_ = b.CreateURem(row, t_.index(s_.rows()));
    Value* rest = b.CreateUDiv(row, t_.index(s_.rows()));
    Value *block = b.CreateURem(rest, t_.index(s_.blocks())),
          *head = b.CreateUDiv(rest, t_.index(s_.blocks()));
    if (s_.together > 1) {
      // A micro-batch that is not full may end with fewer heads than go together: one after the other.
      Value* all = b.CreateUDiv(t_.row_count(), t_.index(s_.rows() * s_.blocks()));  // heads of all samples
      Value *together = t_.index(s_.together), *rows = t_.index(s_.together * s_.blocks());
      Value* first = b.CreateMul(b.CreateUDiv(rest, rows), together);
      Value *whole = b.CreateICmpULE(b.CreateAdd(first, together), all), *in_group = b.CreateURem(rest, rows);
      block = b.CreateSelect(whole, b.CreateUDiv(in_group, together), block);
      head = b.CreateSelect(whole, b.CreateAdd(first, b.CreateURem(in_group, together)), head);
    }
    block_ = word_of(block);
    head_ = kv_head_ = b.CreateZExtOrTrunc(b.CreateURem(head, t_.index(s_.kv_heads)), b.getInt64Ty());
    sample_ = b.CreateZExtOrTrunc(b.CreateUDiv(head, t_.index(s_.kv_heads)), b.getInt64Ty());
    if (s_.group() > 1) {
      first_head_ = b.CreateMul(kv_head_, wide(s_.group()));
      head_ = b.CreateAdd(first_head_, b.CreateZExtOrTrunc(part_, b.getInt64Ty()));
    }
    thread_ = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
    lane_ = b.CreateAnd(thread_, word(31));
    if (s_.words != 0) dropout_.emplace(t_, s_, sample_);
    gradient_ = gradient;
    shared_ = make_shared(b.getInt8Ty(), static_cast<uint64_t>(s_.shared_bytes(gradient)));
    // A lane's operands of ldmatrix, from a tile's begin: row 0 .. 15 and the first or second 8 channels.
    Value *low = b.CreateAnd(b.CreateLShr(lane_, 3), word(1)), *high = b.CreateLShr(lane_, 4);
    const auto from = [&](Value* down, Value* along) {
      Value* r = b.CreateAdd(b.CreateAnd(lane_, word(7)), b.CreateShl(down, 3));
      return b.CreateAdd(b.CreateMul(r, word(row_bytes_)), b.CreateShl(along, 4));
    };
    straight_ = from(high, low), turned_ = from(low, high);
  }

  // The block's positions, and the rows of the thread's fragments: two for each 16 of the warp.
  void place(Value* block) {
    first_ = b.CreateMul(block, word(s_.block));
    if (s_.documents != 0) {
      for (const int64_t plane : {0, 1, 2, 3}) {  // [B,4,blocks]
        Value* at = b.CreateAdd(b.CreateMul(sample_, wide(4 * s_.blocks())), wide(plane * s_.blocks()));
        spans_[plane] = load_word(static_cast<size_t>(s_.documents) + 1, b.CreateAdd(at, wide(block)));
      }
    }
    warp_row_ = b.CreateMul(b.CreateLShr(thread_, 5), word(s_.warp_rows));
    Value* row = b.CreateAdd(first_, b.CreateAdd(warp_row_, b.CreateLShr(lane_, 2)));
    rows_.clear();
    for (int64_t next = 0; next < s_.warp_rows; next += 8) rows_.push_back(add(row, next));
    column_ = b.CreateShl(b.CreateAnd(lane_, word(3)), 1);
  }

  // Causal queries that meet the most keys begin first.
  void place_queries() { place(s_.causal ? b.CreateSub(word(s_.blocks() - 1), block_) : block_); }

  Value* exists(size_t row) { return b.CreateICmpULT(rows_[row], word(s_.length)); }
  // The first tile with a key that one of the block's queries sees.
  Value* first_keys() {
    Value* key = word(0);
    if (s_.window > 0) {
      Value* reach = word(s_.window - 1);
      key = b.CreateSelect(b.CreateICmpUGT(first_, reach), b.CreateSub(first_, reach), key);
    }
    if (s_.documents != 0) key = t_.larger(key, spans_[0]);
    return b.CreateMul(b.CreateUDiv(key, word(s_.tile)), word(s_.tile));
  }
  // Keys from here on are seen by none of the block's queries.
  Value* visible_keys() {
    return in_reach(s_.causal ? min(b.CreateAdd(first_, word(s_.block)), word(s_.length)) : word(s_.length));
  }
  // The first tile with a query that sees one of the block's keys.
  Value* first_queries() {
    if (s_.documents == 0) return s_.causal ? first_ : word(0);
    Value* query = b.CreateMul(b.CreateUDiv(spans_[0], word(s_.tile)), word(s_.tile));
    return s_.causal ? t_.larger(first_, query) : query;
  }
  // Queries from here on see none of the block's keys.
  Value* seeing_queries() {
    if (s_.window == 0) return in_reach(word(s_.length));
    return in_reach(min(b.CreateAdd(first_, word(s_.block - 1 + s_.window)), word(s_.length)));
  }
  Value* in_reach(Value* end) { return s_.documents != 0 ? min(end, spans_[1]) : end; }

  // The numbers of positions' documents, each loaded once.
  using Numbers = std::map<Value*, Value*>;
  Value* number_of(Value* position, Numbers& known) {
    Value*& number = known[position];
    if (number == nullptr) {
      Value* there = min(position, word(s_.length - 1));
      Value* at = b.CreateAdd(b.CreateMul(sample_, wide(s_.length)), wide(there));
      number = load_word(static_cast<size_t>(s_.documents), at);
    }
    return number;
  }
  Value* load_word(size_t slot, Value* element) {
    return b.CreateAlignedLoad(b.getInt32Ty(), offset(t_.operands[slot], b.CreateShl(element, 2)),
                               llvm::Align(4));
  }
  // The condition that a query sees a key, both of them there; null: it does. `known`: their documents may differ.
  Value* sees(Value* query, Value* key, Numbers* known) {
    Value* causal = nullptr;
    if (s_.window > 0)
      causal = b.CreateICmpULT(b.CreateSub(query, key), word(s_.window));
    else if (s_.causal)
      causal = b.CreateICmpULE(key, query);
    if (s_.documents == 0 || known == nullptr) return causal;
    Value* same = b.CreateICmpEQ(number_of(query, *known), number_of(key, *known));
    return causal == nullptr ? same : b.CreateAnd(causal, same);
  }

  // --- memory

  // Positions' channels of this head.
  struct Rows {
    Value* begin;
    int64_t stride;  // bytes
  };
  // Query, key or value (0, 1, 2).
  Rows part(int64_t which, int32_t slot = 0) {
    Value* element = b.CreateAdd(b.CreateMul(sample_, wide(s_.length * s_.row())),
                                 b.CreateMul(which == 0 ? head_ : kv_head_, wide(s_.channels)));
    element = b.CreateAdd(element, wide(s_.begin(which)));
    return {offset(t_.operands[slot], b.CreateShl(element, 1)), 2 * s_.row()};
  }
  // [B,T,C]
  Rows output(int32_t slot) {
    Value* element = b.CreateAdd(b.CreateMul(sample_, wide(s_.length * s_.width())),
                                 b.CreateMul(head_, wide(s_.channels)));
    return {offset(t_.operands[slot], b.CreateShl(element, 1)), 2 * s_.width()};
  }
  Value* row_of(const Rows& rows, Value* position) {
    return offset(rows.begin, b.CreateMul(wide(position), wide(rows.stride)));
  }
  // [B,H,2,T]: the largest of the query's scores, and the logarithm of their sum relative to it.
  Value* top_of(int32_t slot, Value* position) {
    Value* head = b.CreateAdd(b.CreateMul(sample_, wide(s_.heads)), head_);
    Value* element = b.CreateAdd(b.CreateMul(head, wide(2 * s_.length)), wide(position));
    return offset(t_.operands[slot], b.CreateShl(element, 2));
  }
  Value* log_of(int32_t slot, Value* position) { return offset(top_of(slot, position), wide(4 * s_.length)); }
  // [B,T,H]
  Value* delta_of(Value* position) {
    Value* at = b.CreateAdd(b.CreateMul(sample_, wide(s_.length)), wide(position));
    Value* element = b.CreateAdd(b.CreateMul(at, wide(s_.heads)), head_);
    return offset(t_.operands[s_.kDelta], b.CreateShl(element, 2));
  }
  Value* load(Value* address) { return b.CreateAlignedLoad(b.getFloatTy(), address, llvm::Align(4)); }
  void store(Value* value, Value* address) { b.CreateAlignedStore(value, address, llvm::Align(4)); }

  // A left factor of a product: of a group of 16 of the warp's rows, and 16 of the inner dimension.
  using Left = std::function<Values(size_t group, size_t step)>;

  // The warp's rows in registers; the inner dimension is channels.
  Left own(const Rows& rows) {
    std::vector<Values> fragments;
    for (size_t group = 0; group < groups(); ++group) {
      Value* begin[2];
      for (size_t half : {0, 1}) {
        Value* row = row_of(rows, min(rows_[2 * group + half], word(s_.length - 1)));
        begin[half] = offset(row, wide(b.CreateShl(column_, 1)));
      }
      for (int64_t channel = 0; channel < s_.channels; channel += 16) {
        Values& four = fragments.emplace_back();
        for (const int64_t right : {0, 8}) {
          for (Value* row : begin)
            four.push_back(b.CreateAlignedLoad(b.getInt32Ty(), offset(row, wide(2 * (channel + right))),
                                               llvm::Align(4)));
        }
      }
    }
    return [fragments, steps = channel_steps()](size_t group, size_t step) {
      return fragments[group * steps + step];
    };
  }

  // The same from shared memory, where the block's rows are sent: tile `which`, before the stages. For they
  // leave no registers for the sums.
  Left own_in_shared(const Rows& rows, int64_t which) {
    if (s_.own_bytes(true) == 0) return own(rows);
    Value* tile = add(b.CreatePtrToInt(shared_, b.getInt32Ty()), which * s_.block * row_bytes_);
    send_tile(rows, first_, tile, s_.block);
    Value* lane = b.CreateAdd(b.CreateAdd(tile, b.CreateMul(warp_row_, word(row_bytes_))), turned_);
    return [this, lane](size_t group, size_t step) {
      return cores_.load_matrices(add(lane, static_cast<int64_t>(16 * group) * row_bytes_ + 32 * step),
                                  false);
    };
  }

  // sums * scale of each row, as halves.
  void store(Value* const* sums, const Values& scale, const Rows& to) {
    for (size_t row = 0; row < rows_.size(); ++row) {
      t_.branch(exists(row), [&] {
        Value* begin = offset(row_of(to, rows_[row]), wide(b.CreateShl(column_, 1)));
        each(row, sums_of_channels(), [&](size_t i, size_t column) {
          if (column % 2 != 0) return;
          Value* two = pair(b.CreateFMul(sums[i], scale[row]), b.CreateFMul(sums[i + 1], scale[row]));
          b.CreateAlignedStore(two, offset(begin, wide(static_cast<int64_t>(2 * column))), llvm::Align(4));
        });
      });
    }
  }

  // --- tiles: two in a stage, and, in the gradient, room for three statistics of their positions

  int tile_bytes() const { return static_cast<int>(s_.tile_bytes()); }
  int stage_bytes() const { return static_cast<int>(s_.stage_bytes(gradient_)); }
  Value* second(Value* buffer) { return b.CreateAdd(buffer, word(tile_bytes())); }

  // Calls use(position, stage, carried) for the tiles that begin at low, low + tile, ... < high.
  Values walk(const std::array<Rows, 2>& rows, Value* low, Value* high, const Values& start,
              const std::function<Values(Value*, Value*, Values)>& use) {
    Value* base = add(b.CreatePtrToInt(shared_, b.getInt32Ty()), s_.own_bytes(gradient_));
    const auto send = [&](Value* position, Value* stage) {
      for (size_t i : {0, 1}) send_tile(rows[i], position, i == 0 ? stage : second(stage), s_.tile);
      if (with_statistics_) send_statistics(position, stage);
      cores_.commit();
    };
    send(low, base);
    Values carried = {base, b.CreateAdd(base, word(stage_bytes()))};  // this tile's stage and the next one's
    carried.insert(carried.end(), start.begin(), start.end());
    carried = t_.loop(low, high, word(s_.tile), carried, [&](Value* position, const Values& now) {
      cores_.wait(0);
      barrier();
      Value* next = b.CreateAdd(position, word(s_.tile));
      t_.branch(b.CreateICmpULT(next, high), [&] { send(next, now[1]); });
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
      head_ = b.CreateAdd(first_head_, wide(i));
      barrier();  // the last tile of the head before is still in use
      return walk(rows(), low, high, now, use);
    });
  }

  // Chunks of 16 bytes, one after the other: a warp's threads all move one, or none does.
  void send_tile(const Rows& rows, Value* position, Value* to, int64_t count) {
    const int64_t chunks = s_.channels / 8, all = count * chunks, threads = s_.threads();
    Value *row = b.CreateUDiv(thread_, word(chunks)), *chunk = b.CreateURem(thread_, word(chunks));
    if (s_.together > 1 && s_.length % count == 0 && all % threads == 0 && threads % chunks == 0) {
      // All positions are there: one address, and offsets. This takes registers as well.
      Value* bytes = b.CreateShl(chunk, 4);
      Value* from = offset(row_of(rows, b.CreateAdd(position, row)), wide(bytes));
      to = b.CreateAdd(b.CreateAdd(to, b.CreateMul(row, word(row_bytes_))), bytes);
      for (int64_t first = 0; first < count; first += threads / chunks)
        cores_.copy(add(to, first * row_bytes_), offset(from, wide(first * rows.stride)), b.getTrue());
      return;
    }
    for (int64_t first = 0; first < all; first += threads) {
      Value *mine = b.CreateAdd(row, word(first / chunks)), *along = chunk;
      if (threads % chunks != 0) {
        Value* number = b.CreateAdd(thread_, word(first));
        mine = b.CreateUDiv(number, word(chunks)), along = b.CreateURem(number, word(chunks));
      }
      const auto move = [&] {
        Value* at = b.CreateAdd(position, mine);
        Value* from = row_of(rows, min(at, word(s_.length - 1)));
        Value* bytes = b.CreateShl(along, 4);
        cores_.copy(b.CreateAdd(b.CreateAdd(to, b.CreateMul(mine, word(row_bytes_))), bytes),
                    offset(from, wide(bytes)), b.CreateICmpULT(at, word(s_.length)));
      };
      if (all - first >= threads)
        move();
      else
        t_.branch(b.CreateICmpULT(thread_, word(all - first)), move);
    }
  }

  // Tops of the tile's positions, then logarithms, then delta; a thread for each position.
  void send_statistics(Value* position, Value* stage) {
    t_.branch(b.CreateICmpULT(thread_, word(s_.statistics())), [&] {
      Value* at = b.CreateAdd(position, thread_);
      Value* row = min(at, word(s_.length - 1));
      Value* exists = b.CreateICmpULT(at, word(s_.length));
      Value* to = b.CreateAdd(b.CreateAdd(stage, word(2 * tile_bytes())), b.CreateShl(thread_, 2));
      for (Value* from : {top_of(s_.kStatistics, row), log_of(s_.kStatistics, row), delta_of(row)}) {
        cores_.copy_word(to, from, exists);
        to = b.CreateAdd(to, word(4 * s_.statistics()));
      }
    });
  }
  // Top (0), logarithm (1) or delta (2) of the query in a column of the thread's.
  Value* statistic_of(Value* stage, int which, size_t column) {
    const int64_t at = 2 * tile_bytes() + 4 * (which * s_.statistics() + static_cast<int64_t>(column));
    Value* address = b.CreateAdd(b.CreateAdd(stage, b.CreateShl(column_, 2)), word(at));
    return b.CreateAlignedLoad(b.getFloatTy(), b.CreateIntToPtr(address, b.getPtrTy(3)), llvm::Align(4));
  }

  // --- products. Of each group of 16 of the warp's rows, sums 4 j .. 4 j + 3 are of columns 8 j + column_ and
  // the next one, in the group's first row of the thread, then in its second.

  size_t groups() const { return static_cast<size_t>(s_.warp_rows / 16); }
  size_t channel_steps() const { return static_cast<size_t>(s_.channels / 16); }
  size_t sums_of_channels() const { return groups() * channels_of_group(); }
  size_t sums_of_tile() const { return groups() * static_cast<size_t>(s_.tile / 2); }
  size_t channels_of_group() const { return static_cast<size_t>(s_.channels / 2); }
  // The thread's row that value i of `count` is of, and its column, from column_ on.
  size_t row_of(size_t i, size_t count) const { return 2 * (i / (count / groups())) + i % 4 / 2; }
  size_t column_of(size_t i, size_t count) const { return i % (count / groups()) / 4 * 8 + i % 2; }
  // Calls f(value, column) for the values of a row, of `count` in all.
  template <class F>
  void each(size_t row, size_t count, const F& f) const {
    for (size_t i = 0; i < count; ++i)
      if (row_of(i, count) == row) f(i, column_of(i, count));
  }

  // left @ tile^T over channels: a column for every position of the tile.
  Values product(const Left& left, Value* tile) {
    Values sums(sums_of_tile(), real(0));
    for (size_t step = 0; step < channel_steps(); ++step) {
      multiply(left, step, static_cast<size_t>(s_.tile / 16), sums.data(), [&](size_t n) {
        const auto at = static_cast<int64_t>(n) * 16 * row_bytes_ + static_cast<int64_t>(32 * step);
        return cores_.load_matrices(b.CreateAdd(b.CreateAdd(tile, straight_), word(at)), false);
      });
    }
    return sums;
  }

  // sums += left @ tile over positions: a column for every channel. `finite`: the tile's infinities and NaN count
  // as 0.
  void add_product(Value** sums, const Left& left, Value* tile, bool finite = false) {
    for (size_t step = 0; step < static_cast<size_t>(s_.tile / 16); ++step) {
      multiply(left, step, channel_steps(), sums, [&](size_t n) {
        const auto at = static_cast<int64_t>(step) * 16 * row_bytes_ + static_cast<int64_t>(32 * n);
        Values right = cores_.load_matrices(b.CreateAdd(b.CreateAdd(tile, turned_), word(at)), true);
        if (finite)
          for (Value*& two : right) two = finite_of(two);
        return right;
      });
    }
  }

  // --- positions whose channels are no finite numbers. A product of tiles multiplies also what a query does not see,
  // by 0, and 0 times infinity is NaN.

  // Two halves; what is not finite is 0.
  Value* finite_of(Value* two) {
    const int64_t exponent = type_ == ir::DType::f16 ? 0x7c00 : 0x7f80;
    for (const int64_t half : {exponent, exponent << 16}) {
      Value* finite = b.CreateICmpNE(b.CreateAnd(two, word(half)), word(half));
      two = b.CreateAnd(two,
                        b.CreateSelect(finite, word(-1), word(half == exponent ? ~int64_t{0xffff} : 0xffff)));
    }
    return two;
  }

  // Returns the condition that a thread of the block has a NaN among its sums: one answer for all.
  Value* any_nan(Value* const* sums, size_t count) {
    Value* mine = b.getFalse();
    for (size_t i = 0; i < count; ++i) mine = b.CreateOr(mine, b.CreateFCmpUNO(sums[i], sums[i]));
    Value* found = b.CreateSelect(mine, real(1), real(0));
    for (unsigned distance : {16, 8, 4, 2, 1})
      found = b.CreateMaxNum(found, gpu::exchange(b, found, distance));
    Value* base = b.CreatePtrToInt(shared_, b.getInt32Ty());
    const auto flag = [&](Value* warp) {
      return b.CreateIntToPtr(b.CreateAdd(base, b.CreateShl(warp, 2)), b.getPtrTy(3));
    };
    barrier();  // the last tile is still in use
    t_.branch(b.CreateICmpEQ(lane_, word(0)),
              [&] { b.CreateAlignedStore(found, flag(b.CreateLShr(thread_, 5)), llvm::Align(4)); });
    barrier();
    for (int64_t warp = 0; warp < s_.threads() / 32; ++warp)
      found = b.CreateMaxNum(found, b.CreateAlignedLoad(b.getFloatTy(), flag(word(warp)), llvm::Align(4)));
    barrier();  // tiles are sent there again
    return b.CreateFCmpOGT(found, real(0));
  }

  // sums of channels + those of the tile's rows that are not finite, for the queries that see them.
  Values with_infinite(const Values& sums, const Rows& rows, Value* tile) {
    Value* end = min(b.CreateAdd(tile, word(s_.tile)), word(s_.length));
    return t_.loop(tile, end, word(1), sums, [&](Value* key, Values now) {
      Value* begin = offset(row_of(rows, key), wide(b.CreateShl(column_, 1)));
      std::map<size_t, Value*> two;  // by the first column
      Numbers known;
      for (size_t i = 0; i < now.size(); ++i) {
        const size_t column = column_of(i, now.size()), half = column % 2;
        Value*& word_there = two[column - half];
        if (word_there == nullptr)
          word_there = b.CreateAlignedLoad(
              b.getInt32Ty(), offset(begin, wide(static_cast<int64_t>(2 * (column - half)))), llvm::Align(4));
        Value* bits =
            b.CreateTrunc(b.CreateLShr(word_there, word(static_cast<int64_t>(16 * half))), b.getInt16Ty());
        Value* value = t_.half.widen(bits, type_);
        Value* magnitude = b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value);
        Value* infinite = b.CreateFCmpUEQ(magnitude, real(std::numeric_limits<double>::infinity()));
        Value* there = b.CreateAnd(infinite, sees(rows_[row_of(i, now.size())], key, &known));
        now[i] = b.CreateSelect(there, b.CreateFAdd(now[i], value), now[i]);
      }
      return now;
    });
  }

  // sums += left's `step` @ right(n), for n < columns / 16. What is fetched serves all groups.
  void multiply(const Left& left, size_t step, size_t columns, Value** sums,
                const std::function<Values(size_t)>& right_of) {
    std::vector<Values> factors;
    for (size_t group = 0; group < groups(); ++group) factors.push_back(left(group, step));
    for (size_t n = 0; n < columns; ++n) {
      const Values right = right_of(n);
      for (size_t group = 0; group < groups(); ++group) {
        Value** to = sums + 8 * (group * columns + n);
        cores_.multiply(factors[group], right[0], right[1], to);
        cores_.multiply(factors[group], right[2], right[3], to + 4);
      }
    }
  }

  // A tile's sums as left factors; the inner dimension is positions.
  Left packed(const Values& sums) {
    std::vector<Values> factors;
    for (size_t i = 0; i < sums.size(); i += 8) {
      Values& four = factors.emplace_back();
      for (size_t k = i; k < i + 8; k += 2) four.push_back(pair(sums[k], sums[k + 1]));
    }
    return [factors, steps = factors.size() / groups()](size_t group, size_t step) {
      return factors[group * steps + step];
    };
  }
  Value* pair(Value* x, Value* y) {
    Value* both =
        b.CreateInsertElement(llvm::PoisonValue::get(Math::with_lanes(b.getFloatTy(), 2)), x, uint64_t{0});
    both = b.CreateInsertElement(both, y, uint64_t{1});
    return b.CreateBitCast(t_.half.narrow(both, type_), b.getInt32Ty());
  }

  // --- what a query sees of a key. Columns begin at `tile`; rows are queries, or keys.

  Value* position_of(Value* tile, size_t column) {
    return b.CreateAdd(b.CreateAdd(tile, column_), word(static_cast<int64_t>(column)));
  }

  // `otherwise` where a query does not see the key, or the key is none. Whole tiles that are seen are not
  // looked at.
  Values masked(const Values& values, Value* tile, Value* otherwise, bool rows_are_keys) {
    const bool ragged = !rows_are_keys && !s_.causal && s_.length % s_.tile != 0;
    if (!s_.masks() && !ragged) return values;
    const auto look = [&](Numbers* known) {
      Values seen = values;
      std::map<size_t, Value*> columns;
      for (size_t i = 0; i < values.size(); ++i) {
        Value* row = rows_[row_of(i, values.size())];
        Value*& column = columns[column_of(i, values.size())];
        if (column == nullptr) column = position_of(tile, column_of(i, values.size()));
        Value* there = rows_are_keys ? sees(column, row, known) : sees(row, column, known);
        if (ragged) {
          Value* exists = b.CreateICmpULT(column, word(s_.length));
          there = there == nullptr ? exists : b.CreateAnd(there, exists);
        }
        seen[i] = b.CreateSelect(there, values[i], otherwise);
      }
      return seen;
    };
    Value* last = b.CreateAdd(tile, word(s_.tile - 1));
    const auto of_one_document = [&] {
      if (!s_.causal && !ragged) return values;
      Value* partly = !s_.causal      ? b.CreateICmpUGE(last, word(s_.length))
                      : rows_are_keys ? b.CreateICmpULT(tile, b.CreateAdd(first_, word(s_.block - 1)))
                                      : b.CreateICmpUGT(last, first_);
      if (s_.window > 0) {  // and where the first key is too far from the last query
        Value* nearest = rows_are_keys ? b.CreateSub(last, first_)
                                       : b.CreateSub(b.CreateAdd(first_, word(s_.block - 1)), tile);
        partly = b.CreateOr(partly, b.CreateICmpSGE(nearest, word(s_.window)));
      }
      return t_.either(
          partly, [&] { return look(nullptr); }, [&] { return values; });
    };
    if (s_.documents == 0) return of_one_document();
    Value* others = b.CreateOr(b.CreateICmpULT(tile, spans_[2]), b.CreateICmpUGE(last, spans_[3]));
    Numbers known;
    return t_.either(
        others, [&] { return look(&known); }, of_one_document);
  }

  // Each value times `kept`, or 0. What becomes half is kept as it is, and its sums are multiplied: a rounded factor
  // would be wrong in all of them the same way.
  void drop(Values& values, Value* tile, bool rows_are_keys, double kept) {
    if (!dropout_) return;
    Value* head = b.CreateMul(word_of(head_), word(s_.length));
    for (size_t i = 0; i < values.size(); ++i) {
      Value* row = rows_[row_of(i, values.size())];
      Value* column = position_of(tile, column_of(i, values.size()));
      Value *query = rows_are_keys ? column : row, *key = rows_are_keys ? row : column;
      Value* element = b.CreateAdd(b.CreateMul(b.CreateAdd(head, query), word(s_.length)), key);
      values[i] = b.CreateFMul(values[i], dropout_->factor(wide(element), kept));
    }
  }

  // --- small things

  using BlockCode::wide;
  Value* wide(int64_t value) { return b.getInt64(static_cast<uint64_t>(value)); }
  Value* word_of(Value* value) { return b.CreateZExtOrTrunc(value, b.getInt32Ty()); }

  const AttentionShape s_;
  const ir::DType type_;
  TensorCores cores_;
  // Bytes of a tile's row in shared memory: 16 more than its channels, an odd multiple of 16, so that neither
  // copies nor ldmatrix meet a bank twice.
  const int row_bytes_;
  // A score is so many times what stands for it: the product of a query and a key or, with a cap, the tangent.
  const double scale_ = s_.softcap > 0 ? s_.softcap : s_.scale;
  bool gradient_ = false;         // operands are the gradient's, and stages have room for statistics ...
  bool with_statistics_ = false;  // ... which are sent
  std::optional<AttentionDropout> dropout_;
  Value *part_ = nullptr, *block_ = nullptr, *sample_ = nullptr;  // sample, and all heads: i64
  // The heads of queries, of the keys that they meet, and of the first queries that meet these.
  Value *head_ = nullptr, *kv_head_ = nullptr, *first_head_ = nullptr;
  Value *thread_ = nullptr, *lane_ = nullptr;
  // i32: the block's first position, the warp's first row in the block, the thread's first column.
  Value *first_ = nullptr, *warp_row_ = nullptr, *column_ = nullptr;
  Values rows_;           // i32: the thread's positions
  Value* spans_[4] = {};  // i32, of the block (op documents.spans)
  llvm::GlobalVariable* shared_ = nullptr;
  Value *straight_ = nullptr, *turned_ = nullptr;
};

}  // namespace gacc::codegen
