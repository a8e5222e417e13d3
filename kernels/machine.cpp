// See machine.h. Where a figure is from:
//
//   SMs, warps, blocks, shared memory, lanes, `half`: NVIDIA's data sheets and the CUDA programming guide.
//   copy, l2, waits, gap, barrier: RRZE-HPC/gpu-benches (gpu-stream, gpu-l2-cache, gpu-latency,
//   gpu-small-kernels)
//     for A100 and GH200 (sm_90); its A40 and L40 stand for sm_86 and sm_89; 4090's copy:
//     krrishnarraj/clpeak#106. H100's copy of 3.0 TB/s lies between its GH200 and the data sheet. sm_120's
//     gap: ahrefs/ocannl#488. B200: Chips and Cheese. Those of sm_75 and what is left of sm_100 and sm_120
//     are estimates.
//   library: zzc0721/torch-performance-test-data#78, #79, #124 (8192^3 in f16: 155, 736, 224);
//   stas00/ml-engineering
//     (the accelerator page: A100 271, H100 794, B200 1720). sm_75 and sm_86: estimates.
//   forward, backward: FlashAttention 2 and 3 (figures of the papers), ring-attention#10,
//   flash-attention#1589. aligned: published cases contradict each other (one to two times); an estimate from
//   90 on. kStarted: karpathy/llm.c#301. kBlockCycles: fitted to gpu-small-kernels. kIssued, kSmBytes:
//   estimates. own_ceiling: products by mma.sync, an estimate; nothing is published to check it with.
#include "kernels/machine.h"

#include <algorithm>
#include <iterator>

#include "kernels/gpu_target.h"

namespace gacc::kernels {

namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kNano = 1e-9, kMicro = 1e-6, kMebi = 1 << 20;
constexpr int64_t kKibi = 1024;

constexpr Machine kHopper{.target = "sm_90",
                          .card = "H100 SXM",
                          .sms = 132,
                          .clock = 1.75 * kGiga,
                          .copy = 3000 * kGiga,
                          .l2_bytes = 50 * kMebi,
                          .l2 = 7500 * kGiga,
                          .shared = 228 * kKibi,
                          .half = 989 * kTera,
                          .library = 770 * kTera,
                          .memory_wait = 345 * kNano,
                          .l2_wait = 145 * kNano,
                          .gap = 0.95 * kMicro,
                          .barrier = 0.9 * kMicro,
                          .forward = 0.62,
                          .backward = 0.36,
                          .aligned = {1, 0.75, 0.65, 0.6},
                          .library_ceiling = 700 * kTera,
                          .own_ceiling = 420 * kTera};

// By capability.
constexpr Machine kMachines[] = {{.target = "sm_75",
                                  .card = "T4",
                                  .sms = 40,
                                  .clock = 1.25 * kGiga,
                                  .copy = 250 * kGiga,
                                  .l2_bytes = 4 * kMebi,
                                  .l2 = 1000 * kGiga,
                                  .warps = 32,
                                  .blocks = 16,
                                  .shared = 64 * kKibi,
                                  .lanes = 64,
                                  .half = 65 * kTera,
                                  .library = 32 * kTera,
                                  .memory_wait = 330 * kNano,
                                  .l2_wait = 150 * kNano,
                                  .gap = 1.6 * kMicro,
                                  .barrier = 1.2 * kMicro,
                                  .aligned = {1, 0.9, 0.8, 0.7},
                                  .library_ceiling = 32 * kTera,
                                  .own_ceiling = 25 * kTera},
                                 {.target = "sm_80",
                                  .card = "A100 40 GB",
                                  .sms = 108,
                                  .clock = 1.41 * kGiga,
                                  .copy = 1375 * kGiga,
                                  .l2_bytes = 40 * kMebi,
                                  .l2 = 4500 * kGiga,
                                  .shared = 164 * kKibi,
                                  .lanes = 64,
                                  .half = 312 * kTera,
                                  .library = 262 * kTera,
                                  .memory_wait = 385 * kNano,
                                  .l2_wait = 205 * kNano,
                                  .gap = 0.95 * kMicro,
                                  .barrier = 0.9 * kMicro,
                                  .aligned = {1, 0.95, 0.9, 0.83},
                                  .library_ceiling = 262 * kTera,
                                  .own_ceiling = 180 * kTera},
                                 {.target = "sm_86",
                                  .card = "GeForce RTX 3090",
                                  .sms = 82,
                                  .clock = 1.70 * kGiga,
                                  .copy = 840 * kGiga,
                                  .l2_bytes = 6 * kMebi,
                                  .l2 = 2600 * kGiga,
                                  .warps = 48,
                                  .blocks = 16,
                                  .shared = 100 * kKibi,
                                  .half = 71 * kTera,
                                  .library = 66 * kTera,
                                  .memory_wait = 320 * kNano,
                                  .l2_wait = 145 * kNano,
                                  .gap = 0.8 * kMicro,
                                  .barrier = 0.7 * kMicro,
                                  .library_ceiling = 66 * kTera,
                                  .own_ceiling = 55 * kTera},
                                 {.target = "sm_89",
                                  .card = "GeForce RTX 4090",
                                  .sms = 128,
                                  .clock = 2.52 * kGiga,
                                  .copy = 920 * kGiga,
                                  .l2_bytes = 72 * kMebi,
                                  .l2 = 4700 * kGiga,
                                  .warps = 48,
                                  .blocks = 24,
                                  .shared = 100 * kKibi,
                                  .half = 165 * kTera,
                                  .library = 165 * kTera,
                                  .memory_wait = 250 * kNano,
                                  .l2_wait = 110 * kNano,
                                  .gap = 0.62 * kMicro,
                                  .barrier = 0.5 * kMicro,
                                  .library_ceiling = 165 * kTera,
                                  .own_ceiling = 120 * kTera},
                                 kHopper,
                                 {.target = "sm_100",
                                  .card = "B200",
                                  .sms = 148,
                                  .clock = 1.80 * kGiga,
                                  .copy = 6700 * kGiga,
                                  .l2_bytes = 126 * kMebi,
                                  .l2 = 12000 * kGiga,
                                  .shared = 228 * kKibi,
                                  .half = 2250 * kTera,
                                  .library = 1720 * kTera,
                                  .memory_wait = 420 * kNano,
                                  .l2_wait = 150 * kNano,
                                  .gap = 0.95 * kMicro,
                                  .barrier = 1.1 * kMicro,
                                  .forward = 0.33,
                                  .backward = 0.20,
                                  .aligned = {1, 0.7, 0.6, 0.55},
                                  .library_ceiling = 1720 * kTera,
                                  .own_ceiling = 500 * kTera},
                                 {.target = "sm_120",
                                  .card = "GeForce RTX 5090",
                                  .sms = 170,
                                  .clock = 2.40 * kGiga,
                                  .copy = 1600 * kGiga,
                                  .l2_bytes = 96 * kMebi,
                                  .l2 = 6500 * kGiga,
                                  .warps = 48,
                                  .blocks = 24,
                                  .shared = 100 * kKibi,
                                  .half = 210 * kTera,
                                  .library = 226 * kTera,
                                  .memory_wait = 280 * kNano,
                                  .l2_wait = 130 * kNano,
                                  .gap = 0.62 * kMicro,
                                  .barrier = 0.6 * kMicro,
                                  .library_ceiling = 226 * kTera,
                                  .own_ceiling = 150 * kTera}};

}  // namespace

const Machine& machine(std::string_view target) {
  const int wanted = GpuTarget(target).capability;
  const auto* after = std::find_if(std::begin(kMachines) + 1, std::end(kMachines), [&](const Machine& one) {
    return GpuTarget(one.target).capability > wanted;
  });
  return *(after - 1);
}

}  // namespace gacc::kernels
