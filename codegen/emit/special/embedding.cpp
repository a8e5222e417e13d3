// Rows of a table by number, and the sums of their gradients. No atomics: a sum has one owner, which adds in
// the order of the tokens, so the bits are the same on every device and for any number of threads.
#include "codegen/emit/special/kinds.h"
#include "codegen/emit/target.h"

namespace gacc::codegen {

namespace {

class EmbeddingGradient {
 public:
  explicit EmbeddingGradient(Target& t)
      : t_(t),
        b_(t.b),
        fresh_(t.body.parameters[1] != 0),
        columns_(t.index(t.body.parameters[0])),
        tokens_(fresh_ ? 0 : 1),
        sums_(fresh_ ? 2 : 0) {}

  void emit() {
    if (t_.body.parameters[2] != 0) {
      by_columns();
    } else {
      by_rows();
    }
  }

 private:
  Value* count() { return t_.extents.back(); }  // of the tokens
  Value* token(Value* n) { return t_.load_one(tokens_, n); }
  Value* index(Value* word) { return b_.CreateZExtOrTrunc(word, t_.index_type); }
  void each(Value* low, Value* high, const std::function<void(Value*)>& body) {
    t_.loop(low, high, t_.index(1), {}, [&](Value* i, const Target::Carried&) {
      body(i);
      return Target::Carried{};
    });
  }

  // Host: a task owns some columns of the whole table and walks all tokens.
  void by_columns() {
    Value* first = nullptr;
    t_.points([&](Value* row) { first = b_.CreateMul(row, t_.column_count()); },
              [&](const Point& point) {
                Value* column = b_.CreateAdd(first, point.column);
                const auto at = [&](Value* row) { return b_.CreateAdd(b_.CreateMul(row, columns_), column); };
                if (fresh_) {
                  Value* zero = llvm::ConstantFP::get(b_.getFloatTy(), 0.0);
                  each(t_.index(0), t_.index(t_.body.parameters[1]),
                       [&](Value* row) { t_.store(sums_, at(row), zero, point); });
                }
                each(t_.index(0), count(), [&](Value* n) {
                  Value* place = at(index(token(n)));
                  Value* dy = t_.load(tokens_ + 1, at(n), point);
                  t_.store(sums_, place, b_.CreateFAdd(t_.load(sums_, place, point), dy), point);
                });
              });
  }

  // Device: a block owns a row of the table. Where the sums are fresh it is row number `part`; else the row
  // of token `part`, if no earlier token has the same one.
  void by_rows() {
    t_.parts([&](Value* part) {
      if (fresh_)
        return sum_row(b_.CreateTrunc(b_.CreateZExt(part, b_.getInt64Ty()), b_.getInt32Ty()), t_.index(0));
      Value* row = token(part);
      const Reduction any{ir::Combine::max, b_.getInt32Ty()};
      const Target::Terms seen = t_.reduce(part, t_.index(0), part, {any}, [&](const Point& point) {
        Value* same = b_.CreateICmpEQ(t_.load(tokens_, point.column, point), row);
        return Target::Terms{b_.CreateZExt(same, b_.getInt32Ty())};
      });
      t_.branch(b_.CreateICmpNE(seen[0], b_.getInt32(1)), [&] { sum_row(row, part); });
    });
  }

  // sums[row] += dy[n] for all tokens n >= first that are `row`. A thread has up to four columns, a quarter
  // of the row apart, so that neighbours read neighbours.
  void sum_row(Value* row, Value* first) {
    const int64_t each_has = t_.body.parameters[3];
    Value* quarter = t_.index(t_.body.parameters[0] / each_has);
    Value* start = b_.CreateMul(index(row), columns_);
    t_.reduce(row, t_.index(0), quarter, {}, [&](const Point& point) {
      Target::Carried sums;
      std::vector<Value*> columns;
      for (int64_t k = 0; k < each_has; ++k) {
        columns.push_back(b_.CreateAdd(point.column, b_.CreateMul(quarter, t_.index(k))));
        sums.push_back(fresh_ ? llvm::ConstantFP::get(b_.getFloatTy(), 0.0)
                              : t_.load_one(sums_, b_.CreateAdd(start, columns.back())));
      }
      sums = t_.loop(first, count(), t_.index(1), sums, [&](Value* n, const Target::Carried& carried) {
        Value* hit = b_.CreateICmpEQ(token(n), row);
        // What does not count is read from the first row, which is there.
        Value* base = b_.CreateSelect(hit, b_.CreateMul(n, columns_), t_.index(0));
        Target::Carried next;
        for (size_t k = 0; k < columns.size(); ++k) {
          Value* dy = t_.load_one(tokens_ + 1, b_.CreateAdd(base, columns[k]));
          next.push_back(b_.CreateSelect(hit, b_.CreateFAdd(carried[k], dy), carried[k]));
        }
        return next;
      });
      for (size_t k = 0; k < columns.size(); ++k)
        t_.store_one(sums_, b_.CreateAdd(start, columns[k]), sums[k]);
      return Target::Terms{};
    });
  }

  Target& t_;
  llvm::IRBuilder<>& b_;
  bool fresh_;
  Value* columns_;
  int32_t tokens_, sums_;
};

}  // namespace

void emit_embedding(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  Value *from = nullptr, *to = nullptr;
  t.points(
      [&](Value* row) {
        Value* token = b.CreateZExtOrTrunc(t.load_one(0, row), t.index_type);
        from = b.CreateMul(token, t.column_count());
        to = b.CreateMul(row, t.column_count());
      },
      [&](const Point& point) {
        Value* value = t.load(1, b.CreateAdd(from, point.column), point);
        t.store(2, b.CreateAdd(to, point.column), value, point);
      });
}

void emit_embedding_gradient(Target& t) { EmbeddingGradient(t).emit(); }

}  // namespace gacc::codegen
