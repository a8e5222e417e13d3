// The sums of the gradients of a table's rows (layout.cpp reads them). No atomics: a sum has one owner, which
// adds in the order of the tokens, so the bits are the same on every device and for any number of threads.
#include "codegen/emit/handwritten/emitters.h"

namespace gacc::codegen {

namespace {

class EmbeddingGradient {
 public:
  explicit EmbeddingGradient(Target& t)
      : t_(t),
        b_(t.b),
        s_(t.body.shape.as<EmbeddingGradientShape>()),
        fresh_(s_.cleared != 0),
        columns_(t.index(s_.columns)),
        tokens_(fresh_ ? 0 : 1),
        sums_(fresh_ ? 2 : 0) {}

  void emit() {
    if (s_.by_columns != 0)
      by_columns();
    else
      by_rows();
  }

 private:
  Value* count() { return t_.extents.back(); }  // of the tokens
  Value* token(Value* n) { return t_.load_one(tokens_, n); }
  Value* trained(Value* row) { return b_.CreateICmpNE(row, b_.getInt32(static_cast<uint32_t>(s_.padding))); }
  Value* index(Value* word) { return b_.CreateZExtOrTrunc(word, t_.index_type); }

  // Host: a task owns some columns of the whole table and walks all tokens.
  void by_columns() {
    Value* first = nullptr;
    t_.points([&](Value* row) { first = b_.CreateMul(row, t_.column_count()); },
              [&](const Point& point) {
                Value* column = b_.CreateAdd(first, point.column);
                const auto at = [&](Value* row) { return b_.CreateAdd(b_.CreateMul(row, columns_), column); };
                if (fresh_)
                  t_.each(t_.index(0), t_.index(s_.cleared), t_.index(1),
                          [&](Value* row) { t_.store(sums_, at(row), t_.real(0), point); });
                t_.each(t_.index(0), count(), t_.index(1), [&](Value* n) {
                  Value* row = token(n);
                  Value* place = at(index(row));
                  Value* dy = t_.load(tokens_ + 1, at(n), point);
                  Value* before = t_.load(sums_, place, point);
                  Value* sum = b_.CreateFAdd(before, dy);
                  t_.store(sums_, place, s_.padding < 0 ? sum : b_.CreateSelect(trained(row), sum, before),
                           point);
                });
              });
  }

  // Device: a warp, which is a block, owns every so many-th row and 32 points of their columns. It walks all
  // tokens, eight times 32 at once, and lists those of its rows in shared memory; whenever the list might not
  // take the next ones, it adds them up. So the numbers are read once by every warp, and dy once by all.
  void by_rows() {
    lanes_ = static_cast<unsigned>(s_.lanes);
    const int64_t slices = ceil_divide(s_.columns, kLanes * lanes_);
    t_.parts([&](Value* part) {
      Value* first = b_.CreateUDiv(part, t_.index(slices));
      Value* lane = t_.threads().thread(b_);
      Value* slice = b_.CreateMul(b_.CreateURem(part, t_.index(slices)), t_.index(kLanes));
      point_ = {nullptr, b_.CreateMul(b_.CreateAdd(slice, index(lane)), t_.index(lanes_)), nullptr, lanes_};
      owns_ = b_.CreateICmpULT(point_.column, columns_);
      list_ = t_.threads().shared_array(t_.module, b_.getInt32Ty(), 2 * EmbeddingList::kEntries,
                                        t_.function->getName().str());
      if (fresh_) clear(first);
      Value* remainder = t_.word(first);
      const Target::Carried left =
          t_.loop(t_.index(0), count(), t_.index(EmbeddingList::kTokens), {b_.getInt32(0)},
                  [&](Value* from, const Target::Carried& carried) {
                    Value* held = list_tokens(from, index(lane), lane, remainder, carried[0]);
                    Value* full =
                        b_.CreateICmpUGT(held, b_.getInt32(EmbeddingList::kEntries - EmbeddingList::kTokens));
                    return t_.either(
                        full, [&] { return add_listed(held), Target::Carried{b_.getInt32(0)}; },
                        [&] { return Target::Carried{held}; });
                  });
      add_listed(left[0]);
    });
  }

  // Returns the place of the point in a row of the table, or of dy.
  Value* place(Value* row) { return b_.CreateAdd(b_.CreateMul(row, columns_), point_.column); }

  void clear(Value* first) {
    t_.branch(owns_, [&] {
      t_.each(first, t_.index(s_.rows), t_.index(s_.ranges),
              [&](Value* row) { t_.store(sums_, place(row), t_.real(0), point_); });
    });
  }

  // Appends those of the tokens from `from` on that are rows of this warp to the list, in their order: the token's
  // place and its row. Returns how many it then holds.
  Value* list_tokens(Value* from, Value* lane, Value* lane_word, Value* remainder, Value* held) {
    std::vector<Value*> places, rows, there;
    for (int64_t k = 0; k < EmbeddingList::kTokens / kLanes; ++k) {
      places.push_back(b_.CreateAdd(from, b_.CreateAdd(lane, t_.index(k * kLanes))));
      there.push_back(b_.CreateICmpULT(places.back(), count()));
      rows.push_back(token(b_.CreateSelect(there.back(), places.back(), from)));
    }
    Value* before = b_.CreateSub(b_.CreateShl(b_.getInt32(1), lane_word), b_.getInt32(1));
    const auto bits = [&](Value* word) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, word); };
    for (size_t k = 0; k < rows.size(); ++k) {
      Value* left = b_.CreateAnd(rows[k], b_.getInt32(static_cast<uint32_t>(s_.ranges - 1)));
      Value* mine = b_.CreateAnd(there[k], b_.CreateICmpEQ(left, remainder));
      if (s_.padding >= 0) mine = b_.CreateAnd(mine, trained(rows[k]));
      Value* votes = t_.threads().ballot(b_, mine);
      Value* entry = b_.CreateAdd(held, bits(b_.CreateAnd(votes, before)));
      t_.branch(mine, [&] {
        b_.CreateAlignedStore(t_.word(places[k]), listed(entry, 0), llvm::Align(4));
        b_.CreateAlignedStore(rows[k], listed(entry, 1), llvm::Align(4));
      });
      held = b_.CreateAdd(held, bits(votes));
    }
    return held;
  }

  // Returns the address of a word of an entry: 0 the token's place, 1 its row.
  Value* listed(Value* entry, uint32_t which) {
    return b_.CreateInBoundsGEP(b_.getInt32Ty(), list_,
                                b_.CreateAdd(entry, b_.getInt32(which * EmbeddingList::kEntries)));
  }

  // sums[row] += dy of every entry, in order: several at a time, all of them read before the first is stored.
  // An entry whose row has stood before among them goes on with that sum. Past the last one it is repeated,
  // and adds nothing.
  void add_listed(Value* held) {
    constexpr uint32_t kAtOnce = 8;
    t_.threads().barrier(b_);
    t_.branch(owns_, [&] {
      t_.each(b_.getInt32(0), held, b_.getInt32(kAtOnce), [&](Value* from) {
        std::vector<Value*> counts, rows, at, terms, sums;
        Value* last = b_.CreateSub(held, b_.getInt32(1));
        for (uint32_t k = 0; k < kAtOnce; ++k) {
          Value* entry = b_.CreateAdd(from, b_.getInt32(k));
          counts.push_back(b_.CreateICmpULT(entry, held));
          entry = t_.smaller(entry, last);
          const auto word = [&](uint32_t which) {
            return b_.CreateAlignedLoad(b_.getInt32Ty(), listed(entry, which), llvm::Align(4));
          };
          terms.push_back(word(0)), rows.push_back(word(1));
        }
        for (uint32_t k = 0; k < kAtOnce; ++k) {
          terms[k] = t_.load(tokens_ + 1, place(index(terms[k])), point_);
          at.push_back(place(index(rows[k])));
          sums.push_back(t_.load(sums_, at[k], point_));
        }
        for (uint32_t k = 0; k < kAtOnce; ++k) {
          for (uint32_t before = 0; before < k; ++before)
            sums[k] = b_.CreateSelect(b_.CreateICmpEQ(rows[before], rows[k]), sums[before], sums[k]);
          sums[k] = b_.CreateSelect(counts[k], b_.CreateFAdd(sums[k], terms[k]), sums[k]);
        }
        for (uint32_t k = 0; k < kAtOnce; ++k) t_.store(sums_, at[k], sums[k], point_);
      });
    });
    t_.threads().barrier(b_);
  }

  static constexpr int64_t kLanes = 32;

  Target& t_;
  llvm::IRBuilder<>& b_;
  const EmbeddingGradientShape s_;
  bool fresh_;
  Value* columns_;
  int32_t tokens_, sums_;
  // Device:
  unsigned lanes_ = 1;
  Point point_;            // this lane's columns
  Value* owns_ = nullptr;  // there are such
  llvm::GlobalVariable* list_ = nullptr;
};

}  // namespace

void emit_embedding_gradient(Target& t) { EmbeddingGradient(t).emit(); }

}  // namespace gacc::codegen
