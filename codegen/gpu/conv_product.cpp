// Convolutions as implicit products: tiles of mma_tile.h or ffma_tile.h, whose operands are gathered from images
// and weights on their way into shared memory (conv_operands.h).
//
// What lies side by side travels as dense operands do, 16 bytes at a time: the weight of forward, the places of
// the weight's gradient, and all of them where the kernel has one tap. The rest is gathered element by element
// into registers while the tile before is multiplied. Neighbouring threads read neighbouring pixels.
//
// A block computes a tile. Of a micro-batch that is not full there may be a few more tiles than blocks: then a
// block has another one. Sums run over the inner dimension in order, so an element's bits do not depend on it.
#include "codegen/gpu/conv_operands.h"
#include "codegen/gpu/ffma_tile.h"
#include "codegen/gpu/mma_tile.h"
#include "codegen/gpu/target.h"

namespace gacc::codegen {

namespace {

// By tensor cores.
class MmaConv : ConvOperands {
 public:
  MmaConv(Target& t, bool modern)
      : ConvOperands(t),
        mma_(t, tile_, tile_.stages_with(modern), t.body.slots[0].dtype, modern),
        cores_(mma_.cores()) {}

  void emit() {
    const auto begin = [&](Value* thread) {
      thread_ = thread;
      mma_.place(thread, product_.a_inner_last, product_.b_inner_last);
    };
    each_tile(begin, [&] { compute(); });
  }

 private:
  // The staging of an operand in shared memory: a thread has the elements `line * place ..` of every `apart`th row of
  // the tile, from `row` on.
  struct Staging {
    ConvOperand from{};
    MmaTile::Layout layout{};
    int line = 0, moves = 0, apart = 0;
    Value *row = nullptr, *place = nullptr;
    std::vector<Value*> to{};  // shared addresses in the first buffer, of moves to a multiple of 8 rows
    std::vector<ConvPart>
        fixed{};  // of the outer dimension: of each move (inner_last), or of the line's elements
    bool copied() const { return line == MmaTile::kChunk; }
  };

  void compute() {
    const Staging staged[2] = {staging(left(), mma_.left(), tile_.m, row0_),
                               staging(right(), mma_.right(), tile_.n, column0_)};
    MmaTile::Staging in;
    in.send = [&](Value* k0, Value* buffer) {
      k0 = existing(k0);
      for (const Staging& staging : staged)
        if (staging.copied()) send(staging, k0, buffer);
    };
    if (!staged[0].copied() || !staged[1].copied()) {
      in.fetch = [&](Value* k0) {
        k0 = existing(k0);
        Values fetched;
        for (const Staging& staging : staged)
          if (!staging.copied()) gather(staging, k0, fetched);
        return fetched;
      };
      in.put = [&](const Values& fetched, Value* buffer) {
        size_t next = 0;
        for (const Staging& staging : staged)
          if (!staging.copied()) put(staging, fetched, next, buffer);
      };
    }
    store_sums(mma_, mma_.products(k_, in));
    cores_.wait(0);
  }

  Staging staging(ConvOperand from, const MmaTile::Layout& layout, int width, Value* origin) {
    Staging staging;
    staging.layout = layout;
    staging.line = from.run % MmaTile::kChunk == 0 ? MmaTile::kChunk : 2;
    const int across = layout.chunks * MmaTile::kChunk / staging.line,
              rows = from.inner_last ? width : tile_.k;
    staging.apart = tile_.threads() / across;
    staging.moves = rows / staging.apart;
    staging.row = b.CreateUDiv(thread_, word(across));
    staging.place = b.CreateURem(thread_, word(across));
    const int in_chunk = MmaTile::kChunk / staging.line;
    for (int v = 0; v < std::max(1, 8 / staging.apart); ++v) {
      Value* chunk = mma_.chunk(layout, add(staging.row, v * staging.apart),
                                b.CreateUDiv(staging.place, word(in_chunk)));
      Value* within = b.CreateMul(b.CreateURem(staging.place, word(in_chunk)), word(2 * staging.line));
      staging.to.push_back(b.CreateAdd(chunk, within));
    }
    if (from.inner_last)
      for (int v = 0; v < staging.moves; ++v)
        staging.fixed.push_back(from.outer(b.CreateAdd(origin, add(staging.row, v * staging.apart))));
    else
      for (int e = 0; e < (staging.copied() ? 1 : staging.line); ++e)
        staging.fixed.push_back(from.outer(b.CreateAdd(origin, element_of(staging, e))));
    staging.from = std::move(from);
    return staging;
  }
  Value* element_of(const Staging& staging, int e) {
    return add(b.CreateMul(staging.place, word(staging.line)), e);
  }

  Value* to(const Staging& staging, int v, Value* buffer) {
    const auto different = static_cast<int>(staging.to.size());
    const int rows = v / different * different * staging.apart;
    return b.CreateAdd(staging.to[v % different], add(buffer, rows * staging.layout.row_bytes()));
  }

  // Calls f(v, outer, inner) for the first `elements` of the line in each row v of the tile that begins at k0.
  void each(const Staging& staging, Value* k0, int elements,
            const std::function<void(int v, const ConvPart& outer, const ConvPart& inner)>& f) {
    std::vector<ConvPart> line;
    if (staging.from.inner_last)
      for (int e = 0; e < elements; ++e) line.push_back(inner(staging, k0, element_of(staging, e)));
    for (int v = 0; v < staging.moves; ++v) {
      ConvPart inner;
      if (!staging.from.inner_last) inner = this->inner(staging, k0, add(staging.row, v * staging.apart));
      for (size_t e = 0; e < static_cast<size_t>(elements); ++e)
        if (staging.from.inner_last)
          f(v, staging.fixed[v], line[e]);
        else
          f(v, staging.fixed[e], inner);
    }
  }

  ConvPart inner(const Staging& staging, Value* k0, Value* at) {
    return staging.from.inner(gpu::opaque(b, b.CreateAdd(k0, at)));
  }

  void send(const Staging& staging, Value* k0, Value* buffer) {
    each(staging, k0, 1, [&](int v, const ConvPart& outer, const ConvPart& inner) {
      Value* there = exists(staging.from, outer, inner);
      Value* from =
          b.CreateSelect(there, address(staging.from, outer, inner), element(staging.from.slot, t_.index(0)));
      cores_.copy(to(staging, v, buffer), from, there);
    });
  }
  void gather(const Staging& staging, Value* k0, Values& fetched) {
    each(staging, k0, staging.line, [&](int, const ConvPart& outer, const ConvPart& inner) {
      fetched.push_back(
          gpu::load_half_where(b, address(staging.from, outer, inner), exists(staging.from, outer, inner)));
    });
  }
  void put(const Staging& staging, const Values& fetched, size_t& next, Value* buffer) {
    for (int v = 0; v < staging.moves; ++v) {
      Value* pair = llvm::PoisonValue::get(stored(2, 2));
      for (uint64_t e = 0; e < 2; ++e) pair = b.CreateInsertElement(pair, fetched[next++], e);
      cores_.put_word(to(staging, v, buffer), b.CreateBitCast(pair, b.getInt32Ty()));
    }
  }

  Value* thread_ = nullptr;
  MmaTile mma_;
  TensorCores& cores_;
};

// By fused multiply-adds.
class FfmaConv : ConvOperands {
 public:
  explicit FfmaConv(Target& t)
      : ConvOperands(t),
        type_(t.body.slots[0].dtype),
        bytes_(static_cast<int>(ir::dtype_bytes(type_))),
        ffma_(t, tile_, type_) {}

  void emit() {
    const auto begin = [&](Value* thread) {
      ffma_.place(thread, product_.a_inner_last, product_.b_inner_last, product_.a_run % kVector == 0,
                  product_.b_run % kVector == 0);
    };
    each_tile(begin, [&] { compute(); });
  }

 private:
  static constexpr int kVector = FfmaTile::kVector;

  void compute() {
    const ConvOperand from[2] = {left(), right()};
    const FfmaTile::Staging* const staged[2] = {&ffma_.left(), &ffma_.right()};
    std::vector<ConvPart> outer[2];  // of each vector (inner_last), or of the elements of every vector
    for (int side = 0; side < 2; ++side) {
      const FfmaTile::Staging& staging = *staged[side];
      Value* first = b.CreateAdd(side == 0 ? row0_ : column0_, staging.outer);
      const int parts = staging.inner_last ? staging.moves : elements(staging);
      for (int i = 0; i < parts; ++i)
        outer[side].push_back(from[side].outer(add(first, staging.inner_last ? i * staging.outer_step : i)));
    }
    const auto fetch = [&](Value* k0, Value*) {
      k0 = existing(k0);
      Values vectors, there;
      for (size_t side : {0, 1}) fetch_operand(from[side], *staged[side], outer[side], k0, vectors, there);
      vectors.insert(vectors.end(), there.begin(), there.end());
      return vectors;
    };
    const auto exists = [&](const FfmaTile::Staging& staging, int v, int j, Value*, const Values& fetched) {
      int first = staged[0]->moves + staged[1]->moves;  // behind the vectors
      if (&staging == staged[1]) first += staged[0]->moves * elements(*staged[0]);
      return fetched[first + v * elements(staging) + j];
    };
    store_sums(ffma_, ffma_.products(k_, fetch, exists));
  }

  // Returns the elements of a vector that are looked at one by one.
  static int elements(const FfmaTile::Staging& staging) { return staging.whole ? 1 : kVector; }

  // The thread's vectors, at once or element by element, and whether they, or their elements, exist.
  void fetch_operand(const ConvOperand& from, const FfmaTile::Staging& staging,
                     const std::vector<ConvPart>& outers, Value* k0, Values& vectors, Values& there) {
    Value* first = b.CreateAdd(k0, staging.inner);
    for (int v = 0; v < staging.moves; ++v) {
      ConvPart inner;
      Value* vector = llvm::PoisonValue::get(stored(bytes_, kVector));
      for (int j = 0; j < elements(staging); ++j) {
        if (j == 0 || staging.inner_last)
          inner = from.inner(add(first, v * staging.inner_step + (staging.inner_last ? j : 0)));
        const ConvPart& outer = outers[staging.inner_last ? v : j];
        there.push_back(exists(from, outer, inner));
        Value* at =
            b.CreateSelect(there.back(), address(from, outer, inner), element(from.slot, t_.index(0)));
        if (staging.whole) {
          vector = b.CreateAlignedLoad(stored(bytes_, kVector), at, aligned_to(kVector * bytes_));
        } else {
          Value* one = b.CreateAlignedLoad(stored(bytes_), at, aligned_to(bytes_));
          vector = b.CreateInsertElement(vector, one, static_cast<uint64_t>(j));
        }
      }
      vectors.push_back(vector);
    }
  }

  const ir::DType type_;
  const int bytes_;
  FfmaTile ffma_;
};

}  // namespace

void emit_conv_product(Target& target) {
  const auto shape = target.body.shape.as<ConvShape>();
  if (implicit_tile(shape.product).mma())
    MmaConv(target, shape.modern != 0).emit();
  else
    FfmaConv(target).emit();
}

}  // namespace gacc::codegen
