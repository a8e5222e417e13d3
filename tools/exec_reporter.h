// What gacc-exec tells of a run while it goes on: the log, TensorBoard's events and the display.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "runtime/run/train.h"
#include "runtime/standard_streams.h"
#include "runtime/tell/log.h"
#include "runtime/tell/progress.h"
#include "runtime/tell/tensorboard.h"

namespace gacc {

struct ReporterSinks {
  const Plan& plan;
  LogFile& log;
  EventFile& events;
  Progress& progress;
  int64_t updates = 0;  // good ones before this process
  bool keeps_best = false;
};

class Reporter final : public TrainObserver, ReporterSinks {
 public:
  explicit Reporter(const ReporterSinks& sinks) : ReporterSinks(sinks) {}  // they must outlive it

  Status launched(const LaunchReport& report) override {
    progress.launched(report);
    return {};
  }

  Status updated(const UpdateReport& report) override {
    progress.updated(report);
    const WindowReport& window = report.window;
    updates += window.applied;
    if (events.is_open()) {
      // The loss and norm of a skipped window are of no use in a curve.
      const Scalar scalars[] = {{"loss_scale", window.scale},
                                {"skipped", static_cast<double>(report.update - updates)},
                                {"lr", window.lr},
                                {"loss", window.loss},
                                {"grad_norm", window.norm}};
      auto shown = std::span<const Scalar>(scalars).first(window.applied ? 5 : 2);
      GACC_TRY(events.write(updates, shown));
    }
    return log.is_open() ? log.write(update_line(report, plan)) : Status();
  }

  Status epoch_done(const EpochReport& report) override {
    progress.say(epoch_text(report));
    const Scalar scalars[] = {
        {"epoch/loss", report.loss},
        {"epoch/epoch", static_cast<double>(report.epoch)},
        {"epoch/samples_per_second",
         report.seconds > 0 ? static_cast<double>(report.samples) / report.seconds : 0}};
    GACC_TRY(events.write(updates, scalars));
    return log.write(epoch_line(report));
  }

  Status evaluated(const EvaluationReport& report) override {
    progress.say(evaluation_text(report, plan));
    std::vector<std::string> tags = {"eval/loss"};
    for (const std::string& metric : plan.metrics) tags.push_back("eval/" + metric);
    std::vector<Scalar> scalars = {{tags[0], report.result.loss}};
    for (size_t i = 0; i < report.result.metrics.size(); ++i)
      scalars.push_back({tags[i + 1], report.result.metrics[i]});
    GACC_TRY(events.write(report.updates, scalars));
    return log.write(eval_line(report, plan, keeps_best));
  }

  void diverged(int64_t epoch, double loss, double first_loss) override {
    progress.warn(fmt::format(
        "gacc-exec: warning: epoch {}: the loss {:.6g} is far above the first update's {:.6g}; a lower "
        "learning rate (--lr) may help, or data that are normalised",
        epoch, loss, first_loss));
  }
};

}  // namespace gacc
