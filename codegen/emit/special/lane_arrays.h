// Small arrays of lane values over the channels of a head, and the two inner products that attention is made
// of. A lane is one position (a query, or a key): on the host a vector has many, on the device a thread is
// one.
//
// Host: an array lies on the stack, and channels are a loop. Device: channels are written out as far as
// kUnrolled, so that LLVM keeps arrays in registers.
#pragma once
#include "codegen/emit/target.h"

namespace gacc::codegen {

class LaneArrays {
 public:
  static constexpr int64_t kUnrolled = 128;

  LaneArrays(Target& t, unsigned lanes, int64_t channels)
      : t_(t),
        b_(t.b),
        lanes_(lanes),
        channels_(channels),
        type_(Math::with_lanes(t.b.getFloatTy(), lanes)) {}

  // One lane value for each channel; what it holds at first is undefined.
  using Array = llvm::AllocaInst*;
  Array make(int64_t count);
  Array make() { return make((channels_ + lanes_ - 1) / lanes_ * lanes_); }
  Value* get(Array array, Value* channel) {
    return b_.CreateAlignedLoad(type_, place(array, channel), align());
  }
  void set(Array array, Value* channel, Value* value) {
    b_.CreateAlignedStore(value, place(array, channel), align());
  }
  void clear(Array array) {
    each([&](Value* c) { set(array, c, real(0)); });
  }

  // Positions first, first + 1, .. of a slot whose position i has its channels at base + i * stride. Those
  // from `length` on are read as 0 and not stored. `scale` (a lane value) multiplies; null: 1.
  struct Positions {
    int32_t slot;
    Value* base;
    int64_t stride, length;
  };
  void load(Array to, const Positions& from, Value* first, Value* scale);
  void store(Array from, const Positions& to, Value* first, Value* scale);

  // Rows of one position each: channels at slot[base ..]; the same for all lanes.
  struct Row {
    int32_t slot;
    Value* base;
  };
  // For each set and each of its rows: sum over channels of array * row, from the first channel to the last.
  struct Dot {
    Array array;
    std::vector<Row> rows;
  };
  std::vector<std::vector<Value*>> dots(const std::vector<Dot>& sets);
  // For each set: array = array * decay (null: 1) + sum of weight * row, in the order of the rows.
  struct Sum {
    Array array;
    Value* decay;
    std::vector<Value*> weights;
    std::vector<Row> rows;
  };
  void add(const std::vector<Sum>& sets);

  Value* real(double value) { return t_.splat(llvm::ConstantFP::get(b_.getFloatTy(), value), lanes_); }

 private:
  llvm::Align align() const { return llvm::Align(4 * lanes_); }
  Value* place(Array array, Value* channel) { return b_.CreateInBoundsGEP(type_, array, channel); }
  bool unrolled() const { return lanes_ == 1 && channels_ <= kUnrolled; }
  // Channels that one load of a row fetches where channels are written out.
  unsigned chunk() const { return unrolled() && channels_ % 4 == 0 ? 4 : 1; }
  void each(const std::function<void(Value* channel)>& f);
  // The chunk of a row from `channel` on, each element in all lanes.
  std::vector<Value*> fetch(const Row& row, Value* channel);
  using Vectors = std::vector<Value*>;
  Vectors transposed(Vectors rows);
  // Calls f(first channel, masks of the rows) for each block of `lanes` channels; host only.
  void tiles(const Positions& p, Value* first,
             const std::function<void(Value* channel, const std::function<Point(unsigned row)>&)>& f);
  Value* element(const Positions& p, Value* position, Value* channel) {
    return b_.CreateAdd(b_.CreateAdd(p.base, b_.CreateMul(position, t_.index(p.stride))), channel);
  }

  Target& t_;
  llvm::IRBuilder<>& b_;
  unsigned lanes_;
  int64_t channels_;
  llvm::Type* type_;
};

}  // namespace gacc::codegen
