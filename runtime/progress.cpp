// Draws the progress line with carriage returns, which every terminal understands, cut to its width.
#include "runtime/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/standard_streams.h"

namespace gacc {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kSmoothing = 0.2;  // weight of the newest rate in the one shown

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79;
}

// "/N" where there is a limit.
std::string of(int64_t limit) { return limit > 0 ? fmt::format("/{}", limit) : ""; }

}  // namespace

std::string duration_text(double seconds) {
  auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string_view clip_columns(std::string_view text, size_t columns) {
  for (size_t i = 0; i < text.size(); ++i) {
    bool starts_character = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (starts_character && columns-- == 0) return text.substr(0, i);
  }
  return text;
}

std::string progress_line(const ProgressState& state, const Plan& plan) {
  std::string line =
      fmt::format("epoch {}{}  update {}{}", state.epoch, of(state.epochs), state.update, of(state.updates));
  if (state.update > 0) line += fmt::format("  loss {:.4g}  lr {:.4g}", state.loss, state.lr);
  line += fmt::format("  eff. batch {} ({} × {})  loss scale {}", plan.micro_batch * plan.accumulate,
                      plan.micro_batch, plan.accumulate, state.scale);
  if (state.samples_per_second > 0) line += fmt::format("  {:.0f} samples/s", state.samples_per_second);
  if (state.seconds_left >= 0) line += fmt::format("  {} left", duration_text(state.seconds_left));
  return line;
}

std::string epoch_text(const EpochReport& report) {
  std::string text = fmt::format("epoch {}: loss {:.6g}, {} updates, {} samples in {:.2f} s", report.epoch,
                                 report.loss, report.updates, report.samples, report.seconds);
  if (report.seconds > 0)
    text += fmt::format(" ({:.0f} samples/s)", static_cast<double>(report.samples) / report.seconds);
  return text;
}

std::string evaluation_text(const EvaluationReport& report, const Plan& plan) {
  std::string text = fmt::format("eval, epoch {}: loss {:.6g}, {} samples", report.epoch, report.result.loss,
                                 report.result.samples);
  for (size_t i = 0; i < report.result.metrics.size(); ++i) {
    double value = report.result.metrics[i];
    text += plan.metrics[i] == "accuracy" ? fmt::format(", accuracy {:.2f} %", 100 * value)
                                          : fmt::format(", {} {:.6g}", plan.metrics[i], value);
  }
  return text;
}

Progress::Progress(const Plan& plan, bool quiet)
    : plan_(plan), quiet_(quiet), terminal_(!quiet && isatty(STDERR_FILENO) == 1) {}

void Progress::begin(const TrainOptions& options, double expected_launches) {
  bool other_limit = options.updates || options.launches;
  state_.epochs = options.epochs.value_or(other_limit ? 0 : plan_.epochs);
  state_.updates = options.updates.value_or(0);
  expected_launches_ = expected_launches;
  first_launches_ = options.resume ? options.resume->launches : 0;
  last_samples_ = options.resume ? options.resume->samples : 0;
  begin_ = last_ = Clock::now();
}

void Progress::launched(const LaunchReport& report) {
  if (!terminal_) return;
  auto now = Clock::now();
  if (std::chrono::duration<double>(now - last_).count() >= kRedrawSeconds) draw(report, now);
}

void Progress::draw(const LaunchReport& report, Clock::time_point now) {
  double passed = std::chrono::duration<double>(now - last_).count();
  double total = std::chrono::duration<double>(now - begin_).count();
  double rate = static_cast<double>(report.samples - last_samples_) / passed;
  double shown = state_.samples_per_second;
  state_.samples_per_second = shown > 0 ? shown + kSmoothing * (rate - shown) : rate;
  auto done = static_cast<double>(report.launches - first_launches_);
  auto to_do = expected_launches_ - static_cast<double>(report.launches);
  state_.seconds_left = std::isfinite(to_do) ? std::max(0.0, to_do / done) * total : -1;
  state_.epoch = report.epoch;
  last_ = now;
  last_samples_ = report.samples;
  std::string line = progress_line(state_, plan_);
  print_stderr("\r\x1b[K{}", clip_columns(line, terminal_columns()));
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::updated(const UpdateReport& report) {
  state_.update = report.update;
  state_.loss = report.window.loss;
  state_.lr = report.window.lr;
  state_.scale = report.window.scale;
}

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

void Progress::say(std::string_view line) {
  clear();
  if (quiet_) return;
  // A closed standard output must not end the training: what could not be shown is lost, and that is all.
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

}  // namespace gacc
