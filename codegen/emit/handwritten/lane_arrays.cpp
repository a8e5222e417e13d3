#include "codegen/emit/handwritten/lane_arrays.h"

#include <algorithm>

namespace gacc::codegen {

LaneArrays::LaneArrays(Target& t, unsigned lanes, int64_t channels, int64_t team, Value* member,
                       ir::DType rows)
    : t_(t),
      b_(t.b),
      lanes_(lanes),
      channels_(channels),
      team_(team),
      pairs_(team == 0 && channels % 2 == 0 && rows == ir::DType::bf16),
      own_(team == 0 ? channels : Team::share(channels, team)),
      mine_(team == 0 ? nullptr : b_.CreateMul(member, t.index(chunk()))),
      type_(Math::with_lanes(t.b.getFloatTy(), lanes)) {}

LaneArrays::Array LaneArrays::make(int64_t count) {
  llvm::BasicBlock& entry = t_.function->getEntryBlock();
  llvm::IRBuilder<> top(&entry, entry.begin());
  llvm::AllocaInst* array = top.CreateAlloca(llvm::ArrayType::get(type_, static_cast<uint64_t>(count)));
  array->setAlignment(align());
  return array;
}

// --- channels

LaneArrays::Chunk LaneArrays::chunk_at(Value* own) {
  if (team_ == 0) return {own, own, t_.index(0), nullptr};
  Value* offset = b_.CreateMul(own, t_.index(team_));
  const auto* number = llvm::dyn_cast<llvm::ConstantInt>(own);
  const int64_t at_once = chunk() * team_;
  const bool whole = channels_ % at_once == 0 ||
                     (number != nullptr && number->getSExtValue() * team_ + at_once <= channels_);
  if (whole) return {own, mine_, offset, nullptr};
  Value* there = b_.CreateICmpULT(b_.CreateAdd(mine_, offset), t_.index(channels_));
  return {own, mine_, b_.CreateSelect(there, offset, t_.index(0)), there};
}

Target::Carried LaneArrays::over_chunks(
    const Target::Carried& start, const std::function<Target::Carried(const Chunk&, Target::Carried)>& f) {
  if (team_ == 0 || own_ > Team::kMostChannels)
    return t_.loop(t_.index(0), t_.index(own_), t_.index(chunk()), start,
                   [&](Value* own, const Target::Carried& carried) { return f(chunk_at(own), carried); });
  Target::Carried carried = start;
  for (int64_t own = 0; own < own_; own += chunk()) carried = f(chunk_at(t_.index(own)), std::move(carried));
  return carried;
}

void LaneArrays::each(const std::function<void(const Chunk&)>& f) {
  over_chunks({}, [&](const Chunk& chunk, const Target::Carried&) { return f(chunk), Target::Carried{}; });
}

void LaneArrays::clear(Array array) {
  each([&](const Chunk& at) {
    for (unsigned i = 0; i < chunk(); ++i) set(array, element(at, i), real(0));
  });
}

// On the device a constant is the last thing added, for then it becomes part of the instruction: it must be
// known that sums of indices do not overflow.
Value* LaneArrays::place(const Row& row, const Chunk& chunk) {
  if (team_ == 0) return b_.CreateAdd(row.base, chunk.own);
  const auto sum = [&](Value* a, Value* b) {
    return b_.CreateAdd(a, b, "", /*HasNUW=*/true, /*HasNSW=*/true);
  };
  return sum(sum(row.base, chunk.start), sum(chunk.offset, t_.index(row.offset)));
}

std::vector<LaneArrays::Row> LaneArrays::rows(const Positions& p, Value* first, size_t count, size_t there) {
  std::vector<Row> rows;
  Value* base = b_.CreateAdd(p.base, b_.CreateMul(first, t_.index(p.stride)));
  for (size_t i = 0; i < count; ++i) {
    const int64_t offset = static_cast<int64_t>(std::min(i, there - 1)) * p.stride;
    if (team_ == 0)
      rows.push_back({p.slot, b_.CreateAdd(base, t_.index(offset)), 0});
    else
      rows.push_back({p.slot, base, offset});
  }
  return rows;
}

Values LaneArrays::fetch(const Row& row, const Chunk& chunk) {
  Value* at = place(row, chunk);
  const unsigned count = this->chunk();
  if (pairs_) return t_.load_pair(row.slot, at, lanes_);
  if (count == 1) return {t_.splat(t_.load_one(row.slot, at), lanes_)};
  Value* all = t_.load(row.slot, at, Point{nullptr, nullptr, nullptr, count});
  Values values;
  for (unsigned i = 0; i < count; ++i) values.push_back(b_.CreateExtractElement(all, uint64_t{i}));
  return values;
}

// --- products

std::vector<Values> LaneArrays::dots(const std::vector<Dot>& sets) {
  Target::Carried sums;
  for (const Dot& set : sets) sums.insert(sums.end(), set.rows.size(), real(0));
  sums = over_chunks(sums, [&](const Chunk& at, Target::Carried carried) {
    size_t k = 0;
    for (const Dot& set : sets) {
      Values own;
      for (unsigned i = 0; i < chunk(); ++i) own.push_back(get(set.array, element(at, i)));
      for (const Row& row : set.rows) {
        const Values values = fetch(row, at);
        Value* sum = carried[k];
        for (size_t i = 0; i < values.size(); ++i) sum = t_.math.fma(own[i], values[i], sum);
        carried[k] = at.there == nullptr ? sum : b_.CreateSelect(at.there, sum, carried[k]);
        ++k;
      }
    }
    return carried;
  });
  std::vector<Values> results;
  auto next = sums.begin();
  for (const Dot& set : sets) {
    const auto count = static_cast<std::ptrdiff_t>(set.rows.size());
    results.push_back(dealt(Values(next, next + count)));
    next += count;
  }
  return results;
}

Value* LaneArrays::dot(Array a, Array b) {
  const Target::Carried sum = over_chunks({real(0)}, [&](const Chunk& at, const Target::Carried& carried) {
    Value* now = carried[0];
    for (unsigned i = 0; i < chunk(); ++i) {
      Value *of_a = get(a, element(at, i)), *of_b = get(b, element(at, i));
      now = t_.math.fma(of_a, of_b, now);
    }
    return Target::Carried{at.there == nullptr ? now : b_.CreateSelect(at.there, now, carried[0])};
  });
  return dealt(sum)[0];
}

void LaneArrays::add(const std::vector<Sum>& sets) {
  std::vector<Values> weights;
  for (const Sum& set : sets) weights.push_back(gathered(set.weights, set.rows.size()));
  each([&](const Chunk& at) {
    for (size_t s = 0; s < sets.size(); ++s) {
      const Sum& set = sets[s];
      Values places, own;
      for (unsigned i = 0; i < chunk(); ++i) {
        places.push_back(element(at, i));
        own.push_back(get(set.array, places[i]));
        if (set.decay != nullptr) own[i] = b_.CreateFMul(own[i], set.decay);
      }
      for (size_t r = 0; r < set.rows.size(); ++r) {
        const Values values = fetch(set.rows[r], at);
        for (size_t i = 0; i < values.size(); ++i) {
          Value* sum = t_.math.fma(weights[s][r], values[i], own[i]);
          own[i] = set.sees.empty() ? sum : b_.CreateSelect(set.sees[r], sum, own[i]);
        }
      }
      for (unsigned i = 0; i < chunk(); ++i) this->set(set.array, places[i], own[i]);
    }
  });
}

// --- the team

// Every exchange halves the rows that a thread has sums of, until it has one (of every `team` rows): it keeps
// those of its half of the threads, and gives the others away. With fewer rows than threads the last
// exchanges are with threads of the same row.
Values LaneArrays::dealt(Values sums) {
  if (team_ <= 1) return sums;
  const size_t together = std::min(sums.size(), static_cast<size_t>(team_));
  Values results;
  for (size_t first = 0; first < sums.size(); first += together) {
    Values now(sums.begin() + static_cast<std::ptrdiff_t>(first),
               sums.begin() + static_cast<std::ptrdiff_t>(first + together));
    for (auto distance = static_cast<unsigned>(team_ / 2); distance > 0; distance /= 2) {
      const size_t half = now.size() / 2;
      if (half == 0) {
        now[0] = b_.CreateFAdd(now[0], t_.threads().exchange(b_, now[0], distance));
        continue;
      }
      Value* bit = b_.CreateAnd(mine_, t_.index(distance * chunk()));
      Value* upper = b_.CreateICmpNE(bit, t_.index(0));
      for (size_t i = 0; i < half; ++i) {
        Value* kept = b_.CreateSelect(upper, now[i + half], now[i]);
        Value* given = b_.CreateSelect(upper, now[i], now[i + half]);
        now[i] = b_.CreateFAdd(kept, t_.threads().exchange(b_, given, distance));
      }
      now.resize(half);
    }
    results.push_back(now[0]);
  }
  return results;
}

Value* LaneArrays::row_of(size_t i, size_t count) {
  const auto number = static_cast<int64_t>(i);
  if (team_ <= 1) return t_.index(number);
  const int64_t together = std::min(static_cast<int64_t>(count), team_);
  Value* own = b_.CreateUDiv(mine_, t_.index(team_ / together * chunk()));
  return b_.CreateAdd(own, t_.index(number * together));
}

Value* LaneArrays::over_rows(ir::Combine how, Value* value, size_t count) {
  if (team_ <= 1) return value;
  const int64_t same = team_ / std::min(static_cast<int64_t>(count), team_);  // threads of one row
  for (int64_t distance = team_ / 2; distance >= same; distance /= 2)
    value = t_.math.combine(how, value, t_.threads().exchange(b_, value, static_cast<unsigned>(distance)));
  return value;
}

Values LaneArrays::gathered(const Values& weights, size_t count) {
  if (team_ <= 1) return weights;
  const auto team = static_cast<size_t>(team_), together = std::min(count, team);
  Values all;
  for (size_t r = 0; r < count; ++r) {
    const auto from = static_cast<unsigned>(r % together * (team / together));
    all.push_back(t_.threads().of_member(b_, weights[r / together], from, static_cast<unsigned>(team_)));
  }
  return all;
}

// --- memory

// Exchanges the halves of pairs of rows, then quarters, and so on down to neighbours.
Values LaneArrays::transposed(Values rows) {
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
                       const std::function<void(Value*, const RowPlace&)>& f) {
  t_.each(t_.index(0), t_.index(channels_), t_.index(lanes_), [&](Value* channel) {
    Value* inside = nullptr;  // channels that exist
    if (channels_ % lanes_ != 0) {
      Value* left = b_.CreateTrunc(b_.CreateSub(t_.index(channels_), channel), b_.getInt32Ty());
      inside = b_.CreateICmpSLT(t_.iota(b_.getInt32Ty(), lanes_), t_.splat(left, lanes_));
    }
    f(channel, [&](unsigned row) {
      Value *position = b_.CreateAdd(first, t_.index(row)), *mask = inside;
      if (p.length % lanes_ != 0) {
        Value* there = t_.splat(b_.CreateICmpULT(position, t_.index(p.length)), lanes_);
        mask = mask == nullptr ? there : b_.CreateAnd(mask, there);
      }
      Value* start = b_.CreateAdd(p.base, b_.CreateMul(position, t_.index(p.stride)));
      return std::pair(b_.CreateAdd(start, channel), Point{nullptr, nullptr, mask, lanes_});
    });
  });
}

void LaneArrays::load(Array to, const Positions& from, Value* first, Value* scale) {
  const auto put = [&](Value* channel, Value* value) {
    set(to, channel, scale == nullptr ? value : b_.CreateFMul(value, scale));
  };
  if (team_ > 0) {
    const Row row = rows(from, first, 1, 1)[0];
    return each([&](const Chunk& at) {
      const Values values = fetch(row, at);
      for (unsigned i = 0; i < chunk(); ++i) put(element(at, i), values[i]);
    });
  }
  tiles(from, first, [&](Value* channel, const RowPlace& place) {
    Values rows;
    for (unsigned r = 0; r < lanes_; ++r) {
      const auto [at, point] = place(r);
      rows.push_back(t_.load(from.slot, at, point));
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
  if (team_ > 0) {
    const Row row = rows(to, first, 1, 1)[0];
    return each([&](const Chunk& at) {
      const unsigned count = chunk();
      t_.branch(at.there, [&] {
        if (count == 1) return t_.store_one(to.slot, place(row, at), value(at.own));
        Value* all = llvm::PoisonValue::get(Math::with_lanes(type_, count));
        for (unsigned i = 0; i < count; ++i)
          all = b_.CreateInsertElement(all, value(element(at, i)), uint64_t{i});
        t_.store(to.slot, place(row, at), all, Point{nullptr, nullptr, nullptr, count});
      });
    });
  }
  tiles(to, first, [&](Value* channel, const RowPlace& place) {
    Values rows;
    for (unsigned i = 0; i < lanes_; ++i) rows.push_back(value(b_.CreateAdd(channel, t_.index(i))));
    rows = transposed(std::move(rows));
    for (unsigned r = 0; r < lanes_; ++r) {
      const auto [at, point] = place(r);
      t_.store(to.slot, at, rows[r], point);
    }
  });
}

}  // namespace gacc::codegen
