#include "tools/exec_reporter.h"

#include <span>
#include <string>
#include <vector>

#include "runtime/standard_streams.h"

namespace gacc {

Status Reporter::launched(const LaunchReport& report) {
  progress_.launched(report);
  return {};
}

Status Reporter::updated(const UpdateReport& report) {
  progress_.updated(report);
  const WindowReport& window = report.window;
  updates_ += window.applied;
  if (events_.is_open()) {
    // The loss and norm of a skipped window are of no use in a curve.
    const Scalar scalars[] = {{"loss_scale", window.scale},
                              {"skipped", static_cast<double>(report.update - updates_)},
                              {"lr", window.lr},
                              {"loss", window.loss},
                              {"grad_norm", window.norm}};
    auto shown = std::span<const Scalar>(scalars).first(window.applied ? 5 : 2);
    GACC_TRY(events_.write(updates_, shown));
  }
  return log_.is_open() ? log_.write(update_line(report, plan_)) : Status();
}

Status Reporter::epoch_done(const EpochReport& report) {
  progress_.say(epoch_text(report));
  const Scalar scalars[] = {{"epoch/loss", report.loss},
                            {"epoch/epoch", static_cast<double>(report.epoch)},
                            {"epoch/samples_per_second",
                             report.seconds > 0 ? static_cast<double>(report.samples) / report.seconds : 0}};
  GACC_TRY(events_.write(updates_, scalars));
  return log_.write(epoch_line(report));
}

Status Reporter::evaluated(const EvaluationReport& report) {
  progress_.say(evaluation_text(report, plan_));
  std::vector<std::string> tags = {"eval/loss"};
  for (const std::string& metric : plan_.metrics) tags.push_back("eval/" + metric);
  std::vector<Scalar> scalars = {{tags[0], report.result.loss}};
  for (size_t i = 0; i < report.result.metrics.size(); ++i)
    scalars.push_back({tags[i + 1], report.result.metrics[i]});
  GACC_TRY(events_.write(report.updates, scalars));
  return log_.write(eval_line(report, plan_, keeps_best_));
}

void Reporter::diverged(int64_t epoch, double loss, double first_loss) {
  progress_.clear();
  print_stderr(
      "gacc-exec: warning: epoch {}: the loss {:.6g} is far above the first update's {:.6g}; a lower "
      "learning rate (--lr) may help, or data that are normalised\n",
      epoch, loss, first_loss);
}

}  // namespace gacc
