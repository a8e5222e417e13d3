// See lane_arrays.h.
#include "codegen/emit/special/lane_arrays.h"

namespace gacc::codegen {

LaneArrays::Array LaneArrays::make(int64_t count) {
  llvm::BasicBlock& entry = t_.function->getEntryBlock();
  llvm::IRBuilder<> top(&entry, entry.begin());
  llvm::AllocaInst* array = top.CreateAlloca(llvm::ArrayType::get(type_, static_cast<uint64_t>(count)));
  array->setAlignment(align());
  return array;
}

void LaneArrays::each(const std::function<void(Value*)>& f) {
  if (unrolled()) {
    for (int64_t c = 0; c < channels_; ++c) f(t_.index(c));
    return;
  }
  t_.loop(t_.index(0), t_.index(channels_), t_.index(1), {},
          [&](Value* c, const Target::Carried&) { return f(c), Target::Carried{}; });
}

std::vector<Value*> LaneArrays::fetch(const Row& row, Value* channel) {
  Value* at = b_.CreateAdd(row.base, channel);
  if (chunk() == 1) return {t_.splat(t_.load_one(row.slot, at), lanes_)};
  Value* four = t_.load(row.slot, at, Point{nullptr, nullptr, nullptr, chunk()});
  std::vector<Value*> values;
  for (unsigned i = 0; i < chunk(); ++i) values.push_back(b_.CreateExtractElement(four, uint64_t{i}));
  return values;
}

std::vector<std::vector<Value*>> LaneArrays::dots(const std::vector<Dot>& sets) {
  Target::Carried sums;
  for (const Dot& set : sets) sums.insert(sums.end(), set.rows.size(), real(0));
  const auto step = [&](Value* channel, Target::Carried carried) {
    size_t k = 0;
    for (const Dot& set : sets) {
      std::vector<Value*> own;
      for (unsigned i = 0; i < chunk(); ++i)
        own.push_back(get(set.array, b_.CreateAdd(channel, t_.index(i))));
      for (const Row& row : set.rows) {
        const std::vector<Value*> values = fetch(row, channel);
        for (size_t i = 0; i < values.size(); ++i) carried[k] = t_.math.fma(own[i], values[i], carried[k]);
        ++k;
      }
    }
    return carried;
  };
  if (unrolled()) {
    for (int64_t c = 0; c < channels_; c += chunk()) sums = step(t_.index(c), std::move(sums));
  } else {
    sums = t_.loop(t_.index(0), t_.index(channels_), t_.index(1), sums, step);
  }
  std::vector<std::vector<Value*>> results;
  auto next = sums.begin();
  for (const Dot& set : sets) {
    const auto count = static_cast<std::ptrdiff_t>(set.rows.size());
    results.emplace_back(next, next + count);
    next += count;
  }
  return results;
}

void LaneArrays::add(const std::vector<Sum>& sets) {
  const auto step = [&](Value* channel) {
    for (const Sum& set : sets) {
      std::vector<Value*> places, own;
      for (unsigned i = 0; i < chunk(); ++i) {
        places.push_back(b_.CreateAdd(channel, t_.index(i)));
        own.push_back(get(set.array, places[i]));
        if (set.decay != nullptr) own[i] = b_.CreateFMul(own[i], set.decay);
      }
      for (size_t r = 0; r < set.rows.size(); ++r) {
        const std::vector<Value*> values = fetch(set.rows[r], channel);
        for (size_t i = 0; i < values.size(); ++i) own[i] = t_.math.fma(set.weights[r], values[i], own[i]);
      }
      for (unsigned i = 0; i < chunk(); ++i) this->set(set.array, places[i], own[i]);
    }
  };
  if (unrolled()) {
    for (int64_t c = 0; c < channels_; c += chunk()) step(t_.index(c));
  } else {
    each(step);
  }
}

// Exchanges the halves of pairs of rows, then quarters, and so on down to neighbours.
LaneArrays::Vectors LaneArrays::transposed(Vectors rows) {
  for (unsigned gap = lanes_ / 2; gap > 0; gap /= 2) {
    std::vector<int> low, high;
    for (unsigned i = 0; i < lanes_; ++i) {
      const bool second = (i & gap) != 0;
      low.push_back(static_cast<int>(second ? lanes_ + i - gap : i));
      high.push_back(static_cast<int>(second ? lanes_ + i : i + gap));
    }
    for (unsigned r = 0; r < lanes_; ++r) {
      if ((r & gap) != 0) continue;
      Value *a = rows[r], *b = rows[r + gap];
      rows[r] = b_.CreateShuffleVector(a, b, low);
      rows[r + gap] = b_.CreateShuffleVector(a, b, high);
    }
  }
  return rows;
}

void LaneArrays::tiles(const Positions& p, Value* first,
                       const std::function<void(Value*, const std::function<Point(unsigned)>&)>& f) {
  const auto tile = [&](Value* channel) {
    Value* inside = nullptr;  // channels that exist
    if (channels_ % lanes_ != 0) {
      Value* left = b_.CreateTrunc(b_.CreateSub(t_.index(channels_), channel), b_.getInt32Ty());
      inside = b_.CreateICmpSLT(t_.iota(b_.getInt32Ty(), lanes_), t_.splat(left, lanes_));
    }
    f(channel, [&](unsigned row) {
      Value* mask = inside;
      if (p.length % lanes_ != 0) {
        Value* there = b_.CreateICmpULT(b_.CreateAdd(first, t_.index(row)), t_.index(p.length));
        there = t_.splat(there, lanes_);
        mask = mask == nullptr ? there : b_.CreateAnd(mask, there);
      }
      return Point{nullptr, nullptr, mask, lanes_};
    });
  };
  t_.loop(t_.index(0), t_.index(channels_), t_.index(lanes_), {},
          [&](Value* channel, const Target::Carried&) { return tile(channel), Target::Carried{}; });
}

void LaneArrays::load(Array to, const Positions& from, Value* first, Value* scale) {
  const auto put = [&](Value* channel, Value* value) {
    set(to, channel, scale == nullptr ? value : b_.CreateFMul(value, scale));
  };
  if (lanes_ == 1) {
    const Row row{from.slot, element(from, first, t_.index(0))};
    const auto step = [&](Value* channel) {
      const std::vector<Value*> values = fetch(row, channel);
      for (size_t i = 0; i < values.size(); ++i)
        put(b_.CreateAdd(channel, t_.index(static_cast<int64_t>(i))), values[i]);
    };
    if (!unrolled()) return each(step);
    for (int64_t c = 0; c < channels_; c += chunk()) step(t_.index(c));
    return;
  }
  tiles(from, first, [&](Value* channel, const std::function<Point(unsigned)>& point) {
    Vectors rows;
    for (unsigned r = 0; r < lanes_; ++r) {
      Value* position = b_.CreateAdd(first, t_.index(r));
      rows.push_back(t_.load(from.slot, element(from, position, channel), point(r)));
    }
    rows = transposed(std::move(rows));
    for (unsigned i = 0; i < lanes_; ++i) put(b_.CreateAdd(channel, t_.index(i)), rows[i]);
  });
}

void LaneArrays::store(Array from, const Positions& to, Value* first, Value* scale) {
  const auto value = [&](Value* channel) {
    Value* one = get(from, channel);
    return scale == nullptr ? one : b_.CreateFMul(one, scale);
  };
  if (lanes_ == 1) {
    each([&](Value* channel) { t_.store_one(to.slot, element(to, first, channel), value(channel)); });
    return;
  }
  tiles(to, first, [&](Value* channel, const std::function<Point(unsigned)>& point) {
    Vectors rows;
    for (unsigned i = 0; i < lanes_; ++i) rows.push_back(value(b_.CreateAdd(channel, t_.index(i))));
    rows = transposed(std::move(rows));
    for (unsigned r = 0; r < lanes_; ++r) {
      Value* position = b_.CreateAdd(first, t_.index(r));
      t_.store(to.slot, element(to, position, channel), rows[r], point(r));
    }
  });
}

}  // namespace gacc::codegen
