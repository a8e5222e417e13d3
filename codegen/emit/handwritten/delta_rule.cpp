// Kernels of the gated delta rule (ir/ops/delta_rule.cpp has the formulas). A head's state is a matrix [K, V]. A lane
// has one of its columns or one of its rows, in an array of its own, and walks the positions of its sample one after
// the other; keys, queries and what is written pass by as rows that all lanes share. On a GPU a lane is a team of
// threads (lane_arrays.h). All arithmetic is f32, and its order follows from the sizes alone.
#include <optional>

#include "codegen/emit/handwritten/emitters.h"
#include "codegen/emit/handwritten/lane_arrays.h"
#include "kernels/handwritten/attention_call.h"

namespace gacc::codegen {

namespace {

class DeltaRule {
 public:
  explicit DeltaRule(Target& t) : t_(t), b_(t.b), s_(t.body.shape.as<DeltaRuleShape>()) {}

  // Slots: q, k, v, decay, beta; out, what is lacking. Lanes are columns.
  void forward() {
    at_lanes([&] {
      const LaneArrays::Array state = zeros();
      each(t_.index(0), t_.index(s_.length), [&](Value* t) {
        Value *shared = this->shared(t), *own = value(t);
        Value* decay = decay_of(3, t);
        Value* found = b_.CreateFMul(decay, dot(state, row(1, shared)));
        Value* lacking = b_.CreateFSub(lane(2, own), found);
        store(6, own, lacking);
        add(state, decay, b_.CreateFMul(number(4, t), lacking), row(1, shared));
        store(5, own, dot(state, row(0, shared)));
      });
    });
  }

  // Slots: q, k, decay, beta, d_out; the gradient by what is written. Lanes are columns.
  void written() {
    at_lanes([&] {
      const LaneArrays::Array d_state = zeros();
      each_backwards(t_.index(0), t_.index(s_.length), [&](Value* t) {
        Value *shared = this->shared(t), *own = value(t);
        add(d_state, nullptr, lane(4, own), row(0, shared));
        Value* d_written = dot(d_state, row(1, shared));
        store(5, own, d_written);
        Value* decay = decay_of(2, t);
        Value* d_value = b_.CreateFMul(number(3, t), d_written);
        add(d_state, decay, b_.CreateFNeg(b_.CreateFMul(decay, d_value)), row(1, shared));
      });
    });
  }

  // Slots: q, k, decay, beta r, d_v, d_out, own; d_q, a part of d_k, terms, states. Lanes are rows.
  void queries() {
    at_lanes([&] {
      const LaneArrays::Array state = zeros();
      each(t_.index(0), t_.index(s_.chunks()), [&](Value* chunk) {
        store_state(state, 10, chunk);
        const Range range = positions(chunk);
        each(range.begin, range.end, [&](Value* t) {
          Value *shared = this->shared(t), *own = key(t), *values = value(t);
          Value* decay = decay_of(2, t);
          const auto found = arrays().dots({{state, {row(5, values)}}, {state, {row(4, values)}}});
          Value* read = b_.CreateFMul(decay, found[0][0]);
          Value* before = b_.CreateFNeg(b_.CreateFMul(decay, found[1][0]));
          Value *q = lane(0, shared), *k = lane(1, shared);
          store(7, own, t_.math.fma(k, number(6, t), read));
          store(8, own, before);
          store(9, own, t_.math.fma(q, read, b_.CreateFMul(k, before)));
          add(state, decay, k, row(3, values));
        });
      });
    });
  }

  // Slots: q, k, decay, beta r, d_v, d_out, own, a part of d_k, terms, states; d_k, terms, products. Lanes are rows.
  void keys() {
    at_lanes([&] {
      const LaneArrays::Array d_state = zeros(), state = arrays().make();
      each_backwards(t_.index(0), t_.index(s_.chunks()), [&](Value* chunk) {
        const Range range = positions(chunk);
        each_backwards(range.begin, range.end, [&](Value* t) {
          Value *shared = this->shared(t), *own = key(t), *values = value(t);
          Value* later = dot(d_state, row(3, values));
          Value *q = lane(0, shared), *k = lane(1, shared);
          Value* others = b_.CreateFAdd(later, lane(7, own));
          store(10, own, t_.math.fma(q, number(6, t), others));
          Value* ended = lane(8, own);
          store(11, own, t_.math.fma(b_.CreateFNeg(k), later, ended));
          add(d_state, nullptr, q, row(5, values));
          Value* decay = decay_of(2, t);
          add(d_state, decay, b_.CreateFNeg(b_.CreateFMul(decay, k)), row(4, values));
        });
        arrays().load(state, {9, state_base(chunk), s_.values, s_.keys}, first_, nullptr);
        Value* rows = state_row(chunk);
        store(12, rows, arrays().dot(d_state, state));
      });
    });
  }

  // Slots: terms, the chunks' sums; d_decay. A row is a chunk, lanes are heads.
  void decays() {
    Value *chunk = nullptr, *has_next = nullptr, *next = nullptr;
    t_.points(
        [&](Value* at) {
          sample_ = b_.CreateUDiv(at, t_.index(s_.chunks()));
          chunk = b_.CreateURem(at, t_.index(s_.chunks()));
          Value* behind = b_.CreateAdd(chunk, t_.index(1));
          has_next = b_.CreateICmpULT(behind, t_.index(s_.chunks()));
          next = b_.CreateAdd(at, b_.CreateZExt(has_next, t_.index_type));
        },
        [&](const Point& at) {
          const auto place = [&](Value* row) {
            return b_.CreateAdd(b_.CreateMul(row, t_.index(s_.heads)), at.column);
          };
          Value* carried = t_.load(1, place(next), at);
          Value* start = b_.CreateSelect(t_.splat(has_next, at.lanes), carried, t_.real(0, at.lanes));
          const Range range = positions(chunk);
          Value* last = last_of(range);
          t_.loop(range.begin, range.end, t_.index(1), {start}, [&](Value* i, const Values& sum) {
            Value* here = place(position(b_.CreateSub(last, i)));
            Value* now = b_.CreateFAdd(sum[0], t_.load(0, here, at));
            t_.store(2, here, now, at);
            return Values{now};
          });
        });
  }

 private:
  void at_lanes(const std::function<void()>& body) {
    t_.points(
        [&](Value* at) {
          sample_ = b_.CreateUDiv(at, t_.index(s_.heads));
          head_ = b_.CreateURem(at, t_.index(s_.heads));
        },
        [&](const Point& at) {
          lanes_ = at.lanes;
          mask_ = at.mask;
          first_ = at.column;
          Value* member = nullptr;
          if (s_.team > 0) {
            member = b_.CreateURem(at.column, t_.index(s_.team));
            Value* lane = b_.CreateUDiv(at.column, t_.index(s_.team));
            first_ = t_.smaller(lane, t_.index(s_.lanes() - 1));
            exists_ = b_.CreateICmpULT(lane, t_.index(s_.lanes()));
            leads_ = b_.CreateAnd(exists_, b_.CreateICmpEQ(member, t_.index(0)));
          }
          // Slots may be of different dtypes.
          arrays_.emplace(t_, lanes_, s_.channels(), s_.team, member, ir::DType::f32);
          body();
        });
  }

  // --- the walk

  struct Range {
    Value *begin, *end;
  };
  // Returns begin + end - 1: less a position of the range, it is the position that is as far from the other end.
  Value* last_of(Range range) { return b_.CreateSub(b_.CreateAdd(range.begin, range.end), t_.index(1)); }
  void each(Value* begin, Value* end, const std::function<void(Value*)>& f) {
    t_.each(begin, end, t_.index(1), f);
  }
  void each_backwards(Value* begin, Value* end, const std::function<void(Value*)>& f) {
    Value* last = last_of({begin, end});
    each(begin, end, [&](Value* i) { f(b_.CreateSub(last, i)); });
  }
  Range positions(Value* chunk) {
    Value* begin = b_.CreateMul(chunk, t_.index(s_.chunk));
    Value* full = b_.CreateAdd(begin, t_.index(s_.chunk));
    return {begin, t_.smaller(full, t_.index(s_.length))};
  }

  // --- places, as in ir/ops/delta_rule.cpp; t is a position

  Value* position(Value* t) { return b_.CreateAdd(b_.CreateMul(sample_, t_.index(s_.length)), t); }
  // One number of each head, [B,T,H].
  Value* number_at(Value* t) { return b_.CreateAdd(b_.CreateMul(position(t), t_.index(s_.heads)), head_); }
  // The head's channels: of queries and keys that a group shares, [B,T,G K]; of one head, [B,T,H K]; of values.
  Value* shared(Value* t) {
    Value* head = b_.CreateUDiv(head_, t_.index(s_.group()));
    head = b_.CreateAdd(b_.CreateMul(position(t), t_.index(s_.key_heads)), head);
    return b_.CreateMul(head, t_.index(s_.keys));
  }
  Value* key(Value* t) { return b_.CreateMul(number_at(t), t_.index(s_.keys)); }
  Value* value(Value* t) { return b_.CreateMul(number_at(t), t_.index(s_.values)); }
  // The head's rows of a chunk's state, [B,chunks,H K]; their first element, [B,chunks,H K,V].
  Value* state_row(Value* chunk) {
    Value* row = b_.CreateAdd(b_.CreateMul(sample_, t_.index(s_.chunks())), chunk);
    return b_.CreateMul(b_.CreateAdd(b_.CreateMul(row, t_.index(s_.heads)), head_), t_.index(s_.keys));
  }
  Value* state_base(Value* chunk) { return b_.CreateMul(state_row(chunk), t_.index(s_.values)); }

  // --- operands and results

  Value* everywhere(Value* scalar) { return t_.splat(scalar, lanes_); }
  Value* number(int32_t slot, Value* t) { return everywhere(t_.load_one(slot, number_at(t))); }
  Value* decay_of(int32_t slot, Value* t) { return t_.math.exp(number(slot, t)); }
  Point point() { return {nullptr, nullptr, mask_, lanes_}; }
  // The lanes' own channels, of those that begin at `base`.
  Value* lane(int32_t slot, Value* base) { return t_.load(slot, b_.CreateAdd(base, first_), point()); }
  void store(int32_t slot, Value* base, Value* value) {
    t_.branch(leads_, [&] { t_.store(slot, b_.CreateAdd(base, first_), value, point()); });
  }

  // --- arrays

  LaneArrays& arrays() { return *arrays_; }
  LaneArrays::Array zeros() {
    const LaneArrays::Array array = arrays().make();
    arrays().clear(array);
    return array;
  }
  static LaneArrays::Row row(int32_t slot, Value* base) { return {slot, base, 0}; }
  Value* dot(LaneArrays::Array array, const LaneArrays::Row& row) {
    return arrays().dots({{array, {row}}})[0][0];
  }
  // array = decay * array + weight * row; `decay` null: 1.
  void add(LaneArrays::Array array, Value* decay, Value* weight, const LaneArrays::Row& row) {
    arrays().add({{array, decay, {weight}, {row}, {}}});
  }
  void store_state(LaneArrays::Array state, int32_t slot, Value* chunk) {
    t_.branch(exists_, [&] {
      arrays().store(state, {slot, state_base(chunk), s_.values, s_.keys}, first_, nullptr);
    });
  }

  Target& t_;
  llvm::IRBuilder<>& b_;
  const DeltaRuleShape s_;
  std::optional<LaneArrays> arrays_;
  unsigned lanes_ = 1;
  Value* mask_ = nullptr;                      // the lanes that exist, on the host; null: all
  Value *sample_ = nullptr, *head_ = nullptr;  // of the row
  Value* first_ = nullptr;                     // the first lane's row or column of the state
  // GPU: the lane exists; the thread is its team's first. Null on the host.
  Value *exists_ = nullptr, *leads_ = nullptr;
};

}  // namespace

void emit_delta_rule(Target& t) { DeltaRule(t).forward(); }
void emit_delta_written(Target& t) { DeltaRule(t).written(); }
void emit_delta_queries(Target& t) { DeltaRule(t).queries(); }
void emit_delta_keys(Target& t) { DeltaRule(t).keys(); }
void emit_delta_decay(Target& t) { DeltaRule(t).decays(); }

}  // namespace gacc::codegen
