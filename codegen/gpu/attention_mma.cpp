// Attention of half types by tensor cores (ir/ops/attention.cpp has the formulas): products of tiles by
// mma.sync with f32 sums, all else in f32. A block of 4 warps owns 64 neighbouring positions of a head, a
// warp 16 of them, whose fragments stay in its registers; the positions that they meet pass by in tiles
// through shared memory, two at a time, so that one travels while the other is used.
//
//   forward   own: queries     tiles: keys, values            s = q k^T; online softmax; out += p v
//   d_q       own: q, d_out    tiles: keys, values            ds from q k^T and d_out v^T; dq += ds k
//   d_k, d_v  own: k, v        tiles: queries, d_out          ds^T, p^T from k q^T and v d_out^T;
//                                                             dk += ds^T q, dv += p^T d_out
//
// d_k and d_v walk the queries of each head of their group, one head after the other.
//
// p and ds are rounded to the half type where they become factors, and nowhere else: a product's sums are
// already laid out as the next one's left factor, so they never leave registers. A position's order of
// operations follows from T and the tile alone: same bits in every run.
//
// Positions past T: tiles have zeros there, own rows repeat the last one and are not stored. Probabilities
// are powers of 2 by ex2.approx (2 units in the last place of an f32; a half keeps 2^-9 or 2^-12 of it).
#include <limits>
#include <map>

#include "codegen/gpu/attention_tiles.h"
#include "codegen/gpu/target.h"

namespace gacc::codegen {

namespace {

constexpr double kLog2E = 1.4426950408889634;

class MmaAttention : AttentionTiles {
 public:
  explicit MmaAttention(Target& t) : AttentionTiles(t) {}

  void forward() {
    t_.parts([&](Value* row) {
      begin(row, /*gradient=*/false);
      place_queries();
      const Left query = own(part(0));
      // For each of the thread's rows: the largest score so far, the sum of exponentials of its own columns.
      const size_t rows = rows_.size(), sums = 2 * rows;  // where these, and the output's, begin
      Values start(rows, minus_infinity());
      start.resize(sums + sums_of_channels(), real(0));
      // Values that are not finite make NaN of all rows. It is seldom so, and then they are all made again.
      bool careful = false;
      const auto tile = [&](Value* key, Value* buffer, Values now) {
        const Values scores = masked(capped(product(query, buffer)), key, minus_infinity(), false);
        Values factors(scores.size()), decay(rows);
        for (size_t row = 0; row < rows; ++row) {
          Value* top = now[row];
          each(row, scores.size(), [&](size_t i, size_t) { top = b.CreateMaxNum(top, scores[i]); });
          for (unsigned distance : {1, 2}) top = b.CreateMaxNum(top, gpu::exchange(b, top, distance));
          Value* base = top;
          if (s_.starts_blind())  // a query may have seen no key yet
            base = b.CreateSelect(b.CreateFCmpOEQ(top, minus_infinity()), real(0), top);
          Value* shift = b.CreateFNeg(b.CreateFMul(base, real(unit())));
          decay[row] = power(t_.math.fma(now[row], real(unit()), shift));
          Value* sum = b.CreateFMul(now[rows + row], decay[row]);
          each(row, scores.size(), [&](size_t i, size_t) {
            Value* p = power(t_.math.fma(scores[i], real(unit()), shift));
            sum = b.CreateFAdd(sum, p);
            factors[i] = p;
          });
          now[row] = top, now[rows + row] = sum;
        }
        drop(factors, key, false, 1);
        for (size_t i = 0; i < sums_of_channels(); ++i)
          now[sums + i] = b.CreateFMul(now[sums + i], decay[row_of(i, sums_of_channels())]);
        add_product(now.data() + sums, packed(factors), second(buffer), careful);
        if (!careful) return now;
        const auto first = now.begin() + static_cast<std::ptrdiff_t>(sums);
        std::ranges::copy(with_infinite({first, now.end()}, part(2), key), first);
        return now;
      };
      const auto pass = [&] { return walk({part(1), part(2)}, first_keys(), visible_keys(), start, tile); };
      Values end = pass();
      if (s_.masks()) {
        Value* again = any_nan(end.data() + sums, sums_of_channels());
        careful = true;
        end = t_.either(again, pass, [&] { return end; });
      }
      Values sum(rows), scale(rows);
      for (size_t row = 0; row < rows; ++row) {
        sum[row] = end[rows + row];
        for (unsigned distance : {1, 2})
          sum[row] = b.CreateFAdd(sum[row], gpu::exchange(b, sum[row], distance));
        scale[row] = b.CreateFDiv(real(s_.kept()), sum[row]);
      }
      store(end.data() + sums, scale, output(s_.result()));
      Value* first = b.CreateICmpEQ(b.CreateAnd(lane_, word(3)), word(0));
      for (size_t row = 0; row < rows; ++row)
        t_.branch(b.CreateAnd(first, exists(row)), [&] {
          Value* top = b.CreateFMul(end[row], real(scale_));
          store(top, top_of(s_.result() + 1, rows_[row]));
          store(log_of_sum(sum[row], end[row], top), log_of(s_.result() + 1, rows_[row]));
        });
    });
  }

  void gradient() {
    t_.parts([&](Value* row) {
      begin(row, /*gradient=*/true);
      const int64_t group = s_.group();
      t_.branch(group == 1 ? b.CreateICmpEQ(part_, t_.index(0)) : b.CreateICmpULT(part_, t_.index(group)),
                [&] { query_gradient(); });
      t_.branch(b.CreateICmpEQ(part_, t_.index(group)), [&] { key_gradient(true, s_.parts == 2); });
      if (s_.parts == 3)
        t_.branch(b.CreateICmpEQ(part_, t_.index(group + 1)), [&] { key_gradient(false, true); });
    });
  }

 private:
  void query_gradient() {
    with_statistics_ = false;
    place_queries();
    const Left query = own(part(0)), dy = own(output(s_.kDy));
    Values top, log, delta;
    for (Value* own : rows_) {
      Value* row = min(own, word(s_.length - 1));
      top.push_back(load(top_of(s_.kStatistics, row)));
      log.push_back(load(log_of(s_.kStatistics, row)));
      delta.push_back(load(delta_of(row)));
    }
    const auto tile = [&](Value* key, Value* buffer, Values now) {
      Values p = capped(product(query, buffer)), dp = product(dy, second(buffer));
      const Values slope = slopes(p);
      for (size_t i = 0; i < p.size(); ++i) {
        const size_t row = row_of(i, p.size());
        p[i] = probability(p[i], top[row], log[row]);
      }
      p = masked(p, key, real(0), false);
      drop(dp, key, false, s_.kept());
      for (size_t i = 0; i < p.size(); ++i)
        p[i] = by_slope(b.CreateFMul(p[i], b.CreateFSub(dp[i], delta[row_of(i, p.size())])), slope, i);
      add_product(now.data(), packed(p), buffer);
      return now;
    };
    const Values end =
        walk({part(1), part(2)}, first_keys(), visible_keys(), Values(sums_of_channels(), real(0)), tile);
    store(end.data(), Values(rows_.size(), real(s_.scale)), part(0, s_.result()));
  }

  void key_gradient(bool wants_k, bool wants_v) {
    place(block_);
    with_statistics_ = true;
    const Left key = own_in_shared(part(1), 0);
    const Left value = wants_k ? own_in_shared(part(2), 1) : Left();
    const size_t dv = wants_k ? sums_of_channels() : 0;  // where its sums begin
    const auto tile = [&](Value* query, Value* buffer, Values now) {
      Values p = capped(product(key, buffer));
      const Values slope = wants_k ? slopes(p) : Values();
      std::map<size_t, Value*> top, log, delta;  // by column
      each(0, p.size(), [&](size_t, size_t column) {
        top[column] = statistic_of(buffer, 0, column);
        log[column] = statistic_of(buffer, 1, column);
        if (wants_k) delta[column] = statistic_of(buffer, 2, column);
        if (wants_k && s_.kept() != 1) delta[column] = b.CreateFMul(delta[column], real(1 / s_.kept()));
      });
      for (size_t i = 0; i < p.size(); ++i) {
        const size_t column = column_of(i, p.size());
        p[i] = probability(p[i], top[column], log[column]);
      }
      if (s_.masks()) p = masked(p, query, real(0), true);
      Values kept(p.size(), real(1));
      drop(kept, query, true, 1);
      if (wants_k) {
        Values ds = product(value, second(buffer));
        for (size_t i = 0; i < p.size(); ++i) {
          if (s_.words != 0) ds[i] = b.CreateFMul(ds[i], kept[i]);
          ds[i] = by_slope(b.CreateFMul(p[i], b.CreateFSub(ds[i], delta[column_of(i, p.size())])), slope, i);
        }
        add_product(now.data(), packed(ds), buffer);
      }
      if (wants_v) {
        if (s_.words != 0)
          for (size_t i = 0; i < p.size(); ++i) p[i] = b.CreateFMul(p[i], kept[i]);
        add_product(now.data() + dv, packed(p), second(buffer));
      }
      return now;
    };
    const Values end = walk_heads(
        [&] {
          return std::array{part(0), output(s_.kDy)};
        },
        first_queries(), seeing_queries(), Values(sums_of_channels() * (wants_k && wants_v ? 2 : 1), real(0)),
        tile);
    if (wants_k) store(end.data(), Values(rows_.size(), real(s_.scale * s_.kept())), part(1, s_.result()));
    if (wants_v) store(end.data() + dv, Values(rows_.size(), real(s_.kept())), part(2, s_.result()));
  }

  // With a cap: the tangents that stand for scores.
  Values capped(Values products) {
    if (s_.softcap > 0)
      for (Value*& x : products) x = t_.math.tanh(b.CreateFMul(x, real(s_.query_scale())), Accuracy::half);
    return products;
  }
  // With a cap: the derivatives of scores by what is capped.
  Values slopes(const Values& tangents) {
    Values all;
    if (s_.softcap > 0)
      for (Value* t : tangents) all.push_back(b.CreateFSub(real(1), b.CreateFMul(t, t)));
    return all;
  }
  Value* by_slope(Value* gradient, const Values& slopes, size_t i) {
    return slopes.empty() ? gradient : b.CreateFMul(gradient, slopes[i]);
  }
  double unit() const { return scale_ * kLog2E; }  // of a score, in powers of 2
  // Returns log(sum) relative to top, which is largest * scale rounded; sum was made with largest * unit rounded.
  Value* log_of_sum(Value* sum, Value* largest, Value* top) {
    // The product once more, in another form: the loop's own would stay in a register until here.
    Value* product = t_.math.fma(largest, real(unit()), real(0));
    Value* in_sum = b.CreateFMul(t_.math.fma(largest, real(unit()), b.CreateFNeg(product)), real(1 / kLog2E));
    Value* in_top = t_.math.fma(largest, real(scale_), b.CreateFNeg(top));
    return b.CreateFAdd(t_.math.log(sum), b.CreateFSub(in_top, in_sum));
  }
  // exp((score * scale_ - top) - log)
  Value* probability(Value* score, Value* top, Value* log) {
    Value* shifted = t_.math.fma(score, real(scale_), b.CreateFNeg(top));
    return power(t_.math.fma(shifted, real(kLog2E), b.CreateFNeg(b.CreateFMul(log, real(kLog2E)))));
  }
  Value* power(Value* x) {
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_ex2_approx_ftz_f, llvm::ArrayRef<llvm::Type*>{}, {x});
  }
  Value* minus_infinity() { return real(-std::numeric_limits<double>::infinity()); }
};

}  // namespace

void emit_attention_mma(Target& target) {
  MmaAttention attention(target);
  if (target.body.op->gradient_of != nullptr)
    attention.gradient();
  else
    attention.forward();
}

}  // namespace gacc::codegen
