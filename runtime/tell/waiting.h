// Tells on standard error what a program does where that takes long: nothing for two seconds, then a line with how far
// it is. On a terminal it moves, and is gone when the work is done; elsewhere few lines stay.
#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/long_work.h"
#include "runtime/no_copy.h"

namespace gacc {

std::string duration_text(double seconds);  // "0:07", "12:05", "3:04:05"

// Decides what is said and when. It knows no clock: the caller says how many seconds have passed.
class WaitingLines {
 public:
  // `moves`: each line takes the place of the one before.
  explicit WaitingLines(bool moves) : moves_(moves) {}

  // Returns the line to show at this time, which never goes back, while `work` is done; nothing: there is none to show.
  std::optional<std::string> line(double seconds, const std::optional<LongWork::State>& work);

 private:
  const bool moves_;
  std::optional<double> begin_;  // of what is done now, without a pause
  double next_ = 0;              // when the next line is due
};

// Watches this process's work from a thread of its own.
class Waiting : NoCopy {
 public:
  // `quiet`: says nothing.
  explicit Waiting(bool quiet);
  ~Waiting();

 private:
  void watch();

  WaitingLines lines_;
  const bool moves_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace gacc
