#include "runtime/tell/waiting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runtime/standard_streams.h"

namespace gacc {
namespace {

constexpr double kSilence = 2;    // seconds
constexpr double kRedraw = 0.25;  // between lines that move
constexpr double kLook = 0.1;     // between looks at the work

// Returns when the line behind one at this time of the work is due, where lines stay: at 2, 10, 30, 60, 120, ... s.
double next_lasting(double passed) {
  for (const double at : {10.0, 30.0, 60.0})
    if (passed < at) return at;
  return passed + 60;
}

}  // namespace

std::string duration_text(double seconds) {
  auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::optional<std::string> WaitingLines::line(double seconds, const std::optional<LongWork::State>& work) {
  if (!work) {
    begin_.reset();
    return std::nullopt;
  }
  if (!begin_) begin_ = seconds, next_ = seconds + kSilence;
  if (seconds < next_) return std::nullopt;
  const double passed = seconds - *begin_;
  next_ = moves_ ? seconds + kRedraw : *begin_ + next_lasting(passed);
  std::string text = work->what;
  if (work->parts > 0) text += fmt::format(", {} %", std::min<int64_t>(100 * work->done / work->parts, 100));
  return text + fmt::format(" ({})", duration_text(passed));
}

Waiting::Waiting(bool quiet) : lines_(isatty(STDERR_FILENO) == 1), moves_(isatty(STDERR_FILENO) == 1) {
  if (!quiet) thread_ = std::thread([this] { watch(); });
}

Waiting::~Waiting() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Waiting::watch() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::duration<double>(kLook), [this] { return end_; })) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    LongWork::look([&](const std::optional<LongWork::State>& work) {
      const std::optional<std::string> line = lines_.line(seconds, work);
      if (line) moves_ ? show_moving_line(*line) : to_stderr(*line + "\n");
    });
  }
}

}  // namespace gacc
