// Sources of the figures:
//
//   SMs, warps, blocks, shared memory, lanes, `half`: NVIDIA's data sheets and the CUDA programming guide.
//   copy, l2, waits, gap, barrier: RRZE-HPC/gpu-benches (gpu-stream, gpu-l2-cache, gpu-latency,
//     gpu-small-kernels) for A100 and GH200 (sm_90); its A40 and L40 stand for sm_86 and sm_89; 4090's copy:
//     krrishnarraj/clpeak#106. H100's copy of 3.0 TB/s lies between its GH200 and the data sheet. sm_120's
//     gap: ahrefs/ocannl#488. B200: Chips and Cheese. Those of sm_75 and what is left of sm_100 and sm_120
//     are estimates.
//   library, library_ceiling: zzc0721/torch-performance-test-data#78, #79, #124 (8192^3 in f16: 155, 736, 224);
//     stas00/ml-engineering (the accelerator page: A100 271, H100 794, B200 1720). sm_75 and sm_86: estimates.
//   kLibraryTile: what GPT-2's products took with gacc on an H100 (docs/BENCHMARKS.md).
//   forward, backward: FlashAttention 2 and 3 (figures of the papers), ring-attention#10,
//     flash-attention#1589. aligned: published cases contradict each other (one to two times); an estimate
//     from 90 on. kStarted: karpathy/llm.c#301. kBlockCycles: fitted to gpu-small-kernels. kIssued, kSmBytes:
//     estimates. own_ceiling: products by mma.sync, an estimate; nothing is published to check it with.
#include "kernels/machine.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace gacc::kernels {

namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kNano = 1e-9, kMicro = 1e-6, kMebi = 1 << 20;

// By capability.
constexpr std::pair<std::string_view, std::string_view> kCards[] = {{"sm_75", "T4"},
                                                                    {"sm_80", "A100 40 GB"},
                                                                    {"sm_86", "GeForce RTX 3090"},
                                                                    {"sm_89", "GeForce RTX 4090"},
                                                                    {"sm_90", "H100 SXM"},
                                                                    {"sm_100", "B200"},
                                                                    {"sm_120", "GeForce RTX 5090"}};

// A figure of each card, in units.
template <class T>
struct Figures {
  T Machine::*figure;
  T unit;
  T of[std::size(kCards)];
};

constexpr Figures<int64_t> kCounts[] = {{&Machine::sms, 1, {40, 108, 82, 128, 132, 148, 170}},
                                        {&Machine::warps, 1, {32, 64, 48, 48, 64, 64, 48}},
                                        {&Machine::blocks, 1, {16, 32, 16, 24, 32, 32, 24}},
                                        {&Machine::shared, 1024, {64, 164, 100, 100, 228, 228, 100}},
                                        {&Machine::lanes, 1, {64, 64, 128, 128, 128, 128, 128}}};

constexpr Figures<double> kFigures[] = {
    {&Machine::clock, kGiga, {1.25, 1.41, 1.70, 2.52, 1.75, 1.80, 2.40}},
    {&Machine::copy, kGiga, {250, 1375, 840, 920, 3000, 6700, 1600}},
    {&Machine::l2_bytes, kMebi, {4, 40, 6, 72, 50, 126, 96}},
    {&Machine::l2, kGiga, {1000, 4500, 2600, 4700, 7500, 12000, 6500}},
    {&Machine::half, kTera, {65, 312, 71, 165, 989, 2250, 210}},
    {&Machine::library, kTera, {32, 262, 66, 165, 770, 1720, 226}},
    {&Machine::memory_wait, kNano, {330, 385, 320, 250, 345, 420, 280}},
    {&Machine::l2_wait, kNano, {150, 205, 145, 110, 145, 150, 130}},
    {&Machine::gap, kMicro, {1.6, 0.95, 0.8, 0.62, 0.95, 0.95, 0.62}},
    {&Machine::barrier, kMicro, {1.2, 0.9, 0.7, 0.5, 0.9, 1.1, 0.6}},
    {&Machine::forward, 1, {0.9, 0.9, 0.9, 0.9, 0.62, 0.33, 0.9}},
    {&Machine::backward, 1, {0.65, 0.65, 0.65, 0.65, 0.36, 0.20, 0.65}},
    {&Machine::library_ceiling, kTera, {32, 271, 66, 165, 794, 1720, 226}},
    {&Machine::own_ceiling, kTera, {40, 185, 55, 120, 420, 500, 150}}};

constexpr double kAligned[std::size(kCards)][4] = {
    {1, 0.9, 0.8, 0.7},   {1, 0.95, 0.9, 0.83}, {1, 0.95, 0.9, 0.85}, {1, 0.95, 0.9, 0.85},
    {1, 0.75, 0.65, 0.6}, {1, 0.7, 0.6, 0.55},  {1, 0.95, 0.9, 0.85}};

std::array<Machine, std::size(kCards)> machines() {
  std::array<Machine, std::size(kCards)> all;
  for (size_t i = 0; i < all.size(); ++i) {
    std::tie(all[i].target, all[i].card) = kCards[i];
    for (const auto& [count, unit, of] : kCounts) all[i].*count = unit * of[i];
    for (const auto& [figure, unit, of] : kFigures) all[i].*figure = unit * of[i];
    std::ranges::copy(kAligned[i], all[i].aligned);
  }
  return all;
}

}  // namespace

const Machine& machine(std::string_view target) { return machine(GpuTarget(target)); }

const Machine& machine(const GpuTarget& target) {
  static const std::array<Machine, std::size(kCards)> all = machines();
  const auto after = std::find_if(all.begin() + 1, all.end(), [&](const Machine& one) {
    return GpuTarget(one.target).capability > target.capability;
  });
  return *(after - 1);
}

}  // namespace gacc::kernels
