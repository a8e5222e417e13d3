// The four checks. Each says what it compares, prints a line for every tensor, and gives its verdict; one
// that cannot be made says why.
#include "runtime/self_check.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/checkpoint.h"
#include "runtime/rebuild.h"
#include "runtime/train.h"
#include "runtime/verify_run.h"

namespace gacc {
namespace {

constexpr int64_t kEmulatedSamples = 6;  // a launch takes seconds there

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

// The value of `set KEY = VALUE` in the artifact's IR, without quotes; "" when there is none.
std::string setting(const Artifact& artifact, std::string_view key) {
  const std::string line = fmt::format("\n  set {} = ", key);
  const size_t at = artifact.ir.find(line);
  if (at == std::string::npos) return "";
  const size_t begin = at + line.size();
  std::string value = artifact.ir.substr(begin, artifact.ir.find('\n', begin) - begin);
  if (value.size() >= 2 && value.front() == '"') value = value.substr(1, value.size() - 2);
  return value;
}

class Verifier {
 public:
  Verifier(const Artifact& artifact, const Dataset& data, const VerifyOptions& options, VerifyResult& result)
      : artifact_(artifact),
        plan_(artifact.plan),
        data_(data),
        options_(options),
        result_(result),
        rebuilder_(artifact, options.compiler_folder) {}

  Status run();

 private:
  Status split();
  Status recompute();
  Status resume();
  Status half();

  using Settings = std::vector<std::pair<std::string, std::string>>;
  // The model with other settings, at the same micro-batch and accumulation whatever memory that takes. Nothing
  // when there is none, which is said: the check is left out, or has failed where the compiler did.
  std::optional<Artifact> compile_variant(const std::string& what, Settings settings);
  Result<WindowOutcome> one_window(const Artifact& artifact, std::span<const int64_t> sizes, float scale);
  Result<std::vector<std::vector<std::byte>>> all_buffers(Session& session) const;
  Status train_until(int64_t launches, const TrainState* from, CheckpointReader* reader,
                     const std::string& file, Session& session);
  bool emulated() const { return options_.device == "emulate"; }

  void say(const std::string& text) { options_.print(text + "\n"); }
  void leave_out(const std::string& what, const std::string& why) {
    say(fmt::format("{}\n  left out: {}", what, why));
    ++result_.left_out;
  }
  // Prints the table; a negative bound judges nothing.
  void judge(const std::vector<Deviation>& table, double bound);

  const Artifact& artifact_;
  const Plan& plan_;
  const Dataset& data_;
  const VerifyOptions& options_;
  VerifyResult& result_;
  Rebuilder rebuilder_;
  std::vector<int64_t> order_, sizes_;  // of the window that is compared
  float scale_ = 0;                     // the loss scale with which its gradient is finite
};

void Verifier::judge(const std::vector<Deviation>& table, double bound) {
  Deviation worst{"nothing", 0};
  const bool all_equal =
      std::all_of(table.begin(), table.end(), [](const Deviation& row) { return row.value == 0; });
  if (all_equal) say(fmt::format("  all {}: 0", counted(table.size(), "tensor")));
  for (const Deviation& row : table) {
    if (all_equal) break;
    say(fmt::format("  {:<48} {:.2e}{}", row.name, row.value,
                    bound >= 0 && row.value > bound ? "  <-- past the bound" : ""));
    if (row.value > worst.value) worst = row;
  }
  if (bound < 0) return;
  const bool good = worst.value <= bound;
  ++(good ? result_.passed : result_.failed);
  say(fmt::format("  {}: the largest deviation is {:.2e}{}; the bound is {}", good ? "passed" : "FAILED",
                  worst.value, worst.value > 0 ? " (" + worst.name + ")" : "",
                  bound == 0 ? "0, the same bits" : fmt::format("{:.0e}", bound)));
}

std::optional<Artifact> Verifier::compile_variant(const std::string& what, Settings settings) {
  settings.emplace_back("train.micro_batch", fmt::format("{}", plan_.micro_batch));
  settings.emplace_back("train.accumulate", fmt::format("{}", plan_.accumulate));
  for (const char* budget : {"memory.budget", "recompute.budget"})
    if (!setting(artifact_, budget).empty()) settings.emplace_back(budget, "1048576GiB");
  Result<Artifact> variant = rebuilder_.compile(settings);
  if (variant) return variant.take();
  if (!rebuilder_.faulty()) {
    leave_out(what, variant.status().text());
  } else {
    say(fmt::format("{}\n  FAILED: {}", what, variant.status().text()));
    ++result_.failed;
  }
  return {};
}

Result<WindowOutcome> Verifier::one_window(const Artifact& artifact, std::span<const int64_t> sizes,
                                           float scale) {
  Bench bench(artifact, options_);
  GACC_TRY(bench.open());
  GACC_TRY(bench.set_scale(scale));
  WindowOutcome outcome = GACC_TRY(bench.window(data_, order_, sizes));
  GACC_TRY(bench.close());
  if (!outcome.report.finite)
    return Status::error("--verify: the gradient of the first window is not finite{}{}",
                         outcome.report.bad_parameter.empty() ? "" : ", first of ",
                         outcome.report.bad_parameter);
  if (outcome.report.sums.count == 0)
    return Status::error("--verify: nothing is counted in the first window, so there is nothing to compare");
  return outcome;
}

// The figures of a window that update computes, as tensors of one element.
std::vector<NamedTensor> figures(const WindowOutcome& outcome) {
  return {{"the window's loss", {}, {outcome.report.loss}},
          {"the gradient's norm", {}, {outcome.report.norm}}};
}

Status Verifier::split() {
  const int64_t samples = static_cast<int64_t>(order_.size());
  const std::string what = fmt::format("1. one window of {}, split another way", counted(samples, "sample"));
  const int64_t most = sizes_.front();
  if (most == 1) {
    leave_out(what, "a launch has one sample: it cannot be split");
    return {};
  }
  const std::vector<int64_t> others[] = {even(samples, (most + 1) / 2), uneven(samples, most)};
  say(fmt::format("{}: {} of up to {} samples against {} of up to {} and {} of 1, {} and {}", what,
                  counted(sizes_.size(), "launch"), most, others[0].size(), (most + 1) / 2, others[1].size(),
                  most, most - 1));
  const WindowOutcome reference = GACC_TRY(one_window(artifact_, sizes_, scale_));
  std::vector<Deviation> loss, table;
  for (const std::vector<int64_t>& sizes : others) {
    const WindowOutcome outcome = GACC_TRY(one_window(artifact_, sizes, scale_));
    keep_largest(loss, deviations(figures(outcome), figures(reference), 0));
    keep_largest(table, deviations(outcome.gradients, reference.gradients, share_floor(plan_.precision)));
  }
  table.insert(table.begin(), loss.begin(), loss.end());
  // With one launch a window the plan is exact whatever its layers are; a part of that launch is not.
  const bool per_launch = plan_.exact && artifact_.ir.find("moving_mean.acc") != std::string::npos;
  if (plan_.exact && !per_launch) {
    judge(table, order_bound(plan_.precision));
    return {};
  }
  judge(table, -1);
  if (per_launch) {
    say("  not judged: batch_norm takes its statistics per launch");
  } else {
    say(fmt::format("  not judged: the plan says that an update is not that of the one big batch: {}",
                    fmt::join(plan_.because, "; ")));
  }
  return {};
}

Status Verifier::recompute() {
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
    Bench bench(i == 0 ? artifact_ : *variant, options_);
    GACC_TRY(bench.open());
    GACC_TRY(bench.set_scale(scale_));
    for (WindowOutcome& outcome : outcomes[i]) outcome = GACC_TRY(bench.window(data_, order_, sizes_));
    GACC_TRY(bench.close());
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
      if (!equal && apart[i].value == 0)
        apart[i].value = std::numeric_limits<double>::infinity();  // names, -0
      apart[i].name += of;
    }
    table.insert(table.end(), apart.begin(), apart.end());
    return true;
  };
  bool alike = true;
  for (int w = 0; w < 2; ++w) alike = alike && same(figures(outcomes[1][w]), figures(outcomes[0][w]), "");
  alike = alike && same(outcomes[1][0].gradients, outcomes[0][0].gradients, " (gradient)");
  alike = alike && same(outcomes[1][1].parameters, outcomes[0][1].parameters, "");
  if (!alike) table.push_back({"the list of tensors", std::numeric_limits<double>::infinity()});
  judge(table, 0);
  return {};
}

Result<std::vector<std::vector<std::byte>>> Verifier::all_buffers(Session& session) const {
  std::vector<std::vector<std::byte>> buffers;
  for (const PlanBuffer& buffer : plan_.buffers)
    buffers.push_back(GACC_TRY(session.read_for_checkpoint(buffer)));
  return buffers;
}

// A run of the training loop up to so many launches; with a file, its checkpoint goes there.
Status Verifier::train_until(int64_t launches, const TrainState* from, CheckpointReader* reader,
                             const std::string& file, Session& session) {
  Dataset few;  // shares nothing with data_, but is small where it matters
  const Dataset* data = &data_;
  TrainOptions options;
  options.launches = launches;
  options.shuffle = options_.shuffle;
  options.seed = options_.seed;
  options.interrupted = options_.interrupted;
  options.resume = from;
  if (emulated()) {
    few = data_;
    few.samples = std::min(few.samples, kEmulatedSamples);
    if (check_can_update(plan_, few.samples, options)) data = &few;
  }
  if (reader != nullptr) {
    GACC_TRY(reader->check(plan_, settings_of(artifact_, data_, options)));
    GACC_TRY(reader->restore(plan_, session));
  }
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
  const Status status = train(session, plan_, *data, nullptr, options, silent, result);
  return status && result.interrupted ? Status::error("interrupted") : status;
}

Status Verifier::resume() {
  const int64_t launches = 2 * plan_.accumulate, part = plan_.accumulate + plan_.accumulate / 2;
  say(fmt::format("3. resume: {} launches against {}, a checkpoint, and the rest in a new session", launches,
                  part));
  const std::string file = GACC_TRY(rebuilder_.folder()) + "/checkpoint";
  std::vector<std::vector<std::byte>> straight;
  {
    Bench bench(artifact_, options_);
    GACC_TRY(bench.open());
    GACC_TRY(train_until(launches, nullptr, nullptr, "", bench.session()));
    straight = GACC_TRY(all_buffers(bench.session()));
    GACC_TRY(bench.close());
  }
  {
    Bench bench(artifact_, options_);
    GACC_TRY(bench.open());
    GACC_TRY(train_until(part, nullptr, nullptr, file, bench.session()));
    GACC_TRY(bench.close());
  }
  CheckpointReader reader;
  GACC_TRY(reader.open(file));
  Bench bench(artifact_, options_);
  GACC_TRY(bench.open());
  GACC_TRY(train_until(launches, &reader.content().train, &reader, "", bench.session()));
  const std::vector<std::vector<std::byte>> resumed = GACC_TRY(all_buffers(bench.session()));
  GACC_TRY(bench.close());
  std::vector<Deviation> table;
  for (size_t i = 0; i < straight.size(); ++i) {
    if (!is_kept(plan_.buffers[i])) continue;
    const bool same = straight[i] == resumed[i];
    table.push_back({plan_.buffers[i].name, same ? 0 : std::numeric_limits<double>::infinity()});
  }
  judge(table, 0);
  return {};
}

Status Verifier::half() {
  if (plan_.precision == "f32") {
    leave_out("4. half precision against f32", "this artifact computes in f32");
    return {};
  }
  const std::string what = fmt::format("4. {} against f32: the gradient of one window", plan_.precision);
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

Status Verifier::run() {
  int64_t samples = std::min(data_.samples, plan_.micro_batch * plan_.accumulate);
  if (emulated()) samples = std::min(samples, kEmulatedSamples);
  if (samples == 0) return Status::error("--verify: the data has no samples");
  order_ = epoch_order(data_.samples, options_.seed, 0, options_.shuffle);
  order_.resize(static_cast<size_t>(samples));
  sizes_ = even(samples, std::min(plan_.micro_batch, samples));
  say(fmt::format("verifying {} on {} with {} of {}; deviations are relative to a tensor's norm", plan_.model,
                  options_.device, samples, counted(data_.samples, "sample")));
  {
    Bench bench(artifact_, options_);
    GACC_TRY(bench.open());
    scale_ = GACC_TRY(bench.settle(data_, order_, sizes_));
    GACC_TRY(bench.close());
  }
  for (Status (Verifier::*const check)() :
       {&Verifier::split, &Verifier::recompute, &Verifier::resume, &Verifier::half})
    GACC_TRY((this->*check)());
  say(fmt::format("{} passed, {} failed, {} left out", counted(result_.passed, "check"), result_.failed,
                  result_.left_out));
  return {};
}

}  // namespace

double share_floor(std::string_view precision) { return precision == "f32" ? 1e-2 : 1e-1; }

double order_bound(std::string_view precision) {
  return precision == "f32" ? 1e-4 : precision == "f16" ? 1e-2 : 5e-2;
}

// Four times the root of the unit roundoff: rounding turns over that share of relu and max_pool2d choices,
// and a gradient moves by the root of it (mnist_cnn: 4.3e-2 in f16, 1.2e-1 in bf16, a factor of sqrt(8)).
double half_bound(std::string_view precision) { return precision == "f16" ? 9e-2 : 2.5e-1; }

Status verify(const Artifact& artifact, const Dataset& data, const VerifyOptions& options,
              VerifyResult& result) {
  return Verifier(artifact, data, options, result).run();
}

}  // namespace gacc
