// Tells what happens in a run of gacc-exec while it goes on: to the log, TensorBoard's events and the display.
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/run/train.h"
#include "runtime/standard_streams.h"
#include "runtime/tell/log.h"
#include "runtime/tell/progress.h"
#include "runtime/tell/tensorboard.h"

namespace gacc {

class Reporter final : public TrainObserver {
 public:
  struct Sinks {
    const Plan& plan;
    LogFile& log;
    EventFile& events;
    Progress& progress;
    std::vector<double> units;  // one for each metric, by which it is multiplied to be shown
    std::function<Result<std::string>()> hash{};  // of the weights, for the log; may be empty
  };
  // `updates`: good ones before this process. What the sinks refer to must outlive this.
  explicit Reporter(Sinks sinks, int64_t updates = 0, bool keeps_best = false)
      : to_(std::move(sinks)), updates_(updates), keeps_best_(keeps_best) {}

  // Returns the loss of the last good update of this process.
  std::optional<double> last_loss() const { return last_loss_; }
  // Returns by what the metric of that name, or "loss", is multiplied to be shown.
  double unit_of(const std::string& metric) const {
    const auto found = std::ranges::find(to_.plan.metrics, metric);
    return found == to_.plan.metrics.end() ? 1
                                           : to_.units[static_cast<size_t>(found - to_.plan.metrics.begin())];
  }

  // Returns the confusion matrix of the last evaluation, as lines; "" where there is none.
  const std::string& confusion() const { return confusion_; }

  Status launched(const LaunchReport& report) override {
    to_.progress.launched(report);
    return {};
  }

  Status updated(const UpdateReport& report) override {
    to_.progress.updated(report);
    const WindowReport& window = report.window;
    updates_ += window.applied;
    if (window.applied) last_loss_ = window.loss;
    if (to_.events.is_open()) {
      // The loss and norm of a skipped window are of no use in a curve.
      const Figure figures[] = {{"loss_scale", window.scale},
                                {"skipped", static_cast<double>(report.update - updates_)},
                                {"lr", window.lr},
                                {"loss", window.loss},
                                {"grad_norm", window.norm}};
      auto shown = std::span<const Figure>(figures).first(window.applied ? 5 : 2);
      GACC_TRY(to_.events.write(updates_, shown));
    }
    const std::string hash = to_.hash ? GACC_TRY(to_.hash()) : "";
    return to_.log.is_open() ? to_.log.write(update_line(report, to_.plan, hash)) : Status();
  }

  Status epoch_done(const EpochReport& report) override {
    to_.progress.say(epoch_text(report));
    const Figure figures[] = {
        {"epoch/loss", report.loss},
        {"epoch/epoch", static_cast<double>(report.epoch)},
        {"epoch/samples_per_second",
         report.seconds > 0 ? static_cast<double>(report.samples) / report.seconds : 0}};
    GACC_TRY(to_.events.write(updates_, figures));
    return to_.log.write(epoch_line(report));
  }

  Status evaluated(const EvaluationReport& measured) override {
    EvaluationReport report = measured;
    report.show_in(to_.units);
    to_.progress.say(evaluation_text(report, to_.plan));
    confusion_ = confusion_text(report.result, to_.plan);
    std::vector<std::string> tags = {"eval/loss"};
    for (const std::string& metric : to_.plan.metrics) tags.push_back("eval/" + metric);
    std::vector<Figure> figures = {{tags[0], report.result.loss}};
    for (size_t i = 0; i < report.result.metrics.size(); ++i)
      figures.push_back({tags[i + 1], report.result.metrics[i]});
    GACC_TRY(to_.events.write(report.updates, figures));
    return to_.log.write(eval_line(report, to_.plan, keeps_best_));
  }

  void schedule_differs(const std::string& text) override {
    to_.progress.warn(fmt::format("gacc-exec: warning: {}", text));
  }

  void diverged(int64_t epoch, double loss, double first_loss) override {
    to_.progress.warn(fmt::format(
        "gacc-exec: warning: epoch {}: the loss {:.6g} is far above the first update's {:.6g}; a lower "
        "learning rate (--lr) may help, or data that are normalised",
        epoch, loss, first_loss));
  }

 private:
  const Sinks to_;
  int64_t updates_;
  const bool keeps_best_;
  std::optional<double> last_loss_;
  std::string confusion_;
};

}  // namespace gacc
