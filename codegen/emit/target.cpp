// The parts of a schedule that both targets share: loops in SSA form, memory access by lanes, reductions,
// passes.
#include "codegen/emit/target.h"

#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Module.h>

#include "codegen/emit/blocks.h"

namespace gacc::codegen {

using llvm::BasicBlock;
using llvm::Type;

Target::Target(llvm::Module& module, const Body& body, std::unique_ptr<const Instructions> has)
    : module(module),
      body(body),
      b(module.getContext()),
      instructions(std::move(has)),
      math(b, *instructions),
      half(b, *instructions) {}

Target::Carried Target::loop(Value* low, Value* high, Value* step, Carried carried,
                             const std::function<Carried(Value*, const Carried&)>& on_step) {
  llvm::LLVMContext& context = module.getContext();
  BasicBlock* before = b.GetInsertBlock();
  BasicBlock* head = BasicBlock::Create(context, "loop", function);
  BasicBlock* exit = BasicBlock::Create(context, "done", function);
  b.CreateCondBr(b.CreateICmpULT(low, high), head, exit);

  b.SetInsertPoint(head);
  llvm::PHINode* i = b.CreatePHI(low->getType(), 2);
  i->addIncoming(low, before);
  Carried inside;
  std::vector<llvm::PHINode*> phis;
  for (Value* value : carried) {
    llvm::PHINode* phi = b.CreatePHI(value->getType(), 2);
    phi->addIncoming(value, before);
    phis.push_back(phi);
    inside.push_back(phi);
  }
  const Carried next = on_step(i, inside);
  Value* after = b.CreateAdd(i, step, "", /*HasNUW=*/true, /*HasNSW=*/true);
  BasicBlock* latch = b.GetInsertBlock();
  i->addIncoming(after, latch);
  for (size_t k = 0; k < phis.size(); ++k) phis[k]->addIncoming(next[k], latch);
  b.CreateCondBr(b.CreateICmpULT(after, high), head, exit);

  b.SetInsertPoint(exit);
  Carried out;
  for (size_t k = 0; k < carried.size(); ++k) {
    llvm::PHINode* phi = b.CreatePHI(carried[k]->getType(), 2);
    phi->addIncoming(carried[k], before);
    phi->addIncoming(next[k], latch);
    out.push_back(phi);
  }
  return out;
}

void Target::branch(Value* condition, const std::function<void()>& then) {
  if (condition == nullptr) return then();
  BasicBlock* yes = BasicBlock::Create(module.getContext(), "then", function);
  BasicBlock* after = BasicBlock::Create(module.getContext(), "after", function);
  b.CreateCondBr(condition, yes, after);
  b.SetInsertPoint(yes);
  then();
  b.CreateBr(after);
  b.SetInsertPoint(after);
}

Target::Carried Target::either(Value* condition, const std::function<Carried()>& yes,
                               const std::function<Carried()>& no) {
  BasicBlock *ends[2], *blocks[2];
  for (BasicBlock*& block : blocks) block = BasicBlock::Create(b.getContext(), "side", function);
  BasicBlock* after = BasicBlock::Create(b.getContext(), "both", function);
  b.CreateCondBr(condition, blocks[0], blocks[1]);
  Carried results[2];
  for (int i = 0; i < 2; ++i) {
    b.SetInsertPoint(blocks[i]);
    results[i] = i == 0 ? yes() : no();
    ends[i] = b.GetInsertBlock();
    b.CreateBr(after);
  }
  b.SetInsertPoint(after);
  Carried out;
  for (size_t v = 0; v < results[0].size(); ++v) {
    llvm::PHINode* phi = b.CreatePHI(results[0][v]->getType(), 2);
    phi->addIncoming(results[0][v], ends[0]);
    phi->addIncoming(results[1][v], ends[1]);
    out.push_back(phi);
  }
  return out;
}

Value* Target::splat(Value* value, unsigned lanes) {
  if (lanes == 1 || value->getType()->isVectorTy()) return value;
  return b.CreateVectorSplat(lanes, value);
}

Value* Target::iota(Type* element, unsigned lanes) {
  if (lanes == 1) return llvm::ConstantInt::get(element, 0);
  std::vector<llvm::Constant*> steps;
  for (unsigned i = 0; i < lanes; ++i) steps.push_back(llvm::ConstantInt::get(element, i));
  return llvm::ConstantVector::get(steps);
}

std::vector<Value*> Target::load_pair(int32_t slot, Value* index, unsigned lanes) {
  Value* address = b.CreateInBoundsGEP(b.getInt16Ty(), operands[slot], index);
  Value* words = splat(b.CreateAlignedLoad(b.getInt32Ty(), address, llvm::Align(2)), lanes);
  Value* low = b.CreateShl(words, splat(b.getInt32(16), lanes));
  Value* high = b.CreateAnd(words, splat(b.getInt32(0xffff0000), lanes));
  llvm::Type* real = Math::with_lanes(b.getFloatTy(), lanes);
  return {b.CreateBitCast(low, real), b.CreateBitCast(high, real)};
}

Value* Target::load(int32_t slot, Value* index, const Point& point) {
  const ir::DType dtype = body.slots[slot].dtype;
  if (ir::is_blocks(dtype)) return load_numbers(*this, slot, index, point.lanes);
  return widen(slot, load_bits(slot, index, point));
}

Value* Target::widen(int32_t slot, Value* bits) {
  const ir::DType dtype = body.slots[slot].dtype;
  return is_narrow(dtype) ? half.widen(bits, dtype) : bits;
}

Value* Target::anew(Value* lanes) {
  Type* type = lanes->getType();
  const unsigned words = Math::lanes(lanes) / 2;
  Value* all = b.CreateBitCast(lanes, Math::with_lanes(b.getInt32Ty(), words));
  if (words == 1) return b.CreateBitCast(instructions->opaque(b, all), type);
  for (uint64_t i = 0; i < words; ++i)
    all = b.CreateInsertElement(all, instructions->opaque(b, b.CreateExtractElement(all, i)), i);
  return b.CreateBitCast(all, type);
}

Value* Target::load_bits(int32_t slot, Value* index, const Point& point) {
  const ir::DType dtype = body.slots[slot].dtype;
  Type* type = Math::with_lanes(memory_type(dtype), point.lanes);
  Value* address = b.CreateInBoundsGEP(memory_type(dtype), operands[slot], index);
  const llvm::Align align = alignment(point, dtype);
  if (point.mask == nullptr) return b.CreateAlignedLoad(type, address, align);
  return b.CreateMaskedLoad(type, address, align, point.mask, llvm::Constant::getNullValue(type));
}

Point Target::spread(const Point& point, unsigned count) {
  Point wide{point.row, point.column, nullptr, point.lanes * count};
  if (point.mask != nullptr)
    wide.mask = b.CreateShuffleVector(point.mask, llvm::createReplicatedMask(count, point.lanes));
  return wide;
}

std::vector<Value*> Target::load_runs(int32_t slot, Value* index, unsigned count, const Point& point) {
  Value* all = load(slot, index, spread(point, count));
  std::vector<Value*> values;
  for (unsigned j = 0; j < count; ++j)
    values.push_back(b.CreateShuffleVector(all, llvm::createStrideMask(j, count, point.lanes)));
  return values;
}

void Target::store_runs(int32_t slot, Value* index, const std::vector<Value*>& values, const Point& point) {
  const auto count = static_cast<unsigned>(values.size());
  // One after the other, then lane by lane.
  Value* all = values.front();
  for (size_t j = 1; j < values.size(); ++j) all = llvm::concatenateVectors(b, {all, values[j]});
  all = b.CreateShuffleVector(all, llvm::createInterleaveMask(point.lanes, count));
  store(slot, index, all, spread(point, count));
}

Value* Target::gather(int32_t slot, Value* base, Value* offset, Value* mask) {
  const auto zero = [](Type* type) { return llvm::Constant::getNullValue(type); };
  const unsigned lanes = Math::lanes(offset);
  if (lanes == 1) {
    // A masked lane reads at the base alone, which must be an element.
    if (mask != nullptr) offset = b.CreateSelect(mask, offset, zero(offset->getType()));
    Value* value = load_one(slot, b.CreateAdd(base, b.CreateZExtOrTrunc(offset, index_type)));
    return mask == nullptr ? value : b.CreateSelect(mask, value, zero(value->getType()));
  }
  if (mask == nullptr) mask = llvm::Constant::getAllOnesValue(Math::with_lanes(b.getInt1Ty(), lanes));
  const ir::DType dtype = body.slots[slot].dtype;
  Type *element = memory_type(dtype), *type = Math::with_lanes(element, lanes);
  Value* start = b.CreateInBoundsGEP(element, operands[slot], base);
  Value* places = b.CreateGEP(element, start, b.CreateSExt(offset, Math::with_lanes(b.getInt64Ty(), lanes)));
  Value* value = b.CreateMaskedGather(type, places, alignment({}, dtype), mask, zero(type));
  if (!is_narrow(dtype)) return value;
  value = half.widen(value, dtype);
  return b.CreateSelect(mask, value, zero(value->getType()));
}

void Target::store(int32_t slot, Value* index, Value* value, const Point& point) {
  const ir::DType dtype = body.slots[slot].dtype;
  value = splat(value, point.lanes);
  if (is_narrow(dtype)) value = half.narrow(value, dtype);
  Value* address = b.CreateInBoundsGEP(memory_type(dtype), operands[slot], index);
  if (point.mask == nullptr)
    b.CreateAlignedStore(value, address, alignment(point, dtype));
  else
    b.CreateMaskedStore(value, address, alignment(point, dtype), point.mask);
}

Target::Carried Target::start(const std::vector<Reduction>& reductions) {
  Carried accumulators;
  for (unsigned copy = 0; copy < copies_; ++copy)
    for (const Reduction& r : reductions) accumulators.push_back(splat(Math::neutral(r.how, r.type), lanes_));
  return accumulators;
}

void Target::accumulate(const std::vector<Reduction>& reductions, const Terms& terms, const Point& point,
                        Carried& accumulators) {
  for (size_t r = 0; r < reductions.size(); ++r) {
    Value*& accumulator = accumulators[r];
    Value* sum = math.combine(reductions[r].how, accumulator, splat(terms[r], point.lanes));
    accumulator = point.mask == nullptr ? sum : b.CreateSelect(point.mask, sum, accumulator);
  }
}

Value* Target::across_lanes(ir::Combine how, Value* vector) {
  for (unsigned n = Math::lanes(vector) / 2; n > 0; n /= 2) {
    const auto half_from = [&](unsigned lane) -> Value* {
      if (n == 1) return b.CreateExtractElement(vector, uint64_t{lane});
      return b.CreateShuffleVector(vector, llvm::createSequentialMask(lane, n, 0));
    };
    Value *first = half_from(0), *second = half_from(n);
    vector = math.combine(how, first, second);
  }
  return vector;
}

Target::Terms Target::finish(const std::vector<Reduction>& reductions, Carried accumulators) {
  Terms out;
  for (size_t r = 0; r < reductions.size(); ++r) {
    for (size_t gap = copies_ / 2; gap > 0; gap /= 2) {
      for (size_t c = 0; c < gap; ++c) {
        Value*& into = accumulators[c * reductions.size() + r];
        into = math.combine(reductions[r].how, into, accumulators[(c + gap) * reductions.size() + r]);
      }
    }
    out.push_back(across_threads(reductions[r].how, across_lanes(reductions[r].how, accumulators[r])));
  }
  return out;
}

std::pair<Value*, Value*> Target::part_rows(Value* part, Value* count) {
  Value* chunk = extents[body.chunk];
  Value* first = smaller(b.CreateMul(part, chunk), count);
  return {first, smaller(b.CreateAdd(first, chunk), count)};
}

Target::Terms Target::reduce(Value* row, Value* low, Value* high, const std::vector<Reduction>& reductions,
                             const OnTerms& on_point) {
  return finish(reductions, walk(row, low, high, reductions, start(reductions), on_point));
}

Target::Terms Target::reduce_rows(Value* first, Value* last, const std::vector<Reduction>& reductions,
                                  const OnRow& on_row, const OnTerms& on_point) {
  return finish(reductions,
                loop(first, last, index(1), start(reductions), [&](Value* row, const Carried& carried) {
                  on_row(row);
                  return walk(row, index(0), column_count(), reductions, carried, on_point);
                }));
}

}  // namespace gacc::codegen
