// Attention kernels (ir/ops/attention.cpp has the formulas). A lane is a query, or, for d_k and d_v, a key;
// it walks the keys (queries) in steps of a few, whose rows all lanes share. Nothing of size T is kept:
// forward carries each query's running maximum and sum (online softmax), backward computes probabilities from
// them.
//
// On a GPU a lane is a team of threads (lane_arrays.h). The threads of a warp walk together: positions that
// are none repeat the last one and are not stored, and so do the last step's rows, which weigh nothing.
//
// A lane of keys meets the queries of each head of its group, one head after the other.
//
// A lane's order of operations follows from T, the step and the heads alone, so its bits depend
// neither on threads, nor on the samples beside it, nor (on the host) on the width of vectors. All arithmetic
// is f32.
#include <limits>
#include <optional>

#include "codegen/emit/handwritten/attention_dropout.h"
#include "codegen/emit/handwritten/emitters.h"
#include "codegen/emit/handwritten/lane_arrays.h"
#include "kernels/handwritten/attention_call.h"

namespace gacc::codegen {

namespace {

class Attention {
 public:
  explicit Attention(Target& t) : t_(t), b_(t.b), s_(t.body.shape.as<AttentionShape>()) {}

  void forward() {
    at_points([&] {
      const LaneArrays::Array query = arrays().make(), out = arrays().make();
      const LaneArrays::Array top = arrays().make(1), sum = arrays().make(1);
      arrays().load(query, part(0), first_, arrays().real(s_.query_scale()));
      arrays().clear(out);
      one(top, arrays().real(-std::numeric_limits<double>::infinity()));
      one(sum, arrays().real(0));
      over_keys([&](const Step& keys) {
        Values scores = arrays().dots({{query, rows(1, keys)}})[0];
        Value *before = one(top), *now = before;
        for (size_t i = 0; i < scores.size(); ++i) {
          scores[i] = seen(keys, i, score(scores[i]), -std::numeric_limits<double>::infinity());
          now = t_.math.max(now, scores[i]);
        }
        now = arrays().over_rows(ir::Combine::max, now, keys.count);
        Value* shift = now;
        if (s_.starts_blind()) {  // a lane may have seen no key yet
          Value* none = b_.CreateFCmpOEQ(now, arrays().real(-std::numeric_limits<double>::infinity()));
          shift = b_.CreateSelect(none, arrays().real(0), now);
        }
        Value* decay = t_.math.exp(b_.CreateFSub(before, shift));
        Value* total = b_.CreateFMul(one(sum), decay);
        for (size_t i = 0; i < scores.size(); ++i) {
          scores[i] = t_.math.exp(b_.CreateFSub(scores[i], shift));
          total = b_.CreateFAdd(total, scores[i]);
          if (Value* z = factor(positions_, position(keys, i))) scores[i] = b_.CreateFMul(scores[i], z);
        }
        one(top, now);
        one(sum, total);
        arrays().add({{out, decay, scores, rows(2, keys), sees(keys)}});
      });
      Value* total = arrays().over_rows(ir::Combine::sum, one(sum), step());
      t_.branch(exists_, [&] {
        arrays().store(out, {s_.result(), output_base(), s_.width(), s_.length}, first_,
                       b_.CreateFDiv(arrays().real(1), total));
        Value* log = t_.math.log(total);
        t_.branch(leads_, [&] {
          t_.store(s_.result() + 1, top_of(first_), one(top), point());
          t_.store(s_.result() + 1, log_of(first_), log, point());
        });
      });
    });
  }

  void gradient() {
    at_points([&] {
      Value* keys = t_.index(s_.group());  // the row for d_k and d_v
      t_.branch(s_.group() == 1 ? b_.CreateICmpEQ(part_, t_.index(0)) : b_.CreateICmpULT(part_, keys),
                [&] { query_gradient(); });
      t_.branch(b_.CreateICmpEQ(part_, keys), [&] { key_gradient(); });
    });
  }

 private:
  // Neighbouring positions that all lanes meet at a time.
  struct Step {
    bool queries = false;  // else keys
    bool masked = false;   // a lane may not see one
    bool ragged = false;   // some are past the end
    Value* first = nullptr;
    size_t count = 0;
  };

  // Lanes are queries.
  void query_gradient() {
    const LaneArrays::Array query = arrays().make(), dy = arrays().make(), dq = arrays().make();
    arrays().load(query, part(0), first_, arrays().real(s_.query_scale()));
    arrays().load(dy, {s_.kDy, output_base(), s_.width(), s_.length}, first_, nullptr);
    arrays().clear(dq);
    Value *top = t_.load(s_.kStatistics, top_of(first_), point()),
          *log = t_.load(s_.kStatistics, log_of(first_), point());
    Value* delta = t_.gather(s_.kDelta, delta_base(), b_.CreateMul(positions_, lane(s_.heads)), valid());
    over_keys([&](const Step& keys) {
      const auto sums = arrays().dots({{query, rows(1, keys)}, {dy, rows(2, keys)}});
      Values weights;
      for (size_t i = 0; i < sums[0].size(); ++i) {
        Value *s = score(sums[0][i]), *p = probability(s, top, log);
        Value* dp = sums[1][i];
        if (Value* z = factor(positions_, position(keys, i))) dp = b_.CreateFMul(dp, z);
        weights.push_back(seen(keys, i, by_slope(b_.CreateFMul(p, b_.CreateFSub(dp, delta)), s), 0));
      }
      arrays().add({{dq, nullptr, weights, rows(1, keys), sees(keys)}});
    });
    t_.branch(exists_, [&] { arrays().store(dq, part(0, s_.result()), first_, arrays().real(s_.scale)); });
  }

  // Lanes are keys.
  void key_gradient() {
    const LaneArrays::Array key = arrays().make(), value = arrays().make();
    const LaneArrays::Array dk = arrays().make(), dv = arrays().make();
    arrays().load(key, part(1), first_, arrays().real(s_.query_scale()));
    arrays().load(value, part(2), first_, nullptr);
    arrays().clear(dk);
    arrays().clear(dv);
    over_heads([&] {
      over_queries([&](const Step& queries) {
        const std::vector<LaneArrays::Row> q = rows(0, queries), dy = output_rows(queries);
        const auto sums = arrays().dots({{key, q}, {value, dy}});
        Values p_weights, s_weights;
        for (size_t i = 0; i < sums[0].size(); ++i) {
          Value *query = position(queries, i), *at = inside(queries, query);
          Value* top = everywhere(t_.load_one(s_.kStatistics, top_of(at)));
          Value* log = everywhere(t_.load_one(s_.kStatistics, log_of(at)));
          Value* s = score(sums[0][i]);
          Value* p = seen(queries, i, probability(s, top, log), 0);
          Value* z = factor(everywhere(t_.word(query)), query, /*lanes_are_keys=*/true);
          p_weights.push_back(z != nullptr ? b_.CreateFMul(p, z) : p);
          Value* delta = everywhere(
              t_.load_one(s_.kDelta, b_.CreateAdd(delta_base(), b_.CreateMul(at, t_.index(s_.heads)))));
          Value* dp = z != nullptr ? b_.CreateFMul(sums[1][i], z) : sums[1][i];
          s_weights.push_back(seen(queries, i, by_slope(b_.CreateFMul(p, b_.CreateFSub(dp, delta)), s), 0));
        }
        const Values mask = sees(queries);
        arrays().add({{dk, nullptr, s_weights, q, mask}, {dv, nullptr, p_weights, dy, mask}});
      });
    });
    t_.branch(exists_, [&] {
      arrays().store(dk, part(1, s_.result()), first_, arrays().real(s_.scale));
      arrays().store(dv, part(2, s_.result()), first_, nullptr);
    });
  }

  // --- where we are

  void at_points(const std::function<void()>& body) {
    t_.points(
        [&](Value* row) {
          part_ = b_.CreateURem(row, t_.index(s_.rows()));
          Value* rest = b_.CreateUDiv(row, t_.index(s_.rows()));
          block_ = b_.CreateURem(rest, t_.index(s_.blocks()));
          rest = b_.CreateUDiv(rest, t_.index(s_.blocks()));
          head_ = kv_head_ = b_.CreateURem(rest, t_.index(s_.kv_heads));
          sample_ = b_.CreateUDiv(rest, t_.index(s_.kv_heads));
          if (s_.group() > 1) head_ = b_.CreateAdd(b_.CreateMul(kv_head_, t_.index(s_.group())), part_);
        },
        [&](const Point& at) {
          lanes_ = at.lanes;
          Value* begin = b_.CreateMul(block_, t_.index(s_.block));
          Value* member = nullptr;
          if (s_.team > 0) {
            member = b_.CreateURem(at.column, t_.index(s_.team));
            Value* position = b_.CreateAdd(begin, b_.CreateUDiv(at.column, t_.index(s_.team)));
            Value* warp = b_.CreateUDiv(at.column, t_.index(kernels::kWarp));
            low_ = b_.CreateAdd(begin, b_.CreateMul(warp, t_.index(together())));
            first_ = t_.smaller(position, t_.index(s_.length - 1));
            exists_ = b_.CreateICmpULT(position, t_.index(s_.length));
            leads_ = b_.CreateICmpEQ(member, t_.index(0));
          } else {
            low_ = first_ = b_.CreateAdd(begin, at.column);
          }
          arrays_.emplace(t_, lanes_, s_.channels, s_.team, member, t_.body.slots[0].dtype);
          t_.branch(b_.CreateICmpULT(low_, t_.index(s_.length)), [&] {
            positions_ = b_.CreateAdd(everywhere(t_.word(first_)), t_.iota(b_.getInt32Ty(), lanes_));
            // On a GPU the words are read where they are needed: all that follows from them would be moved
            // in front of the loops, into twenty registers.
            if (s_.words != 0 && s_.team == 0) dropout_.emplace(t_, s_, sample_);
            if (s_.documents != 0) find_documents();
            body();
          });
        });
  }

  // Positions whose lanes walk together.
  int64_t together() const { return s_.team > 0 ? kernels::kWarp / s_.team : static_cast<int64_t>(lanes_); }

  // Steps of positions that some of the lanes see: from `from` to `to` all do, before and behind perhaps not.
  struct Range {
    Value *begin, *from, *to, *stop;
    Value* last = nullptr;  // the condition that the rest after full steps is one of them; null: it is
  };
  using OnStep = std::function<void(const Step&)>;
  void walk(Step how, Range at, bool masked, const OnStep& f) {
    if (s_.documents != 0) {
      at.begin = t_.larger(at.begin, down(spans_[0]));
      at.stop = t_.smaller(at.stop, up(spans_[1]));
      at.from = t_.larger(t_.smaller(t_.larger(at.from, up(spans_[2])), at.stop), at.begin);
      at.to = t_.larger(t_.smaller(t_.smaller(at.to, down(spans_[3])), at.stop), at.from);
      Value* last = b_.CreateICmpUGT(spans_[1], t_.index(whole()));
      at.last = at.last == nullptr ? last : b_.CreateAnd(at.last, last);
      masked = true;
    }
    const Step clear = how;
    how.masked = masked;
    if (at.from != at.begin) steps(at.begin, at.from, how, f);
    steps(at.from, at.to, clear, f);
    if (at.stop != at.to) steps(at.to, at.stop, how, f);
    if (whole() < s_.length) t_.branch(at.last, [&] { last_step(how, f); });
  }

  // Steps of `step()` keys for all lanes that see any.
  void over_keys(const OnStep& f) {
    Value *none = t_.index(0), *end = t_.index(whole());
    if (!s_.causal) return walk({}, {none, none, end, end}, false, f);
    Value* past = b_.CreateAdd(low_, t_.index(together()));
    Value* clear = down(b_.CreateAdd(low_, t_.index(1)));  // keys before are seen by the first lane too
    Range keys{none, none, clear, t_.smaller(up(past), end), b_.CreateICmpUGT(past, end)};
    if (s_.window > 0) {
      // Keys from here on are seen by the first lane, and from `from` on by the last one, too.
      keys.begin = down(less(low_, s_.window - 1));
      keys.from = t_.smaller(up(less(low_, s_.window - together())), clear);
    }
    walk({}, keys, true, f);
  }

  // For each head of queries that meets the lanes' head of keys.
  void over_heads(const std::function<void()>& f) {
    if (s_.group() == 1) return f();
    Value* first = b_.CreateMul(kv_head_, t_.index(s_.group()));
    t_.each(t_.index(0), t_.index(s_.group()), t_.index(1), [&](Value* i) {
      head_ = b_.CreateAdd(first, i);
      f();
    });
  }

  // The same for queries that see one of the lanes' keys.
  void over_queries(const OnStep& f) {
    Value *none = t_.index(0), *end = t_.index(whole());
    Range queries{none, none, end, end};
    if (s_.causal) {
      queries.begin = down(low_);
      // From here on every query sees the last lane's key.
      queries.from = t_.smaller(up(b_.CreateAdd(low_, t_.index(together() - 1))), end);
    }
    if (s_.window > 0) {
      // Queries before `to` see the first lane's key, too; from `past` on they see none.
      queries.to = t_.larger(queries.from, t_.smaller(down(b_.CreateAdd(low_, t_.index(s_.window))), end));
      Value* past = b_.CreateAdd(low_, t_.index(together() - 1 + s_.window));
      queries.stop = t_.smaller(up(past), end);
      queries.last = b_.CreateICmpUGT(past, end);
    }
    walk({.queries = true}, queries, s_.causal != 0, f);
  }

  void steps(Value* low, Value* high, Step how, const OnStep& f) {
    how.count = static_cast<size_t>(step());
    t_.each(low, high, t_.index(step()), [&](Value* at) {
      how.first = at;
      f(how);
    });
  }

  // Calls f for the rest after full steps: fewer positions on the host, a ragged step on a GPU.
  void last_step(Step how, const OnStep& f) {
    how.first = t_.index(whole());
    how.ragged = s_.team > 0;
    how.count = static_cast<size_t>(how.ragged ? step() : s_.length - whole());
    f(how);
  }

  int64_t step() const { return s_.team > 0 ? s_.step() : 8; }
  int64_t whole() const { return s_.length / step() * step(); }
  Value* down(Value* v) { return b_.CreateMul(b_.CreateUDiv(v, t_.index(step())), t_.index(step())); }
  Value* up(Value* v) { return down(b_.CreateAdd(v, t_.index(step() - 1))); }
  // v - by, at least 0.
  Value* less(Value* v, int64_t by) {
    if (by <= 0) return b_.CreateAdd(v, t_.index(-by));
    return b_.CreateSub(t_.larger(v, t_.index(by)), t_.index(by));
  }

  // --- operands

  // Query, key or value (0, 1, 2) of every position of this head.
  LaneArrays::Positions part(int64_t which, int32_t slot = 0) {
    Value* base = b_.CreateMul(sample_, t_.index(s_.length * s_.row()));
    base = b_.CreateAdd(base, b_.CreateMul(which == 0 ? head_ : kv_head_, t_.index(s_.channels)));
    return {slot, b_.CreateAdd(base, t_.index(s_.begin(which))), s_.row(), s_.length};
  }
  // [B,T,C]
  Value* output_base() {
    return b_.CreateAdd(b_.CreateMul(sample_, t_.index(s_.length * s_.width())),
                        b_.CreateMul(head_, t_.index(s_.channels)));
  }
  // [B,H,2,T]: the largest of the query's scores, and the logarithm of their sum relative to it.
  Value* top_of(Value* query) {
    Value* head = b_.CreateAdd(b_.CreateMul(sample_, t_.index(s_.heads)), head_);
    return b_.CreateAdd(b_.CreateMul(head, t_.index(2 * s_.length)), query);
  }
  Value* log_of(Value* query) { return b_.CreateAdd(top_of(query), t_.index(s_.length)); }
  // The score of a product that has query_scale().
  Value* score(Value* product) {
    if (s_.softcap == 0) return product;
    return b_.CreateFMul(t_.math.tanh(product), arrays().real(s_.softcap));
  }
  // A gradient by a score, as one by the product that the score was made of.
  Value* by_slope(Value* gradient, Value* score) {
    if (s_.softcap == 0) return gradient;
    Value* tangent = b_.CreateFMul(score, arrays().real(1 / s_.softcap));
    return b_.CreateFMul(gradient, b_.CreateFSub(arrays().real(1), b_.CreateFMul(tangent, tangent)));
  }
  Value* probability(Value* score, Value* top, Value* log) {
    return t_.math.exp(b_.CreateFSub(b_.CreateFSub(score, top), log));
  }
  // [B,T,H]
  Value* delta_base() { return b_.CreateAdd(b_.CreateMul(sample_, t_.index(s_.length * s_.heads)), head_); }
  std::vector<LaneArrays::Row> rows_of(const LaneArrays::Positions& p, const Step& step) {
    const size_t there = step.ragged ? static_cast<size_t>(s_.length - whole()) : step.count;
    return arrays().rows(p, step.first, step.count, there);
  }
  std::vector<LaneArrays::Row> rows(int64_t which, const Step& step) { return rows_of(part(which), step); }
  std::vector<LaneArrays::Row> output_rows(const Step& step) {
    return rows_of({s_.kDy, output_base(), s_.width(), s_.length}, step);
  }

  // --- documents

  void find_documents() {
    for (const int64_t plane : {0, 1, 2, 3}) {  // [B,4,blocks]
      Value* at = b_.CreateAdd(b_.CreateMul(sample_, t_.index(4)), t_.index(plane));
      at = b_.CreateAdd(b_.CreateMul(at, t_.index(s_.blocks())), block_);
      Value* position = t_.load_one(static_cast<int32_t>(s_.documents) + 1, at);
      spans_[plane] = b_.CreateZExtOrTrunc(position, t_.index_type);
    }
    document_ = t_.gather(static_cast<int32_t>(s_.documents), numbers(), positions_, valid());
  }
  Value* numbers() { return b_.CreateMul(sample_, t_.index(s_.length)); }  // [B,T]

  // --- dropout

  // 0 or 1 / (1 - p) for queries and one key or, if lanes are keys, one query and keys; null without dropout.
  Value* factor(Value* queries, Value* other, bool lanes_are_keys = false) {
    if (s_.words == 0) return nullptr;
    const auto wide = [&](Value* v) { return b_.CreateZExt(v, Math::lanes_of(v, b_.getInt64Ty())); };
    const auto constant = [&](int64_t v) { return t_.splat(b_.getInt64(static_cast<uint64_t>(v)), lanes_); };
    Value* keys = lanes_are_keys ? positions_ : everywhere(t_.word(other));
    Value* head = everywhere(b_.CreateMul(b_.CreateZExtOrTrunc(head_, b_.getInt64Ty()),
                                          b_.getInt64(static_cast<uint64_t>(s_.length))));
    Value* element = b_.CreateMul(b_.CreateAdd(head, wide(queries)), constant(s_.length));
    element = b_.CreateAdd(element, wide(keys));
    const AttentionDropout& dropout = dropout_ ? *dropout_ : AttentionDropout(t_, s_, sample_);
    return dropout.factor(element, s_.kept());
  }

  // --- small things

  LaneArrays& arrays() { return *arrays_; }
  Value* everywhere(Value* scalar) { return t_.splat(scalar, lanes_); }
  Value* lane(int64_t value) { return t_.integer(value, lanes_); }
  // The position of the lane's own row i.
  Value* position(const Step& step, size_t i) {
    return b_.CreateAdd(step.first, arrays().row_of(i, step.count));
  }
  Value* inside(const Step& step, Value* position) {
    return step.ragged ? t_.smaller(position, t_.index(s_.length - 1)) : position;
  }
  // The value of the lane's own row i, or `otherwise` where the query does not see the key, or there is none.
  Value* seen(const Step& step, size_t i, Value* value, double otherwise) {
    Value* visible = sees_at(step, position(step, i));
    return visible == nullptr ? value : b_.CreateSelect(visible, value, arrays().real(otherwise));
  }
  // For each row of a step, whether the lane sees it; empty: all are seen.
  Values sees(const Step& step) {
    Values all;
    for (size_t i = 0; i < step.count; ++i) {
      Value* visible = sees_at(step, b_.CreateAdd(step.first, t_.index(static_cast<int64_t>(i))));
      if (visible == nullptr) return {};
      all.push_back(visible);
    }
    return all;
  }
  // Returns whether the query sees the key at `at`, which must exist; null where it always does.
  Value* sees_at(const Step& step, Value* at) {
    Value* visible = nullptr;
    if (step.masked && s_.causal) {
      Value* other = everywhere(t_.word(at));
      if (s_.window > 0) {  // the query is less than a window behind the key, and not before it
        Value* behind = step.queries ? b_.CreateSub(other, positions_) : b_.CreateSub(positions_, other);
        visible = b_.CreateICmpULT(behind, lane(s_.window));
      } else {
        visible = step.queries ? b_.CreateICmpULE(positions_, other) : b_.CreateICmpULE(other, positions_);
      }
    }
    const auto only = [&](Value* where) {
      visible = visible == nullptr ? where : b_.CreateAnd(visible, where);
    };
    if (step.masked && s_.documents != 0) {
      Value* number = b_.CreateAdd(numbers(), inside(step, at));
      only(b_.CreateICmpEQ(document_, everywhere(t_.load_one(static_cast<int32_t>(s_.documents), number))));
    }
    if (step.ragged && (step.queries || !step.masked || !s_.causal))
      only(b_.CreateICmpULT(at, t_.index(s_.length)));
    return visible;
  }
  // Lanes that are positions; null: all.
  Value* valid() {
    if (lanes_ == 1 || s_.length % lanes_ == 0) return nullptr;
    return b_.CreateICmpULT(positions_, lane(s_.length));
  }
  Point point() { return {nullptr, nullptr, valid(), lanes_}; }
  Value* one(LaneArrays::Array variable) { return arrays().get(variable, t_.index(0)); }
  void one(LaneArrays::Array variable, Value* value) { arrays().set(variable, t_.index(0), value); }

  Target& t_;
  llvm::IRBuilder<>& b_;
  AttentionShape s_;
  std::optional<LaneArrays> arrays_;
  unsigned lanes_ = 1;
  Value *part_ = nullptr, *block_ = nullptr, *sample_ = nullptr;  // of the row
  Value *head_ = nullptr, *kv_head_ = nullptr;                    // of queries; of the keys that they meet
  Value *first_ = nullptr, *positions_ = nullptr;  // the first lane's position; every lane's, i32
  Value* low_ = nullptr;                           // the first position of those that walk together
  // GPU: the lane is a position; the thread is its team's first. On the host stores know their positions.
  Value *exists_ = nullptr, *leads_ = nullptr;
  std::optional<AttentionDropout> dropout_;
  Value *spans_[4] = {}, *document_ = nullptr;  // of the block; the number of every lane, i32
};

}  // namespace

void emit_attention(Target& t) { Attention(t).forward(); }
void emit_attention_gradient(Target& t) { Attention(t).gradient(); }

}  // namespace gacc::codegen
