// The four checks. Each says what it compares, prints a line for every tensor, and gives its verdict; one
// that cannot be made says why.
#include "runtime/run/self_check.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <sstream>

#include "runtime/atomic_file.h"
#include "runtime/no_copy.h"
#include "runtime/run/begin.h"
#include "runtime/run/open_device.h"
#include "runtime/run/rates.h"
#include "runtime/run/train.h"
#include "runtime/store/checkpoint.h"

extern char** environ;

namespace gacc {
namespace {

constexpr int64_t kEmulatedSamples = 6;             // a launch takes seconds there
constexpr int64_t kLargestSize = int64_t{1} << 62;  // bytes: more than any budget in a model file may be
constexpr int kMostTries = 64;                      // halvings of a loss scale: from 2^24 down to 2^-40
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The share of the norm of all gradients from which a gradient's own norm counts; below, it is taken to be
// that. The bias before a norm that takes it away again has a gradient that is nothing but rounding.
double share_floor(DType precision) { return precision == DType::f32 ? 1e-2 : 1e-1; }

// Returns how far two results of one computation may be apart that add their terms in another order: a share of the
// tensor's norm, or of the norm of all where that is more. By precision.compute.
double order_bound(DType precision) {
  return precision == DType::f32 ? 1e-4 : precision == DType::f16 ? 1e-2 : 5e-2;
}

// The same for a computation in half precision against f32.
// Four times the root of the unit roundoff: rounding turns over that share of relu and max_pool2d choices,
// and a gradient moves by the root of it (mnist_cnn: 4.3e-2 in f16, 1.2e-1 in bf16, a factor of sqrt(8)).
double half_bound(DType precision) { return precision == DType::f16 ? 9e-2 : 2.5e-1; }

// The results of one window.
struct WindowOutcome {
  WindowReport report;
  std::vector<NamedTensor> gradients, parameters;  // mean gradients before, parameters after the update
};

// The farthest that one tensor is from the reference, by its norm-wise relative difference.
struct Deviation {
  std::string name;
  double value = 0;  // infinite when one is not finite
};

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// By tensor, in their order; `floor` is the share of the norm of all tensors below which a tensor's own norm
// counts no more.
std::vector<Deviation> deviations(const std::vector<NamedTensor>& got,
                                  const std::vector<NamedTensor>& reference, double floor) {
  double all = 0;
  for (const NamedTensor& tensor : reference) all += std::pow(norm_of(tensor.data), 2);
  all = std::sqrt(all);
  std::vector<Deviation> result;
  for (size_t t = 0; t < reference.size(); ++t) {
    const std::vector<float>&a = got[t].data, &b = reference[t].data;
    double difference = a.size() == b.size() ? 0 : kInfinity;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const double apart = static_cast<double>(a[i]) - b[i];
      difference += apart * apart;
    }
    difference = std::sqrt(difference);
    const double size = std::max(norm_of(b), floor * all);
    const double relative = difference == 0 ? 0 : difference / size;
    result.push_back({reference[t].name, std::isfinite(relative) ? relative : kInfinity});
  }
  return result;
}

// Keeps the larger one of each tensor.
void keep_largest(std::vector<Deviation>& so_far, const std::vector<Deviation>& more) {
  if (so_far.empty()) so_far = more;
  for (size_t i = 0; i < std::min(so_far.size(), more.size()); ++i)
    so_far[i].value = std::max(so_far[i].value, more[i].value);
}

// Launches of at most `size` samples.
std::vector<int64_t> even(int64_t samples, int64_t size) {
  std::vector<int64_t> sizes;
  for (int64_t left = samples; left > 0; left -= size) sizes.push_back(std::min(left, size));
  return sizes;
}

// Launches of 1, size, size - 1, 1, size, ... samples.
std::vector<int64_t> uneven(int64_t samples, int64_t size) {
  std::vector<int64_t> sizes;
  const int64_t cycle[] = {1, size, std::max<int64_t>(1, size - 1)};
  for (int64_t left = samples; left > 0; left -= sizes.back())
    sizes.push_back(std::min(left, cycle[sizes.size() % 3]));
  return sizes;
}

// Returns a setting's value without quotes; "" when there is none.
std::string setting(const Artifact& artifact, std::string_view key) {
  const auto found =
      std::ranges::find_if(artifact.plan.settings, [&](const auto& each) { return each.first == key; });
  if (found == artifact.plan.settings.end()) return "";
  std::string value = found->second;
  if (value.size() >= 2 && value.front() == '"') value = value.substr(1, value.size() - 2);
  return value;
}

constexpr int kCompilerFault = 3;  // gaccc's exit status for an internal error; lower ones refuse the input

// Runs a command with its output in a file, and with the signals that this process has blocked let through. The exit
// status, or 128 + N after a signal.
Result<int> run_command(std::vector<std::string> words, const std::string& output) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int failure =
      posix_spawn(&child, words.front().c_str(), &files, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) return Status::error("cannot run {}: {}", words.front(), system_reason(failure));
  int ended = 0;
  while (waitpid(child, &ended, 0) < 0)
    if (errno != EINTR) return Status::error("cannot wait for {}: {}", words.front(), system_reason(errno));
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
}

// The line that says what is wrong.
std::string reason(const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (line.find("error") != std::string::npos || line.starts_with("gaccc: ")) return line;
  return "no reason given";
}

// The figures of a window that update computes, as tensors of one element.
std::vector<NamedTensor> figures(const WindowOutcome& outcome) {
  return {{"the window's loss", {}, {outcome.report.loss}},
          {"the gradient's norm", {}, {outcome.report.norm}}};
}

class Verifier : NoCopy {
 public:
  Verifier(const Artifact& artifact, const Dataset& data, const VerifyOptions& options)
      : artifact_(artifact), data_(data), options_(options) {}
  ~Verifier() {
    std::error_code none;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, none);
  }

  Result<VerifyResult> run() {
    int64_t samples = std::min(data_.samples, plan_.micro_batch * plan_.accumulate);
    if (emulated()) samples = std::min(samples, kEmulatedSamples);
    if (samples == 0) return Status::error("--verify: the data has no samples");
    order_ = epoch_order(data_.samples, options_.seed, 0, options_.shuffle);
    order_.resize(static_cast<size_t>(samples));
    sizes_ = even(samples, std::min(plan_.micro_batch, samples));
    say(fmt::format("verifying {} on {} with {} of {}; deviations are relative to a tensor's norm",
                    plan_.model, options_.device, samples, counted(data_.samples, "sample")));
    GACC_TRY(with_session(artifact_, 0, [&](Session& session) { return settle(session); }));
    for (Status (Verifier::*const check)() :
         {&Verifier::split, &Verifier::recompute, &Verifier::resume, &Verifier::half})
      GACC_TRY((this->*check)());
    say(fmt::format("{} passed, {} failed, {} left out", counted(result_.passed, "check"), result_.failed,
                    result_.left_out));
    return result_;
  }

 private:
  using Buffers = std::vector<std::vector<std::byte>>;
  bool emulated() const { return options_.device == "emulate"; }

  void say(const std::string& text) { options_.print(text + "\n"); }
  void leave_out(const std::string& what, const std::string& why) {
    say(fmt::format("{}\n  left out: {}", what, why));
    ++result_.left_out;
  }

  // Prints the table; a negative bound judges nothing.
  void judge(const std::vector<Deviation>& table, double bound) {
    const auto largest = std::ranges::max_element(table, {}, &Deviation::value);
    const Deviation worst = largest == table.end() ? Deviation{} : *largest;
    if (worst.value == 0) say(fmt::format("  all {}: 0", counted(std::ssize(table), "tensor")));
    for (const Deviation& row : table)
      if (worst.value > 0)
        say(fmt::format("  {:<48} {:.2e}{}", row.name, row.value,
                        bound >= 0 && row.value > bound ? "  <-- past the bound" : ""));
    if (bound < 0) return;
    const bool good = worst.value <= bound;
    result_.passed += good;
    result_.failed += !good;
    say(fmt::format("  {}: the largest deviation is {:.2e}{}; the bound is {}", good ? "passed" : "FAILED",
                    worst.value, worst.value > 0 ? " (" + worst.name + ")" : "",
                    bound == 0 ? "0, the same bits" : fmt::format("{:.0e}", bound)));
  }

  // A temporary folder, removed at the end.
  Result<std::string> folder() {
    if (!folder_.empty()) return folder_;
    const char* place = getenv("TMPDIR");
    std::string name = fmt::format("{}/gacc-verify-XXXXXX", place && *place ? place : "/tmp");
    if (!mkdtemp(name.data()))
      return Status::error("cannot make a folder {}: {}", name, system_reason(errno));
    return folder_ = name;
  }

  // The model of the artifact's record (Artifact::model), compiled with settings on top of those the artifact was
  // compiled with. `faulty`: it fails by a fault of gaccc itself, an internal error or a signal.
  // Runs gaccc, since the runtime has no compiler of its own.
  Result<Artifact> compile(const Settings& settings, bool& faulty) {
    const std::string compiler = options_.compiler_folder + "/gaccc";
    if (artifact_.model.empty()) return Status::error("the artifact has no record of its model");
    if (access(compiler.c_str(), X_OK) != 0)
      return Status::error("{} is not there (Debian package gacc-compiler)", compiler);
    GACC_TRY(write_file_atomically(GACC_TRY(folder()) + "/model.toml", artifact_.model));
    const std::string product = folder_ + "/step.ptx", output = folder_ + "/output";
    std::vector<std::string> words = {compiler,   folder_ + "/model.toml", "-o", product,
                                      "--target", artifact_.plan.target};
    // A later --set of a key replaces an earlier one, but is an error where both are given; so only the last.
    std::vector<std::string> all = artifact_.overrides;
    for (const auto& [key, value] : settings) {
      const std::string set = key + "=";
      std::erase_if(all, [&](const std::string& earlier) { return earlier.starts_with(set); });
      all.push_back(set + value);
    }
    for (const std::string& set : all) words.insert(words.end(), {"--set", set});
    const int code = GACC_TRY(run_command(words, output));
    faulty = code >= kCompilerFault;
    if (code != 0) {
      std::string why = reason(GACC_TRY(read_file(output)));
      if (const size_t at = why.find(folder_); at != std::string::npos) why.erase(at, folder_.size() + 1);
      return Status::error("gaccc gives up with exit {}: {}", code, why);
    }
    return options_.open(product);
  }

  // The model with other settings, at the same micro-batch and accumulation whatever memory that takes. Nothing
  // when there is none, which is said: the check is left out, or has failed where the compiler did.
  std::optional<Artifact> compile_variant(const std::string& what, Settings settings) {
    settings.emplace_back("train.micro_batch", fmt::format("{}", plan_.micro_batch));
    settings.emplace_back("train.accumulate", fmt::format("{}", plan_.accumulate));
    // A budget may have cut the loss into more parts than shapes alone would, and these change bits.
    const std::string chunks = setting(artifact_, "loss.chunks");
    if (!setting(artifact_, "memory.budget").empty())
      settings.emplace_back("loss.chunks", chunks.empty() ? "1" : chunks);
    for (const char* budget : {"memory.budget", "recompute.budget"})
      if (!setting(artifact_, budget).empty())
        settings.emplace_back(budget, fmt::format("{}B", kLargestSize));
    bool faulty = false;
    Result<Artifact> variant = compile(settings, faulty);
    if (variant) return variant.take();
    if (!faulty) {
      leave_out(what, variant.status().text());
    } else {
      say(fmt::format("{}\n  FAILED: {}", what, variant.status().text()));
      ++result_.failed;
    }
    return {};
  }

  // Calls work(session) with the artifact loaded and initialised on a device of its own, and ends that: what a
  // checking device found is an error. `scale`: the loss scale; 0: the artifact's. `from`: a checkpoint to begin with.
  template <class Work>
  Status with_session(const Artifact& artifact, float scale, Work work,
                      const CheckpointReader* from = nullptr) {
    const std::unique_ptr<Device> device =
        GACC_TRY(open_device(options_.device, options_.device_options, artifact));
    Session session(*device, artifact.plan);
    GACC_TRY(session.open(artifact));
    GACC_TRY(begin(session, artifact.plan,
                   {.seed = options_.seed,
                    .lr = options_.lr,
                    .checkpoint = from,
                    .weights = options_.loaded,
                    .class_weights = options_.class_weights}));
    if (scale != 0) GACC_TRY(session.write_state(state::loss_scale, scale));
    GACC_TRY(tell_length(session, artifact.plan, updates_of_run(artifact.plan, data_.samples, {})));
    GACC_TRY(work(session));
    std::string reports;
    const Status status = device->finish(reports);
    return status || reports.empty() ? status : Status::error("{}\n{}", status.text(), reports);
  }

  // The window of order_, in launches of these sizes (they add up to its samples).
  Result<WindowOutcome> window(Session& session, const Plan& plan, std::span<const int64_t> sizes) {
    std::vector<std::vector<std::byte>> bytes(plan.inputs.size());
    size_t done = 0;
    for (const int64_t size : sizes) {
      if (options_.interrupted && options_.interrupted()) return Status::error("interrupted");
      const auto samples = std::span(order_).subspan(done, static_cast<size_t>(size));
      std::vector<std::span<const std::byte>> inputs;
      for (size_t i = 0; i < plan.inputs.size(); ++i) {
        bytes[i].resize(static_cast<size_t>(size * elements_of(plan.inputs[i].shape)) * 4);  // f32 and i32
        GACC_TRY(data_.gather(i, plan.inputs[i], samples, bytes[i]));
        inputs.emplace_back(bytes[i]);
      }
      GACC_TRY(session.step(inputs, size));
      done += static_cast<size_t>(size);
    }
    WindowOutcome outcome;
    outcome.gradients = GACC_TRY(session.mean_gradients());
    outcome.report = GACC_TRY(session.update());
    outcome.parameters = GACC_TRY(session.parameters());
    return outcome;
  }

  // With a dynamic loss scale the first windows overflow until the scale fits: repeats the window until one
  // is applied.
  Status settle(Session& session) {
    if (!plan_.find(state::loss_scale)) return {};
    for (int tries = 0; tries < kMostTries; ++tries) {
      scale_ = GACC_TRY(session.read_state<float>(state::loss_scale));
      GACC_TRY(session.set_ordinal(0));  // with the same masks each time
      const WindowReport report = GACC_TRY(window(session, plan_, sizes_)).report;
      if (report.applied || report.sums.count == 0) return {};  // without a count, at any scale
    }
    return Status::error("no loss scale was found with which the gradient is finite");
  }

  Result<WindowOutcome> any_window(const Artifact& artifact, std::span<const int64_t> sizes, float scale) {
    WindowOutcome outcome;
    GACC_TRY(with_session(artifact, scale, [&](Session& session) -> Status {
      outcome = GACC_TRY(window(session, artifact.plan, sizes));
      return {};
    }));
    return outcome;
  }

  // The same, with a finite gradient of counted elements.
  Result<WindowOutcome> one_window(const Artifact& artifact, std::span<const int64_t> sizes, float scale) {
    WindowOutcome outcome = GACC_TRY(any_window(artifact, sizes, scale));
    if (!outcome.report.finite)
      return Status::error("--verify: the gradient of the first window is not finite{}{}",
                           outcome.report.bad_parameter.empty() ? "" : ", first of ",
                           outcome.report.bad_parameter);
    if (outcome.report.sums.count == 0)
      return Status::error(
          "--verify: nothing is counted in the first window, so there is nothing to compare");
    return outcome;
  }

  Status split() {
    const int64_t samples = static_cast<int64_t>(order_.size());
    const std::string what =
        fmt::format("1. one window of {}, split another way", counted(samples, "sample"));
    const int64_t most = sizes_.front();
    if (most == 1) {
      leave_out(what, "a launch has one sample: it cannot be split");
      return {};
    }
    const std::vector<int64_t> others[] = {even(samples, (most + 1) / 2), uneven(samples, most)};
    say(fmt::format("{}: {} of up to {} samples against {} of up to {} and {} of 1, {} and {}", what,
                    counted(sizes_.size(), "launch"), most, others[0].size(), (most + 1) / 2,
                    others[1].size(), most, most - 1));
    const WindowOutcome reference = GACC_TRY(one_window(artifact_, sizes_, scale_));
    // With one launch a window the plan is exact whatever its layers are; a part of that launch is not.
    const bool moves = std::ranges::count(plan_.buffers, BufferRole::change, &PlanBuffer::role) > 0;
    const bool per_launch = plan_.exact && moves;
    const bool judged = plan_.exact && !per_launch;
    std::vector<Deviation> loss, table;
    for (const std::vector<int64_t>& sizes : others) {
      // A window that is not judged may also overflow: a batch_norm has no variance in a launch of one sample.
      const WindowOutcome outcome =
          GACC_TRY(judged ? one_window(artifact_, sizes, scale_) : any_window(artifact_, sizes, scale_));
      keep_largest(loss, deviations(figures(outcome), figures(reference), 0));
      keep_largest(table, deviations(outcome.gradients, reference.gradients, share_floor(plan_.precision)));
    }
    table.insert(table.begin(), loss.begin(), loss.end());
    judge(table, judged ? order_bound(plan_.precision) : -1);
    if (per_launch) say("  not judged: batch_norm takes its statistics per launch");
    if (!plan_.exact)
      say(fmt::format("  not judged: the plan says that an update is not that of the one big batch: {}",
                      fmt::join(plan_.because, "; ")));
    return {};
  }

  Status recompute() {
    std::string policy = setting(artifact_, "recompute.policy");
    if (policy.empty()) policy = "none";
    const std::string other = policy == "none" ? "all" : "none";
    const std::string what = fmt::format("2. recompute: policy {} against {}", policy, other);
    // A budget goes with its own policy alone, and as much as there is of it is no recompute.
    const std::optional<Artifact> variant =
        compile_variant(what, {{"recompute.policy", policy == "budget" ? policy : other}});
    if (!variant) return {};
    say(fmt::format("{}: arenas of {} and {} bytes, two windows", what, plan_.arena_bytes,
                    variant->plan.arena_bytes));
    std::vector<Deviation> table;
    WindowOutcome outcomes[2][2];  // [artifact][window]
    for (int i = 0; i < 2; ++i) {
      const Artifact& artifact = i == 0 ? artifact_ : *variant;
      GACC_TRY(with_session(artifact, scale_, [&](Session& session) -> Status {
        for (WindowOutcome& outcome : outcomes[i]) outcome = GACC_TRY(window(session, artifact.plan, sizes_));
        return {};
      }));
    }
    const auto same = [&](const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b,
                          const char* of) {
      if (a.size() != b.size()) return false;
      std::vector<Deviation> apart = deviations(a, b, 0);
      for (size_t i = 0; i < a.size(); ++i) {
        const bool equal =
            a[i].name == b[i].name && a[i].data.size() == b[i].data.size() &&
            std::memcmp(a[i].data.data(), b[i].data.data(), a[i].data.size() * sizeof(float)) == 0;
        if (equal) apart[i].value = 0;
        if (!equal && apart[i].value == 0) apart[i].value = kInfinity;  // names, -0
        apart[i].name += of;
      }
      table.insert(table.end(), apart.begin(), apart.end());
      return true;
    };
    bool alike = true;
    for (int w = 0; w < 2; ++w) alike = alike && same(figures(outcomes[1][w]), figures(outcomes[0][w]), "");
    alike = alike && same(outcomes[1][0].gradients, outcomes[0][0].gradients, " (gradient)");
    alike = alike && same(outcomes[1][1].parameters, outcomes[0][1].parameters, "");
    if (!alike) table.push_back({"the list of tensors", kInfinity});
    judge(table, 0);
    return {};
  }

  // The buffers after a run of the training loop up to so many launches in a session of its own, from a checkpoint
  // where there is one; with a file, its own goes there.
  Result<Buffers> train_until(int64_t launches, const CheckpointReader* reader, const std::string& file) {
    Dataset few;  // shares nothing with data_, but is small where it matters
    const Dataset* data = &data_;
    TrainOptions options;
    options.launches = launches;
    options.length = updates_of_run(plan_, data_.samples, {});
    options.shuffle = options_.shuffle;
    options.seed = options_.seed;
    options.interrupted = options_.interrupted;
    if (emulated()) {
      few = data_;
      few.samples = std::min(few.samples, kEmulatedSamples);
      if (check_can_update(plan_, few.samples, options)) data = &few;
    }
    if (reader != nullptr) {
      options.resume = &reader->content().train;
      GACC_TRY(reader->check(plan_, settings_of(artifact_, data_, options)));
    }
    Buffers buffers;
    const auto work = [&](Session& session) -> Status {
      if (!file.empty()) {
        options.checkpoint_every = std::numeric_limits<int64_t>::max();
        options.checkpoint = [&](const TrainState& state) {
          const Checkpoint checkpoint{
              settings_of(artifact_, data_, options), {options_.lr, options_.lr}, state, {}};
          return write_checkpoint(file, checkpoint, plan_, session);
        };
      }
      TrainObserver silent;
      TrainResult result;
      GACC_TRY(train(session, plan_, *data, nullptr, options, silent, result));
      if (result.interrupted) return Status::error("interrupted");
      for (const PlanBuffer& buffer : plan_.buffers)
        buffers.push_back(GACC_TRY(session.read_for_checkpoint(buffer)));
      return {};
    };
    GACC_TRY(with_session(artifact_, 0, work, reader));
    return buffers;
  }

  Status resume() {
    const int64_t launches = 2 * plan_.accumulate, part = plan_.accumulate + plan_.accumulate / 2;
    say(fmt::format("3. resume: {} launches against {}, a checkpoint, and the rest in a new session",
                    launches, part));
    const std::string file = GACC_TRY(folder()) + "/checkpoint";
    const Buffers straight = GACC_TRY(train_until(launches, nullptr, ""));
    GACC_TRY(train_until(part, nullptr, file));
    CheckpointReader reader;
    GACC_TRY(reader.open(file));
    const Buffers resumed = GACC_TRY(train_until(launches, &reader, ""));
    std::vector<Deviation> table;
    for (size_t i = 0; i < straight.size(); ++i) {
      if (!is_kept(plan_.buffers[i])) continue;
      const bool same = straight[i] == resumed[i];
      table.push_back({plan_.buffers[i].name, same ? 0 : kInfinity});
    }
    judge(table, 0);
    return {};
  }

  Status half() {
    if (plan_.precision == DType::f32) {
      leave_out("4. half precision against f32", "this artifact computes in f32");
      return {};
    }
    const std::string what =
        fmt::format("4. {} against f32: the gradient of one window", dtype_text(plan_.precision));
    // The keys of a dynamic scale go with one; in f32 a power of two changes no bit.
    const std::string scale = setting(artifact_, "precision.loss_scale") == "dynamic" ? "dynamic" : "none";
    const std::optional<Artifact> variant =
        compile_variant(what, {{"precision.compute", "f32"}, {"precision.loss_scale", scale}});
    if (!variant) return {};
    say(what);
    const WindowOutcome of_half = GACC_TRY(one_window(artifact_, sizes_, scale_));
    const WindowOutcome of_full = GACC_TRY(one_window(*variant, sizes_, 0));
    std::vector<Deviation> table = deviations(figures(of_half), figures(of_full), 0);
    const std::vector<Deviation> gradients =
        deviations(of_half.gradients, of_full.gradients, share_floor(plan_.precision));
    table.insert(table.end(), gradients.begin(), gradients.end());
    judge(table, half_bound(plan_.precision));
    return {};
  }

  const Artifact& artifact_;
  const Plan& plan_ = artifact_.plan;
  const Dataset& data_;
  const VerifyOptions& options_;
  VerifyResult result_;
  std::string folder_;
  std::vector<int64_t> order_, sizes_;  // of the window that is compared
  float scale_ = 0;                     // the loss scale with which its gradient is finite
};

}  // namespace

Result<VerifyResult> verify(const Artifact& artifact, const Dataset& data, const VerifyOptions& options) {
  return Verifier(artifact, data, options).run();
}

}  // namespace gacc
