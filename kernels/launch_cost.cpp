#include "kernels/launch_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include "ir/ops/heads.h"
#include "kernels/gpu_target.h"

namespace gacc::kernels {

namespace {

constexpr double kOverlapPower =
    2;  // of the norm: 1 would be the sum of the bounds, infinity the largest; fitted to GPT-2 on an H100
constexpr double kRoundingSlack = 1e-9;  // a quotient so little above a whole number is that number

double norm(std::initializer_list<double> terms, double power) {
  const double worst = std::max(terms);
  if (worst <= 0) return 0;
  double sum = 0;
  for (const double term : terms) sum += std::pow(term / worst, power);
  return worst * std::pow(sum, 1 / power);
}

// Fewer waves than this are counted whole: the last one takes as long as the others. Of more it is lost among
// them.
constexpr double kWavesCountedWhole = 8;
double whole(double waves) { return waves < kWavesCountedWhole ? std::ceil(waves - kRoundingSlack) : waves; }

// Tiles of the library's products, and what of the full rate an SM reaches with one.
struct LibraryTile {
  double m, n, share;
};
constexpr LibraryTile kLibraryTiles[] = {{256, 128, 1},   {128, 256, 1},   {128, 128, 0.93},
                                         {128, 64, 0.75}, {64, 128, 0.75}, {64, 64, 0.55}};
constexpr double kSplits[] = {1, 2, 3, 4, 6, 8};
constexpr double kLeastDepthOfSplit = 256;  // elements of k that a part keeps

// The artifact's tiles: blocks that an SM holds, and what of the peak all of them reach: of tensor cores (on
// sm_90; other cards as their mma.sync does against its), or of multiply-adds.
struct OwnTile {
  int64_t n;  // of the tile, and of those below it
  double blocks, tensor_share, f32_share;
};
constexpr OwnTile kOwnTiles[] = {
    {128, 2, 0.40, 0.75}, {64, 4, 0.28, 0.6}, {32, 8, 0.12, 0.35}, {16, 16, 0.12, 0.15}};
constexpr double kAlone = 0.5;           // of its SM's rate, what one block reaches
constexpr double kHopperForward = 0.62;  // its Machine::forward, which tensor_share is measured with
constexpr double kLibraryF32 = 0.85;     // of the peak of multiply-adds, without TF32

// Seconds of a product, and what it uses but for the bytes of memory.
struct ProductTime {
  double seconds = 0;
  Use use{};
};

ProductTime library_time(const Machine& machine, const ProductWork& p, double memory) {
  const double m = p.m, n = p.n, k = p.k;
  const double sms = machine.sms;
  const int alignment = p.leading >= 16 ? 0 : p.leading >= 8 ? 1 : p.leading >= 4 ? 2 : 3;
  const double all =
      p.tensor_cores ? machine.library * machine.aligned[alignment] : kLibraryF32 * machine.f32();
  ProductTime best;
  for (const LibraryTile& tile : kLibraryTiles) {
    for (const double parts : kSplits) {
      if (parts > 1 && k / parts < kLeastDepthOfSplit) continue;
      const double tiles = divided_up(m, tile.m) * divided_up(n, tile.n) * parts;
      const double one = 2 * tile.m * tile.n * (k / parts) / (all / sms * tile.share) + Machine::kLibraryTile;
      // Parts are written and added up in the second-level cache.
      const double cached = parts > 1 ? 8 * parts * m * n / machine.l2 : 0;
      const double seconds = norm({std::ceil(tiles / sms) * one, memory}, kOverlapPower) + cached +
                             (parts > 1 ? Machine::kLibraryTile : 0);
      if (best.seconds == 0 || seconds < best.seconds)
        best = {seconds, {.sms = tiles / sms * one, .l2 = cached}};
    }
  }
  return best;
}

ProductTime own_time(const Machine& machine, const ProductWork& p, double memory) {
  const OwnTile* tile = std::begin(kOwnTiles);
  while (tile + 1 != std::end(kOwnTiles) && tile->n > p.tile_n) ++tile;
  const double m = p.m, n = p.n, k = p.k;
  const double tm = p.tile_m, tn = p.tile_n;
  const double tiles = divided_up(m, tm) * divided_up(n, tn) * p.count;
  const double sms = machine.sms;
  const double slots = sms * (p.implicit ? p.resident : tile->blocks);
  const double full = p.tensor_cores ? machine.half * tile->tensor_share * machine.forward / kHopperForward
                                     : machine.f32() * tile->f32_share;
  // Below one wave the blocks of an SM have it to themselves, but one of them does not reach its rate unless it
  // has slices. Fewer tiles than SMs leave the others idle.
  const double alone = std::min(1.0, kAlone * p.slices);
  const double rate = tiles >= slots ? full : full * std::max(alone, tiles / slots);
  const double waves = tiles >= slots ? std::ceil(tiles / slots) : std::max(tiles, sms) / slots;
  double products = waves * slots * 2 * tm * tn * k / rate;
  // Tensor cores work beside other instructions; multiply-adds are such instructions.
  const double beside = p.instructions / kWarp / (Machine::kIssued * std::min(sms, tiles) * machine.clock) *
                        std::max(1.0, waves * slots / tiles);
  if (!p.tensor_cores) products += beside;
  // The last wave leaves slots empty, and a few tiles leave multiprocessors.
  const double busy = tiles >= slots ? tiles / (slots * waves) : std::min(1.0, tiles / sms);
  return {norm({products, p.tensor_cores ? beside : 0, memory}, kOverlapPower) + Machine::kTile,
          {.sms = busy * std::max(products, beside)}};
}

double product_bytes(const ProductWork& p) {
  if (p.implicit) return p.bytes;
  const double m = p.m, n = p.n, k = p.k;
  return p.type_bytes * (m * k + k * n) + p.c_bytes * m * n;
}

double attention_products(const AttentionWork& a) { return a.gradient ? 7 : 2; }

constexpr double kAttentionTileRows = 64;  // of a block
// Returns the number of score elements whose tiles are computed at all.
double attention_area(const AttentionWork& a) {
  const double length = a.length;
  const double blocks = divided_up(length, kAttentionTileRows);
  // Blocks of keys that one of queries meets, on average: all; or of block n those before it, at most as many as its
  // window reaches, and its own.
  double met = blocks;
  if (a.causal) {
    const double most =
        a.window > 0 ? std::min(divided_up(a.window - 1, kAttentionTileRows) + 1, blocks) : blocks;
    met = (most * (most + 1) / 2 + (blocks - most) * most) / blocks;
  }
  // With documents: the blocks of a query's own document (of its earlier part when causal), and what blocks at the ends
  // reach beyond.
  if (a.document > 0)
    met = std::min(
        met, a.causal ? a.document / (2 * kAttentionTileRows) + 1.5 : a.document / kAttentionTileRows + 2);
  return a.heads * length * length * met / blocks;
}

ProductTime product_time(const Machine& machine, const ProductWork& product, Engine engine) {
  const double memory = product_bytes(product) / machine.copy;
  ProductTime time =
      engine == Engine::library ? library_time(machine, product, memory) : own_time(machine, product, memory);
  time.use.memory = memory;
  return time;
}

double attention_seconds(const Machine& machine, const AttentionWork& attention) {
  const double cycles = machine.sms * machine.clock;
  const double share = attention.gradient ? machine.backward : machine.forward;
  const double multiplied = attention_products(attention) * attention.channels;
  const double tensor = 2 * multiplied / (machine.half / cycles * share);
  const double other = (attention.gradient ? 16.0 : 10.0) / machine.lanes + 1 / Machine::kFunctions;
  const double shared = attention.fetched / Machine::kSharedBytes;
  // Warps of 32 rows have so many registers that two are on a scheduler. In the forward pass these wait at the same
  // barrier and go on together, so that nothing hides anything: an H100 took the sum. The gradient's are at different
  // places of longer tiles.
  const bool together = !attention.gradient && attention.warp_rows > 16;
  const double element = together ? tensor + other + shared : norm({tensor + 0.6 * other, shared}, 1.5);
  return attention_area(attention) * element / cycles;
}

}  // namespace

double divided_up(double value, double by) { return std::ceil(value / by - kRoundingSlack); }

void ByWidth::add(int64_t width, double amount) {
  size_t i = 0;
  while (i + 1 < kWidths.size() && kWidths[i] < width) ++i;
  bytes[i] += amount;
}

double Work::loops() const {
  if (rounds > 0) return rounds;
  const int64_t all = std::max<int64_t>(1, blocks * threads);
  return std::ceil(loads.sum() / all / flight - 1e-6);
}

std::string_view bound_text(Bound bound) {
  constexpr std::string_view kTexts[] = {"bandwidth", "compute", "latency", "parallelism", "launch"};
  return kTexts[static_cast<size_t>(bound)];
}

int64_t resident_blocks(const Machine& machine, const Work& work) {
  const int64_t warps = ceil_divide(work.threads, kWarp);
  const int64_t registers = std::max<int64_t>((work.registers + 7) / 8 * 8, 16);
  const int64_t by_shared = work.shared > 0 ? machine.shared / (work.shared + 1024) : machine.blocks;
  return std::max<int64_t>(1, std::min({machine.blocks, machine.warps / warps,
                                        Machine::kRegisters / (warps * kWarp * registers), by_shared}));
}

double waves(const Machine& machine, const Work& work) {
  const double slots = machine.sms * resident_blocks(machine, work);
  return std::max(1.0, work.blocks / slots);
}

Terms terms(const Machine& machine, const Work& work) {
  const double waves = kernels::waves(machine, work), rounds = whole(waves), tail = rounds / waves;
  const double sms = std::min(machine.sms, work.blocks) * machine.clock;  // cycles of them
  const double in_l2 = work.in_l2(), bytes = work.transferred();
  const double wait = in_l2 * machine.l2_wait + (1 - in_l2) * machine.memory_wait;
  Terms t;
  t.memory = bytes * (1 - in_l2) / machine.copy;
  t.l2 = bytes / std::min(machine.l2, sms * Machine::kSmBytes);
  t.chain = rounds * (Machine::kBlockCycles / machine.clock +
                      work.loops() * (wait + work.chain * work.cycles / machine.clock));
  t.access = work.nearby / (Machine::kLoadLanes * 4) / sms;
  for (const ByWidth* all : {&work.loads, &work.stores}) {
    for (size_t i = 0; i < ByWidth::kWidths.size(); ++i) {
      const int64_t lane = std::min<int64_t>(ByWidth::kWidths[i], 4);
      t.access += all->bytes[i] / (Machine::kLoadLanes * lane) / sms;
    }
  }
  t.issue = tail * work.instructions / kWarp / (Machine::kIssued * sms);
  t.multiply = tail * work.flops / (2 * machine.lanes * sms);
  t.function = tail * work.functions / (Machine::kFunctions * sms);
  t.dispatch = work.blocks / (Machine::kStarted * machine.clock);
  return t;
}

double joined(const Terms& t) {
  return norm({t.memory, t.l2, t.chain, t.access, t.issue, t.multiply, t.function, t.dispatch},
              kOverlapPower);
}

double side_by_side_seconds(const Machine& machine, const std::vector<Work>& works) {
  int64_t blocks = 0;
  double bytes = 0;
  for (const Work& work : works) blocks += work.blocks, bytes += work.transferred();
  Terms all;
  for (const Work& work : works) {
    const Terms t = terms(machine, work);
    // Alone it has fewer SMs than they have together.
    const double own = std::min(machine.sms, work.blocks), share = own / std::min(machine.sms, blocks);
    all.memory += t.memory;
    all.dispatch += t.dispatch;
    all.chain = std::max(all.chain, t.chain);
    all.l2 += share * t.l2;
    all.access += share * t.access;
    all.issue += share * t.issue;
    all.multiply += share * t.multiply;
    all.function += share * t.function;
  }
  all.l2 = std::max(all.l2, bytes / machine.l2);  // which they share, however many SMs they have
  return joined(all);
}

Use& Use::operator+=(const Use& other) {
  sms += other.sms, memory += other.memory, l2 += other.l2;
  return *this;
}

Estimate estimate(const Machine& machine, const Work& work, Engine engine) {
  Estimate result;
  // Bytes in the second-level cache need not come from memory.
  const double in_cache = work.in_l2();
  result.floor = work.moved * ((1 - in_cache) / machine.copy);
  if (in_cache == 1) result.floor = work.moved / machine.l2;
  // Only multiprocessors that have a block count.
  const double own = std::min(machine.sms, work.blocks), busy = own / machine.sms;
  if (work.product) {
    const ProductWork& p = *work.product;
    if (p.implicit) engine = Engine::own;
    const double flops = 2.0 * p.m * p.n * p.k * p.count;
    const double rate = !p.tensor_cores             ? machine.f32()
                        : engine == Engine::library ? machine.library_ceiling
                                                    : machine.own_ceiling;
    const ProductTime time = product_time(machine, p, engine);
    result.seconds = time.seconds;
    result.use = time.use;
    result.floor = std::max(result.floor, flops / rate);
    // The library has no smaller tiles, and the artifact does not cut k.
    const double smallest = engine == Engine::own ? work.blocks : divided_up(p.m, 64) * divided_up(p.n, 64);
    const bool few = smallest < machine.sms;
    const bool moves = product_bytes(p) / machine.copy > flops / rate;
    result.bound = few ? Bound::parallelism : moves ? Bound::bandwidth : Bound::compute;
    return result;
  }
  if (work.attention) {
    const AttentionWork& a = *work.attention;
    // The gradient does with five products what this one does with seven.
    const double products = a.gradient ? 5 : 2;
    const double area = a.heads * ir::twice_seen_pairs(a.length, a.causal, a.window, a.document) / 2.0;
    result.seconds = norm({attention_seconds(machine, a), result.floor}, kOverlapPower);
    result.use = {.sms = result.seconds * busy, .memory = work.moved / machine.copy};
    result.floor = std::max(result.floor, products * 2 * a.channels * area / machine.library_ceiling);
    result.bound = work.blocks < machine.sms ? Bound::parallelism : Bound::compute;
    return result;
  }
  const Terms t = terms(machine, work);
  result.seconds = joined(t);
  const double waves = kernels::waves(machine, work), tail = whole(waves) / waves;
  result.use = {.sms = std::max(t.access, std::max({t.issue, t.multiply, t.function}) / tail) * busy,
                .memory = t.memory,
                .l2 = work.transferred() / machine.l2};
  const double moving = std::max(t.memory, t.l2),
               computing = std::max({t.access, t.issue, t.multiply, t.function});
  const double worst = std::max({moving, computing, t.chain, t.dispatch});
  if (worst == t.dispatch)
    result.bound = Bound::launch;
  else if (work.blocks < machine.sms)
    result.bound = Bound::parallelism;
  else
    result.bound = worst == moving ? Bound::bandwidth : worst == computing ? Bound::compute : Bound::latency;
  return result;
}

double streams_seconds(const std::vector<Streamed>& launches) {
  struct Running {
    std::vector<size_t> waiting{};  // the next one last
    const Streamed* launch = nullptr;
    double gap = 0, left = 0;  // of the launch: then the gap is over
  };
  std::array<Running, kMostStreams> streams;
  for (size_t i = launches.size(); i-- > 0;)
    streams[static_cast<size_t>(launches[i].stream)].waiting.push_back(i);
  std::vector<bool> ended(launches.size());
  double now = 0;
  while (true) {
    // 1. What begins now; a launch that takes no time ends at once.
    for (bool more = true; more;) {
      more = false;
      for (Running& stream : streams) {
        if (stream.waiting.empty() || stream.launch != nullptr) continue;
        const size_t next = stream.waiting.back();
        const Streamed& launch = launches[next];
        if (!std::ranges::all_of(launch.after, [&](size_t other) { return ended[other]; })) continue;
        if (launch.gap + launch.seconds > 0) {
          stream.launch = &launch, stream.gap = launch.gap, stream.left = launch.seconds;
          continue;
        }
        ended[next] = true;
        stream.waiting.pop_back();
        more = true;
      }
    }
    // 2. How fast: what all take of what they share, at the speed that each has alone.
    Use asked;
    for (const Running& stream : streams) {
      if (stream.launch == nullptr || stream.gap > 0) continue;
      const Use& use = stream.launch->use;
      const double seconds = stream.launch->seconds;
      const auto share = [&](double used) { return std::min(1.0, used / seconds); };
      asked += {share(use.sms), share(use.memory), share(use.l2)};
    }
    const double slower = std::max({1.0, asked.sms, asked.memory, asked.l2});
    // 3. Until a gap or a launch ends.
    double step = 0;
    for (const Running& stream : streams) {
      if (stream.launch == nullptr) continue;
      const double until = stream.gap > 0 ? stream.gap : stream.left * slower;
      step = step == 0 ? until : std::min(step, until);
    }
    if (step == 0) return now;
    now += step;
    for (Running& stream : streams) {
      if (stream.launch == nullptr) continue;
      constexpr double kRest = 1e-15;  // seconds that rounding leaves
      double& rest = stream.gap > 0 ? stream.gap : stream.left;
      rest -= stream.gap > 0 ? step : step / slower;
      if (rest > kRest) continue;
      rest = 0;
      if (stream.left > 0) continue;
      ended[stream.waiting.back()] = true;
      stream.waiting.pop_back();
      stream.launch = nullptr;
    }
  }
}

}  // namespace gacc::kernels
