// Attention kernels (ir/ops/attention.cpp has the formulas). A lane is a query, or, for d_k and d_v, a key;
// it walks the keys (queries) in steps of a few, whose rows all lanes share. Nothing of size T is kept:
// forward carries each query's running maximum and sum (online softmax), backward computes probabilities from
// lse.
//
// A lane's order of operations follows from T and the step alone, so its bits depend neither on threads, nor
// on the samples beside it, nor (on the host) on the width of vectors. All arithmetic is f32.
#include <cmath>
#include <limits>
#include <optional>

#include "codegen/emit/special/attention_call.h"
#include "codegen/emit/special/attention_dropout.h"
#include "codegen/emit/special/kinds.h"
#include "codegen/emit/special/lane_arrays.h"

namespace gacc::codegen {

namespace {

class Attention {
 public:
  explicit Attention(Target& t) : t_(t), b_(t.b), s_(AttentionShape::of(t.body)) {}

  void forward() {
    at_points([&] {
      const LaneArrays::Array query = arrays().make(), out = arrays().make();
      const LaneArrays::Array top = arrays().make(1), sum = arrays().make(1);
      arrays().load(query, part(0), first_, arrays().real(scale()));
      arrays().clear(out);
      one(top, arrays().real(-std::numeric_limits<double>::infinity()));
      one(sum, arrays().real(0));
      over_keys([&](Value* key, int count, bool masked) {
        Values scores = arrays().dots({{query, rows(1, key, count)}})[0];
        Value *before = one(top), *now = before;
        for (int u = 0; u < count; ++u) {
          Value*& score = scores[static_cast<size_t>(u)];
          if (masked)
            score = b_.CreateSelect(sees(position(key, u)), score,
                                    arrays().real(-std::numeric_limits<double>::infinity()));
          now = t_.math.max(now, score);
        }
        Value* decay = t_.math.exp(b_.CreateFSub(before, now));
        Value* total = b_.CreateFMul(one(sum), decay);
        for (int u = 0; u < count; ++u) {
          Value*& score = scores[static_cast<size_t>(u)];
          score = t_.math.exp(b_.CreateFSub(score, now));
          total = b_.CreateFAdd(total, score);
          if (Value* z = factor(positions_, position(key, u))) score = b_.CreateFMul(score, z);
        }
        one(top, now);
        one(sum, total);
        arrays().add({{out, decay, scores, rows(2, key, count)}});
      });
      const int32_t result = s_.words == 0 ? 1 : static_cast<int32_t>(s_.words) + 4;
      arrays().store(out, {result, output_base(), s_.width(), s_.length}, first_,
                     b_.CreateFDiv(arrays().real(1), one(sum)));
      Value* lse = b_.CreateFAdd(one(top), t_.math.log(one(sum)));
      t_.store(result + 1, b_.CreateAdd(statistics_base(), first_), lse, point());
    });
  }

  void gradient() {
    at_points([&] {
      const bool apart = s_.parts == 3;
      t_.branch(b_.CreateICmpEQ(part_, t_.index(0)), [&] { query_gradient(); });
      t_.branch(b_.CreateICmpEQ(part_, t_.index(1)), [&] { key_gradient(/*dk=*/true, /*dv=*/!apart); });
      if (apart)
        t_.branch(b_.CreateICmpEQ(part_, t_.index(2)), [&] { key_gradient(/*dk=*/false, /*dv=*/true); });
    });
  }

 private:
  using Values = std::vector<Value*>;

  // Lanes are queries.
  void query_gradient() {
    const LaneArrays::Array query = arrays().make(), dy = arrays().make(), dq = arrays().make();
    arrays().load(query, part(0), first_, arrays().real(scale()));
    arrays().load(dy, {kDy, output_base(), s_.width(), s_.length}, first_, nullptr);
    arrays().clear(dq);
    Value* lse = t_.load(kLse, b_.CreateAdd(statistics_base(), first_), point());
    Value* delta = t_.gather(kDelta, delta_base(),
                             b_.CreateMul(positions_, lane(static_cast<uint32_t>(s_.heads))), valid(), 0.0);
    over_keys([&](Value* key, int count, bool masked) {
      const auto sums = arrays().dots({{query, rows(1, key, count)}, {dy, rows(2, key, count)}});
      Values weights;
      for (int u = 0; u < count; ++u) {
        const auto i = static_cast<size_t>(u);
        Value* p = t_.math.exp(b_.CreateFSub(sums[0][i], lse));
        if (masked) p = b_.CreateSelect(sees(position(key, u)), p, arrays().real(0));
        Value* dp = sums[1][i];
        if (Value* z = factor(positions_, position(key, u))) dp = b_.CreateFMul(dp, z);
        weights.push_back(b_.CreateFMul(p, b_.CreateFSub(dp, delta)));
      }
      arrays().add({{dq, nullptr, weights, again(rows(1, key, count))}});
    });
    arrays().store(dq, part(0, result()), first_, arrays().real(scale()));
  }

  // Lanes are keys; d_k, d_v or both.
  void key_gradient(bool wants_k, bool wants_v) {
    LaneArrays::Array key = arrays().make(), value = nullptr, dk = nullptr, dv = nullptr;
    arrays().load(key, part(1), first_, arrays().real(scale()));
    if (wants_k) {
      value = arrays().make(), dk = arrays().make();
      arrays().load(value, part(2), first_, nullptr);
      arrays().clear(dk);
    }
    if (wants_v) {
      dv = arrays().make();
      arrays().clear(dv);
    }
    over_queries([&](Value* query, int count, bool masked) {
      const std::vector<LaneArrays::Row> q = rows(0, query, count), dy = output_rows(query, count);
      std::vector<LaneArrays::Dot> dots = {{key, q}};
      if (wants_k) dots.push_back({value, dy});
      const auto sums = arrays().dots(dots);
      Values p_weights, s_weights;
      for (int u = 0; u < count; ++u) {
        const auto i = static_cast<size_t>(u);
        Value* at = position(query, u);
        Value* lse = everywhere(t_.load_one(kLse, b_.CreateAdd(statistics_base(), at)));
        Value* p = t_.math.exp(b_.CreateFSub(sums[0][i], lse));
        if (masked)
          p = b_.CreateSelect(b_.CreateICmpULE(positions_, everywhere(word(at))), p, arrays().real(0));
        Value* z = factor(everywhere(word(at)), at, /*lanes_are_keys=*/true);
        p_weights.push_back(z != nullptr ? b_.CreateFMul(p, z) : p);
        if (!wants_k) continue;
        Value* delta =
            everywhere(t_.load_one(kDelta, b_.CreateAdd(delta_base(), b_.CreateMul(at, t_.index(s_.heads)))));
        Value* dp = z != nullptr ? b_.CreateFMul(sums[1][i], z) : sums[1][i];
        s_weights.push_back(b_.CreateFMul(p, b_.CreateFSub(dp, delta)));
      }
      std::vector<LaneArrays::Sum> added;
      if (wants_k) added.push_back({dk, nullptr, s_weights, again(q)});
      if (wants_v) added.push_back({dv, nullptr, p_weights, dy});
      arrays().add(added);
    });
    if (wants_k) arrays().store(dk, part(1, result()), first_, arrays().real(scale()));
    if (wants_v) arrays().store(dv, part(2, result()), first_, nullptr);
  }

  // --- where we are

  void at_points(const std::function<void()>& body) {
    t_.points(
        [&](Value* row) {
          part_ = b_.CreateURem(row, t_.index(s_.parts));
          Value* rest = b_.CreateUDiv(row, t_.index(s_.parts));
          block_ = b_.CreateURem(rest, t_.index(s_.blocks()));
          rest = b_.CreateUDiv(rest, t_.index(s_.blocks()));
          head_ = b_.CreateURem(rest, t_.index(s_.heads));
          sample_ = b_.CreateUDiv(rest, t_.index(s_.heads));
        },
        [&](const Point& at) {
          lanes_ = at.lanes;
          arrays_.emplace(t_, lanes_, s_.channels);
          first_ = b_.CreateAdd(b_.CreateMul(block_, t_.index(s_.block)), at.column);
          t_.branch(b_.CreateICmpULT(first_, t_.index(s_.length)), [&] {
            positions_ = b_.CreateAdd(everywhere(word(first_)), t_.iota(b_.getInt32Ty(), lanes_));
            if (s_.words != 0) dropout_.emplace(t_, s_, sample_);
            body();
          });
        });
  }

  // Steps of `step()` keys for all lanes that see any; masked where a lane may not see one.
  void over_keys(const std::function<void(Value* key, int count, bool masked)>& f) {
    const int64_t whole = s_.length / step() * step(), rest = s_.length - whole;
    Value *end = t_.index(whole), *past = b_.CreateAdd(first_, t_.index(lanes_));
    if (!s_.causal) {
      steps(t_.index(0), end, false, f);
      if (rest > 0) f(end, static_cast<int>(rest), false);
      return;
    }
    Value* clear = down(b_.CreateAdd(first_, t_.index(1)));  // keys before are seen by the first lane too
    steps(t_.index(0), clear, false, f);
    steps(clear, smaller(down(b_.CreateAdd(past, t_.index(step() - 1))), end), true, f);
    if (rest > 0) t_.branch(b_.CreateICmpUGT(past, end), [&] { f(end, static_cast<int>(rest), true); });
  }

  // The same for queries that see one of the lanes' keys.
  void over_queries(const std::function<void(Value* query, int count, bool masked)>& f) {
    const int64_t whole = s_.length / step() * step(), rest = s_.length - whole;
    Value *begin = t_.index(0), *clear = begin, *end = t_.index(whole);
    if (s_.causal) {
      begin = down(first_);
      // From here on every query sees the last lane's key.
      clear =
          smaller(down(b_.CreateAdd(first_, t_.index(static_cast<int64_t>(lanes_) - 1 + step() - 1))), end);
      steps(begin, clear, true, f);
    }
    steps(clear, end, false, f);
    if (rest > 0) f(end, static_cast<int>(rest), s_.causal);
  }

  void steps(Value* low, Value* high, bool masked, const std::function<void(Value*, int, bool)>& f) {
    t_.loop(low, high, t_.index(step()), {}, [&](Value* at, const Target::Carried&) {
      return f(at, static_cast<int>(step()), masked), Target::Carried{};
    });
  }

  // The gradient of wide heads on a GPU: one at a time, or there are no registers for the rows.
  int64_t step() const { return lanes_ > 1 ? 8 : scarce() ? 1 : 4; }
  bool scarce() const { return lanes_ == 1 && s_.parts > 1 && s_.channels > 32; }
  Value* down(Value* v) { return b_.CreateMul(b_.CreateUDiv(v, t_.index(step())), t_.index(step())); }
  Value* smaller(Value* a, Value* b) { return b_.CreateSelect(b_.CreateICmpULT(a, b), a, b); }

  // --- operands: 0 is qkv; the gradient's further ones:
  static constexpr int32_t kLse = 1, kDelta = 2, kDy = 3;
  int32_t result() const { return s_.words == 0 ? 4 : static_cast<int32_t>(s_.words) + 4; }

  // Query, key or value (0, 1, 2) of every position of this head.
  LaneArrays::Positions part(int64_t which, int32_t slot = 0) {
    Value* base = b_.CreateMul(sample_, t_.index(s_.length * 3 * s_.width()));
    base = b_.CreateAdd(base, b_.CreateMul(head_, t_.index(s_.channels)));
    return {slot, b_.CreateAdd(base, t_.index(which * s_.width())), 3 * s_.width(), s_.length};
  }
  // [B,T,C]
  Value* output_base() {
    return b_.CreateAdd(b_.CreateMul(sample_, t_.index(s_.length * s_.width())),
                        b_.CreateMul(head_, t_.index(s_.channels)));
  }
  // [B,H,T]
  Value* statistics_base() {
    return b_.CreateMul(b_.CreateAdd(b_.CreateMul(sample_, t_.index(s_.heads)), head_), t_.index(s_.length));
  }
  // [B,T,H]
  Value* delta_base() { return b_.CreateAdd(b_.CreateMul(sample_, t_.index(s_.length * s_.heads)), head_); }
  std::vector<LaneArrays::Row> rows_of(const LaneArrays::Positions& p, Value* first, int count) {
    std::vector<LaneArrays::Row> rows;
    Value* base = b_.CreateAdd(p.base, b_.CreateMul(first, t_.index(p.stride)));
    for (int u = 0; u < count; ++u) rows.push_back({p.slot, b_.CreateAdd(base, t_.index(u * p.stride))});
    return rows;
  }
  std::vector<LaneArrays::Row> rows(int64_t which, Value* first, int count) {
    return rows_of(part(which), first, count);
  }
  // The same rows, to be read again: where registers are scarce a thread has none to keep them from the dots
  // to the sums, but LLVM and ptxas would. They cannot know that the top bit of a number of rows is 0.
  std::vector<LaneArrays::Row> again(std::vector<LaneArrays::Row> rows) {
    if (!scarce()) return rows;
    Value* zero = b_.CreateLShr(t_.row_count(), t_.index_type->getIntegerBitWidth() - 1);
    for (LaneArrays::Row& row : rows) row.base = b_.CreateAdd(row.base, zero);
    return rows;
  }
  std::vector<LaneArrays::Row> output_rows(Value* first, int count) {
    return rows_of({kDy, output_base(), s_.width(), s_.length}, first, count);
  }

  // --- dropout

  // 0 or 1 / (1 - p) for queries and one key or, if lanes are keys, one query and keys; null without dropout.
  Value* factor(Value* queries, Value* other, bool lanes_are_keys = false) {
    if (s_.words == 0) return nullptr;
    const auto wide = [&](Value* v) { return b_.CreateZExt(v, Math::lanes_of(v, b_.getInt64Ty())); };
    const auto constant = [&](int64_t v) { return t_.splat(b_.getInt64(static_cast<uint64_t>(v)), lanes_); };
    Value* keys = lanes_are_keys ? positions_ : everywhere(word(other));
    Value* head = everywhere(b_.CreateMul(b_.CreateZExtOrTrunc(head_, b_.getInt64Ty()),
                                          b_.getInt64(static_cast<uint64_t>(s_.length))));
    Value* element = b_.CreateMul(b_.CreateAdd(head, wide(queries)), constant(s_.length));
    element = b_.CreateAdd(element, wide(keys));
    return dropout_->factor(element);
  }

  // --- small things

  LaneArrays& arrays() { return *arrays_; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(s_.channels)); }
  Value* everywhere(Value* scalar) { return t_.splat(scalar, lanes_); }
  Value* lane(uint32_t value) { return everywhere(b_.getInt32(value)); }
  Value* word(Value* index) {
    return b_.CreateTrunc(b_.CreateZExtOrTrunc(index, b_.getInt64Ty()), b_.getInt32Ty());
  }
  Value* position(Value* first, int u) { return b_.CreateAdd(first, t_.index(u)); }
  // Whether the lanes' queries see the key.
  Value* sees(Value* key) { return b_.CreateICmpULE(everywhere(word(key)), positions_); }
  // Lanes that are positions; null: all.
  Value* valid() {
    if (lanes_ == 1 || s_.length % lanes_ == 0) return nullptr;
    return b_.CreateICmpULT(positions_, lane(static_cast<uint32_t>(s_.length)));
  }
  Point point() { return {nullptr, nullptr, valid(), lanes_}; }
  Value* one(LaneArrays::Array variable) { return arrays().get(variable, t_.index(0)); }
  void one(LaneArrays::Array variable, Value* value) { arrays().set(variable, t_.index(0), value); }

  Target& t_;
  llvm::IRBuilder<>& b_;
  AttentionShape s_;
  std::optional<LaneArrays> arrays_;
  unsigned lanes_ = 1;
  Value *part_ = nullptr, *block_ = nullptr, *head_ = nullptr, *sample_ = nullptr;  // of the row
  Value *first_ = nullptr, *positions_ = nullptr;  // the first lane's position; every lane's, i32
  std::optional<AttentionDropout> dropout_;
};

}  // namespace

void emit_attention(Target& t) { Attention(t).forward(); }
void emit_attention_gradient(Target& t) { Attention(t).gradient(); }

}  // namespace gacc::codegen
