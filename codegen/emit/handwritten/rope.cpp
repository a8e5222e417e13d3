// Rotary positions (ir/ops/rope.cpp has the formulas). A point is a pair of channels of a position: its angle is
// made once, and turns that pair in every head. So it costs less than reading a table of sines would, and
// takes no memory.
//
// Angles are exact before they are rounded: the part of a turn is an integer product of 64 bits, which wraps
// where turns do. No position is too far for it.
#include <llvm/IR/Module.h>

#include "codegen/emit/handwritten/emitters.h"

namespace gacc::codegen {

namespace {

class Rope {
 public:
  explicit Rope(Target& t)
      : t_(t),
        b_(t.b),
        s_(t.body.shape.as<RopeShape>()),
        space_(t.operands[0]->getType()->getPointerAddressSpace()) {}

  void emit() {
    Value *position = nullptr, *row = nullptr;
    llvm::GlobalVariable* turns = table();
    t_.points(
        [&](Value* at) {
          position = s_.positioned ? t_.load_one(1, at) : b_.CreateURem(at, t_.index(s_.length));
          position = b_.CreateZExtOrTrunc(position, b_.getInt64Ty());
          row = b_.CreateMul(at, t_.index(s_.row()));
        },
        [&](const Point& at) {
          Point p = at;
          if (s_.vector > 1) {
            p.column = b_.CreateMul(p.column, t_.index(s_.vector));
            p.lanes = static_cast<unsigned>(s_.vector);
          }
          point_ = &p;
          llvm::Type* wide = Math::with_lanes(b_.getInt64Ty(), p.lanes);
          Value* turn = b_.CreateAlignedLoad(wide, b_.CreateInBoundsGEP(b_.getInt64Ty(), turns, p.column),
                                             llvm::Align(8));
          make_angle(b_.CreateMul(turn, t_.splat(position, p.lanes)));
          turn_heads(row);
          // The rest of the turned heads, and the values, are copied.
          const int64_t rotated = 2 * s_.pairs();
          for (int64_t head = 0; head < s_.turned && rotated < s_.channels; ++head)
            copy(row, head * s_.channels + rotated, s_.channels - rotated);
          copy(row, s_.turned * s_.channels, s_.copied * s_.channels);
        });
  }

 private:
  int32_t result() const { return s_.positioned ? 2 : 1; }

  // The turns of all pairs, with room behind them for the lanes of a vector that are none.
  llvm::GlobalVariable* table() {
    std::vector<uint64_t> turns = s_.turns;
    turns.resize(turns.size() + 64);
    llvm::Constant* numbers = llvm::ConstantDataArray::get(t_.module.getContext(), turns);
    auto* made = new llvm::GlobalVariable(
        t_.module, numbers->getType(), /*isConstant=*/true, llvm::GlobalValue::InternalLinkage, numbers,
        t_.function->getName() + "_turns", nullptr, llvm::GlobalValue::NotThreadLocal, space_);
    made->setAlignment(llvm::Align(8));
    return made;
  }

  // Cosine and sine of `part` 2^-64 turns. A quarter and the rest u, |u| <= 1/8 turn, whose
  //   sin(2 pi u) = u s(u^2), error 3e-9    cos(2 pi u) = 1 + u^2 c(u^2), error 6e-11 (our own minimax fits)
  // are exchanged and negated by the quarter. 2 pi stands in two parts.
  void make_angle(Value* part) {
    llvm::Type* word = Math::lanes_of(part, b_.getInt32Ty());
    llvm::Type* single = Math::lanes_of(part, b_.getFloatTy());
    Value* eighth = llvm::ConstantInt::get(part->getType(), uint64_t{1} << 61);
    Value* quarter = b_.CreateLShr(b_.CreateAdd(part, eighth), 62);
    Value* rest = b_.CreateSub(part, b_.CreateShl(quarter, 62));
    Value* high = b_.CreateSIToFP(b_.CreateTrunc(b_.CreateAShr(rest, 32), word), single);
    Value* low = b_.CreateTrunc(b_.CreateAnd(b_.CreateLShr(rest, 1), 0x7fffffff), word);
    const auto real = [&](double value) { return t_.math.real(high, value); };
    Value* u = t_.math.fma(b_.CreateSIToFP(low, single), real(0x1p-63), b_.CreateFMul(high, real(0x1p-32)));
    Value* square = b_.CreateFMul(u, u);
    Value* s = t_.math.polynomial(
        square, {-1.9519132411681884e-07, -41.3416614550777, 81.59235356463046, -75.39356282382505});
    Value* sine = t_.math.fma(u, real(6.2831854820251465), b_.CreateFMul(u, s));
    Value* c = t_.math.polynomial(
        square, {1.0, -19.739208681562154, 64.93932184693821, -85.4432362680459, 59.229243128647795});
    Value* which = b_.CreateTrunc(quarter, word);
    const auto bit = [&](Value* value, uint64_t mask) {
      return b_.CreateIsNotNull(b_.CreateAnd(value, mask));
    };
    const auto negated = [&](Value* where, Value* value) {
      return b_.CreateSelect(where, b_.CreateFNeg(value), value);
    };
    Value* odd = bit(which, 1);
    cosine_ = negated(bit(b_.CreateAdd(which, t_.math.integer(which, 1)), 2), b_.CreateSelect(odd, sine, c));
    sine_ = negated(bit(which, 2), b_.CreateSelect(odd, c, sine));
    if (s_.inverse) sine_ = b_.CreateFNeg(sine_);
    if (s_.magnitude == 1) return;
    cosine_ = b_.CreateFMul(cosine_, real(s_.magnitude));
    sine_ = b_.CreateFMul(sine_, real(s_.magnitude));
  }

  void turn_heads(Value* row) {
    constexpr int64_t kTogether = RopeShape::kTogether;
    const auto heads = [&](Value* first, int64_t count) {
      std::vector<Value*> places;
      std::vector<Values> pairs;
      for (int64_t i = 0; i < count; ++i) {
        places.push_back(b_.CreateAdd(first, t_.index(i * s_.channels)));
        pairs.push_back(load(places.back()));
      }
      for (size_t i = 0; i < places.size(); ++i) {
        Value *a = pairs[i][0], *b = pairs[i][1];
        store(places[i], {t_.math.fma(b_.CreateFNeg(b), sine_, b_.CreateFMul(a, cosine_)),
                          t_.math.fma(a, sine_, b_.CreateFMul(b, cosine_))});
      }
    };
    const int64_t whole = s_.turned / kTogether * kTogether;
    if (whole > 0)
      t_.each(t_.index(0), t_.index(whole), t_.index(kTogether),
              [&](Value* i) { heads(b_.CreateAdd(row, b_.CreateMul(i, t_.index(s_.channels))), kTogether); });
    if (whole < s_.turned) heads(b_.CreateAdd(row, t_.index(whole * s_.channels)), s_.turned - whole);
  }

  // The point's pairs in the head that begins at `head`.
  Values load(Value* head) {
    if (s_.interleaved && point_->lanes > 1) return t_.load_runs(0, first(head), 2, *point_);
    return {t_.load(0, first(head), *point_), t_.load(0, second(head), *point_)};
  }
  void store(Value* head, const Values& pair) {
    if (s_.interleaved && point_->lanes > 1) return t_.store_runs(result(), first(head), pair, *point_);
    t_.store(result(), first(head), pair[0], *point_);
    t_.store(result(), second(head), pair[1], *point_);
  }
  Value* first(Value* head) {
    return b_.CreateAdd(head, s_.interleaved ? b_.CreateMul(point_->column, t_.index(2)) : point_->column);
  }
  Value* second(Value* head) { return b_.CreateAdd(first(head), t_.index(s_.interleaved ? 1 : s_.pairs())); }

  // `count` elements from `begin` of the row on, shared by the row's points.
  void copy(Value* row, int64_t begin, int64_t count) {
    const auto move = [&](Value* from, const Point& p) {
      Value* at = b_.CreateAdd(b_.CreateAdd(row, t_.index(begin)), b_.CreateAdd(from, p.column));
      t_.store(result(), at, t_.load(0, at, p), p);
    };
    const int64_t whole = count / s_.pairs() * s_.pairs();
    t_.each(t_.index(0), t_.index(whole), t_.index(s_.pairs()), [&](Value* i) { move(i, *point_); });
    if (whole == count) return;
    Point last = *point_;
    Value* left = t_.index(count - whole);
    if (space_ != 0)  // a GPU, where a thread's columns are all there or none is
      return t_.branch(b_.CreateICmpULT(last.column, left), [&] { move(t_.index(whole), last); });
    Value* there = b_.CreateICmpULT(t_.columns_of(last), t_.integer(count - whole, last.lanes));
    last.mask = last.mask == nullptr ? there : b_.CreateAnd(last.mask, there);
    move(t_.index(whole), last);
  }

  Target& t_;
  llvm::IRBuilder<>& b_;
  const RopeShape s_;
  const unsigned space_;  // of addresses
  const Point* point_ = nullptr;
  Value *cosine_ = nullptr, *sine_ = nullptr;
};

}  // namespace

void emit_rope(Target& t) { Rope(t).emit(); }

}  // namespace gacc::codegen
