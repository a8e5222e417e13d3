// The log: one JSON object a line for every event of a run (CONTRACT section 5). Equal runs write equal
// bytes, but for `seconds`.
#pragma once
#include <string>
#include <string_view>

#include "runtime/plan.h"
#include "runtime/status.h"
#include "runtime/train.h"

namespace gacc {

// The events as lines, without the line's end.
std::string start_line(const Plan& plan, std::string_view device);
std::string update_line(const UpdateReport& report, const Plan& plan);
std::string epoch_line(const EpochReport& report);
std::string eval_line(const EvaluationReport& report, const Plan& plan);
std::string end_line(const TrainResult& result, int64_t peak_bytes);

// The file. A new one is written in place, so it can be followed while the run goes on. Where a log already
// exists the new one grows beside it as F.partial and replaces it when the run ends (done, failed or
// interrupted): a full disk leaves the old one as it was. Devices and pipes (/dev/stdout) are written
// directly. Every line is written at once.
class LogFile {
 public:
  LogFile() = default;
  ~LogFile();  // without commit the new file is removed
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  Status open(const std::string& path);
  bool is_open() const { return fd_ >= 0; }
  Status write(std::string_view line);  // adds the line's end; does nothing when not open
  Status commit();                      // to disk, and in place of the old one
  // Closes and removes the new file, and leaves the old one.
  void discard();

 private:
  Status fail(const char* what);

  std::string path_;       // as given, for messages
  std::string target_;     // path with links resolved
  std::string temporary_;  // what is written; equals target_ for a new log, empty for devices and pipes
  int fd_ = -1;
};

}  // namespace gacc
