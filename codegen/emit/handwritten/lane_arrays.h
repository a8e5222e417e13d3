// Small arrays of lane values over the channels of a head, and the two inner products that attention is made
// of.
//
// Host: a lane is one position (a query, or a key), a vector has many of them. An array lies on the stack,
// and channels are a loop.
//
// Device: a position belongs to a *team*, a power of two of neighbouring threads of a warp, so that a thread
// keeps few channels of an array (Team): written out, they are registers. Chunks of 4 channels (2 or 1 where
// 4 do not divide the width) go round the team, so its threads read a row side by side. Sums over channels
// are finished by shuffles, and dealt out: of the rows that are met at a time every thread has its own, to
// make a weight of, and gets the others' weights when it adds up. All threads of a warp must get here
// together. The order of a sum depends on the width alone.
#pragma once
#include "codegen/emit/target.h"
#include "kernels/handwritten/attention_call.h"

namespace gacc::codegen {

class LaneArrays {
 public:
  // `team`: 0 on the host. `member`: which of its team's threads this is, of index type. `rows`: the dtype of all slots
  // that rows are of; f32 where they differ.
  LaneArrays(Target& t, unsigned lanes, int64_t channels, int64_t team, Value* member, ir::DType rows);

  // One lane value for each channel; what it holds at first is undefined.
  using Array = llvm::AllocaInst*;
  Array make(int64_t count);
  Array make() { return make(ceil_divide(own_, lanes_) * lanes_); }
  Value* get(Array array, Value* channel) {
    return b_.CreateAlignedLoad(type_, place(array, channel), align());
  }
  void set(Array array, Value* channel, Value* value) {
    b_.CreateAlignedStore(value, place(array, channel), align());
  }
  void clear(Array array);

  // Positions first, first + 1, .. of a slot whose position i has its channels at base + i * stride. Those
  // from `length` on are read as 0 and not stored (host; the device's only position exists). `scale` (a lane
  // value) multiplies; null: 1.
  struct Positions {
    int32_t slot;
    Value* base;
    int64_t stride, length;
  };
  void load(Array to, const Positions& from, Value* first, Value* scale);
  void store(Array from, const Positions& to, Value* first, Value* scale);

  // Rows of one position each: channels at slot[base + offset ..]; the same for all lanes.
  struct Row {
    int32_t slot;
    Value* base;
    int64_t offset;
  };
  // Returns the rows of positions first .. first + count - 1, of which `there` exist; the others repeat the last of
  // those. On the device `count` is a power of two.
  std::vector<Row> rows(const Positions& p, Value* first, size_t count, size_t there);
  // For each set and each of its rows: sum over channels of array * row, from the first channel to the last
  // (device: of the thread's; then thread by thread in pairs). Results are those of the lane's own rows.
  struct Dot {
    Array array;
    std::vector<Row> rows;
  };
  std::vector<Values> dots(const std::vector<Dot>& sets);
  // Returns the sum over channels of the products of two arrays.
  Value* dot(Array a, Array b);
  // The number, among `count` rows, of the one that result i is of.
  Value* row_of(size_t i, size_t count);
  // Over all `count` rows from the lane's own: the largest, the sum.
  Value* over_rows(ir::Combine how, Value* value, size_t count);
  // For each set: array = array * decay (null: 1) + sum of weight * row, in the order of the rows. Weights
  // are those of the lane's own rows. With `sees`, for every row, lanes that do not see it leave it out: what it
  // holds may be infinite, and no weight of 0 hides that.
  struct Sum {
    Array array;
    Value* decay;
    Values weights;
    std::vector<Row> rows;
    Values sees;
  };
  void add(const std::vector<Sum>& sets);

  Value* real(double value) { return t_.real(value, lanes_); }

 private:
  llvm::Align align() const { return llvm::Align(4 * lanes_); }
  Value* place(Array array, Value* channel) { return b_.CreateInBoundsGEP(type_, array, channel); }
  // Channels that one load of a row fetches.
  unsigned chunk() const {
    return team_ == 0 ? (pairs_ ? 2 : 1) : static_cast<unsigned>(Team::chunk(channels_));
  }
  // Neighbouring channels: where they are in arrays and, as a sum, in rows. `there`: whether the team's
  // thread has them (null: it has); if not, it reads its first ones.
  struct Chunk {
    Value *own, *start, *offset, *there;
  };
  Chunk chunk_at(Value* own);
  Target::Carried over_chunks(const Target::Carried& start,
                              const std::function<Target::Carried(const Chunk&, Target::Carried)>& f);
  void each(const std::function<void(const Chunk&)>& f);
  Value* element(const Chunk& chunk, unsigned i) { return b_.CreateAdd(chunk.own, t_.index(i)); }
  // The chunk's place in a row.
  Value* place(const Row& row, const Chunk& chunk);
  // The chunk of a row, each element in all lanes.
  Values fetch(const Row& row, const Chunk& chunk);
  Values dealt(Values sums);
  // The weights of all rows.
  Values gathered(const Values& weights, size_t count);
  Values transposed(Values rows);
  // Calls f(first channel, where the rows lie) for each block of `lanes` channels; host only.
  using RowPlace = std::function<std::pair<Value*, Point>(unsigned row)>;
  void tiles(const Positions& p, Value* first, const std::function<void(Value* channel, const RowPlace&)>& f);

  Target& t_;
  llvm::IRBuilder<>& b_;
  unsigned lanes_;
  int64_t channels_, team_;
  bool pairs_;        // host: rows are bf16, and read two channels at a time
  int64_t own_;       // elements of an array
  Value* mine_;       // device: the thread's first channel
  llvm::Type* type_;  // of an element
};

}  // namespace gacc::codegen
