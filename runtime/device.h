// The Device interface: what a session needs of a machine that runs a compiled step. One arena, allocated by
// `load` and never again; nothing else allocates after that.
#pragma once
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/artifact.h"

namespace gacc {

// The matrix products that a GPU runs: cuBLAS's, those of the artifact's own PTX, or (automatic) cuBLAS's where it is
// installed and the artifact's otherwise.
enum class GemmChoice : uint8_t { automatic, cublas, builtin };

struct DeviceOptions {
  int threads = 0;  // CPU: 0 means all cores this process may use
  GemmChoice gemm = GemmChoice::automatic;
  // Algorithms of a library's products, as Device::gemm_choices gave them; where they are from, for messages.
  // They are used if they are of this GPU and library. `tune_gemm` measures, in `load`, what they leave open.
  std::string gemm_choices{}, gemm_choices_from{};
  bool tune_gemm = false;
  int local_rank = 0;  // of several ranks on one machine: each takes the next of the GPUs that can
};

// One kernel or matrix product of a profiled run.
struct Timing {
  std::string name;
  Program program = Program::step;
  int64_t launch = 0;              // its number in the program
  int64_t batch = 0;               // samples
  double begin = 0, duration = 0;  // of Device::profile_unit; begin counts from the first one's
};

// The exchange of several ranks' devices without their hosts in between: of parts of their arenas, in numbers
// of 4 bytes. All of it is queued behind what the device was given before, and none but `join` waits. An
// error leaves the link of no further use.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  virtual std::string name() const = 0;  // for messages
  virtual std::string gpu() const = 0;  // tells the device from others of its machine; empty: it is one alone
  // The first rank makes an id, with which all join.
  virtual Status make_id(std::string& id) = 0;
  virtual Status join(const std::string& id, int rank, int ranks) = 0;
  // A part of the arena that is used between programs, as no program uses it.
  virtual void lend(int64_t /*offset*/, int64_t /*bytes*/) {}
  // Between `begin` and `end` all is sent and received at once. What a rank sends to another is received in
  // the same order, in parts of the same size.
  virtual Status begin() = 0;
  virtual Status send(int64_t offset, int64_t numbers, int to) = 0;
  virtual Status receive(int64_t offset, int64_t numbers, int from) = 0;
  virtual Status end() = 0;
  virtual Status copy(int64_t to, int64_t from, int64_t numbers) = 0;
  // left = left * kept + right, rounded twice; integers are only added.
  virtual Status add(int64_t left, int64_t right, int64_t numbers, bool integer, float kept) = 0;
};

// Bytes, and where in the arena Device::write puts them.
struct ArenaWrite {
  int64_t offset = 0;
  std::span<const std::byte> bytes{};
};

class Device {
 public:
  virtual ~Device() = default;
  // For messages and the log: "cpu (2 threads, avx512)".
  virtual std::string name() const = 0;
  // Compiles or loads the artifact and allocates the arena (zeroed). Waits.
  virtual Status load(const Artifact& artifact) = 0;
  // Queues one run of a program with `batch` samples (ignored by init and update). Does not wait; errors of
  // the run surface at the next `read`.
  virtual Status run(Program program, int64_t batch) = 0;
  // Queues one run of `init`. The caller writes all of the buffers `given` next: what `init` would only leave there may
  // be anything until then, and need not be made.
  virtual Status run_init(std::span<const PlanBuffer* const> /*given*/) { return run(Program::init, 1); }
  // Copies into the arena after everything queued so far. `bytes` may be reused on return.
  virtual Status write(int64_t offset, std::span<const std::byte> bytes) = 0;
  // Several at once. What lies side by side may be one copy, and then the bytes up to the next multiple of 256
  // behind each are set, too: places of values begin at those.
  virtual Status write_all(std::span<const ArenaWrite> writes) {
    Status status;
    for (size_t i = 0; status && i < writes.size(); ++i) status = write(writes[i].offset, writes[i].bytes);
    return status;
  }
  // Waits for everything queued so far, then copies out of the arena.
  virtual Status read(int64_t offset, std::span<std::byte> bytes) = 0;
  // The largest number of bytes ever allocated on the device: the arena plus what the driver takes.
  virtual int64_t peak_bytes() const = 0;
  // The part of the machine on which a run's bits depend: ranks must have the same.
  virtual std::string alike() const { return name(); }
  // A part of the arena: between programs the caller may read it, and use as memory of its own what nothing
  // else uses; empty where the arena is not in the host's memory.
  virtual std::span<std::byte> host_memory(int64_t /*offset*/, int64_t /*bytes*/) { return {}; }
  // Calls task(context, i) for every i below `tasks` and waits for all: on its threads, where the arena is in the
  // host's memory, else on the caller. The tasks may read and write parts of the arena that no other one writes.
  virtual void run_tasks(int64_t tasks, void (*task)(const void* context, int64_t i), const void* context) {
    for (int64_t i = 0; i < tasks; ++i) task(context, i);
  }
  // The same of f(i), which returns a Status. Returns the first error by their order.
  template <class F>
  Status run_each(size_t tasks, const F& f) {
    std::vector<Status> done(tasks);
    const auto task = [&](size_t i) { done[i] = f(i); };
    run_tasks(
        static_cast<int64_t>(tasks),
        [](const void* context, int64_t i) {
          (*static_cast<const decltype(task)*>(context))(static_cast<size_t>(i));
        },
        &task);
    for (Status& status : done)
      if (!status) return std::move(status);
    return {};
  }
  // True when those threads are as many as the cores that this process may use.
  virtual bool takes_every_core() const { return false; }
  // After `load`: the device's link to those of other ranks, which belongs to it; an error says why it has none.
  virtual Status open_link(DeviceLink*& /*link*/) { return Status::error("{} has no link", name()); }
  // For the log's start event: "cpu", "cuda:0", "emulate".
  virtual std::string kind() const { return "cpu"; }
  // A line for the user after `load`, such as the memory taken; empty when there is nothing to say.
  virtual std::string load_note() const { return {}; }
  // After `load`: the algorithms of the products that were measured or given; empty when the device has none
  // to choose among, or was not asked to.
  virtual std::string gemm_choices() const { return {}; }
  // From now on every launch is measured, one after the other and without graphs, so the run is slower; at
  // most kMostTimings of them. After `load`.
  virtual Status start_profile() { return Status::error("{} does not measure launches", name()); }
  // Waits for everything queued so far, and gives what was measured.
  virtual Status read_profile(std::vector<Timing>& timings) {
    timings.clear();
    return {};
  }
  virtual std::string profile_unit() const { return "microseconds"; }
  // Ends a run, whether it failed or not: what a checking device found, one line each, goes to `reports`, and
  // makes the run an error.
  virtual Status finish(std::string& reports) {
    reports.clear();
    return {};
  }
};

// A fault on demand, for tests: GACC_TEST_FLIP=RUN:PART:BYTE:BIT flips that bit of the arena in run number RUN since
// `load`, of whichever program, after PART thousandths of its launches.
class TestFlip {
 public:
  TestFlip() {
    const char* text = std::getenv("GACC_TEST_FLIP");
    is_set_ = text != nullptr &&
              std::sscanf(text, "%" SCNd64 ":%" SCNd64 ":%" SCNd64 ":%d", &run_, &part_, &byte_, &bit_) == 4;
  }
  bool is_set() const { return is_set_; }
  void begin_run() { --run_; }
  // Says whether it is due between launch number `launch` of a run and the one before it.
  bool is_due(size_t launch, size_t launches) const {
    return is_set_ && run_ == -1 && launch == static_cast<size_t>(part_) * launches / 1000;
  }
  int64_t byte() const { return byte_; }
  std::byte flipped(std::byte value) const { return value ^ std::byte{1} << bit_; }

 private:
  bool is_set_ = false;
  int64_t run_ = 0, part_ = 0, byte_ = 0;
  int bit_ = 0;
};

constexpr size_t kMostTimings = 50000;

// Returns a number that other sizes of these types would change.
template <class... Types>
constexpr int number_of_sizes() {
  uint32_t number = 0;
  ((number = number * 31 + sizeof(Types)), ...);
  return static_cast<int>(number % 10'000'000);
}
// Every device plug-in (libgacc-host.so, ...) exports this symbol. The ABI number must match. It is raised with what
// sizes do not show: another order of members or of virtual functions.
constexpr int kDeviceAbi =
    11 * 10'000'000 + number_of_sizes<Artifact, PlanInput, PlanBuffer, PlanProgram, PlanLaunch, PlanArgument,
                                      PlanValue, DeviceOptions, Timing>();
extern "C" {
using gacc_create_device_fn = Device* (*)(int abi,
                                          const DeviceOptions* options);  // null when the ABI differs
}

}  // namespace gacc
