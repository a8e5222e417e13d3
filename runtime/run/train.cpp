// The training loop. The rules of windows are in window.h; this file walks through them, keeps the sums of an
// epoch and the clocks, and asks for evaluations.
#include "runtime/run/train.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <tuple>

#include "runtime/data/loader.h"
#include "runtime/long_work.h"
#include "runtime/run/rates.h"
#include "runtime/session/window.h"

namespace gacc {
namespace {

// Seconds since construction, and those that other processes have spent before.
class Stopwatch {
 public:
  double seconds() const { return before_ + std::chrono::duration<double>(Clock::now() - start_).count(); }
  void add(double before) { before_ += before; }

 private:
  using Clock = std::chrono::steady_clock;
  double before_ = 0;
  Clock::time_point start_ = Clock::now();
};

// The question whether the run is to end. Alone this is known at once; several ranks have to agree.
class Interruption {
 public:
  explicit Interruption(const TrainOptions& options) : options_(options) {}

  bool several() const { return options_.ranks != nullptr && options_.ranks->size() > 1; }
  // True once this rank has heard of it.
  bool heard() {
    if (!heard_ && options_.interrupted && options_.interrupted()) {
      heard_ = true;
      if (several()) options_.ranks->ask_to_stop();
    }
    return heard_ || (several() && options_.ranks->stop_asked());
  }
  // True once all ranks know.
  bool agreed() { return several() ? agreed_ : heard(); }
  // Ranks meet here.
  Status agree() {
    if (!several() || agreed_) return {};
    agreed_ = GACC_TRY(maximum(*options_.ranks, heard())) != 0;
    return {};
  }

 private:
  const TrainOptions& options_;
  bool heard_ = false, agreed_ = false;
};

// One pass over `data` in file order, of which this rank takes its lanes'; nothing when it is interrupted.
Result<std::optional<EvalReport>> measure(Session& session, const Plan& plan, const Dataset& data,
                                          Loader& loader, Interruption& interruption) {
  const int64_t size = plan.micro_batch, launches = (data.samples + size - 1) / size;
  Evaluation& evaluation = session.evaluation();
  GACC_TRY(evaluation.begin(launches));
  std::vector<int64_t> order;
  for (int64_t launch = 0; launch < launches; ++launch)
    if (evaluation.has(launch))
      for (int64_t i = launch * size; i < std::min(data.samples, (launch + 1) * size); ++i)
        order.push_back(i);
  LongWork work("evaluating", std::ssize(order));
  loader.start(std::move(order), size);
  // The first one is made in any case: ranks meet there (Evaluation::add).
  for (int64_t launch = 0; launch < launches && (launch == 0 || !interruption.heard()); ++launch) {
    if (!evaluation.has(launch)) {
      GACC_TRY(evaluation.skip(std::min(size, data.samples - launch * size)));
      continue;
    }
    const Batch* const batch = loader.next();
    if (batch == nullptr) return loader.status();
    GACC_TRY(evaluation.add(batch->inputs, batch->samples));
    work.done(batch->samples);
  }
  GACC_TRY(interruption.agree());
  if (interruption.agreed()) return std::optional<EvalReport>();
  return std::optional(GACC_TRY(evaluation.end()));
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
        result_(result) {
    if (eval) eval_loader_.emplace(*eval, plan, session.device());
  }

  Status run() {
    const Status status = run_to_end();
    static_cast<TrainCounts&>(result_) = at_;
    result_.open_launches = session_.window().launches();
    result_.best = at_.best;
    result_.seconds = clock_.seconds();
    return status;
  }

 private:
  struct Culprit {
    int64_t launch = 0;  // from 1; 0: none was found
    std::string parameter;
  };

  Status run_to_end() {
    GACC_TRY(check_can_update(plan_, data_.samples, options_));
    GACC_TRY(begin_rates(session_, plan_, rules_));
    if (options_.resume) GACC_TRY(resume(*options_.resume));
    if (!limit_reached()) {
      const int64_t updates = updates_of_run(plan_, data_.samples, options_);
      const std::string text = GACC_TRY(tell_length(session_, plan_, updates));
      if (!text.empty()) observer_.schedule_differs(text);
    }
    GACC_TRY(evaluate_due());
    // An epoch whose launches are all made is ended, whatever the limits.
    auto epoch_to_end = [&] { return at_.position > 0 && at_.position == rules_.launches_per_epoch(); };
    while ((epoch_to_end() || !limit_reached()) && !interrupted()) GACC_TRY(run_epoch());
    GACC_TRY(interruption_.agree());  // of a window that a limit has left open
    GACC_TRY(checkpoint());
    if (session_.window().launches() > 0 && !left_window()) GACC_TRY(keep_gradients());
    if (eval_ && !interrupted()) GACC_TRY(evaluate(/*at_end=*/true));
    look_at(at_.epoch.epoch, last_loss_);
    return {};
  }

  Status resume(const TrainState& state) {
    if (state.position < 0 || state.position > rules_.launches_per_epoch() || state.window_launches < 0 ||
        state.window_launches > rules_.accumulate)
      return Status::error("the state to resume from is of another run: launch {} of {} in the epoch",
                           state.position, rules_.launches_per_epoch());
    if (options_.keeps_best() && !state.best.metric.empty() && state.best.metric != options_.best)
      return Status::error("cannot resume: --best was {}, and is {} now", state.best.metric, options_.best);
    at_ = state;
    at_.evaluation.better = false;
    session_.resume_window(state.window_launches, state.window_samples);
    clock_.add(state.seconds);
    saved_ = {state.launches, state.epochs, state.evaluation_due};
    return {};
  }

  // Unless the last one still says how things are. With several lanes the one of an open window is of its start.
  Status checkpoint() {
    if (!options_.checkpoint) return {};
    const bool inside = plan_.lanes > 1 && session_.window().launches() > 0;
    if (!inside) complete_state();
    const TrainState& state = inside ? opening_ : at_;
    const std::tuple now{state.launches, state.epochs, state.evaluation_due};
    if (saved_ == now) return {};
    saved_ = now;
    return options_.checkpoint(state);
  }

  void complete_state() {
    at_.window_launches = session_.window().launches();
    at_.window_samples = session_.window().samples();
    at_.recheck = session_.recheck().counts();
    at_.seconds = clock_.seconds();
  }

  // The samples of those launches, from at_.position on, that this rank has.
  std::vector<int64_t> samples_to_come() const {
    const auto order = epoch_order(data_.samples, options_.seed, at_.epochs, options_.shuffle);
    const int64_t launches = rules_.launches_per_epoch();
    std::vector<int64_t> mine;
    for (int64_t launch = at_.position, in_window = session_.window().launches(); launch < launches;
         ++launch) {
      const auto first = order.begin() + launch * plan_.micro_batch;
      if (session_.window().has_launch(in_window))
        mine.insert(mine.end(), first, first + rules_.batch(launch));
      in_window = rules_.after(launch, in_window + 1) == WindowRules::Next::launch ? in_window + 1 : 0;
    }
    return mine;
  }

  // One epoch, or the rest of one that was begun, as far as the limits allow.
  Status run_epoch() {
    if (at_.position == 0) {
      at_.epoch = {};
      at_.epoch.epoch = at_.epochs + 1;
      at_.epoch_sums = {};
      at_.epoch_start = training_seconds();
    }
    const int64_t launches = rules_.launches_per_epoch();
    loader_.start(samples_to_come(), plan_.micro_batch);
    while (at_.position < launches) {
      GACC_TRY(run_launch());
      if (at_.position < launches && (limit_reached() || interrupted())) return {};
    }
    if (left_window()) return {};
    // If the interruption has cut an evaluation short, the epoch ends after it, in another process.
    return at_.evaluation_due ? Status() : finish_epoch();
  }

  Status run_launch() {
    if (session_.window().launches() == 0) {
      at_.window_start = training_seconds();
      if (plan_.lanes > 1) {
        complete_state();
        opening_ = at_;
        if (options_.window_opens) options_.window_opens();
      }
    }
    const int64_t samples = rules_.batch(at_.position);
    if (!session_.window().has_launch(session_.window().launches()) ||
        (interruption_.several() && interruption_.heard())) {
      // Another rank's; or of a window that all will leave, so it does not matter that this one is not whole.
      const int64_t next = std::min((at_.position + 1) * plan_.micro_batch, data_.samples);
      GACC_TRY(session_.skip(samples, at_.epochs * data_.samples + next));
    } else {
      GACC_TRY(step(samples));
    }
    const int64_t launch = at_.position++;
    ++at_.launches;
    at_.samples += samples;
    at_.epoch.samples += samples;
    GACC_TRY(observer_.launched({at_.epoch.epoch, at_.launches, at_.samples}));
    const WindowRules::Next next = rules_.after(launch, session_.window().launches());
    return next == WindowRules::Next::launch ? Status() : close_window(next == WindowRules::Next::update);
  }

  // Launches the loader's next batch.
  Status step(int64_t samples) {
    const Batch* const batch = loader_.next();
    return batch == nullptr ? loader_.status() : session_.step(batch->inputs, samples);
  }

  // Adds what the open window has summed, less what earlier epochs have counted of it.
  void count_sums(const WindowSums& sums) {
    at_.epoch_sums.loss += sums.loss - at_.counted.loss;
    at_.epoch_sums.count += sums.count - at_.counted.count;
  }

  Status keep_gradients() {
    if (!options_.keep_gradients) return {};
    GACC_TRY(session_.finish_lanes());
    result_.gradients = GACC_TRY(session_.mean_gradients());
    return {};
  }

  Status close_window(bool apply) {
    if (Status status = interruption_.agree(); !status || left_window()) return status;
    GACC_TRY(keep_gradients());  // which the update clears
    UpdateReport report;
    if (!apply) {
      report.window.sums = GACC_TRY(session_.sums());
      GACC_TRY(session_.drop_window());
    } else {
      report.window = GACC_TRY(session_.update());
    }
    // The loss of a skipped window may be as wrong as its gradient: one of them must not blot out the epoch's.
    if (!plan_.skip_nonfinite || std::isfinite(report.window.sums.loss)) count_sums(report.window.sums);
    at_.counted = {};
    if (!apply || report.window.sums.count == 0) return {};

    bool good = report.window.applied;
    if (good) last_loss_ = static_cast<double>(report.window.loss);
    if (good && std::isnan(at_.first_loss)) at_.first_loss = last_loss_;
    at_.updates += good;
    at_.epoch.updates += good;
    at_.skipped += !good;
    at_.epoch.skipped += !good;
    report.epoch = at_.epoch.epoch;
    report.update = at_.updates + at_.skipped;
    report.seconds = training_seconds() - at_.window_start;
    GACC_TRY(observer_.updated(report));
    if (ends_training(plan_, report.window)) return not_finite(report);
    auto due = [&](int64_t every) { return good && every > 0 && at_.updates % every == 0; };
    at_.evaluation_due = eval_ && due(options_.eval_every);
    if (due(options_.checkpoint_every)) GACC_TRY(checkpoint());
    return evaluate_due();
  }

  // Runs the launches of the window that just failed again, one after the other, from the state it began with:
  // parameters and everything else that a failed window must not change are still there. No run pays for
  // finding out but the one that ends here.
  Result<Culprit> find_culprit(const WindowReport& window) {
    Culprit culprit;
    GACC_TRY(session_.drop_window());
    if (plan_.find(state::loss_scale)) GACC_TRY(session_.write_state(state::loss_scale, window.scale));
    const int64_t launches = rules_.launches_per_epoch();
    const int64_t end = at_.epochs * launches + at_.position;  // in launches of the whole run
    for (int64_t number = 1; number <= window.launches; ++number) {
      const int64_t at = end - window.launches + number - 1;
      const auto order = epoch_order(data_.samples, options_.seed, at / launches, options_.shuffle);
      const auto first = order.begin() + at % launches * plan_.micro_batch;
      const int64_t samples = rules_.batch(at % launches);
      const int64_t ordinal = at / launches * data_.samples + at % launches * plan_.micro_batch;
      if (!session_.window().has_launch(number - 1)) {
        GACC_TRY(session_.skip(samples, ordinal + samples));
        continue;
      }
      GACC_TRY(session_.set_ordinal(ordinal));
      loader_.start({first, first + samples}, plan_.micro_batch);
      GACC_TRY(step(samples));
      culprit.parameter = GACC_TRY(session_.first_bad_parameter());
      if (culprit.parameter.empty()) continue;
      culprit.launch = number;
      break;
    }
    return interruption_.several() ? first_of_all(culprit) : culprit;
  }

  // The least launch that any rank has found.
  Result<Culprit> first_of_all(const Culprit& mine) {
    const std::vector<std::string> all = GACC_TRY(all_gather(
        *options_.ranks, mine.launch == 0 ? "" : fmt::format("{} {}", mine.launch, mine.parameter)));
    Culprit culprit;
    for (const std::string& text : all) {
      const size_t space = std::min(text.find(' '), text.size());
      int64_t launch = 0;
      std::from_chars(text.data(), text.data() + space, launch);
      if (launch == 0 || (culprit.launch > 0 && culprit.launch < launch)) continue;
      culprit = {launch, text.substr(space + 1)};
    }
    return culprit;
  }

  Status not_finite(const UpdateReport& report) {
    const WindowReport& window = report.window;
    const Culprit culprit = GACC_TRY(find_culprit(window));
    std::string what;
    if (culprit.launch > 0)
      what = fmt::format("the gradient of {} is not finite since launch {} of {}", culprit.parameter,
                         culprit.launch, window.launches);
    return Status::error("update {} (epoch {}): {}", report.update, report.epoch,
                         why_training_ends(plan_, window, what));
  }

  Status finish_epoch() {
    if (session_.window().launches() > 0) {  // carry: the window stays open
      if (Status status = interruption_.agree(); !status || left_window()) return status;
      const WindowSums sums = GACC_TRY(session_.sums());
      count_sums(sums);
      at_.counted = sums;
    }
    ++at_.epochs;
    at_.position = 0;
    // Samples that tail = "drop" leaves out have their ordinals all the same: how many there are depends on the
    // micro-batch, and random numbers of later samples must not.
    if (rules_.tail == Tail::drop) GACC_TRY(session_.set_ordinal(at_.epochs * data_.samples));
    at_.epoch.loss = at_.epoch_sums.loss / at_.epoch_sums.count;
    at_.epoch.seconds = training_seconds() - at_.epoch_start;
    GACC_TRY(observer_.epoch_done(at_.epoch));
    look_at(at_.epoch.epoch, at_.epoch.loss);
    if (at_.epoch_sums.count == 0 && at_.epoch.skipped == 0)
      return Status::error(
          "no update can ever happen: nothing was counted in epoch {}; is every target the loss's "
          "ignore_index, or of a class of weight 0?",
          at_.epoch.epoch);
    at_.evaluation_due = eval_;
    if (options_.checkpoint_every == 0) GACC_TRY(checkpoint());
    return evaluate_due();
  }

  // An evaluation that was begun in vain stays due.
  Status evaluate_due() {
    if (!eval_) at_.evaluation_due = false;
    return at_.evaluation_due && !interrupted() ? evaluate(/*at_end=*/false) : Status();
  }

  // Evaluates the parameters as they are. The same parameters are never measured twice: a new epoch gets the
  // old result, the end of the run gets none.
  Status evaluate(bool at_end) {
    const bool same = at_.evaluation.updates == at_.updates;
    if (same && (at_end || at_.evaluation.epoch == at_.epoch.epoch)) {
      at_.evaluation_due = false;
      return {};
    }
    at_.evaluation.epoch = at_.epoch.epoch;
    at_.evaluation.seconds = 0;
    at_.evaluation.better = false;
    if (!same) {
      const double start = clock_.seconds();
      const std::optional<EvalReport> result =
          GACC_TRY(measure(session_, plan_, *eval_, *eval_loader_, interruption_));
      interrupted();  // takes it over
      if (result) GACC_TRY(evaluated(session_, plan_, *result));
      at_.evaluation.seconds = clock_.seconds() - start;
      at_.evaluation_seconds += at_.evaluation.seconds;
      if (!result) return {};
      at_.evaluation.result = *result;
    }
    at_.evaluation_due = false;
    at_.evaluation.updates = at_.updates;
    if (!same && options_.keeps_best()) GACC_TRY(compare_with_best());
    return observer_.evaluated(at_.evaluation);
  }

  Status compare_with_best() {
    BestEvaluation& best = at_.best;
    const double value = metric_of(at_.evaluation.result, plan_, options_.best);
    const bool better = is_better(
        options_.best, value, best.metric.empty() ? std::numeric_limits<double>::quiet_NaN() : best.value);
    at_.evaluation.better = better;
    if (!better) {
      ++best.worse;
      return {};
    }
    best = {options_.best, value, at_.updates, 0};
    return options_.save_best ? options_.save_best() : Status();
  }

  // A rate that is too large shows in the loss long before anything overflows.
  void look_at(int64_t epoch, double loss) {
    constexpr double kFar = 10;  // times the first update's loss
    // A loss that began below zero has no such multiple.
    if (diverged_ || !(at_.first_loss > 0 && loss > kFar * at_.first_loss)) return;
    diverged_ = true;
    observer_.diverged(epoch, loss, at_.first_loss);
  }

  bool interrupted() {
    result_.interrupted = interruption_.agreed();
    return result_.interrupted;
  }
  // True where several ranks have agreed to leave the open window.
  bool left_window() { return interruption_.several() && interrupted(); }
  bool limit_reached() const {
    return (epochs_ && at_.epochs >= *epochs_) || (options_.updates && at_.updates >= *options_.updates) ||
           (options_.launches && at_.launches >= *options_.launches) ||
           (options_.pause_at && at_.updates >= *options_.pause_at) ||
           (options_.patience && at_.best.worse >= *options_.patience);
  }
  double training_seconds() const { return clock_.seconds() - at_.evaluation_seconds; }

  Session& session_;
  const Plan& plan_;
  const Dataset& data_;
  const Dataset* eval_;  // null: no evaluation
  const TrainOptions& options_;
  TrainObserver& observer_;
  TrainResult& result_;
  const WindowRules rules_ = rules_of(plan_, data_.samples);
  const std::optional<int64_t> epochs_ = epoch_limit(plan_, options_);
  Interruption interruption_{options_};
  Loader loader_{data_, plan_, session_.device()};
  std::optional<Loader> eval_loader_;

  Stopwatch clock_;
  TrainState at_;       // what the session and the clock know, only at checkpoints
  TrainState opening_;  // at_ when the window was opened, with several lanes
  bool diverged_ = false;
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();  // of a good update of this process
  // Launches, epochs and evaluation_due at the last checkpoint.
  std::tuple<int64_t, int64_t, bool> saved_{-1, 0, false};
};

}  // namespace

Status train(Session& session, const Plan& plan, const Dataset& data, const Dataset* eval,
             const TrainOptions& options, TrainObserver& observer, TrainResult& result) {
  result = {};
  return Trainer(session, plan, data, eval, options, observer, result).run();
}

Status evaluate_once(Session& session, const Plan& plan, const Dataset& eval, const TrainOptions& options,
                     EvaluationReport& report, bool& interrupted) {
  Loader loader(eval, plan, session.device());
  const Stopwatch clock;
  Interruption interruption(options);
  const std::optional<EvalReport> result = GACC_TRY(measure(session, plan, eval, loader, interruption));
  if (result) report.result = *result;
  report.seconds = clock.seconds();
  interrupted = !result;
  return {};
}

std::optional<int64_t> epoch_limit(const Plan& plan, const TrainOptions& options) {
  if (options.epochs || options.updates || options.launches) return options.epochs;
  return plan.epochs;
}

Status check_can_update(const Plan& plan, int64_t samples, const TrainOptions& options) {
  const std::optional<int64_t> epochs = epoch_limit(plan, options);
  for (const auto& limit : {epochs, options.updates, options.launches})
    if (limit && *limit == 0) return {};  // nothing is to be launched: that is no mistake
  const WindowRules rules = rules_of(plan, samples);
  GACC_TRY(rules.check_can_update(epochs));
  return check_length(plan, updates_of_run(plan, samples, options), updates_per_epoch(rules));
}

int64_t updates_of_run(const Plan& plan, int64_t samples, const TrainOptions& options) {
  if (options.length) return *options.length;
  const WindowRules rules = rules_of(plan, samples);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  int64_t launches = options.launches.value_or(kMost);
  const int64_t each = rules.launches_per_epoch();
  if (const auto epochs = epoch_limit(plan, options); epochs && *epochs < kMost / std::max<int64_t>(1, each))
    launches = std::min(launches, *epochs * each);
  return std::min(rules.updates_of(launches), options.updates.value_or(kMost));
}

double expected_launches(const Plan& plan, int64_t samples, const TrainOptions& options) {
  const WindowRules rules = rules_of(plan, samples);
  auto each_epoch = static_cast<double>(rules.launches_per_epoch());
  double most = std::numeric_limits<double>::infinity();
  if (auto epochs = epoch_limit(plan, options))
    most = std::min(most, static_cast<double>(*epochs) * each_epoch);
  if (options.launches) most = std::min(most, static_cast<double>(*options.launches));
  if (options.updates) {
    auto updates = static_cast<double>(*options.updates);
    auto per_epoch = static_cast<double>(rules.updates_of(rules.launches_per_epoch()));
    // Under carry every window has K launches; else an epoch's last one is shorter, or its launches are lost.
    const bool carry = rules.tail == Tail::carry || per_epoch == 0;
    most = std::min(
        most, carry ? updates * static_cast<double>(plan.accumulate) : updates / per_epoch * each_epoch);
  }
  return most;
}

}  // namespace gacc
