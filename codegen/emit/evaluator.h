// Evaluates a body's members at points of the domain: formulas node by node and on demand, values that do not
// vary along the row as scalars. Scalars and row values are read once, at the top of the function and of the
// row.
#pragma once
#include <algorithm>
#include <map>

#include "codegen/emit/target.h"

namespace gacc::codegen {

class Evaluator {
  using Access = ir::Access;
  using Lowering = ir::Lowering;
  using ScalarKind = ir::ScalarKind;
  using ScalarOp = ir::ScalarOp;

 public:
  explicit Evaluator(Target& target) : t_(target), body_(target.body), b_(target.b), math_(target.math) {}

  // Reads the scalars. Buffers that a reduction adds to are read again where the sum is complete: LLVM drops
  // what nothing uses.
  void begin_function() {
    for (size_t i = 0; i < body_.slots.size(); ++i)
      if (body_.slots[i].read && body_.slots[i].access == Access::scalar) keep(i, t_.index(0));
  }

  // Reads what the row has one of, and finds where the row lies in each operand.
  void begin_row(Value* row) {
    row_ = row;
    row_values_.clear();
    held_.clear();
    base_.assign(body_.slots.size(), nullptr);
    row_base_ = body_.flat ? nullptr : b_.CreateMul(row, t_.column_count());
    const auto extent = [&](int32_t i) { return t_.extents[i]; };
    for (size_t i = 0; i < body_.slots.size(); ++i) {
      const Slot& slot = body_.slots[i];
      Value* repeated = slot.period < 0 ? row : b_.CreateURem(row, extent(slot.period));
      if (slot.access == Access::element)
        base_[i] = slot.pitch < 0 ? row_base_ : b_.CreateMul(row, extent(slot.pitch));
      if (slot.access == Access::suffix && slot.period >= 0)
        base_[i] = b_.CreateMul(repeated, t_.column_count());
      if (slot.access == Access::row) {
        base_[i] = repeated;
        if (slot.read) keep(i, repeated);
      }
    }
  }

  // A stage of a row in registers: halves stay halves from one to the next where they would not fit otherwise.
  void begin_stage() {
    if (body_.held_as_stored)
      for (auto& [at, bits] : held_)
        if (ir::dtype_bytes(body_.slots[at.first].dtype) == 2) bits = t_.anew(bits);
  }

  void begin_point(const Point& point) {
    point_ = point;
    members_.clear();
    slots_.clear();
  }

  // Makes a slot hold this value at the point, whatever memory holds.
  void give(int32_t slot, Value* value) { slots_[slot] = value; }

  Value* value(const Source& source) {
    if (source.from == Source::From::number) return t_.real(source.number);
    return source.from == Source::From::slot ? slot(source.index) : result(source.index, source.result);
  }

  Value* result(int32_t member, int32_t r) {
    if (const auto known = row_values_.find({member, r}); known != row_values_.end()) return known->second;
    auto place = members_.find(member);
    if (place == members_.end()) place = members_.emplace(member, formula(body_.members[member])).first;
    return place->second[r];
  }

  // A value of the whole row: the result of a row reduction, or of an op with one result a row.
  void set_row_value(int32_t member, int32_t r, Value* value) { row_values_[{member, r}] = value; }

  // Returns the condition under which the op's buffers are written; null: always.
  Value* gate(const Member& member) {
    return member.when ? b_.CreateIsNotNull(value(*member.when)) : nullptr;
  }

  // The value to store: what the op gives, or what was there where the gate is shut.
  Value* gated(const Member& member, size_t r, Value* fresh) {
    Value* open = member.old[r] >= 0 ? gate(member) : nullptr;
    if (open == nullptr) return fresh;
    Value* old = slot(member.old[r]);
    const unsigned lanes = std::max({Math::lanes(fresh), Math::lanes(old), Math::lanes(open)});
    return b_.CreateSelect(t_.splat(open, lanes), t_.splat(fresh, lanes), t_.splat(old, lanes));
  }

  // Stores the results of a pointwise member at the point.
  struct Pending {
    int32_t slot;
    Value *index, *value;
  };
  void prepare(int32_t m, std::vector<Pending>& pending) {
    const Member& member = body_.members[m];
    for (size_t r = 0; r < member.stores.size(); ++r) {
      const int32_t s = member.stores[r];
      if (s >= 0) pending.push_back({s, index(s), gated(member, r, result(m, static_cast<int32_t>(r)))});
    }
  }
  void flush(const std::vector<Pending>& pending) {
    for (const Pending& p : pending) t_.store(p.slot, p.index, p.value, point_);
  }

 private:
  void keep(size_t slot, Value* index) {
    kept_[static_cast<int32_t>(slot)] = t_.load_one(static_cast<int32_t>(slot), index);
  }

  Value* index(int32_t s) {
    const Slot& slot = body_.slots[s];
    if (slot.access == Access::row) return base_[s];
    if (slot.access == Access::scalar) return t_.index(0);
    Value* base = base_.empty() ? nullptr : base_[s];
    return base == nullptr ? point_.column : b_.CreateNSWAdd(base, point_.column);
  }

  Value* slot(int32_t s) {
    const Access access = body_.slots[s].access;
    if (access == Access::scalar || access == Access::row) return kept_.at(s);
    Value*& loaded = slots_[s];
    if (loaded != nullptr) return loaded;
    if (point_.turn < 0) return loaded = t_.load(s, index(s), point_);
    Value*& bits = held_[{s, point_.turn}];
    if (bits == nullptr) bits = t_.load_bits(s, index(s), point_);
    return loaded = t_.widen(s, bits);
  }

  // All results of a pointwise op. One of half type is rounded here, whether it is stored or not: what is
  // fused changes no bit.
  std::vector<Value*> formula(const Member& member) {
    std::vector<Value*> values(member.program.nodes.size());
    for (size_t n = 0; n < values.size(); ++n) values[n] = node(member, n, values);
    std::vector<Value*> results;
    for (const int32_t r : member.program.results)
      results.push_back(t_.round(narrow(values[r]), member.types[results.size()]));
    return results;
  }

  // Element indices are 64 bits wide; every other integer has 32.
  Value* narrow(Value* v) {
    return v->getType()->isIntOrIntVectorTy(64) ? b_.CreateTrunc(v, Math::lanes_of(v, b_.getInt32Ty())) : v;
  }
  Value* widen(Value* v) {
    return v->getType()->isIntOrIntVectorTy(64) ? v : b_.CreateSExt(v, Math::lanes_of(v, b_.getInt64Ty()));
  }

  Value* node(const Member& member, size_t n, const std::vector<Value*>& values) {
    const ir::ScalarNode& node = member.program.nodes[n];
    switch (node.op) {
      case ScalarOp::input:
        return value(member.inputs[static_cast<size_t>(node.value)]);
      case ScalarOp::constant:
        return constant(member, n);
      case ScalarOp::column:
        return t_.columns_of(point_);
      case ScalarOp::element: {
        Value* first = member.per_row         ? row_
                       : row_base_ == nullptr ? point_.column
                                              : b_.CreateAdd(row_base_, point_.column);
        first = b_.CreateZExt(first, b_.getInt64Ty());
        return b_.CreateAdd(t_.splat(first, point_.lanes), t_.iota(b_.getInt64Ty(), point_.lanes));
      }
      case ScalarOp::samples:
        return b_.CreateZExtOrTrunc(t_.extents[body_.samples], b_.getInt32Ty());
      case ScalarOp::sample_uniform:
        return sample_uniform(member, node, values);
      default:
        break;
    }
    std::vector<Value*> a;
    unsigned lanes = 1;
    for (const int32_t arg : node.args) {
      if (arg < 0) break;
      a.push_back(values[arg]);
      lanes = std::max(lanes, Math::lanes(a.back()));
    }
    for (size_t i = 0; i < a.size(); ++i) {
      const bool index = node.op == ScalarOp::uniform && i == 4;
      a[i] = t_.splat(index ? widen(a[i]) : narrow(a[i]), lanes);
    }
    return operation(node.op, a, member.approximates(n) ? Accuracy::half : Accuracy::f32);
  }

  // The point's number of its sample: see ir/scalar.h. Seeds and ordinals are scalars.
  Value* sample_uniform(const Member& member, const ir::ScalarNode& node, const std::vector<Value*>& values) {
    const auto word = [&](int i) { return values[node.args[i]]; };
    const auto wide = [&](Value* v) { return b_.CreateZExt(v, b_.getInt64Ty()); };
    Value* rows = t_.extents[body_.rows_of_sample];
    Value* inside = b_.CreateURem(row_, rows);
    const unsigned lanes = member.per_row ? 1 : point_.lanes;
    if (!member.per_row) inside = b_.CreateAdd(b_.CreateMul(inside, t_.column_count()), point_.column);
    Value* ordinal = b_.CreateOr(wide(word(3)), b_.CreateShl(wide(word(4)), 32));
    ordinal = b_.CreateAdd(ordinal, wide(b_.CreateUDiv(row_, rows)));
    Value* first = b_.CreateAdd(wide(inside), b_.CreateAnd(ordinal, ~uint64_t{0xffffffff}));
    return math_.uniform(t_.splat(word(0), lanes), t_.splat(word(1), lanes), t_.splat(word(2), lanes),
                         t_.splat(b_.CreateTrunc(ordinal, b_.getInt32Ty()), lanes),
                         b_.CreateAdd(t_.splat(first, lanes), t_.iota(b_.getInt64Ty(), lanes)));
  }

  Value* constant(const Member& member, size_t n) {
    const ir::ScalarNode& node = member.program.nodes[n];
    const bool real = node.kind == ScalarKind::real;
    for (const auto& [lifted, extent] : member.lifted) {
      if (static_cast<size_t>(lifted) != n) continue;
      Value* bits = t_.constants[extent];
      return real ? b_.CreateBitCast(bits, b_.getFloatTy()) : bits;
    }
    if (node.kind == ScalarKind::truth) return b_.getInt1(node.value != 0);
    if (real) return t_.real(static_cast<double>(static_cast<float>(node.value)));
    return b_.getInt32(static_cast<uint32_t>(static_cast<int64_t>(node.value)));
  }

  Value* operation(ScalarOp op, const std::vector<Value*>& a, Accuracy accuracy) {
    const bool real = a[0]->getType()->isFPOrFPVectorTy();
    switch (op) {
      case ScalarOp::add:
        return real ? b_.CreateFAdd(a[0], a[1]) : b_.CreateAdd(a[0], a[1]);
      case ScalarOp::sub:
        return real ? b_.CreateFSub(a[0], a[1]) : b_.CreateSub(a[0], a[1]);
      case ScalarOp::mul:
        return real ? b_.CreateFMul(a[0], a[1]) : b_.CreateMul(a[0], a[1]);
      case ScalarOp::div:
        return math_.div(a[0], a[1], accuracy);
      case ScalarOp::neg:
        return real ? b_.CreateFNeg(a[0]) : b_.CreateNeg(a[0]);
      case ScalarOp::abs:
        if (real) return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a[0]);
        return math_.max(a[0], b_.CreateNeg(a[0]));
      case ScalarOp::sqrt:
        return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a[0]);
      case ScalarOp::exp:
        return math_.exp(a[0], accuracy);
      case ScalarOp::log:
        return math_.log(a[0]);
      case ScalarOp::tanh:
        return math_.tanh(a[0], accuracy);
      case ScalarOp::erf:
        return math_.erf(a[0], accuracy);
      case ScalarOp::sin:
        return math_.sin(a[0]);
      case ScalarOp::cos:
        return math_.cos(a[0]);
      case ScalarOp::floor:
        return b_.CreateUnaryIntrinsic(llvm::Intrinsic::floor, a[0]);
      case ScalarOp::max:
        return math_.max(a[0], a[1]);
      case ScalarOp::min:
        return math_.min(a[0], a[1]);
      case ScalarOp::less:
        return real ? b_.CreateFCmpOLT(a[0], a[1]) : b_.CreateICmpSLT(a[0], a[1]);
      case ScalarOp::less_equal:
        return real ? b_.CreateFCmpOLE(a[0], a[1]) : b_.CreateICmpSLE(a[0], a[1]);
      case ScalarOp::equal:
        return real ? b_.CreateFCmpOEQ(a[0], a[1]) : b_.CreateICmpEQ(a[0], a[1]);
      case ScalarOp::not_equal:
        return real ? b_.CreateFCmpUNE(a[0], a[1]) : b_.CreateICmpNE(a[0], a[1]);
      case ScalarOp::is_finite:
        return math_.is_finite(a[0]);
      case ScalarOp::logic_and:
        return b_.CreateAnd(a[0], a[1]);
      case ScalarOp::logic_or:
        return b_.CreateOr(a[0], a[1]);
      case ScalarOp::select:
        return b_.CreateSelect(a[0], a[1], a[2]);
      case ScalarOp::to_real: {
        llvm::Type* type = Math::lanes_of(a[0], b_.getFloatTy());
        if (real) return a[0];
        return a[0]->getType()->isIntOrIntVectorTy(1) ? b_.CreateUIToFP(a[0], type)
                                                      : b_.CreateSIToFP(a[0], type);
      }
      case ScalarOp::to_integer: {
        llvm::Type* type = Math::lanes_of(a[0], b_.getInt32Ty());
        // Saturating, NaN to 0: every target does the same.
        if (real) return b_.CreateIntrinsic(llvm::Intrinsic::fptosi_sat, {type, a[0]->getType()}, {a[0]});
        return a[0]->getType()->isIntOrIntVectorTy(1) ? b_.CreateZExt(a[0], type) : a[0];
      }
      case ScalarOp::uniform:
        return math_.uniform(a[0], a[1], a[2], a[3], a[4]);
      default:
        return nullptr;
    }
  }

  Target& t_;
  const Body& body_;
  llvm::IRBuilder<>& b_;
  Math& math_;
  std::map<int32_t, Value*> kept_, slots_;          // loaded: for the function or row, for the point
  std::map<std::pair<int32_t, int>, Value*> held_;  // (slot, turn) -> what a row in registers has there
  std::map<std::pair<int32_t, int32_t>, Value*> row_values_;  // (member, result) -> a value of the row
  std::map<int32_t, std::vector<Value*>> members_;            // results at the point
  std::vector<Value*> base_;                                  // where the row begins in each slot; null: at 0
  Value *row_ = nullptr, *row_base_ = nullptr;
  Point point_;
};

}  // namespace gacc::codegen
