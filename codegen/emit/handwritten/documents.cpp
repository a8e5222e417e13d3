// The first position of each position's document (meaning: ir/ops/documents.cpp). Every position is compared with all
// others: once a micro-batch, little beside one head of one attention layer.
#include "codegen/emit/handwritten/emitters.h"
#include "kernels/handwritten/attention_call.h"

namespace gacc::codegen {

namespace {

Value* lesser(llvm::IRBuilder<>& b, Value* x, Value* y) {
  return b.CreateSelect(b.CreateICmpSLT(x, y), x, y);
}
Value* greater(llvm::IRBuilder<>& b, Value* x, Value* y) {
  return b.CreateSelect(b.CreateICmpSGT(x, y), x, y);
}

// Planes of a result [rows, 4, columns].
void store_planes(Target& t, int32_t slot, Value* row, const Values& planes, const Point& at) {
  for (size_t i = 0; i < planes.size(); ++i) {
    Value* plane =
        t.b.CreateAdd(t.b.CreateMul(row, t.index(std::ssize(planes))), t.index(static_cast<int64_t>(i)));
    t.store(slot, t.b.CreateAdd(t.b.CreateMul(plane, t.column_count()), at.column), planes[i], at);
  }
}

}  // namespace

void emit_documents(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const int64_t length = t.body.shape.as<DocumentsShape>().length;
  Value *row = nullptr, *base = nullptr;
  t.points([&](Value* at) { row = at, base = b.CreateMul(at, t.index(length)); },
           [&](const Point& at) {
             const auto all = [&](Value* scalar) { return t.splat(scalar, at.lanes); };
             const auto number = [&](int64_t value) { return t.integer(value, at.lanes); };
             Value *own = t.load(0, b.CreateAdd(base, at.column), at), *here = t.columns_of(at);
             Value* next = b.CreateAdd(here, number(1));
             // The count of earlier positions with this number; the first position that has it, and the one behind the
             // last; the same two of the run of equal numbers that this position is in.
             Values found = {number(0), here, next, number(0), number(length)};
             found = t.loop(t.index(0), t.index(length), t.index(1), found, [&](Value* other, Values now) {
               Value* same = b.CreateICmpEQ(own, all(t.load_one(0, b.CreateAdd(base, other))));
               Value *place = all(t.word(other)), *behind = b.CreateAdd(place, number(1));
               Value *before = b.CreateICmpSLT(place, here), *after = b.CreateICmpSGT(place, here);
               const auto where = [&](Value* condition, size_t i, Value* value) {
                 now[i] = b.CreateSelect(condition, value, now[i]);
               };
               where(b.CreateAnd(same, before), 0, b.CreateAdd(now[0], number(1)));
               where(same, 1, lesser(b, now[1], place));
               where(same, 2, greater(b, now[2], behind));
               Value* differs = b.CreateNot(same);
               where(b.CreateAnd(differs, before), 3, behind);
               where(b.CreateAnd(differs, after), 4, lesser(b, now[4], place));
               return now;
             });
             Value* none = b.CreateICmpSLT(own, number(0));
             const Values alone = {number(0), here, next, here, next};
             for (size_t i = 0; i < found.size(); ++i) found[i] = b.CreateSelect(none, alone[i], found[i]);
             Value* where = b.CreateAdd(base, at.column);
             t.store(1, where, b.CreateSelect(none, b.CreateSub(number(-1), here), own), at);
             t.store(2, where, found[0], at);
             store_planes(t, 3, row, Values(found.begin() + 1, found.end()), at);
           });
}

void emit_document_spans(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const int64_t length = t.body.shape.as<DocumentsShape>().length;
  Value *row = nullptr, *base = nullptr;
  t.points(
      [&](Value* at) { row = at, base = b.CreateMul(at, t.index(4 * length)); },
      [&](const Point& at) {
        const auto number = [&](int64_t value) { return t.integer(value, at.lanes); };
        const auto reach = [&](int64_t plane, Value* position) {
          return t.gather(0, b.CreateAdd(base, t.index(plane * length)), position, at.mask);
        };
        Value* begin = b.CreateMul(t.columns_of(at), number(kAttentionBlock));
        Value* past = lesser(b, b.CreateAdd(begin, number(kAttentionBlock)), number(length));
        Values ends = {number(length), number(0)};
        ends =
            t.loop(t.index(0), t.index(kAttentionBlock), t.index(1), ends, [&](Value* i, const Values& now) {
              Value* position = b.CreateAdd(begin, t.splat(t.word(i), at.lanes));
              position = lesser(b, position, number(length - 1));
              return Values{lesser(b, now[0], reach(0, position)), greater(b, now[1], reach(1, position))};
            });
        Value *low = reach(2, begin), *high = reach(3, begin);
        Value* alike = b.CreateICmpSGE(high, past);
        ends.push_back(b.CreateSelect(alike, low, begin));
        ends.push_back(b.CreateSelect(alike, high, begin));
        store_planes(t, 1, row, ends, at);
      });
}

void emit_document_lengths(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const int64_t length = t.body.shape.as<DocumentsShape>().length;
  Value* base = nullptr;
  t.points([&](Value* row) { base = b.CreateMul(row, t.index(length)); },
           [&](const Point& at) {
             Value *where = b.CreateAdd(base, at.column), *own = t.load(0, where, at);
             const Values none = {t.integer(0, at.lanes)};
             const Values found =
                 t.loop(t.index(0), t.index(length), t.index(1), none, [&](Value* other, const Values& now) {
                   Value* number = t.splat(t.load_one(0, b.CreateAdd(base, other)), at.lanes);
                   Value* more = b.CreateAdd(now[0], t.integer(1, at.lanes));
                   return Values{b.CreateSelect(b.CreateICmpEQ(own, number), more, now[0])};
                 });
             t.store(1, where, found[0], at);
           });
}

}  // namespace gacc::codegen
