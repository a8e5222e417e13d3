// The training loop. The rules of windows are in window.h; this file walks through them, keeps the sums of an
// epoch and the clocks, and asks for evaluations.
#include "runtime/train.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "runtime/data/loader.h"
#include "runtime/window.h"

namespace gacc {
namespace {

// Seconds since construction.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

WindowRules rules_of(const Plan& plan, int64_t samples) {
  return {samples, plan.micro_batch, plan.accumulate, parse_tail(plan.tail)};
}

std::optional<int64_t> epoch_limit(const Plan& plan, const TrainOptions& options) {
  if (options.epochs || options.updates || options.launches) return options.epochs;
  return plan.epochs;
}

class Trainer {
 public:
  Trainer(Session& session, const Plan& plan, const Dataset& data, const Dataset* eval,
          const TrainOptions& options, TrainObserver& observer, TrainResult& result)
      : session_(session),
        plan_(plan),
        data_(data),
        eval_(eval),
        options_(options),
        observer_(observer),
        result_(result),
        rules_(rules_of(plan, data.samples)),
        epochs_(epoch_limit(plan, options)),
        loader_(data, plan) {
    if (eval) eval_loader_.emplace(*eval, plan);
  }

  Status run();

 private:
  Status run_epoch();
  Status run_launch(int64_t launch, InputBytes inputs, int64_t samples);
  Status close_window(bool apply);
  Status finish_epoch();
  Status evaluate(bool at_end);
  Status measure(EvaluationReport& report, bool& complete);
  void count_sums(const WindowSums& sums);

  bool interrupted() {
    if (!result_.interrupted && options_.interrupted) result_.interrupted = options_.interrupted();
    return result_.interrupted;
  }
  bool limit_reached() const {
    return (epochs_ && result_.epochs >= *epochs_) ||
           (options_.updates && result_.updates >= *options_.updates) ||
           (options_.launches && result_.launches >= *options_.launches);
  }
  double training_seconds() const { return clock_.seconds() - evaluation_seconds_; }

  Session& session_;
  const Plan& plan_;
  const Dataset& data_;
  const Dataset* eval_;  // null: no evaluation
  const TrainOptions& options_;
  TrainObserver& observer_;
  TrainResult& result_;
  WindowRules rules_;
  std::optional<int64_t> epochs_;
  Loader loader_;
  std::optional<Loader> eval_loader_;

  Stopwatch clock_;
  double evaluation_seconds_ = 0, window_start_ = 0,
         epoch_start_ = 0;  // window and epoch in training seconds
  EpochReport epoch_;       // under way
  WindowSums epoch_sums_;   // of the launches of this epoch that are in closed windows, or at its end
  WindowSums counted_;      // the part of the open window that earlier epochs have counted (carry)
  EvaluationReport evaluation_{0, -1, {}, 0};  // the last one
};

Status Trainer::run() {
  Status status = check_can_update(plan_, data_.samples, options_);
  while (status && !limit_reached() && !interrupted()) status = run_epoch();
  result_.open_launches = session_.launches();
  if (status && options_.keep_gradients && session_.launches() > 0)
    status = session_.mean_gradients(result_.gradients);
  if (status && eval_ && !interrupted()) status = evaluate(/*at_end=*/true);
  result_.seconds = clock_.seconds();
  return status;
}

// One epoch, or as much of it as the limits allow.
Status Trainer::run_epoch() {
  epoch_ = {};
  epoch_.epoch = result_.epochs + 1;
  epoch_sums_ = {};
  epoch_start_ = training_seconds();
  int64_t launches = rules_.launches_per_epoch();
  auto order = epoch_order(data_.samples, options_.seed, result_.epochs, options_.shuffle);
  if (rules_.tail == Tail::drop) order.resize(static_cast<size_t>(launches * plan_.micro_batch));
  loader_.start(std::move(order), plan_.micro_batch);
  for (int64_t launch = 0; launch < launches; ++launch) {
    const Batch* batch = loader_.next();
    if (Status status = run_launch(launch, batch->inputs, batch->samples); !status) return status;
    if (launch + 1 < launches && (limit_reached() || interrupted())) return {};
  }
  return finish_epoch();
}

Status Trainer::run_launch(int64_t launch, InputBytes inputs, int64_t samples) {
  if (session_.launches() == 0) window_start_ = training_seconds();
  if (Status status = session_.step(inputs, samples); !status) return status;
  ++result_.launches;
  result_.samples += samples;
  epoch_.samples += samples;
  Status status = observer_.launched({epoch_.epoch, result_.launches, result_.samples});
  if (!status) return status;
  WindowRules::Next next = rules_.after(launch, session_.launches());
  return next == WindowRules::Next::launch ? Status() : close_window(next == WindowRules::Next::update);
}

// Adds what the open window has summed, less what earlier epochs have counted of it.
void Trainer::count_sums(const WindowSums& sums) {
  epoch_sums_.loss += sums.loss - counted_.loss;
  epoch_sums_.count += sums.count - counted_.count;
}

Status Trainer::close_window(bool apply) {
  // The update clears the accumulators, so the gradients are copied before.
  if (options_.keep_gradients)
    if (Status status = session_.mean_gradients(result_.gradients); !status) return status;
  UpdateReport report;
  if (!apply) {
    if (Status status = session_.sums(report.window.sums); !status) return status;
    if (Status status = session_.drop_window(); !status) return status;
  } else if (Status status = session_.update(report.window); !status) {
    return status;
  }
  count_sums(report.window.sums);
  counted_ = {};
  if (!apply || report.window.sums.count == 0) return {};

  bool good = report.window.applied;
  ++(good ? result_.updates : result_.skipped);
  ++(good ? epoch_.updates : epoch_.skipped);
  report.epoch = epoch_.epoch;
  report.update = result_.updates + result_.skipped;
  report.seconds = training_seconds() - window_start_;
  if (Status status = observer_.updated(report); !status) return status;
  if (!good) {
    std::string what = report.window.bad_parameter.empty()
                           ? "the global norm of the gradient overflows, though every gradient is finite"
                           : fmt::format("the gradient of {} is not finite", report.window.bad_parameter);
    return Status::error(
        "update {} (epoch {}): {} (loss {}); lower the learning rate, or look for wrong values in the data",
        report.update, report.epoch, what, report.window.loss);
  }
  bool due = options_.eval_every > 0 && result_.updates % options_.eval_every == 0;
  return eval_ && due ? evaluate(/*at_end=*/false) : Status();
}

Status Trainer::finish_epoch() {
  if (session_.launches() > 0) {  // carry: the window stays open
    WindowSums sums;
    if (Status status = session_.sums(sums); !status) return status;
    count_sums(sums);
    counted_ = sums;
  }
  ++result_.epochs;
  epoch_.loss = epoch_sums_.loss / static_cast<double>(epoch_sums_.count);
  epoch_.seconds = training_seconds() - epoch_start_;
  if (Status status = observer_.epoch_done(epoch_); !status) return status;
  if (epoch_sums_.count == 0)
    return Status::error(
        "no update can ever happen: nothing was counted in epoch {}; is every target the loss's "
        "ignore_index?",
        epoch_.epoch);
  return eval_ && !interrupted() ? evaluate(/*at_end=*/false) : Status();
}

// Evaluates the parameters as they are. The same parameters are never measured twice: a new epoch gets the
// old result, the end of the run gets none.
Status Trainer::evaluate(bool at_end) {
  bool same = evaluation_.updates == result_.updates;
  if (same && (at_end || evaluation_.epoch == epoch_.epoch)) return {};
  evaluation_.epoch = epoch_.epoch;
  evaluation_.seconds = 0;
  bool complete = true;
  if (!same) {
    double start = clock_.seconds();
    if (Status status = measure(evaluation_, complete); !status) return status;
    evaluation_.seconds = clock_.seconds() - start;
    evaluation_seconds_ += evaluation_.seconds;
  }
  if (!complete) return {};
  evaluation_.updates = result_.updates;
  return observer_.evaluated(evaluation_);
}

Status Trainer::measure(EvaluationReport& report, bool& complete) {
  if (Status status = session_.begin_eval(); !status) return status;
  eval_loader_->start(epoch_order(eval_->samples, 0, 0, /*shuffle=*/false), plan_.micro_batch);
  while (const Batch* batch = eval_loader_->next()) {
    if (Status status = session_.eval(batch->inputs, batch->samples); !status) return status;
    if (interrupted()) {
      complete = false;
      return {};
    }
  }
  return session_.end_eval(report.result);
}

}  // namespace

Status train(Session& session, const Plan& plan, const Dataset& data, const Dataset* eval,
             const TrainOptions& options, TrainObserver& observer, TrainResult& result) {
  result = {};
  return Trainer(session, plan, data, eval, options, observer, result).run();
}

Status check_can_update(const Plan& plan, int64_t samples, const TrainOptions& options) {
  std::optional<int64_t> epochs = epoch_limit(plan, options);
  for (const auto& limit : {epochs, options.updates, options.launches})
    if (limit && *limit == 0) return {};  // nothing is to be launched: that is no mistake
  return rules_of(plan, samples).check_can_update(epochs);
}

double expected_launches(const Plan& plan, int64_t samples, const TrainOptions& options) {
  WindowRules rules = rules_of(plan, samples);
  auto each_epoch = static_cast<double>(rules.launches_per_epoch());
  double most = std::numeric_limits<double>::infinity();
  if (auto epochs = epoch_limit(plan, options))
    most = std::min(most, static_cast<double>(*epochs) * each_epoch);
  if (options.launches) most = std::min(most, static_cast<double>(*options.launches));
  if (options.updates) {
    auto updates = static_cast<double>(*options.updates);
    int64_t whole = rules.launches_per_epoch() / plan.accumulate,
            rest = rules.launches_per_epoch() % plan.accumulate;
    auto per_epoch = static_cast<double>(whole + (rules.tail == Tail::flush && rest != 0));
    // Under carry every window has K launches; else an epoch's last one is shorter, or its launches are lost.
    bool carry = rules.tail == Tail::carry || per_epoch == 0;
    most = std::min(
        most, carry ? updates * static_cast<double>(plan.accumulate) : updates / per_epoch * each_epoch);
  }
  return most;
}

}  // namespace gacc
