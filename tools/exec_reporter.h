// What gacc-exec tells of a run while it goes on: the log, TensorBoard's events and the display.
#pragma once
#include "runtime/log.h"
#include "runtime/progress.h"
#include "runtime/tensorboard.h"
#include "runtime/train.h"

namespace gacc {

class Reporter final : public TrainObserver {
 public:
  // `updates`: good ones before this process. All must outlive it.
  Reporter(const Plan& plan, LogFile& log, EventFile& events, Progress& progress, int64_t updates,
           bool keeps_best)
      : plan_(plan),
        log_(log),
        events_(events),
        progress_(progress),
        updates_(updates),
        keeps_best_(keeps_best) {}
  Status launched(const LaunchReport& report) override;
  Status updated(const UpdateReport& report) override;
  Status epoch_done(const EpochReport& report) override;
  Status evaluated(const EvaluationReport& report) override;
  void diverged(int64_t epoch, double loss, double first_loss) override;

 private:
  const Plan& plan_;
  LogFile& log_;
  EventFile& events_;
  Progress& progress_;
  int64_t updates_;
  bool keeps_best_;
};

}  // namespace gacc
