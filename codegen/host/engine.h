// A planned module made ready to run on the host: compiled kernels, the arena, and for each program a list of
// launches with everything that does not depend on the batch worked out. Running allocates nothing.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "codegen/host/cache.h"
#include "codegen/host/jit.h"
#include "codegen/host/library.h"
#include "codegen/host/products.h"
#include "codegen/host/thread_pool.h"
#include "ir/dependence.h"
#include "kernels/program.h"
#include "runtime/device.h"

namespace gacc::host {

// Zeroed memory, aligned to a page and touched, so that no launch meets a page fault.
class HostMemory {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  // `besides`: what else the same step takes.
  Status allocate(int64_t bytes, int64_t besides = 0);
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

class HostEngine {
 public:
  explicit HostEngine(int threads) : pool_(threads) {}

  // `text`: a planned module. Its object comes from `cache` where it is there and valid. `build`: of the
  // emitters, whose objects are not another's.
  Status load(std::string_view text, const Cache& cache, std::string_view build);
  // Runs a program to its end; `batch`, 1 to the most samples that it takes, counts where it takes any.
  Status run(Program program, int64_t batch);
  // Runs `init`, but leaves out what the caller overwrites next.
  Status run_init(std::span<const PlanBuffer* const> given);

  // Between runs: calls task(context, i) for every i below `tasks`, on all threads. Waits.
  void run_tasks(int64_t tasks, Pool::Task task, const void* context) { pool_.run(tasks, task, context); }

  // From now on launches run one after the other, and how long each took is kept.
  void start_profile() { profiling_ = true; }
  const std::vector<Timing>& timings() const { return timings_; }

  // The bytes of the arena, or of the block behind its addresses (memory.host); empty where they are in neither.
  std::span<char> memory(int64_t offset, int64_t bytes) const;
  const HostMemory& arena() const { return arena_; }
  int threads() const { return pool_.threads(); }

 private:
  // One kernel, library call or matrix product.
  struct Launch {
    std::string name{};                        // for people
    codegen::HostFunction function = nullptr;  // null: `library`, or a matrix product of a, b, c
    std::unique_ptr<LibraryCall> library{};
    std::vector<char*> operands{};
    std::vector<codegen::Extent> extents{};
    codegen::Extent items{};
    int64_t tile = 1;
    ir::ProductCall product{};
    Gemm gemm{};
    int64_t copied = 0;  // bytes, from operand 1 to operand 0; else 0
    bool runs = true;    // false: a run of the program leaves it out
    // At the current batch:
    std::vector<int64_t> values{};  // of extents
    int64_t item_count = 0;         // (and `gemm`)
  };
  // Consecutive launches of which none touches what another writes: their tasks are handed out together.
  struct Wave {
    size_t first = 0, last = 0;  // launches [first, last)
    int64_t tasks = 0;
  };
  // Waves [first, last), which run where the flag is not 0.
  struct Section {
    const char* flag = nullptr;
    size_t first = 0, last = 0;
  };
  struct Prepared {
    std::vector<Launch> launches{};
    std::vector<int64_t> first_task{};  // of each launch, within its wave
    std::vector<Wave> waves{};
    Section section{};
    std::vector<ir::Touched> bytes{};  // of `init`: what each launch reads and replaces
    int64_t batch = 0;                 // that the values are for
    int64_t most = 0;                  // samples
  };

  Status prepare(const ir::Module& module, const codegen::ModuleKernels& program, ir::RegionKind kind);
  // `at`: the kernel's first op.
  Status prepare_launch(const ir::OpView& at, const codegen::BodyCall& call,
                        const codegen::ModuleKernels& program, Launch& launch);
  Status prepare_product(const ir::OpView& at, Launch& launch);
  // Its address, as one more of the launch's operands.
  Status add_operand(const ir::OpView& at, const ir::Operand& operand, Launch& launch) const;
  void set_batch(Prepared& prepared, int64_t batch);
  void run_profiled(Program program, const Prepared& prepared);
  // The wave behind number `wave`, or behind what is left out there.
  static size_t next_wave(const Prepared& prepared, size_t wave);
  void flip(size_t wave, size_t waves) {
    if (flip_.is_due(wave, waves) && flip_.byte() < arena_.bytes()) {
      char& byte = arena_.data()[flip_.byte()];
      byte = static_cast<char>(flip_.flipped(static_cast<std::byte>(byte)));
    }
  }
  void run_task(const Prepared& prepared, const Wave& wave, int64_t task);

  Pool pool_;
  HostMemory arena_;
  HostMemory block_;    // state in "the host's memory": on a CPU beside the arena
  HostMemory scratch_;  // Gemm::kScratchBytes a thread, where a product needs them
  std::unique_ptr<codegen::HostCode> code_;
  std::array<Prepared, std::size(ir::all_regions)> programs_;  // by ir::RegionKind
  std::atomic<bool> library_failed_{false};
  TestFlip flip_;
  bool profiling_ = false;
  std::vector<Timing> timings_;
  std::chrono::steady_clock::time_point profile_begin_{};  // of the first launch
};

}  // namespace gacc::host
