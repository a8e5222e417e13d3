// The plan's programs as launches on a stream: every kernel found in the module and checked once, at load;
// then `launch` only fills in the micro-batch's extent. What it queues, a graph may capture.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "runtime/artifact.h"
#include "runtime/cuda/emulator_link.h"
#include "runtime/cuda/gemm_engine.h"
#include "runtime/device.h"
#include "runtime/no_copy.h"

namespace gacc::cuda {

// The streams of a launch. Further ones join the first, or its capture: each waits for launches of the others by
// events, and at the end the first goes on when they have ended.
class Fork : NoCopy {
 public:
  // The driver must outlive this, and this the capture. Without further streams all is queued on the first, and
  // nothing waits.
  Fork(const Driver& driver, Stream first, Stream second = nullptr, Stream third = nullptr)
      : driver_(driver),
        streams_{first, second ? second : first, third ? third : first},
        forks_(second != nullptr) {}
  ~Fork() {
    for (const Event event : events_) driver_.event_destroy(event);
  }

  Status begin() {
    GACC_TRY(mark(kWhole, 0));
    for (int64_t other = 1; is_further(other); ++other) GACC_TRY(wait(kWhole, other));
    return {};
  }
  Stream stream(int64_t number) const { return streams_[static_cast<size_t>(number)]; }
  // The launch with that number has been queued on its stream: what waits for it may be, too.
  Status mark(int64_t launch, int64_t stream) {
    if (!forks_) return {};
    Event event = nullptr;
    GACC_TRY(driver_.make_event(event, kEventDisableTiming));
    events_.push_back(event);
    marks_[launch] = event;
    return driver_.record(event, this->stream(stream));
  }
  // Makes `stream` wait for that launch before what it is given next, if it was marked and so was made.
  Status wait(int64_t launch, int64_t stream) {
    const auto mark = marks_.find(launch);
    if (mark == marks_.end()) return {};
    return driver_.check(driver_.stream_wait_event(this->stream(stream), mark->second, 0),
                         "cannot let a stream wait for another");
  }
  Status end() {
    for (int64_t other = 1; is_further(other); ++other) {
      GACC_TRY(mark(kWhole, other));
      GACC_TRY(wait(kWhole, 0));
    }
    return {};
  }

 private:
  static constexpr int64_t kWhole = -1;  // instead of a launch: all that a stream was given so far

  bool is_further(int64_t stream) const {
    return forks_ && stream < static_cast<int64_t>(streams_.size()) && this->stream(stream) != streams_[0];
  }

  const Driver& driver_;
  const std::array<Stream, kPlanStreams> streams_;
  const bool forks_;
  std::vector<Event> events_;
  std::map<int64_t, Event> marks_;  // the latest event of a launch
};

class Programs {
 public:
  // Finds and checks all kernels. `driver`, `gemm` and `emulator` must outlive this; gemm may be null when
  // the plan has no products, emulator when this is a GPU, and host_state where no state lies on the host.
  Status load(const Driver& driver, Module module, const Artifact& artifact, Pointer arena,
              std::byte* host_state, GemmEngine* gemm, const EmulatorLink* emulator, int device);
  // From here on the program is this one cooperative kernel. An error when its blocks do not run at once
  // here: then it stays as it was.
  Status use_persistent(Program program, Module module, const PlanProgram& planned, const Artifact& artifact);
  bool persistent(Program program) const { return persistent_[index(program)]; }
  // Before the first launch of a program with this batch, and never under capture: chooses matrix products.
  Status prepare(Program program, int64_t batch, Stream stream) const;
  // Returns, for full micro-batches once prepared, the bytes that a product works in and the plan has no room for at
  // the time: the most of any product of the stream, 0 when all have room in the arena. `launch` needs so many, for
  // each stream its own.
  int64_t workspace_bytes(Program program, int64_t stream) const;
  void use_workspace(int64_t stream, Pointer workspace) {
    workspaces_[static_cast<size_t>(stream)] = workspace;
  }
  // Runs the matrix products of a full micro-batch whose code the library may have to load, on whatever the
  // arena holds, and leaves their results there.
  Status warm_up(Program program, Stream stream) const;
  // Queues all launches of a program, in order. `queued`, if given, hears of each: its number and name.
  using Queued = std::function<Status(int64_t launch, const std::string& name)>;
  Status launch(Program program, int64_t batch, Fork& fork, const Queued& queued = {}) const;
  // From now on `init` leaves out what the caller overwrites after it.
  void leave_out(std::span<const PlanBuffer* const> given);
  // True where launches of it run only if the program says so meanwhile (PlanSection): the host then looks, and no
  // graph has it.
  bool sectioned(Program program) const { return sections_[index(program)].has_value(); }
  // Returns the number of the last stream that the plan has launches of it on; 0: it has one.
  int64_t last_stream(Program program) const;
  int64_t launches(Program program) const { return static_cast<int64_t>(programs_[index(program)].size()); }

 private:
  struct Launch {
    PlanLaunch planned;           // a product's arguments are those of its built-in kernel
    Function function = nullptr;  // null: a product or a copy
    int64_t most_blocks = 0;      // that run at once, for a kernel whose blocks take turns; 0: any number
    Product product;              // without its extents, which are known at launch
    bool on_demand = false;  // a product of a prediction: like a ragged one, it takes no memory of its own
    // The product of the program that may have done already what this kernel does, as its bias or as its
    // built-in kernel's epilogue.
    int64_t bias_of = -1, epilogue_of = -1;
    int64_t then = -1;     // of a product: that kernel
    bool awaited = false;  // a launch of another stream is after this one
    bool runs = true;      // false: it is left out
    bool is_product() const { return !function && !planned.copy; }
  };

  static size_t index(Program program) { return static_cast<size_t>(program); }
  Status find_kernel(Module module, const std::string& ptx, const std::string& name, size_t parameters,
                     int64_t block, Function& function) const;
  Status add(Module module, const Artifact& artifact, const PlanLaunch& planned, Launch& launch);
  Status find_residency(Launch& launch) const;
  // An address, or an extent with this batch.
  uint64_t value(const PlanArgument& argument, int64_t batch) const;
  Product at_batch(const Launch& launch, int64_t batch) const;
  // Bytes from product.workspace on.
  static int64_t planned_workspace(const Launch& launch) {
    return launch.planned.workspace ? launch.planned.workspace->bytes : 0;
  }
  // In the emulator: tells it of the values that begin or end in launch `number`.
  Status tell_values(Program program, const std::vector<Launch>& launches, int64_t number, int64_t batch,
                     Stream stream) const;
  // Queues launch `number`; `queued` as above.
  Status launch_one(const std::vector<Launch>& launches, int64_t number, int64_t batch, Stream stream,
                    const Queued& queued) const;
  Status copy(const PlanCopy& copy, Stream stream) const;
  // Waits for what was queued, and tells whether the section runs.
  Status read_flag(const PlanSection& section, Stream stream, bool& runs) const;
  // True where a product has done what this launch is there for.
  bool done_before(const std::vector<Launch>& launches, const Launch& launch, int64_t batch) const;

  const Driver* driver_ = nullptr;
  const EmulatorLink* emulator_ = nullptr;
  Pointer arena_ = 0;
  int64_t arena_bytes_ = 0;
  std::byte* host_state_ = nullptr;  // whose addresses follow the arena's
  GemmEngine* gemm_ = nullptr;
  int device_ = 0;
  int64_t micro_batch_ = 1;
  std::array<Pointer, 2> workspaces_{};  // of each stream, for products that have too little in the arena
  std::array<bool, std::size(kPrograms)> persistent_{};
  std::array<std::optional<PlanSection>, std::size(kPrograms)> sections_{};
  std::array<std::vector<Launch>, std::size(kPrograms)> programs_;
  std::array<std::vector<PlanValue>, std::size(kPrograms)> values_;
  std::set<int64_t> read_by_init_;  // offsets of the state that the runtime gives it
};

// The number of parameters of a PTX entry, all of 8 bytes; -1 when the text has no such entry or one of its
// parameters has another size.
int entry_parameters(std::string_view ptx, std::string_view name);

}  // namespace gacc::cuda
