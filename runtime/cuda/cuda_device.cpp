// Order of events: `open` finds driver, GPU and matrix products and checks that the artifact fits; `load` takes
// all memory, loads the PTX, chooses the algorithms of the matrix products and captures the graphs; after that
// only a micro-batch that is not full allocates anything, when its size comes again (one more graph, inside the
// driver).
#include "runtime/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/emulator_link.h"
#include "runtime/cuda/gemm_engine.h"
#include "runtime/cuda/gemm_selection.h"
#include "runtime/cuda/gpu_choice.h"
#include "runtime/cuda/graphs.h"
#include "runtime/cuda/nccl.h"
#include "runtime/cuda/profiler.h"
#include "runtime/cuda/programs.h"
#include "runtime/cuda/staging.h"

namespace gacc::cuda {
namespace {

constexpr size_t kStagingBytes = size_t{1} << 20;  // of a half, at least
constexpr size_t kLogBytes = 8192;
// Those that are made ready at the start; predict and answer are when they first run.
constexpr Program kAtStart[] = {Program::init, Program::step, Program::update, Program::eval, Program::close};

std::string one_line(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, text.find('\0')))
    if (c != '\n')
      result += c;
    else if (!result.empty() && result.back() != ';')
      result += ';';
  while (!result.empty() && (result.back() == ';' || result.back() == ' ')) result.pop_back();
  return result;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaOptions& options) : options_(options) {}
  ~CudaDevice() override { close(); }

  Status open(const Artifact& artifact) {
    GACC_TRY(driver_.open(options_.driver));
    if (options_.emulated) GACC_TRY(emulator_.open(driver_));
    GACC_TRY(choose_gpu(driver_, options_.ordinal, options_.local_rank, options_.emulated, artifact, gpu_));
    GACC_TRY(driver_.check(driver_.context_retain(&context_, gpu_.handle), "cannot use GPU " + gpu_.name));
    retained_ = true;
    const InContext within = enter();
    GACC_TRY(within.status());
    GACC_TRY(choose_gemm(options_, driver_, gpu_, artifact.plan, gemm_, gemm_note_));
    if (gemm_) GACC_TRY(use_gemm_choices(options_, gpu_, *gemm_, tuning_, gemm_note_));
    size_t total = 0;
    GACC_TRY(driver_.check(driver_.memory_info(&free_before_, &total), "cannot ask for the GPU's memory"));
    arena_bytes_ = artifact.plan.arena_bytes;
    if (static_cast<uint64_t>(needed_bytes()) > free_before_)
      return too_little_memory(gpu_, needed_bytes(), static_cast<int64_t>(free_before_));
    return {};
  }

  std::string name() const override { return described(kind() + ", "); }
  std::string alike() const override { return described(""); }
  std::string kind() const override {
    return options_.emulated ? "emulate" : fmt::format("cuda:{}", gpu_.ordinal);
  }

  Status load(const Artifact& artifact) override {
    const Plan& plan = artifact.plan;
    if (arena_ != 0) return Status::error("internal error: a device loads one artifact");
    if (plan.arena_bytes != arena_bytes_) return Status::error("internal error: load of another artifact");
    const InContext within = enter();
    GACC_TRY(within.status());
    micro_batch_ = plan.micro_batch;
    std::ranges::transform(kPrograms, most_samples_.begin(),
                           [&](Program program) { return plan.most_samples(program); });
    // 1. Memory: the arena, zeroed; on the host the staging halves and the window of reads.
    GACC_TRY(allocate(arena_, arena_bytes_));
    int64_t input_bytes = 0;
    for (const PlanInput& input : plan.inputs) input_bytes += input.bytes(plan.micro_batch) + 256;
    GACC_TRY(staging_.open(driver_, std::max(kStagingBytes, static_cast<size_t>(input_bytes))));
    GACC_TRY(window_.open(driver_));
    GACC_TRY(driver_.make_stream(stream_));
    GACC_TRY(lock_state(plan));
    GACC_TRY(clear(plan));
    if (options_.emulated) emulator_.declare_live(plan, arena_);
    // 2. Code, matrix products, and the graphs of a full micro-batch.
    GACC_TRY(load_module(artifact));
    GACC_TRY(programs_.load(driver_, module_, artifact, arena_, host_state_, gemm_.get(),
                            options_.emulated ? &emulator_ : nullptr, gpu_.handle));
    GACC_TRY(choose_launches(artifact));
    if (gemm_) GACC_TRY(load_products(plan));
    graphs_.open(driver_, programs_, stream_);
    for (const Program program : {Program::step, Program::update, Program::eval, Program::close}) {
      if (programs_.persistent(program) || programs_.sectioned(program) || programs_.launches(program) == 0)
        continue;  // one launch, or no graph can have it
      GACC_TRY(graphs_.add_full(program, micro_batch_));
    }
    GACC_TRY(wait());
    GACC_TRY(measure());
    loaded_ = true;
    return {};
  }

  Status run(Program program, int64_t batch) override {
    if (!loaded_) return Status::error("internal error: run before load");
    if (!takes_samples(program)) batch = micro_batch_;
    const int64_t most = most_samples_[static_cast<size_t>(program)];
    if (batch < 1 || batch > most)
      return Status::error("internal error: a run of {} samples, at most {} fit", batch, most);
    const InContext within = enter();
    GACC_TRY(within.status());
    window_.forget();
    Fork one_stream(driver_, stream_);
    if (programs_.sectioned(program) && !profiler_.is_open() && !flip_.is_set()) {
      Fork streams(driver_, stream_, copies_[0], copies_[1]);
      Status status = programs_.launch(program, batch, streams);
      if (!status) wait_for_all();  // no copy goes on behind the error
      return status;
    }
    if (profiler_.is_open() && !profiler_.full()) {
      GACC_TRY(programs_.prepare(program, batch, stream_));
      GACC_TRY(profiler_.mark(stream_));
      return programs_.launch(program, batch, one_stream, [&](int64_t launch, const std::string& name) {
        return profiler_.queued(program, launch, name, batch, stream_);
      });
    }
    flip_.begin_run();
    if (flip_.is_set()) {
      const auto launches = static_cast<size_t>(programs_.launches(program));
      GACC_TRY(programs_.prepare(program, batch, stream_));
      GACC_TRY(flip(0, launches));
      return programs_.launch(program, batch, one_stream, [&](int64_t launch, const std::string&) {
        return flip(static_cast<size_t>(launch) + 1, launches);
      });
    }
    // Once, or one launch: not worth a graph.
    if (program == Program::init || programs_.persistent(program))
      return programs_.launch(program, batch, one_stream);
    GraphExec graph = nullptr;
    bool captured = false;
    GACC_TRY(graphs_.find(program, batch, graph, captured));
    if (!graph) {
      GACC_TRY(programs_.prepare(program, batch, stream_));
      GACC_TRY(programs_.launch(program, batch, one_stream));
      return measure();  // a library may have loaded code
    }
    if (captured) GACC_TRY(measure());
    return driver_.check(driver_.graph_launch(graph, stream_), "the GPU does not take a launch");
  }

  Status run_init(std::span<const PlanBuffer* const> given) override {
    programs_.leave_out(given);
    return run(Program::init, micro_batch_);
  }

  Status write(int64_t offset, std::span<const std::byte> bytes) override {
    const ArenaWrite one{offset, bytes};
    return write_all(std::span(&one, 1));
  }

  Status write_all(std::span<const ArenaWrite> writes) override {
    const InContext within = enter();
    GACC_TRY(within.status());
    std::vector<Staging::Copy> copies;
    for (const auto& [offset, bytes] : writes) {
      if (std::byte* to = on_host(offset, bytes.size())) {  // once nothing works with it
        GACC_TRY(wait());
        std::ranges::copy(bytes, to);
        continue;
      }
      GACC_TRY(check_range(offset, bytes.size()));
      copies.push_back({arena_ + static_cast<Pointer>(offset), bytes});
    }
    window_.forget();
    return staging_.write(copies, stream_);
  }

  Status read(int64_t offset, std::span<std::byte> bytes) override {
    const InContext within = enter();
    GACC_TRY(within.status());
    if (const std::byte* from = on_host(offset, bytes.size())) {
      GACC_TRY(wait());
      std::copy_n(from, bytes.size(), bytes.begin());
      return {};
    }
    GACC_TRY(check_range(offset, bytes.size()));
    return window_.read(arena_, arena_bytes_, offset, bytes, stream_);
  }

  int64_t peak_bytes() const override { return peak_bytes_; }

  std::string load_note() const override {
    if (options_.emulated) return gemm_note_;
    // The products of one kernel are in it, whatever the engine of the other programs is.
    const bool one_kernel = programs_.persistent(Program::step);
    return fmt::format(
        "{}: a micro-batch is one {}{}; {} bytes taken (arena {}, matrix products' workspace {}, code and "
        "graphs {}), besides the driver's context{}{}{}",
        name(), one_kernel ? "kernel" : "graph",
        !gemm_ ? "" : " with " + (one_kernel ? std::string(kBuiltinProducts) : gemm_->name()), peak_bytes_,
        arena_bytes_, workspace_bytes(), peak_bytes_ - needed_bytes(),
        host_bytes_ > 0
            ? fmt::format("; {} bytes of the host's memory locked for optimizer state", host_bytes_)
            : "",
        gemm_note_.empty() ? "" : "\n", gemm_note_);
  }

  Status start_profile() override {
    profiler_.open(driver_, options_.emulated ? &emulator_ : nullptr);
    return {};
  }
  std::string gemm_choices() const override {
    return tuning_.choices.products.empty() ? "" : gemm_choices_text(tuning_.choices);
  }

  Status read_profile(std::vector<Timing>& timings) override {
    const InContext within = enter();
    GACC_TRY(within.status());
    GACC_TRY(wait());
    return profiler_.read(timings);
  }

  std::string profile_unit() const override {
    return options_.emulated ? "warp instructions of the emulator, which has no clock" : "microseconds";
  }

  Status finish(std::string& reports) override {
    reports.clear();
    if (!options_.emulated || !stream_) return {};
    const InContext within = enter();
    GACC_TRY(within.status());
    Status waited = wait();
    const int64_t count = emulator_.reports(reports);
    if (count == 0) return waited;
    return Status::error("the emulator has {} on the artifact's kernels", counted(count, "report"));
  }

  Status open_link(DeviceLink*& link) override {
    const InContext within = enter();
    GACC_TRY(within.status());
    std::string gpu;
    for (const int attribute : {kAttributePciDomain, kAttributePciBus, kAttributePciDevice}) {
      int value = 0;
      if (options_.emulated) break;
      GACC_TRY(driver_.check(driver_.device_attribute(&value, attribute, gpu_.handle),
                             "cannot ask for the GPU's place"));
      gpu += fmt::format("{}:", value);
    }
    const NcclPlace place{driver_,
                          context_,
                          stream_,
                          arena_,
                          gpu,
                          options_.emulated ? &emulator_ : nullptr,
                          [this] { window_.forget(); },
                          [this] { return measure(); }};
    Status status = open_nccl(place, link_);
    link = link_.get();
    return status;
  }

 private:
  std::string described(const std::string& kind) const {
    if (options_.emulated) return "emulator of an NVIDIA GPU";
    return fmt::format("{} ({}sm_{}, CUDA {}{})", gpu_.name, kind, gpu_.capability,
                       version_text(gpu_.driver_version), gemm_ ? ", " + gemm_->name() : "");
  }

  InContext enter() const { return {driver_, context_}; }

  // The block for state on the host.
  Status lock_state(const Plan& plan) {
    host_bytes_ = plan.host_bytes;
    if (host_bytes_ == 0) return {};
    GACC_TRY(lock_host_memory(driver_, host_bytes_, host_state_));
    std::memset(host_state_, 0, static_cast<size_t>(host_bytes_));
    for (Stream& stream : copies_) GACC_TRY(driver_.make_stream(stream));
    return {};
  }

  // Null where the bytes do not lie in that block.
  std::byte* on_host(int64_t offset, size_t bytes) const {
    const int64_t begin = offset - arena_bytes_;
    if (host_state_ == nullptr || begin < 0 || begin > host_bytes_) return nullptr;
    return bytes <= static_cast<size_t>(host_bytes_ - begin) ? host_state_ + begin : nullptr;
  }

  Status allocate(Pointer& to, int64_t bytes) {
    const int error = driver_.allocate(&to, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (error != kErrorOutOfMemory) return driver_.check(error, "cannot allocate memory on the GPU");
    size_t free = 0, total = 0;
    driver_.memory_info(&free, &total);
    const int64_t taken = arena_ != 0 ? arena_bytes_ : 0;
    return too_little_memory(gpu_, taken + bytes, taken + static_cast<int64_t>(free));
  }

  // The matrix products of full micro-batches: their algorithms, the memory that these work in beside the
  // arena, and their code, which a library loads when an algorithm first runs. For that they run once where
  // their operands lie, before anything is there; the arena is then cleared again.
  Status load_products(const Plan& plan) {
    GACC_TRY(tune_products());
    for (const Program program : kAtStart) GACC_TRY(programs_.prepare(program, micro_batch_, stream_));
    for (size_t stream = 0; stream < workspaces_.size(); ++stream) {
      const auto number = static_cast<int64_t>(stream);
      int64_t& bytes = workspace_bytes_[stream];
      for (const Program program : kAtStart)
        bytes = std::max(bytes, programs_.workspace_bytes(program, number));
      if (bytes > 0) GACC_TRY(allocate(workspaces_[stream], bytes));
      programs_.use_workspace(number, workspaces_[stream]);
    }
    for (const Program program : kAtStart) GACC_TRY(programs_.warm_up(program, stream_));
    return clear(plan);
  }

  // With --tune-gemm: measures what is not known yet, on random numbers, in a workspace that is given back.
  Status tune_products() {
    if (!options_.tune_gemm || gemm_->most_workspace() == 0) return {};
    GACC_TRY(allocate(tuning_.workspace, gemm_->most_workspace()));
    tuning_.measure = [this](const auto& launch, double& microseconds) {
      return time_launch(driver_, stream_, launch, microseconds);
    };
    // In the emulator, which has no clock, values that nobody wrote shall stay that.
    if (!options_.emulated)
      tuning_.fill = [this](Pointer to, int64_t elements, DType type) {
        return fill_randomly(to, elements, type);
      };
    Status status;
    for (const Program program : kAtStart)
      if (status) status = programs_.prepare(program, micro_batch_, stream_);
    if (status) status = wait();
    tuning_.measure = nullptr;
    tuning_.fill = nullptr;
    driver_.release(std::exchange(tuning_.workspace, 0));
    return status;
  }

  Status fill_randomly(Pointer to, int64_t elements, DType type) {
    const std::vector<std::byte> numbers = random_operand(type, size_t{1} << 19, to);  // over and over
    auto left = static_cast<size_t>(dtype_bytes(type, elements));
    while (left > 0) {
      const std::span<const std::byte> piece(numbers.data(), std::min(left, numbers.size()));
      GACC_TRY(staging_.write(to, piece, stream_));
      to += piece.size();
      left -= piece.size();
    }
    return wait();
  }

  // Decides whether step and update run as one cooperative kernel each: where the artifact has it, the GPU can run it,
  // and nobody asked for products that are not in it.
  Status choose_launches(const Artifact& artifact) {
    for (const PlanProgram& planned : artifact.plan.programs) {
      const bool step = planned.name == "step";
      if (!planned.persistent || (!step && planned.name != "update")) continue;
      const Status status =
          step && options_.gemm == GemmChoice::cublas
              ? Status::error("its matrix products are built in, and --gemm cublas was asked for")
              : programs_.use_persistent(step ? Program::step : Program::update, module_, planned, artifact);
      if (!status && planned.persistent_required)
        return Status::error("the step cannot be one kernel, as `launch.mode = \"persistent\"` wants it: {}",
                             status.text());
    }
    return {};
  }

  // In the emulator only the buffers: a value that is read before it was written then shows.
  Status clear(const Plan& plan) {
    const auto fill = [&](int64_t offset, int64_t bytes) {
      return driver_.check(
          driver_.fill_bytes(arena_ + static_cast<Pointer>(offset), 0, static_cast<size_t>(bytes), stream_),
          "cannot clear the arena");
    };
    if (!options_.emulated) return fill(0, arena_bytes_);
    for (const PlanBuffer& buffer : plan.buffers)
      if (buffer.room > 0 && buffer.offset < arena_bytes_) GACC_TRY(fill(buffer.offset, buffer.room));
    return {};
  }

  // The driver keeps the code that it makes of a text, by the text: it gets the PTX alone, which stays when only the
  // artifact's IR changes. The emulator, and the driver once there is an error, get the whole artifact, which is valid
  // PTX: so the lines in reports and logs are those of the file.
  Status load_module(const Artifact& artifact) {
    std::string log;
    if (!options_.emulated && load_text(artifact.ptx, log) == 0) return {};
    const int error = load_text(write_artifact(artifact), log);
    if (error == 0) return {};
    std::string text = driver_.check(error, "the driver does not take the artifact's PTX").text();
    if (const std::string lines = one_line(log); !lines.empty()) text += ": " + lines;
    return Status::error(std::move(text));
  }

  // Returns the driver's error, with what it says in `log`.
  int load_text(const std::string& ptx, std::string& log) {
    log.assign(kLogBytes, '\0');
    int options[] = {kJitErrorLog, kJitErrorLogBytes};
    void* values[] = {log.data(), reinterpret_cast<void*>(kLogBytes)};
    return driver_.module_load(&module_, ptx.c_str(), 2, options, values);
  }

  // The memory taken now: other programs on the same GPU count as well, so this never goes below our own figures.
  Status measure() {
    size_t free = 0, total = 0;
    const Status status =
        driver_.check(driver_.memory_info(&free, &total), "cannot ask for the GPU's memory");
    const int64_t taken = free < free_before_ ? static_cast<int64_t>(free_before_ - free) : 0;
    peak_bytes_ = std::max({peak_bytes_, needed_bytes(), options_.emulated ? 0 : taken});
    return status;
  }

  Status flip(size_t launch, size_t launches) {
    std::byte byte{};
    if (!flip_.is_due(launch, launches) || flip_.byte() >= arena_bytes_) return {};
    GACC_TRY(read(flip_.byte(), std::span(&byte, 1)));
    byte = flip_.flipped(byte);
    return write(flip_.byte(), std::span(&byte, 1));
  }

  Status check_range(int64_t offset, size_t bytes) const {
    if (!loaded_) return Status::error("internal error: the device is not loaded");
    if (offset >= 0 && offset <= arena_bytes_ && bytes <= static_cast<size_t>(arena_bytes_ - offset))
      return {};
    return Status::error("internal error: {} bytes at {} are outside the arena of {}", bytes, offset,
                         arena_bytes_);
  }

  Status wait() { return driver_.wait(stream_); }

  void wait_for_all() {
    for (const Stream stream : {stream_, copies_[0], copies_[1]})
      if (stream) driver_.stream_wait(stream);
  }

  void close() {
    if (!retained_) return;
    give_back();
    driver_.context_release(gpu_.handle);
  }

  void give_back() {
    const InContext within = enter();
    link_.reset();  // first: what waits for a peer ends
    wait_for_all();
    profiler_.close();
    graphs_.close();
    gemm_.reset();
    staging_.close();
    window_.close();
    if (stream_) driver_.stream_destroy(stream_);
    if (module_) driver_.module_unload(module_);
    for (const Pointer workspace : workspaces_)
      if (workspace) driver_.release(workspace);
    for (const Stream stream : copies_)
      if (stream) driver_.stream_destroy(stream);
    if (host_state_) driver_.host_release(host_state_);
    if (arena_) driver_.release(arena_);
  }

  int64_t workspace_bytes() const { return workspace_bytes_[0] + workspace_bytes_[1]; }
  int64_t needed_bytes() const { return arena_bytes_ + workspace_bytes(); }

  CudaOptions options_;
  Driver driver_;
  Gpu gpu_;
  EmulatorLink emulator_;
  bool retained_ = false;  // the primary context
  Context context_ = nullptr;
  Module module_ = nullptr;
  Stream stream_ = nullptr;
  Pointer arena_ = 0;
  // For plans with state on the host: the locked block, and the streams of its copies.
  std::byte* host_state_ = nullptr;
  int64_t host_bytes_ = 0;
  std::array<Stream, kPlanStreams - 1> copies_{};
  std::array<Pointer, 2> workspaces_{};  // of each stream
  GemmTuning tuning_;
  std::unique_ptr<GemmEngine> gemm_;  // null when the plan has no products
  std::string gemm_note_;
  Programs programs_;
  Profiler profiler_;
  Staging staging_;
  Graphs graphs_;
  ReadWindow window_;
  std::unique_ptr<DeviceLink> link_;
  TestFlip flip_;
  bool loaded_ = false;
  int64_t micro_batch_ = 0, arena_bytes_ = 0;
  std::array<int64_t, std::size(kPrograms)> most_samples_{};  // of a run, by program
  std::array<int64_t, 2> workspace_bytes_{};  // of the products that have too little in the arena
  size_t free_before_ = 0;                    // bytes free on the device once the context stood
  int64_t peak_bytes_ = 0;
};

}  // namespace

Status open_device(const CudaOptions& options, const Artifact& artifact, std::unique_ptr<Device>& device) {
  auto opened = std::make_unique<CudaDevice>(options);
  GACC_TRY(opened->open(artifact));
  device = std::move(opened);
  return {};
}

}  // namespace gacc::cuda
