// Dropout of attention's probabilities: the same numbers for every kernel, target and schedule.
#pragma once
#include "codegen/emit/target.h"
#include "kernels/handwritten/attention_call.h"

namespace gacc::codegen {

class AttentionDropout {
 public:
  // Dropout of one sample. `sample`: its number in the micro-batch.
  AttentionDropout(Target& t, const AttentionShape& s, Value* sample) : t_(t), p_(s.p) {
    const auto scalar = [&](int64_t i) { return t.load_one(static_cast<int32_t>(s.words + i), t.index(0)); };
    const auto wide = [&](Value* v) { return t.b.CreateZExt(v, t.b.getInt64Ty()); };
    seed_low_ = scalar(0), seed_high_ = scalar(1);
    ordinal_ = t.b.CreateOr(wide(scalar(2)), t.b.CreateShl(wide(scalar(3)), 32));
    ordinal_ = t.b.CreateAdd(ordinal_, t.b.CreateZExtOrTrunc(sample, t.b.getInt64Ty()));
  }

  // 0 or `kept` for probabilities (head * T + query) * T + key, i64 in every lane.
  Value* factor(Value* element, double kept) const {
    const unsigned lanes = Math::lanes(element);
    const auto everywhere = [&](Value* scalar) { return t_.splat(scalar, lanes); };
    Value* high = t_.b.CreateAnd(ordinal_, ~uint64_t{0xffffffff});
    Value* u = t_.math.uniform(
        everywhere(seed_low_), everywhere(seed_high_), everywhere(t_.constants[kAttentionStream]),
        everywhere(t_.b.CreateTrunc(ordinal_, t_.b.getInt32Ty())), t_.b.CreateAdd(element, everywhere(high)));
    const auto real = [&](double value) { return t_.math.real(u, value); };
    return t_.b.CreateSelect(t_.b.CreateFCmpOLT(u, real(p_)), real(0), real(kept));
  }

 private:
  Target& t_;
  double p_;
  Value *seed_low_ = nullptr, *seed_high_ = nullptr, *ordinal_ = nullptr;
};

}  // namespace gacc::codegen
