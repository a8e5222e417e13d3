// The log: one JSON object a line for every event of a run. Equal runs write equal bytes, but for `seconds`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/data_facts.h"
#include "runtime/no_copy.h"
#include "runtime/plan.h"
#include "runtime/reports.h"
#include "runtime/status.h"

namespace gacc {

// The start of a run, as far as the plan does not tell it: with the seed and the rate that it may have replaced.
struct RunDescription {
  std::string version, device;
  std::string data, eval, load;  // as given; empty: not given
  DataFacts facts;
  int ranks = 1;
  std::vector<std::string> command{};  // for who makes it again; empty: is not told
};

// The events as lines, without the line's end.
std::string start_line(const Plan& plan, const RunDescription& run);
// `hash`: of the weights after it; empty: is not told.
std::string update_line(const UpdateReport& report, const Plan& plan, std::string_view hash = "");
std::string epoch_line(const EpochReport& report);
// `keeps_best`: whether the run tells the best evaluation from others.
std::string eval_line(const EvaluationReport& report, const Plan& plan, bool keeps_best = false);
std::string end_line(const TrainResult& result, int64_t peak_bytes, const RecheckCounts& recheck = {});
// Instead of the end of a run that a recheck has ended.
std::string recheck_line(const RecheckCounts& recheck);
// Tells how far what a written file computes is from the run's parameters.
std::string check_line(std::string_view file, int64_t samples, double difference, double bound);

// The file. A new one is written in place, so it can be followed while the run goes on. Where a log already
// exists the new one grows beside it as F.partial and replaces it when the run ends (done, failed or
// interrupted). Devices and pipes (/dev/stdout) are written directly. Every line is written at once. Where a
// line cannot be written (a full disk), an older log stays as it was, and those before that line stay where
// they are: in F, or beside an older log in F.partial.
//
// A resumed run continues the log of the run before: the file (F, or F.partial of a run that was killed) that
// begins with the bytes written until the checkpoint. What comes after them is cut off, so that in the end
// the log is that of a run without a break. A file that does not begin so is another run's: a new log begins.
class LogFile : NoCopy {
 public:
  ~LogFile();  // closes it; a new file without a line is removed

  Status open(const std::string& path, std::optional<LogPosition> resume = {});
  bool continues() const { return continues_; }  // another run's log
  LogPosition position() const { return position_; }
  Status sync();  // what was written, to disk
  bool is_open() const { return fd_ >= 0; }
  Status write(std::string_view line);  // adds the line's end; does nothing when not open
  Status commit();                      // to disk, and in place of the old one

 private:
  Status fail(const char* what);
  void close();
  bool open_earlier(const std::string& path);

  std::string path_;       // as given, for messages
  std::string target_;     // path with links resolved
  std::string temporary_;  // what is written; equals target_ for a new log, empty for devices and pipes
  int fd_ = -1;
  bool continues_ = false;
  bool cut_ = true;  // false: what follows position_ in the file must go before the next line
  LogPosition position_;
};

// The files that a log of that name may write.
std::vector<std::string> log_files(const std::string& path);

}  // namespace gacc
