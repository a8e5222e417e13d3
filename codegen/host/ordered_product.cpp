// The sums of a tile stay in registers while their terms are added: kHeight x 3 vectors of them with 32 registers, half
// as many with 16. One factor is read a number at a time where it lies, the other one a vector at a time: columns of B
// where they lie, or a packed copy of A's rows where B is transposed, so that the wider factor, a weight, need not be
// turned. This file is compiled with contraction: a product and the addition behind it are one rounding.
#include "codegen/host/ordered_product.h"

#include <utility>
#include <vector>

#include "codegen/host/most_isa.h"

namespace gacc::host {

namespace {

constexpr int64_t kHeight = 8, kMostVectors = 3;
constexpr int64_t kAhead = 16;  // terms from one that is prefetched to that in use

// Numbers, one for each row of a tile and term.
struct Numbers {
  const float* data;
  int64_t row, term;  // steps
};

template <int kBytes>
struct Vector {
  typedef float Of __attribute__((vector_size(kBytes), aligned(4), may_alias));
};

// A tile of `kRows` rows of `N` vectors, with `terms` of them.
template <int kBytes, int kRows, int N>
[[gnu::always_inline]] inline void tile(int64_t terms, const Numbers& a, const float* b, int64_t b_step,
                                        float* c, int64_t step, Start start, const Runs& runs) {
  using V = typename Vector<kBytes>::Of;
  constexpr int kLanes = kBytes / 4;
  const float* row[kRows];
  for (int i = 0; i < kRows; ++i) row[i] = a.data + i * a.row;
  for (int i = 0; i < kRows && start != Start::zero; ++i)
    for (int j = 0; j < N; ++j) __builtin_prefetch(c + i * step + j * kLanes, 1);
  for (int64_t p = 0; p < terms;) {
    V sums[kRows][N];
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < N; ++j)
        sums[i][j] = start == Start::element ? *reinterpret_cast<const V*>(c + i * step + j * kLanes) : V{};
    for (const int64_t end = std::min(p + runs.length(p), terms); p < end; ++p) {
      __builtin_prefetch(a.data + (p + kAhead) * a.term);
      for (int j = 0; j < N; ++j) __builtin_prefetch(b + (p + kAhead) * b_step + j * kLanes);
      V right[N];
      for (int j = 0; j < N; ++j) right[j] = *reinterpret_cast<const V*>(b + p * b_step + j * kLanes);
      for (int i = 0; i < kRows; ++i) {
        const float left = row[i][p * a.term];
        for (int j = 0; j < N; ++j) sums[i][j] += left * right[j];
      }
    }
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < N; ++j) {
        V& to = *reinterpret_cast<V*>(c + i * step + j * kLanes);
        to = start == Start::apart ? to + sums[i][j] : sums[i][j];
      }
  }
}

template <int kBytes, int kMostRows, int N>
[[gnu::always_inline]] inline void tile_of(int rows, int64_t terms, const Numbers& a, const float* b,
                                           int64_t b_step, float* c, int64_t step, Start start,
                                           const Runs& runs) {
  if (rows == kMostRows) tile<kBytes, kMostRows, N>(terms, a, b, b_step, c, step, start, runs);
  if (rows == 4 && kMostRows > 4) tile<kBytes, 4, N>(terms, a, b, b_step, c, step, start, runs);
  if (rows == 2) tile<kBytes, 2, N>(terms, a, b, b_step, c, step, start, runs);
  if (rows == 1) tile<kBytes, 1, N>(terms, a, b, b_step, c, step, start, runs);
}

using Tile = void (*)(int rows, int vectors, int64_t terms, const Numbers& a, const float* b, int64_t b_step,
                      float* c, int64_t step, Start start, const Runs& runs);

#define GACC_TILE(name, bytes, height, target)                                                             \
  target void name(int rows, int vectors, int64_t terms, const Numbers& a, const float* b, int64_t b_step, \
                   float* c, int64_t step, Start start, const Runs& runs) {                                \
    if (vectors == 3) tile_of<bytes, height, 3>(rows, terms, a, b, b_step, c, step, start, runs);          \
    if (vectors == 2) tile_of<bytes, height, 2>(rows, terms, a, b, b_step, c, step, start, runs);          \
    if (vectors == 1) tile_of<bytes, height, 1>(rows, terms, a, b, b_step, c, step, start, runs);          \
  }

template <int kSide>
struct Square {
  typename Vector<4 * kSide>::Of rows[kSide];
};

// In each square of 2 * kHalf numbers a side, changes the upper right quarter for the lower left one.
template <int kHalf, int kSide, int... kColumns>
[[gnu::always_inline]] inline void exchange(Square<kSide>& square, std::integer_sequence<int, kColumns...>) {
  using V = typename Vector<4 * kSide>::Of;
  for (int i = 0; i < kSide; ++i) {
    if ((i & kHalf) != 0) continue;
    const V upper = square.rows[i], lower = square.rows[i + kHalf];
    square.rows[i] = __builtin_shufflevector(
        upper, lower, ((kColumns & kHalf) == 0 ? kColumns : kSide + kColumns - kHalf)...);
    square.rows[i + kHalf] = __builtin_shufflevector(
        upper, lower, ((kColumns & kHalf) == 0 ? kColumns + kHalf : kSide + kColumns)...);
  }
}

// to[j][i] = from[i][j], for rows i and columns j of `from`.
template <int kSide>
[[gnu::always_inline]] inline void turn_by(const float* from, int64_t from_step, int64_t rows,
                                           int64_t columns, float* to, int64_t to_step) {
  using V = typename Vector<4 * kSide>::Of;
  constexpr auto kColumns = std::make_integer_sequence<int, kSide>();
  const int64_t whole_rows = rows - rows % kSide, whole_columns = columns - columns % kSide;
  for (int64_t i = 0; i < whole_rows; i += kSide)
    for (int64_t j = 0; j < whole_columns; j += kSide) {
      Square<kSide> square;
      for (int r = 0; r < kSide; ++r)
        square.rows[r] = *reinterpret_cast<const V*>(from + (i + r) * from_step + j);
      exchange<1>(square, kColumns);
      exchange<2>(square, kColumns);
      if constexpr (kSide == 8) exchange<4>(square, kColumns);
      for (int r = 0; r < kSide; ++r) *reinterpret_cast<V*>(to + (j + r) * to_step + i) = square.rows[r];
    }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      to[j * to_step + i] = from[i * from_step + j];
}

using Turn = void (*)(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to,
                      int64_t to_step);

#define GACC_TURN(name, side, target)                                                              \
  target void name(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to, \
                   int64_t to_step) {                                                              \
    turn_by<side>(from, from_step, rows, columns, to, to_step);                                    \
  }

// The tile for this machine's vectors, the lanes of one, the rows of a tile; the quickest turn.
struct Machine {
  Tile run;
  int64_t lanes, height;
  Turn turn;
};

#ifdef __x86_64__
GACC_TILE(tile_avx512, 64, kHeight, [[gnu::target("avx512f")]])
GACC_TILE(tile_avx2, 32, kHeight / 2, [[gnu::target("avx2,fma")]])
GACC_TURN(turn_avx2, 8, [[gnu::target("avx2")]])
#endif
GACC_TILE(tile_any, 16, kHeight / 2, )
GACC_TURN(turn_any, 4, )

Machine machine() {
#ifdef __x86_64__
  const codegen::Isa most = codegen::most_isa();
  if (most == codegen::Isa::avx512 && __builtin_cpu_supports("avx512f"))
    return {tile_avx512, 16, kHeight, turn_avx2};
  if (most != codegen::Isa::sse && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {tile_avx2, 8, kHeight / 2, turn_avx2};
#endif
  return {tile_any, 4, kHeight / 2, turn_any};
}

const Machine& own_machine() {
  static const Machine own = machine();
  return own;
}

// The columns of a factor as rows of `width` numbers, zeros behind the last one.
void pack(const Numbers& from, int64_t columns, int64_t terms, int64_t width, float* to) {
  if (from.row == 1)
    copy_rows(from.data, from.term, terms, columns, to, width);
  else
    own_machine().turn(from.data, from.row, columns, terms, to, width);
  for (int64_t p = 0; p < terms; ++p) std::fill(to + p * width + columns, to + (p + 1) * width, 0.0F);
}

// The place of a tile in C: its rows and its columns lie this far apart.
struct Place {
  float* data;
  int64_t row, column;
};

}  // namespace

bool has_wide_tiles() { return own_machine().height == kHeight; }

void multiply_in_order(const ProductSize& size, const HostMatrix& a, const HostMatrix& b, float* c,
                       int64_t step, Start start, const Runs& runs) {
  const Machine& own = own_machine();
  static thread_local std::vector<float> packed;
  float beside[kHeight * kMostVectors * 16];
  Numbers left{a.data, a.transposed ? 1 : a.step, a.transposed ? a.step : 1};
  Numbers right{b.data, b.transposed ? b.step : 1, b.transposed ? 1 : b.step};
  Place to{c, step, 1};
  int64_t rows = size.m, columns = size.n;
  // Turned is what has fewer numbers: B, or A and then C, too. A's rows fill a part of a vector if they are few.
  if (b.transposed && size.m > kHeight && size.n * size.k > size.m * (size.k + size.n)) {
    std::swap(left, right);
    std::swap(rows, columns);
    std::swap(to.row, to.column);
  }
  packed.resize(static_cast<size_t>(size.k * own.lanes * kMostVectors));
  for (int64_t j = 0, vectors = 0; j < columns; j += vectors * own.lanes) {
    const int64_t rest = ceil_divide(columns - j, own.lanes);
    // Four are two and two.
    vectors = rest == 4 ? 2 : std::min(kMostVectors, rest);
    const int64_t width = vectors * own.lanes, here = std::min(width, columns - j);
    const Numbers block{right.data + j * right.row, right.row, right.term};
    const bool lies = block.row == 1 && here == width;  // as vectors, already
    if (!lies) pack(block, here, size.k, width, packed.data());
    for (int64_t i = 0, many = own.height; i < rows; i += many) {
      while (many > rows - i) many /= 2;
      float* first = to.data + i * to.row + j * to.column;
      const Numbers numbers{left.data + i * left.row, left.row, left.term};
      const auto run = [&](float* sums, int64_t apart) {
        own.run(static_cast<int>(many), static_cast<int>(vectors), size.k, numbers,
                lies ? block.data : packed.data(), lies ? block.term : width, sums, apart, start, runs);
      };
      if (to.column == 1 && here == width) {
        run(first, to.row);
        continue;
      }
      // Rows of the tile are rows of C, or its columns.
      const bool rows_lie = to.column == 1;
      if (start != Start::zero && rows_lie) copy_rows(first, to.row, many, here, beside, width);
      if (start != Start::zero && !rows_lie) own.turn(first, to.column, here, many, beside, width);
      run(beside, width);
      if (rows_lie)
        copy_rows(beside, width, many, here, first, to.row);
      else
        own.turn(beside, width, many, here, first, to.column);
    }
  }
}

}  // namespace gacc::host
