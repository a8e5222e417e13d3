// The estimated cost of a launch on a GPU, from what it asks of the machine. It takes the largest of its bounds, and
// something more where two are near: they are joined by a norm, whose power is fitted to GPT-2 on an H100
// (docs/gpu.md).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/machine.h"

namespace gacc::kernels {

// Returns the number of runs of `by` items. A quotient that rounding left just above a whole number is that
// number.
double divided_up(double value, double by);

// Bytes by the width of the access that moves them.
struct ByWidth {
  static constexpr std::array<int64_t, 4> kWidths = {2, 4, 8, 16};
  std::array<double, 4> bytes{};  // of each width
  void add(int64_t width, double amount);
  double sum() const { return bytes[0] + bytes[1] + bytes[2] + bytes[3]; }
};

// C[m, n] (+)= A[m, k] B[k, n].
struct ProductWork {
  int64_t m = 0, n = 0, k = 0;
  int64_t type_bytes = 2;    // of an element of A and B
  int64_t leading = 16;      // bytes: the largest of 16, 8, 4, 2 that divides all leading dimensions
  double c_bytes = 2;        // read and written of an element of C
  bool tensor_cores = true;  // A and B are of a half type that the GPU has them for
  int64_t tile_m = 128, tile_n = 128, slices = 1;  // of the artifact's kernel
  // An implicit product is always the artifact's: `count` of them side by side, so many blocks of which an SM
  // holds; its bytes are not those of matrices, and it has instructions beside those of the product.
  bool implicit = false;
  int64_t count = 1, resident = 0;
  double bytes = 0, instructions = 0;
};

// Attention by tensor cores.
struct AttentionWork {
  int64_t heads = 0, length = 0, channels = 0;  // heads: of all samples
  bool causal = false, gradient = false;
  double fetched = 0;     // bytes of shared memory for each element of the scores
  int64_t warp_rows = 0;  // of a block that a warp has
  int64_t window = 0;     // positions that a query sees; 0: no limit
  int64_t document = 0;   // positions of each; 0: all are of one
};

struct Work {
  int64_t blocks = 0, threads = 0;
  int64_t registers = 32;     // of a thread; 32 where nobody knows
  int64_t shared = 0;         // bytes of a block
  double moved = 0;           // bytes that the launch must move at least: what it reads, once, and writes
  ByWidth loads{}, stores{};  // what passes the second-level cache, repeated reads too ...
  double cached = 0;          // ... and bytes of it that this cache serves
  double nearby = 0;          // bytes that the first-level cache serves, 4 at a time
  double flight = 16;         // bytes that a thread has on the way before it waits
  double rounds = 0;          // waits of a thread, one after the other
  double serial_loads = 0;    // loads of one thread in loops
  double chain = 10;          // instructions of a thread between two waits ...
  double cycles = 4.5;        // ... and what one takes
  double instructions = 0, flops = 0, functions = 0;  // of all threads
  std::optional<ProductWork> product{};
  std::optional<AttentionWork> attention{};

  double transferred() const { return loads.sum() + stores.sum(); }
  double in_l2() const { return transferred() > 0 ? std::min(1.0, cached / transferred()) : 0; }
  double loops() const;  // rounds, or what follows from bytes and flight where nobody said
};

// Seconds that each bound takes alone.
struct Terms {
  double memory = 0, l2 = 0, chain = 0, access = 0, issue = 0, multiply = 0, function = 0, dispatch = 0;
};

// The limit of a launch's speed. latency: its longest chain of loads; parallelism: too few blocks for
// the GPU's multiprocessors; launch: starting it.
enum class Bound : uint8_t { bandwidth, compute, latency, parallelism, launch };
std::string_view bound_text(Bound bound);

enum class Engine : uint8_t { library, own };  // of matrix products: cuBLASLt, or the artifact's kernels

// A launch's use of the resources that launches on two streams share: seconds of all multiprocessors, of memory and of
// the second-level cache at their full rate.
struct Use {
  double sms = 0, memory = 0, l2 = 0;
  Use& operator+=(const Use& other);
};

struct Estimate {
  double seconds = 0;  // without what stands between launches
  double floor = 0;    // bytes at the rate of a copy, or FLOPs of products at their ceiling
  Use use{};
  Bound bound = Bound::bandwidth;
};

int64_t resident_blocks(const Machine& machine, const Work& work);  // that an SM holds at once
double waves(const Machine& machine, const Work& work);             // of blocks, at least 1
Terms terms(const Machine& machine, const Work& work);              // of a launch that is no product
double joined(const Terms& terms);
// Estimates kernels that share a launch: their blocks run side by side. None of them is a product or attention.
double side_by_side_seconds(const Machine& machine, const std::vector<Work>& works);
Estimate estimate(const Machine& machine, const Work& work, Engine engine);

// A launch of a graph on several streams: what it takes alone, behind the gap, and where it stands.
inline constexpr size_t kMostStreams = 3;
struct Streamed {
  double gap = 0, seconds = 0;
  Use use{};
  int64_t stream = 0;           // below kMostStreams
  std::vector<size_t> after{};  // the launches of other streams that it waits for
};
// Estimates all of them. Launches at a time share the machine ideally: all at full speed where each of what they share
// has enough for all, else all slower by as much as the scarcest of it is over-asked. Nothing runs in a launch's gap
// but the other streams.
double streams_seconds(const std::vector<Streamed>& launches);

}  // namespace gacc::kernels
