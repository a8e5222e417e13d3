// Events as JSON lines, written by hand so that the fields keep their order, and the file they go to.
#include "runtime/tell/log.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "runtime/atomic_file.h"
#include "runtime/json_text.h"

namespace gacc {
namespace {

// Shortest digits that read back as the same float or double; JSON has no other numbers than finite ones.
template <class T>
std::string number(T value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string json_string(std::string_view text) { return json_text(nlohmann::json(text)); }

// Standard output or standard error when `file` is where they go ("--log /dev/stdout > run.jsonl"), else -1:
// such a file is open already, must not be replaced, and is written through that descriptor, whose position
// the others share.
int standard_stream(const struct stat& file) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat stream {};
    if (fstat(fd, &stream) == 0 && stream.st_dev == file.st_dev && stream.st_ino == file.st_ino) return fd;
  }
  return -1;
}

std::string seconds(double value) { return fmt::format("{:.6f}", value); }

// With links followed, so that a link keeps pointing at the log.
std::string resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

std::string counts_text(const RecheckCounts& recheck) {
  return fmt::format(R"("every":{},"launches":{},"updates":{})", recheck.every, recheck.launches,
                     recheck.updates);
}

// The rows of the confusion matrix, without answers that are none.
std::string matrix(const EvalReport& report, const Plan& plan) {
  const auto classes = static_cast<size_t>(plan.answers->classes);
  std::string rows;
  for (size_t row = 0; row < classes; ++row)
    rows += fmt::format("{}[{}]", row > 0 ? "," : "",
                        fmt::join(std::span(report.confusion).subspan(row * (classes + 1), classes), ","));
  return "[" + rows + "]";
}

std::string partial_of(const std::string& log) { return log + ".partial"; }

}  // namespace

std::string start_line(const Plan& plan, const RunDescription& run) {
  std::string line = fmt::format(
      R"({{"event":"start","model":{},"device":{},"micro_batch":{},"accumulate":{},"effective_batch":{},)"
      R"("arena_bytes":{},"parameters":{},"ranks":{},"version":{},"seed":{},"optimizer":{},"lr":{})",
      json_string(plan.model), json_string(run.device), plan.micro_batch, plan.accumulate,
      plan.micro_batch * plan.accumulate, plan.arena_bytes, plan.parameters, run.ranks,
      json_string(run.version), plan.seed, json_string(plan.optimizer), number(plan.lr));
  for (const auto& [key, text] : {std::pair("data", &run.data), {"eval", &run.eval}, {"load", &run.load}})
    if (!text->empty()) line += fmt::format(R"(,"{}":{})", key, json_string(*text));
  if (!run.command.empty())
    line += fmt::format(R"(,"command":{},"folder":{})", json_text(nlohmann::json(run.command)),
                        json_string(std::filesystem::current_path().string()));
  // By input: how csv columns are called, and the statistics of normalize = "data".
  nlohmann::ordered_json columns, statistics;
  for (const auto& [input, facts] : run.facts) {
    if (!facts.columns.empty()) columns[input] = facts.columns;
    if (!facts.mean.empty()) statistics[input] = {{"mean", facts.mean}, {"std", facts.std}};
  }
  for (const auto& [key, json] : {std::pair("columns", &columns), {"normalize", &statistics}})
    if (!json->empty()) line += fmt::format(R"(,"{}":{})", key, json_text(*json));
  return line + "}";
}

std::string update_line(const UpdateReport& report, const Plan& plan, std::string_view hash) {
  const WindowReport& window = report.window;
  return fmt::format(
      R"({{"event":"update","epoch":{},"update":{},"launches":{},"samples":{},"loss":{},"lr":{},)"
      R"("loss_scale":{},"skipped":{},"grad_norm":{},"effective_batch":{},"seconds":{}{}}})",
      report.epoch, report.update, window.launches, window.samples, number(window.loss), number(window.lr),
      number(double{window.scale}), !window.applied, number(window.norm), plan.micro_batch * plan.accumulate,
      seconds(report.seconds), hash.empty() ? "" : fmt::format(R"(,"hash":"{}")", hash));
}

std::string epoch_line(const EpochReport& report) {
  return fmt::format(
      R"({{"event":"epoch","epoch":{},"loss":{},"updates":{},"skipped":{},"samples":{},"seconds":{}}})",
      report.epoch, number(report.loss), report.updates, report.skipped, report.samples,
      seconds(report.seconds));
}

std::string eval_line(const EvaluationReport& report, const Plan& plan, bool keeps_best) {
  std::string line = fmt::format(R"({{"event":"eval","epoch":{},"loss":{},"samples":{})", report.epoch,
                                 number(report.result.loss), report.result.samples);
  for (size_t i = 0; i < report.result.metrics.size(); ++i)
    line += fmt::format(",{}:{}", json_string(plan.metrics[i]), number(report.result.metrics[i]));
  if (keeps_best) line += fmt::format(R"(,"best":{})", report.better);
  if (!report.result.confusion.empty())
    line += fmt::format(R"(,"confusion":{})", matrix(report.result, plan));
  return line + fmt::format(R"(,"updates":{},"seconds":{}}})", report.updates, seconds(report.seconds));
}

std::string end_line(const TrainResult& result, int64_t peak_bytes, const RecheckCounts& recheck) {
  return fmt::format(
      R"({{"event":"end","epochs":{},"updates":{},"skipped":{},"samples":{},"seconds":{},"peak_bytes":{}{}{}}})",
      result.epochs, result.updates, result.skipped, result.samples, seconds(result.seconds), peak_bytes,
      result.interrupted ? R"(,"interrupted":true)" : "",
      recheck.every > 0 ? fmt::format(R"(,"recheck":{{{}}})", counts_text(recheck)) : "");
}

std::string recheck_line(const RecheckCounts& recheck) {
  return fmt::format(R"({{"event":"recheck",{},"difference":{}}})", counts_text(recheck),
                     json_string(recheck.difference));
}

std::string check_line(std::string_view file, int64_t samples, double difference, double bound) {
  return fmt::format(R"({{"event":"check","file":{},"samples":{},"check":{},"bound":{}}})", json_string(file),
                     samples, number(difference), number(bound));
}

std::vector<std::string> log_files(const std::string& path) {
  struct stat info {};
  const bool exists = stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  return {path, exists ? partial_of(resolved(path)) : ""};
}

LogFile::~LogFile() { close(); }

Status LogFile::fail(const char* what) {
  std::string problem = fmt::format("cannot {} the log {}: {}", what, path_, system_reason(errno));
  if (!temporary_.empty() && position_.bytes > 0) {
    if (cut_ && fd_ >= 0) (void)!ftruncate(fd_, position_.bytes);  // no half of a line
    problem += fmt::format("; the lines until then are in {}", temporary_ == target_ ? path_ : temporary_);
  }
  close();
  return Status::error("{}", problem);
}

// Opens the file if it begins with the bytes of position_.
bool LogFile::open_earlier(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat info {};
  const bool long_enough = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= position_.bytes;
  const Result<std::string> text = long_enough ? read_file(path) : Status::error("it is another one");
  const auto bytes = static_cast<size_t>(position_.bytes);
  if (!text || text->size() < bytes || crc32_of({text->data(), bytes}) != position_.crc32 ||
      lseek(fd, position_.bytes, SEEK_SET) < 0) {
    ::close(fd);
    return false;
  }
  fd_ = fd;
  temporary_ = path;
  continues_ = true;
  cut_ = false;
  return true;
}

Status LogFile::open(const std::string& path, std::optional<LogPosition> resume) {
  path_ = target_ = path;
  struct stat info {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return fail("open");
  int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY;
  if (exists && S_ISDIR(info.st_mode)) return Status::error("cannot open the log {}: it is a folder", path);
  if (resume && resume->bytes > 0) {
    position_ = *resume;
    if (exists && S_ISREG(info.st_mode)) target_ = resolved(path);
    if (open_earlier(partial_of(target_)) || open_earlier(target_)) return {};
    position_ = {};
    target_ = path;
  }
  if (const int stream = exists ? standard_stream(info) : -1; stream >= 0) {
    fd_ = dup(stream);
    return fd_ < 0 ? fail("open") : Status();
  }
  if (!exists) {
    temporary_ = target_;
    flags |= O_EXCL;
  } else if (S_ISREG(info.st_mode)) {
    if (access(path.c_str(), W_OK) != 0) return fail("replace");
    target_ = resolved(path);
    temporary_ = partial_of(target_);
    flags |= O_TRUNC;
  }
  fd_ = ::open((temporary_.empty() ? path : temporary_).c_str(), flags, 0666);
  if (fd_ < 0) {
    temporary_.clear();  // it is not ours to remove
    return fail("open");
  }
  // The new log is as open or closed to others as the old one.
  if (exists && !temporary_.empty() && fchmod(fd_, info.st_mode & 07777) != 0 && errno != EPERM)
    return fail("open");
  return {};
}

Status LogFile::write(std::string_view line) {
  if (fd_ < 0) return {};
  if (!cut_ && ftruncate(fd_, position_.bytes) != 0) return fail("write");
  cut_ = true;
  std::string text(line);
  text += '\n';
  if (!write_all(fd_, text)) return fail("write");
  position_.bytes += static_cast<int64_t>(text.size());
  position_.crc32 = crc32_of(text, position_.crc32);
  return {};
}

Status LogFile::sync() {
  if (fd_ < 0 || temporary_.empty()) return {};
  return fsync(fd_) == 0 ? Status() : fail("write");
}

Status LogFile::commit() {
  if (fd_ < 0) return {};
  if (!temporary_.empty() && fsync(fd_) != 0) return fail("write");
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) return fail("write");
  if (temporary_ != target_ && !temporary_.empty() && std::rename(temporary_.c_str(), target_.c_str()) != 0)
    return fail("replace");
  if (!temporary_.empty()) sync_folder_of(target_);
  temporary_.clear();
  return {};
}

void LogFile::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty() && !continues_ && position_.bytes == 0) unlink(temporary_.c_str());
  temporary_.clear();
}

}  // namespace gacc
