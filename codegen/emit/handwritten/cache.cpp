// Going on with a text by the keys and values of its earlier positions (ir/ops/cache.cpp has the formulas). Loops run
// over the positions so far, and no further.
#include <limits>

#include "codegen/emit/handwritten/emitters.h"

namespace gacc::codegen {

namespace {

// The position, as an index: element 0 of a slot.
Value* position_of(Target& t, int32_t slot) {
  return t.b.CreateZExtOrTrunc(t.load_one(slot, t.index(0)), t.index_type);
}

// The first position that it sees.
Value* first_seen(Target& t, const CacheShape& s, Value* position) {
  if (s.window == 0) return t.index(0);
  Value* before = t.index(s.window - 1);
  return t.b.CreateSelect(t.b.CreateICmpULT(position, before), t.index(0), t.b.CreateSub(position, before));
}

// Returns the first of the channels of keys and values that a query head reads.
Value* met_channels(Target& t, const CacheShape& s, Value* head) {
  return t.b.CreateMul(t.b.CreateUDiv(head, t.index(s.group())), t.index(s.channels));
}

}  // namespace

void emit_cache_put(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const auto s = t.body.shape.as<CacheShape>();
  const int64_t channels = s.kv_heads * s.channels;
  t.items([&](Value* channel) {
    Value* from = b.CreateAdd(channel, t.index(s.heads * s.channels + (s.keys != 0 ? 0 : channels)));
    Value* position = position_of(t, 2);
    Value* to = s.keys != 0 ? b.CreateAdd(b.CreateMul(channel, t.index(s.positions)), position)
                            : b.CreateAdd(b.CreateMul(position, t.index(channels)), channel);
    t.store_one(3, to, t.load_one(1, from));
  });
}

void emit_cache_scores(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const auto s = t.body.shape.as<CacheShape>();
  Value *query = nullptr, *keys = nullptr, *to = nullptr, *position = nullptr, *first = nullptr;
  t.points(
      [&](Value* row) {
        Value *sample = b.CreateUDiv(row, t.index(s.heads)), *head = b.CreateURem(row, t.index(s.heads));
        query = b.CreateAdd(b.CreateMul(sample, t.index(s.row())), b.CreateMul(head, t.index(s.channels)));
        keys = b.CreateMul(met_channels(t, s, head), t.index(s.positions));
        to = b.CreateMul(row, t.index(s.positions));
        position = position_of(t, 2);
        first = first_seen(t, s, position);
      },
      [&](const Point& at) {
        // Points behind the position, or whose last lane is before the first one seen, have nothing to do.
        Value* last = b.CreateAdd(at.column, t.index(at.lanes - 1));
        Value* some = b.CreateAnd(b.CreateICmpULE(at.column, position), b.CreateICmpUGE(last, first));
        Value* end = b.CreateSelect(some, t.index(s.channels), t.index(0));
        Value* from = b.CreateAdd(keys, at.column);
        const Target::Carried sum = t.loop(
            t.index(0), end, t.index(1), {t.real(0, at.lanes)}, [&](Value* c, const Target::Carried& so_far) {
              Value* q = t.splat(t.load_one(0, b.CreateAdd(query, c)), at.lanes);
              Value* k = t.load(1, b.CreateAdd(from, b.CreateMul(c, t.index(s.positions))), at);
              return Target::Carried{t.math.fma(q, k, so_far[0])};
            });
        Value* here = t.columns_of(at);
        const auto all = [&](Value* index) { return t.splat(t.word(index), at.lanes); };
        Value* seen = b.CreateAnd(b.CreateICmpULE(here, all(position)), b.CreateICmpUGE(here, all(first)));
        const auto real = [&](double value) { return t.math.real(sum[0], value); };
        Value* score = b.CreateFMul(sum[0], real(s.softcap > 0 ? s.scale / s.softcap : s.scale));
        if (s.softcap > 0) score = b.CreateFMul(t.math.tanh(score), real(s.softcap));
        Value* least = t.math.real(sum[0], std::numeric_limits<float>::lowest());
        t.store(3, b.CreateAdd(to, at.column), b.CreateSelect(seen, score, least), at);
      });
}

void emit_cache_read(Target& t) {
  llvm::IRBuilder<>& b = t.b;
  const auto s = t.body.shape.as<CacheShape>();
  Value *weights = nullptr, *channels = nullptr, *to = nullptr, *first = nullptr, *end = nullptr;
  t.points(
      [&](Value* row) {
        weights = b.CreateMul(row, t.index(s.positions));
        channels = met_channels(t, s, b.CreateURem(row, t.index(s.heads)));
        to = b.CreateMul(row, t.index(s.channels));
        Value* position = position_of(t, 2);
        first = first_seen(t, s, position);
        end = b.CreateAdd(position, t.index(1));
      },
      [&](const Point& at) {
        Value* from = b.CreateAdd(channels, at.column);
        const Target::Carried sum = t.loop(
            first, end, t.index(1), {t.real(0, at.lanes)}, [&](Value* j, const Target::Carried& so_far) {
              Value* p = t.splat(t.load_one(0, b.CreateAdd(weights, j)), at.lanes);
              Value* row = b.CreateMul(j, t.index(s.kv_heads * s.channels));
              return Target::Carried{t.math.fma(p, t.load(1, b.CreateAdd(from, row), at), so_far[0])};
            });
        t.store(3, b.CreateAdd(to, at.column), sum[0], at);
      });
}

}  // namespace gacc::codegen
