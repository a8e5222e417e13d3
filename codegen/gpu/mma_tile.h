// A block's tile of C by tensor cores, of operands that come from anywhere: mma.sync with f32 sums.
//
//   the first stages - 1 tiles of A and B are sent on their way
//   for every tile of the inner dimension:
//     wait for it; barrier
//     send the tile stages - 1 further on into the buffer that was used up last, or fetch it into registers
//     ldmatrix and mma of this tile
//     put into that buffer what was fetched
//   of a tile in slices: a warp has its part of each tile's inner dimension; the sums meet in shared memory, where
//     each slice adds those of some columns, slice after slice
//
// In shared memory a tile lies as it does in memory: an operand whose inner dimension is not the contiguous one
// is turned by ldmatrix.trans. Its 16-byte chunks are swizzled, chunk c of row r standing at c ^ f(r), so that
// neither the copies nor ldmatrix meet a bank twice.
#pragma once
#include "codegen/gpu/block_code.h"
#include "codegen/nvptx/tensor_cores.h"
#include "kernels/gemm.h"

namespace gacc::codegen {

class MmaTile : BlockCode {
 public:
  static constexpr int kChunk = 8;  // elements of 16 bytes

  // The layout of an operand's tiles in shared memory.
  struct Layout {
    bool inner_last = false;     // the inner dimension is the contiguous one
    int chunks = 0;              // of 16 bytes, in a row of the tile
    Value* base = nullptr;       // shared address of the first buffer's
    std::vector<Value*> from{};  // shared addresses for ldmatrix, see place_fragments
    int row_bytes() const { return chunks * 16; }
  };

  MmaTile(Target& target, const GemmTile& tile, int stages, ir::DType type, bool modern)
      : BlockCode(target), tile_(tile), stages_(stages), cores_(target.b, type, modern) {}

  // Sets the thread's place in the tile, and the addresses of its operands.
  void place(Value* thread, bool a_inner_last, bool b_inner_last);
  const Layout& left() const { return a_; }
  const Layout& right() const { return b_; }
  TensorCores& cores() { return cores_; }

  // Shared address of a chunk in the first buffer. Whole multiples of 8 rows further on the swizzle is the same.
  Value* chunk(const Layout& layout, Value* row, Value* chunk);

  // Moves the tile that begins at k0 into the buffer at `buffer` bytes. `send` uses asynchronous copies, and only for
  // tiles that exist, except the first ones. `fetch` (to registers) and `put` (from there) take any tile.
  struct Staging {
    std::function<void(Value* k0, Value* buffer)> send;
    std::function<Values(Value* k0)> fetch{};
    std::function<void(const Values& fetched, Value* buffer)> put{};
  };
  // The thread's sums over `depth`: of each fragment of 16 x 8 four.
  Values products(Value* depth, const Staging& staging);

  int fragments_m() const { return warp_m() / 16; }
  int fragments_n() const { return warp_n() / 8 / tile_.slices; }
  // The thread's sums have two rows in each fragment, and two neighbours of a row: where element i of row r's
  // fragment j is among the sums, and in C, of which the tile's first row and column are given.
  int rows() const { return 2 * fragments_m(); }
  int runs() const { return fragments_n(); }
  int run() const { return 2; }
  size_t sum(int r, int j, int i) const {
    return static_cast<size_t>(4 * (r / 2 * fragments_n() + j) + r % 2 * 2 + i);
  }
  Value* row(Value* first, int r) {
    return add(b.CreateAdd(b.CreateAdd(first, warp_row_), lane_row_), 8 * r);
  }
  Value* column(Value* first, int j, int i) {
    return add(add(b.CreateAdd(b.CreateAdd(first, warp_column_), lane_column_), 8 * j), i);
  }

 private:
  int steps() const { return tile_.k / 16 / tile_.slices; }  // of a tile, for a warp
  int warp_m() const { return tile_.m / tile_.warps_m; }
  int warp_n() const { return tile_.n / tile_.warps_n; }
  int a_bytes() const { return tile_.m * tile_.k * 2; }
  int buffer_bytes() const { return a_bytes() + tile_.n * tile_.k * 2; }

  Value* swizzle(const Layout& layout, Value* row);
  void place_fragments(Layout& layout, Value* first, int width, Value* along, Value* inner, Value* lane);
  Values fragment(const Layout& layout, int i, int step, Value* buffer);
  void multiply(int step, Value* buffer, Values& sums);
  Values add_slices(const Values& sums);

  const GemmTile& tile_;
  const int stages_;                                    // tiles of A and B in shared memory
  Value *warp_row_ = nullptr, *warp_column_ = nullptr;  // the warp's first element in the tile
  Value *lane_row_ = nullptr, *lane_column_ = nullptr;  // the thread's in a fragment
  Value *slice_ = nullptr, *inside_ = nullptr;  // of more than one slice: its number, the thread's in it
  TensorCores cores_;
  Layout a_{}, b_{};
};

}  // namespace gacc::codegen
