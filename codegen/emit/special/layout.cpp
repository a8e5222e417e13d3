// Elements in another order: whole rows where they stay together, single elements where they do not.
#include "codegen/emit/special/emitters.h"
#include "codegen/emit/target.h"

namespace gacc::codegen {

// A row of the result is one position along all axes but the last.
void emit_permute(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const std::vector<int64_t>& nest = t.body.parameters;
  const int64_t step = nest.back();
  Value *base = nullptr, *start = nullptr;
  t.points(
      [&](Value* row) {
        start = b.CreateMul(row, t.column_count());
        base = t.index(0);
        Value* rest = row;
        for (size_t i = nest.size() - 2; i > 1; i -= 2) {  // the axes before the last, from the inside
          Value* extent = t.index(nest[i - 2]);
          base = b.CreateAdd(base, b.CreateMul(b.CreateURem(rest, extent), t.index(nest[i - 1])));
          rest = b.CreateUDiv(rest, extent);
        }
        base = b.CreateAdd(base, b.CreateMul(rest, t.index(nest[0])));
      },
      [&](const Point& point) {
        Value* value = nullptr;
        if (step == 1) {
          value = t.load(0, b.CreateAdd(base, point.column), point);
        } else {
          Value* stride = t.splat(b.getInt32(static_cast<uint32_t>(step)), point.lanes);
          Value* lane = t.iota(b.getInt32Ty(), point.lanes);
          Value* first = b.CreateAdd(base, b.CreateMul(point.column, t.index(step)));
          value = t.gather(0, first, b.CreateMul(lane, stride), point.mask, 0.0);
        }
        t.store(1, b.CreateAdd(start, point.column), value, point);
      });
}

// A part is a piece of a row of the result: the same piece of each operand's row, all side by side.
void emit_concat(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const int64_t pieces = t.body.parameters.front();
  const std::vector<int64_t> lengths(t.body.parameters.begin() + 1, t.body.parameters.end());
  int64_t all = 0;
  for (const int64_t length : lengths) all += length;
  const auto result = static_cast<int32_t>(lengths.size());
  t.parts([&](Value* part) {
    Value* row = b.CreateUDiv(part, t.index(pieces));
    Value* piece = b.CreateURem(part, t.index(pieces));
    int64_t at = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t size = lengths[i] / pieces;
      Value* first = b.CreateMul(piece, t.index(size));
      Value* from = b.CreateAdd(b.CreateMul(row, t.index(lengths[i])), first);
      Value* to = b.CreateAdd(b.CreateMul(row, t.index(all)), b.CreateAdd(t.index(at), first));
      t.reduce(part, t.index(0), t.index(size), {}, [&](const Point& point) {
        Value* value = t.load(static_cast<int32_t>(i), b.CreateAdd(from, point.column), point);
        t.store(result, b.CreateAdd(to, point.column), value, point);
        return Target::Terms{};
      });
      at += lengths[i];
    }
  });
}

void emit_slice(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  Value *from = nullptr, *to = nullptr;
  t.points(
      [&](Value* row) {
        from = b.CreateAdd(b.CreateMul(row, t.index(t.body.parameters[0])), t.index(t.body.parameters[1]));
        to = b.CreateMul(row, t.column_count());
      },
      [&](const Point& point) {
        Value* value = t.load(0, b.CreateAdd(from, point.column), point);
        t.store(1, b.CreateAdd(to, point.column), value, point);
      });
}

}  // namespace gacc::codegen
