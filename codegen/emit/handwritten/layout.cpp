// Elements in another order: whole rows where they stay together, single elements where they do not. An
// embedding is rows of a table by number.
#include "codegen/emit/handwritten/emitters.h"

namespace gacc::codegen {

namespace {

// Each row of the result from slot `source`, where its first element lies at from(row) and the others `step`
// elements apart.
void copy_rows(Target& t, int32_t source, int64_t step, const std::function<Value*(Value* row)>& from) {
  llvm::IRBuilder<>& b = t.b;
  Value *base = nullptr, *to = nullptr;
  t.points(
      [&](Value* row) {
        base = from(row);
        to = b.CreateMul(row, t.column_count());
      },
      [&](const Point& point) {
        Value* value = nullptr;
        if (step == 1) {
          value = t.load(source, b.CreateAdd(base, point.column), point);
        } else {
          Value* first = b.CreateAdd(base, b.CreateMul(point.column, t.index(step)));
          Value* lanes = b.CreateMul(t.iota(b.getInt32Ty(), point.lanes), t.integer(step, point.lanes));
          value = t.gather(source, first, lanes, point.mask);
        }
        t.store(source + 1, b.CreateAdd(to, point.column), value, point);
      });
}

}  // namespace

// A point is an element of the result, and neighbours of one row share the left factor.
void emit_batch_product(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const auto shape = t.body.shape.as<BatchProductShape>();
  Value *left = nullptr, *right = nullptr, *to = nullptr;
  t.points(
      [&](Value* row) {
        Value* matrix = b.CreateUDiv(row, t.index(shape.m));
        Value* line = b.CreateMul(b.CreateURem(row, t.index(shape.m)), t.index(shape.ta == 1 ? 1 : shape.k));
        left = b.CreateAdd(b.CreateMul(matrix, t.index(shape.m * shape.k)), line);
        right = b.CreateMul(matrix, t.index(shape.k * shape.n));
        to = b.CreateMul(row, t.column_count());
      },
      [&](const Point& p) {
        Value* zero = t.real(0, p.lanes);
        Value* columns = b.CreateMul(t.iota(b.getInt32Ty(), p.lanes), t.integer(shape.k, p.lanes));
        Value* line = b.CreateAdd(right, b.CreateMul(p.column, t.index(shape.k)));
        const Target::Carried sum = t.loop(
            t.index(0), t.index(shape.k), t.index(1), {zero}, [&](Value* i, const Target::Carried& so_far) {
              Value* step = b.CreateMul(i, t.index(shape.ta == 1 ? shape.m : 1));
              Value* x = t.splat(t.load_one(0, b.CreateAdd(left, step)), p.lanes);
              Value* y = nullptr;
              if (shape.tb == 1) {
                y = t.gather(1, b.CreateAdd(line, i), columns, p.mask);
              } else {
                Value* from = b.CreateAdd(right, b.CreateMul(i, t.index(shape.n)));
                y = t.load(1, b.CreateAdd(from, p.column), p);
              }
              return Target::Carried{t.math.fma(x, y, so_far[0])};
            });
        t.store(2, b.CreateAdd(to, p.column), sum[0], p);
      });
}

// A row of the result is one position along all axes but the last.
void emit_permute(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const auto shape = t.body.shape.as<PermuteShape>();
  copy_rows(t, 0, shape.inner.back().step, [&](Value* row) {
    Value *base = t.index(0), *rest = row;
    for (size_t i = shape.inner.size() - 1; i-- > 0;) {  // the axes before the last, from the inside
      Value* extent = t.index(shape.inner[i].extent);
      base = b.CreateAdd(base, b.CreateMul(b.CreateURem(rest, extent), t.index(shape.inner[i].step)));
      rest = b.CreateUDiv(rest, extent);
    }
    return b.CreateAdd(base, b.CreateMul(rest, t.index(shape.first_step)));
  });
}

// A part is a piece of a row of the result: the same piece of each operand's row, all side by side.
void emit_concat(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const auto shape = t.body.shape.as<ConcatShape>();
  const int64_t pieces = shape.pieces;
  const std::vector<int64_t>& lengths = shape.lengths;
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
  const auto shape = t.body.shape.as<SliceShape>();
  copy_rows(t, 0, 1, [&](Value* row) {
    return t.b.CreateAdd(t.b.CreateMul(row, t.index(shape.length)), t.index(shape.begin));
  });
}

void emit_dequantize(Target& t) {
  copy_rows(t, 0, 1, [&](Value* row) { return t.b.CreateMul(row, t.column_count()); });
}

void emit_embedding(Target& t) {
  copy_rows(t, 1, 1, [&](Value* row) {
    return t.b.CreateMul(t.b.CreateZExtOrTrunc(t.load_one(0, row), t.index_type), t.column_count());
  });
}

}  // namespace gacc::codegen
