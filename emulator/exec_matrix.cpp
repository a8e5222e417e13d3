// ldmatrix and mma.sync, with the fragment layouts of the PTX ISA ("Matrix Fragments for mma.m16n8k…").
// Products are exact in f32 for f16 and bf16; sums go in f32 in order of k, which is one of the orders the
// ISA allows.
#include <cstring>

#include "emulator/numbers.h"
#include "emulator/warp.h"

namespace gacc::emulator {
namespace {

float element(bool brain, uint32_t word, int half) {
  const auto bits = static_cast<uint16_t>(word >> (16 * half));
  return brain ? float_of_bf16(bits) : float_of_half(bits);
}

// Checks that all lanes take part in `what`; false when they cannot yet.
bool all_lanes(Warp& warp, const Instr& in, const char* what) {
  if (warp.hold(~0u)) return false;
  if (warp.active != ~0u)
    warp.report(Defect::bad_shuffle, in, first_lane(warp.active), "{} by lanes 0x{:08x} only", what,
                warp.active);
  return true;
}

}  // namespace

// All lanes: 4 d, a, b registers, 4 c registers in extra.registers.
void run_mma(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  if (!all_lanes(warp, in, "mma.sync")) return;
  // 32-bit registers of a fragment, each of two elements; d and c have four.
  const int in_b = static_cast<int>(x.registers.size() - 8) / 3, in_a = 2 * in_b;
  auto word = [&](size_t i, int l) { return words_of(warp, x.registers[i])[l]; };
  for (size_t i = 4; i < x.registers.size(); ++i) warp.check_defined(x.registers[i], in);
  float a[16][16], b[16][8], d[16][8];
  for (int l = 0; l < kLanes; ++l) {
    const int row = l >> 2, quad = l & 3;
    // Register r of a: rows row (+8 for odd r), columns 2 * quad (+8 for r >= 2).
    for (int r = 0; r < in_a; ++r)
      for (int h = 0; h < 2; ++h)
        a[row + 8 * (r & 1)][2 * quad + h + 8 * (r >> 1)] =
            element(x.brain, word(static_cast<size_t>(4 + r), l), h);
    // Register r of b: rows 2 * quad (+8 for r = 1), column row.
    for (int r = 0; r < in_b; ++r)
      for (int h = 0; h < 2; ++h)
        b[2 * quad + h + 8 * r][row] = element(x.brain, word(static_cast<size_t>(4 + in_a + r), l), h);
    for (int r = 0; r < 4; ++r)
      d[row + 8 * (r >> 1)][quad * 2 + (r & 1)] =
          bits_as<float>(word(static_cast<size_t>(4 + in_a + in_b + r), l));
  }
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 8 * in_b; ++k)
      for (int j = 0; j < 8; ++j) d[i][j] += a[i][k] * b[k][j];
  for (int r = 0; r < 4; ++r) {
    const int reg = x.registers[r];
    auto* out = warp.lanes<float>(slot_of(warp, reg).at);
    for (int l = 0; l < kLanes; ++l) out[l] = d[(l >> 2) + 8 * (r >> 1)][(l & 3) * 2 + (r & 1)];
    warp.defined[reg] = ~0u;
  }
}

// Lane 8i + j gives the address of row j of the i-th 8x8 matrix; lane l gets elements 2(l%4), +1 of row l/4.
void run_load_matrix(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  if (!all_lanes(warp, in, "ldmatrix")) return;
  const auto address = addresses_of(warp, in, x.at);
  for (int i = 0; i < x.count; ++i) {
    uint16_t matrix[8][8] = {};
    for (int j = 0; j < 8; ++j) {
      const int l = 8 * i + j;
      Place place;
      if (!locate(warp, in, x.space, address[l], 16, l, place)) continue;
      check_written(warp, in, place, 16, l);
      note(warp, in, place, 16, l, false, false);
      std::memcpy(matrix[j], place.region->data() + place.at, 16);
    }
    const int reg = x.registers[i];
    auto* out = words_of(warp, reg);
    for (int l = 0; l < kLanes; ++l) {
      const int row = l >> 2, column = 2 * (l & 3);
      const uint32_t low = x.transposed ? matrix[column][row] : matrix[row][column];
      const uint32_t high = x.transposed ? matrix[column + 1][row] : matrix[row][column + 1];
      out[l] = high << 16 | low;
    }
    warp.defined[reg] = ~0u;
  }
}

}  // namespace gacc::emulator
