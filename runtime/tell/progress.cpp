#include "runtime/tell/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <utility>
#include <vector>

#include "runtime/standard_streams.h"
#include "runtime/tell/waiting.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kLineSeconds = 4;  // between lines where there is no terminal
constexpr double kSmoothing = 0.2;  // weight of the newest rate in the one shown
constexpr double kMostDone = 0.99;  // while there is something to show, the last update is still to come

// "/N" where there is a limit.
std::string of(int64_t limit) { return limit > 0 ? fmt::format("/{}", limit) : ""; }

// Characters of UTF-8 text.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// `counts`: there was something to count.
std::string loss_text(double loss, bool counts) {
  if (!counts) return "nothing was counted";
  return fmt::format("loss {:.6g}", std::isnan(loss) ? std::abs(loss) : loss);  // not "-nan"
}

std::string percent(const ProgressState& state) {
  return fmt::format("{:.0f} %", std::floor(100 * state.done));
}

std::string rate_text(double samples_per_second) {
  return fmt::format("{:.{}f} samples/s", samples_per_second, samples_per_second < 10 ? 1 : 0);
}

}  // namespace

std::string progress_line(const ProgressState& state, const Plan& plan, size_t columns) {
  std::vector<std::string> figures;
  if (state.done >= 0) figures.push_back(percent(state));
  if (state.seconds_left >= 0) figures.push_back(duration_text(state.seconds_left) + " left");
  figures.push_back(fmt::format("epoch {}{}", state.epoch, of(state.epochs)));
  figures.push_back(fmt::format("update {}{}", state.update, of(state.updates)));
  if (state.update > 0) figures.push_back(fmt::format("loss {:.4g}", state.loss));
  const std::string scale = fmt::format("loss scale {}", state.scale);
  if (plan.seed_rules) figures.push_back(scale);  // it moves
  if (state.samples_per_second > 0) figures.push_back(rate_text(state.samples_per_second));
  if (state.update > 0) figures.push_back(fmt::format("lr {:.4g}", state.lr));
  figures.push_back(fmt::format("eff. batch {} ({} × {})", plan.micro_batch * plan.accumulate,
                                plan.micro_batch, plan.accumulate));
  if (!plan.seed_rules) figures.push_back(scale);
  std::string line;
  for (const std::string& figure : figures) {
    const std::string next = line + (line.empty() ? "" : "  ") + figure;
    if (columns_of(next) > columns) break;
    line = next;
  }
  return line;
}

std::string progress_text(const ProgressState& state) {
  std::string text =
      fmt::format("epoch {}{}, update {}{}", state.epoch, of(state.epochs), state.update, of(state.updates));
  if (state.update > 0) text += fmt::format(": loss {:.6g}", state.loss);
  if (state.samples_per_second > 0) text += ", " + rate_text(state.samples_per_second);
  if (state.done >= 0) text += ", " + percent(state);
  if (state.seconds_left >= 0) text += fmt::format(", {} left", duration_text(state.seconds_left));
  return text;
}

std::string epoch_text(const EpochReport& report) {
  const bool counts = report.updates + report.skipped > 0 || !std::isnan(report.loss);
  std::string text =
      fmt::format("epoch {}: {}, {}, {} in {:.2f} s", report.epoch, loss_text(report.loss, counts),
                  counted(report.updates, "update"), counted(report.samples, "sample"), report.seconds);
  if (report.seconds > 0)
    text += fmt::format(" ({})", rate_text(static_cast<double>(report.samples) / report.seconds));
  return text;
}

std::string evaluation_text(const EvaluationReport& report, const Plan& plan) {
  std::string text = "eval";
  if (report.epoch > 0) text += fmt::format(", epoch {}, update {}", report.epoch, report.updates);
  text += fmt::format(": {}, {}", loss_text(report.result.loss, report.result.count > 0),
                      counted(report.result.samples, "sample"));
  for (size_t i = 0; i < report.result.metrics.size(); ++i) {
    double value = report.result.metrics[i];
    text += plan.metrics[i] == "accuracy" ? fmt::format(", accuracy {:.2f} %", 100 * value)
                                          : fmt::format(", {} {:.6g}", plan.metrics[i], value);
  }
  if (report.better) text += " (the best)";
  return text;
}

// confusion (rows: targets, columns: answers)
//       0    1
//   0  48    2
//   1   3   47
std::string confusion_text(const EvalReport& report, const Plan& plan) {
  const auto& counts = report.confusion;
  if (counts.empty() || !plan.answers) return "";
  const auto classes = static_cast<size_t>(plan.answers->classes);
  const auto target = std::ranges::find(plan.inputs, true, &PlanInput::target);
  std::vector<std::string> names;
  for (size_t i = 0; i < classes; ++i)
    names.push_back(i < target->values.size() ? in_quotes(target->values[i]) : std::to_string(i));
  const auto at = [&](size_t row, size_t column) { return counts[row * (classes + 1) + column]; };
  bool none = false;
  for (size_t row = 0; row < classes; ++row) none |= at(row, classes) > 0;
  if (none) names.emplace_back("none");
  std::vector<size_t> widths;
  size_t first = 0;
  for (size_t column = 0; column < names.size(); ++column) {
    if (column < classes) first = std::max(first, columns_of(names[column]));
    size_t width = columns_of(names[column]);
    for (size_t row = 0; row < classes; ++row)
      width = std::max(width, std::to_string(at(row, column)).size());
    widths.push_back(width + 2);
  }
  const auto padded = [](const std::string& text, size_t width) {
    return std::string(width - std::min(width, columns_of(text)), ' ') + text;
  };
  std::string text = "confusion (rows: targets, columns: answers)\n" + std::string(first + 2, ' ');
  for (size_t column = 0; column < names.size(); ++column) text += padded(names[column], widths[column]);
  for (size_t row = 0; row < classes; ++row) {
    text += "\n  " + padded(names[row], first);
    for (size_t column = 0; column < names.size(); ++column)
      text += padded(std::to_string(at(row, column)), widths[column]);
  }
  return text;
}

std::string process_memory_text(int64_t arena, int64_t host) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word && word != "VmHWM:") continue;  // the most that was ever resident at once
  double kibibytes = 0;
  if (!(file >> kibibytes)) return "";
  const auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const double process = kibibytes / 1024, planned = mebibytes(arena), beside = mebibytes(host);
  return fmt::format(
      "memory: {:.1f} MiB at most: the arena's {:.1f} MiB as planned, {}and {:.1f} MiB for the program, its "
      "code and the data",
      process, planned, host > 0 ? fmt::format("{:.1f} MiB of state beside it, ", beside) : "",
      process - planned - beside);
}

Progress::Progress(const Plan& plan, bool quiet, bool shows)
    : plan_(plan), quiet_(quiet), shows_(shows), terminal_(!quiet && isatty(STDERR_FILENO) == 1) {}

void Progress::begin(int64_t epochs, int64_t updates, double expected_launches, const TrainCounts& before) {
  state_.epochs = epochs;
  state_.updates = updates;
  expected_launches_ = expected_launches;
  first_launches_ = before.launches;
  last_samples_ = before.samples;
  begin_ = last_ = Clock::now();
  first_.emplace("training, the first micro-batch");
}

void Progress::launched(const LaunchReport& report) {
  first_.reset();
  if (quiet_) return;
  const auto now = Clock::now();
  const double passed = std::chrono::duration<double>(now - last_).count();
  if (passed < (terminal_ ? kRedrawSeconds : kLineSeconds)) return;
  const double total = std::chrono::duration<double>(now - begin_).count();
  const double rate = static_cast<double>(report.samples - last_samples_) / passed;
  const double shown = state_.samples_per_second;
  state_.samples_per_second = shown > 0 ? shown + kSmoothing * (rate - shown) : rate;
  auto made = static_cast<double>(report.launches - first_launches_);
  auto to_do = expected_launches_ - static_cast<double>(report.launches);
  const bool known = std::isfinite(to_do);
  state_.seconds_left = known ? std::max(1.0, to_do / made * total) : -1;
  state_.done = known ? std::min(kMostDone, static_cast<double>(report.launches) / expected_launches_) : -1;
  state_.epoch = report.epoch;
  last_ = now;
  last_samples_ = report.samples;
  if (!terminal_) return say(progress_text(state_));
  show_moving_line(progress_line(state_, plan_, moving_line_columns()));
}

void Progress::updated(const UpdateReport& report) {
  state_.update = report.update;
  state_.loss = report.window.loss;
  state_.lr = report.window.lr;
  state_.scale = report.window.scale;
}

void Progress::warn(std::string_view line) {
  if (!shows_) return;
  print_stderr("{}\n", line);
}

void Progress::introduce(std::string line) {
  if (quiet_) return;
  introduction_ = std::move(line);
  if (terminal_) say(std::exchange(introduction_, ""));
}

void Progress::say(std::string_view line) {
  if (!shows_) return;
  clear_moving_line();
  // A closed standard output must not end the training: what could not be shown is lost, and that is all.
  std::string text = std::exchange(introduction_, "");
  if (!text.empty()) text += '\n';
  text.append(line).push_back('\n');
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace gacc
