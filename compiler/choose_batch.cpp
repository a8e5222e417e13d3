#include "compiler/choose_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include "ir/op_info.h"
#include "ir/text/size_text.h"
#include "kernels/launch_work.h"
#include "passes/accumulate.h"
#include "passes/host_weights.h"
#include "passes/pipeline.h"
#include "passes/plan_memory.h"
#include "passes/planner/recompute_search.h"
#include "passes/recompute.h"

namespace gacc {

namespace {

constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max(), kNoLimit = kNoBudget;

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", seconds * 1e6)
         : seconds < 1  ? fmt::format("{:.2f} ms", seconds * 1e3)
                        : fmt::format("{:.2f} s", seconds);
}

// Returns the bytes that may lie on the host, or do.
int64_t possible_on_host(const ir::Module& fused) {
  return *fused.results.host_possible + passes::possible_weights(fused);
}

// Steps of at most so many operations are searched whole in a fraction of a second.
constexpr size_t kOperationsOfQuickSearch = 200;

// A micro-batch in phase fused, whatever the budget.
struct Prepared {
  Prepared(ir::Module module, const passes::Options& how)
      : fused(std::move(module)), options(how), step(passes::step_graph(fused, options.target)) {}

  // The planner of all budgets: what it searches for one serves the others.
  passes::StepPlanner& planner_of(int effort) {
    if (planner == nullptr || options.plan_effort != effort) {
      options.plan_effort = effort;
      planner = std::make_unique<passes::StepPlanner>(fused, step, bounds, options);
    }
    return *planner;
  }

  ir::Module fused;
  passes::Options options;
  passes::StepGraph step;
  passes::planner::Bounds bounds{step.graph};
  std::unique_ptr<passes::StepPlanner> planner{};  // refers to the four above
};

// One in a budget.
struct Candidate {
  int64_t micro = 1, launches = 1;
  std::shared_ptr<Prepared> of{};
  int64_t least = 0;    // bytes, proven
  double update = 0;    // seconds of the update region
  double bound = 0;     // seconds of an update with all its launches, proven
  double seconds = -1;  // found; -1: not solved, or no plan
  double overhead = 0, overhead_bound = 0;
  int64_t arena = 0;
  int64_t link_bytes = 0;  // that come from the host for an update
};

// Returns the bytes that an update takes from the host: its own state, and weights for each of its launches.
int64_t bytes_from_host(const ir::Module& module, int64_t launches) {
  int64_t sum = 0;
  for (const ir::Op& op : module.update.ops)
    if (op.info == &ir::op_host_in)
      sum += ir::type_bytes(operand_type(module, module.update, op.operands[0]), 1);
  for (const ir::Op& op : module.step.ops)
    if (op.info == &ir::op_host_fetch) sum += launches * ir::type_bytes(module.step[op.results[0]].type, 1);
  return sum;
}

}  // namespace

class BatchChooser::Search {
 public:
  Search(const ir::Module& model, const CompileUnchunked& compile, const passes::Options& options)
      : model_(model), compile_(compile), options_(options) {
    policy_ = *model.settings.recompute.policy;
    keep_to(*model.settings.memory.budget);
  }

  void keep_to(int64_t budget) {
    budget_ = budget;
    host_ = *model_.settings.memory.host;
    step_budget_ = policy_ == "budget" ? std::min(budget, *model_.settings.recompute.budget) : kNoBudget;
  }

  // The smallest micro-batch; nothing when it does not compile.
  std::optional<Candidate> smallest() {
    std::string none;
    const std::vector<int64_t> batches = micro_batches(none);
    return batches.empty() ? std::nullopt : prepare(batches.front(), effective_ / batches.front());
  }

  bool fits(bool hastily_first) {
    std::optional<Candidate> candidate = smallest();
    if (!candidate || (hastily_first && !is_found_hastily(*candidate))) return false;
    solve(*candidate, options_.plan_effort);
    return candidate->seconds >= 0;
  }

  std::vector<HostPoint> host_curve(int points) {
    const std::optional<Candidate> all = within(1, kNoLimit);
    if (!all) return {};
    const int64_t possible = possible_on_host(all->of->fused);
    std::vector<HostPoint> curve;
    for (int i = 0; i < points; ++i) {
      const std::optional<HostPoint> point = least_arena_with(possible / (points - 1) * i);
      if (point && (curve.empty() || (curve.back().host < point->host && curve.back().arena > point->arena)))
        curve.push_back(*point);
      prepared_.clear();
    }
    return curve;
  }

  // `refused`: the one candidate was tried, and has no plan. `hint`: where nothing fits, whether to look for a
  // micro-batch that does.
  BatchChoice run(bool refused, bool hint = true) {
    BatchChoice out;
    const std::vector<int64_t> batches = micro_batches(out.problem);
    if (!out.problem.empty()) return out;
    std::vector<Candidate> all;
    for (const int64_t micro : batches) {
      std::optional<Candidate> candidate = prepare(micro, effective_ / micro);
      if (candidate) all.push_back(std::move(*candidate));
      if (candidate && all.back().least > limit()) break;  // a larger one needs no less
    }
    if (all.empty()) return out;  // reported by the compiler
    out.least = all.front().least;
    std::ranges::reverse(all);  // the largest micro-batch first
    std::vector<Candidate*> by_bound;
    for (Candidate& candidate : all) by_bound.push_back(&candidate);
    std::ranges::sort(by_bound, {}, [](const Candidate* c) { return std::pair(c->bound, c->launches); });
    const Candidate* best = nullptr;
    for (Candidate* const candidate : by_bound) {
      if (refused || (best != nullptr && candidate->bound > best->seconds)) continue;
      solve(*candidate, options_.plan_effort);
      const bool better = candidate->seconds >= 0 &&
                          (best == nullptr || candidate->seconds < best->seconds ||
                           (candidate->seconds == best->seconds && candidate->launches < best->launches));
      if (better) best = candidate;
    }
    if (best == nullptr) {
      out.problem = failure(all.back(), hint);
      if (all.back().least > limit())
        out.problem += fmt::format("; the budget is {}", ir::size_text(limit()));
      if (*model_.settings.train.choose_micro_batch && !*model_.settings.train.choose_accumulate)
        out.problem += fmt::format(
            "; train.accumulate is fixed at {}: with train.accumulate = \"auto\" the micro-batch may be "
            "smaller",
            model_.accumulate());
      return out;
    }
    out.done = true;
    out.found = {.micro_batch = best->micro,
                 .accumulate = best->launches,
                 .arena = best->arena,
                 .host = passes::host_bytes(best->of->fused),
                 .link_bytes = best->link_bytes,
                 .overhead = best->overhead,
                 .overhead_bound = best->overhead_bound};
    if (open_) {
      out.overrides = {{"train.micro_batch", fmt::to_string(best->micro)},
                       {"train.accumulate", fmt::to_string(best->launches)}};
      out.why = explain(all, *best);
    }
    return out;
  }

 private:
  // The smallest micro-batch in so many bytes, with so many on the host.
  std::optional<Candidate> within(int64_t budget, int64_t host) {
    keep_to(budget);
    if (policy_ == "budget") step_budget_ = budget;
    host_ = host;
    return smallest();
  }

  std::optional<HostPoint> least_arena_with(int64_t host) {
    const std::optional<Candidate> least = within(1, host);
    if (!least) return {};
    HostPoint found;
    const auto fits_in = [&](int64_t budget) {
      std::optional<Candidate> candidate = within(budget, host);
      if (!candidate || !is_found_hastily(*candidate)) return false;
      found = {passes::host_bytes(candidate->of->fused), budget};
      return true;
    };
    if (fits_in(least->least)) {
      found.proven = true;
      return found;
    }
    int64_t low = least->least, high = std::max(low, least->of->step.arena_bytes);
    if (!fits_in(high)) return {};
    const size_t operations = least->of->step.graph.operations.size();
    const int parts = operations <= kOperationsOfQuickSearch ? 64 : operations <= passes::kLargeStep ? 8 : 2;
    for (const int64_t enough = (high - low) / parts; high - low > std::max<int64_t>(enough, 256);) {
      const int64_t middle = low + (high - low) / 2;
      (fits_in(middle) ? high : low) = middle;
    }
    return found;
  }

  int64_t limit() const { return std::min(budget_, step_budget_); }

  // Returns the possible values of M, and checks the batch that M x K must be.
  std::vector<int64_t> micro_batches(std::string& problem) {
    const bool micro = *model_.settings.train.choose_micro_batch;
    const bool accumulate = *model_.settings.train.choose_accumulate;
    open_ = micro || accumulate;
    effective_ = open_ ? *model_.settings.train.effective_batch : model_.micro_batch() * model_.accumulate();
    if (!open_) return {model_.micro_batch()};
    if (!accumulate) return {effective_ / model_.accumulate()};
    if (!micro) return {model_.micro_batch()};
    const int64_t lanes = *model_.settings.train.lanes;  // each has a launch at least
    std::vector<int64_t> divisors;
    for (int64_t i = 1; i <= effective_ / i; ++i) {
      if (effective_ % i != 0) continue;
      divisors.push_back(i);
      if (i != effective_ / i) divisors.push_back(effective_ / i);
    }
    const bool whole =
        ir::keeps_bits(model_.settings);  // a lane has whole launches, whatever the micro-batch
    std::erase_if(divisors, [&](int64_t micro) {
      const int64_t launches = effective_ / micro;
      return launches < lanes || (whole && launches % lanes != 0);
    });
    std::ranges::sort(divisors);
    if (divisors.empty())
      problem = fmt::format("train.effective_batch {} is too small for train.lanes {}", effective_, lanes);
    return divisors;
  }

  // Nothing where it does not compile.
  std::optional<Candidate> prepare(int64_t micro, int64_t launches) {
    std::optional<ir::Module>& model = unchunked_[{micro, launches}];
    if (!model)
      model = compile_({{"train.micro_batch", fmt::to_string(micro)},
                        {"train.accumulate", fmt::to_string(launches)},
                        {"train.effective_batch", fmt::to_string(micro * launches)}});
    if (!model) return {};
    model->settings.memory.budget = budget_;
    model->settings.memory.host = host_;
    // The state on the host follows from the budget.
    const int64_t within = host_ > 0 ? budget_ : 0;
    std::shared_ptr<Prepared>& of = prepared_[{micro, launches, passes::loss_chunks(*model), within, host_}];
    if (of == nullptr) of = std::make_shared<Prepared>(fused(*model), options_);
    Candidate out{micro, launches, of};
    const passes::StepGraph& step = of->step;
    out.least = passes::least_arena(step);
    const auto seconds = [&](const ir::Region& region) {
      return kernels::KernelEstimator(of->fused, region, options_.target, step.arena_bytes).seconds();
    };
    const auto lanes = static_cast<double>(*model_.settings.train.lanes);
    out.update =
        seconds(of->fused.update) + (of->fused.close.ops.empty() ? 0 : lanes * seconds(of->fused.close));
    double launch = step.seconds;
    if (policy_ == "budget" && out.least <= step_budget_ && step_budget_ != kNoBudget)
      launch = std::max(launch, passes::planner::lower_bound(of->bounds, step_budget_ - step.fixed_bytes));
    out.bound = static_cast<double>(launches) * launch + out.update;
    return out;
  }

  // The module as the pass recompute gets it.
  ir::Module fused(ir::Module model) const {
    passes::PipelineOptions rest;
    rest.options = options_;
    rest.verify = passes::Verify::never;
    bool begun = false;
    for (const passes::Pass& pass : passes::all_passes()) {
      if (pass.name == "recompute") break;
      begun = begun || pass.name == "chunk-loss";
      if (begun) rest.passes.emplace_back(pass.name);
    }
    Diag none("", "");
    const passes::PipelineResult done = passes::run_pipeline(model, rest, none);
    if (!done) throw std::logic_error(done.internal_error + none.render());
    return model;
  }

  bool is_found_hastily(Candidate& candidate) const {
    Prepared& of = *candidate.of;
    if (policy_ == "budget") return passes::is_found_hastily(of.fused, of.step, of.bounds, step_budget_);
    solve(candidate, 0);
    return candidate.seconds >= 0;
  }

  // The fastest plan of this micro-batch, if one is found.
  void solve(Candidate& out, int effort) const {
    const passes::StepGraph& step = out.of->step;
    double launch = step.seconds;
    if (policy_ == "budget") {
      if (out.least > step_budget_) return;
      const passes::StepPlan plan = out.of->planner_of(effort).plan(step_budget_);
      if (!plan.feasible) return;
      launch = plan.seconds;
      out.arena = plan.arena;
      out.link_bytes = bytes_from_host(plan.module, out.launches);
      out.overhead_bound = plan.lower_bound / step.seconds - 1;
    } else {
      ir::Module module = out.of->fused;
      Diag none("", "");
      if (!passes::recompute(module, options_, none)) return;
      out.arena = passes::arena_of(module);
      out.link_bytes = bytes_from_host(module, out.launches);
      if (out.arena > budget_) return;
      launch *= 1 + *module.results.overhead;
      out.overhead_bound = *module.results.overhead_lower_bound;
    }
    out.overhead = launch / step.seconds - 1;
    out.seconds = static_cast<double>(out.launches) * launch + out.update;
  }

  bool may_fit(Candidate& candidate) const {
    if (policy_ != "budget") {
      solve(candidate, 0);
      return candidate.seconds >= 0;
    }
    return candidate.least <= step_budget_ &&
           passes::planner::plan_recompute(candidate.of->bounds,
                                           step_budget_ - candidate.of->step.fixed_bytes, 0)
               .feasible;
  }

  std::string explain(const std::vector<Candidate>& all, const Candidate& chosen) const {
    std::string text = fmt::format("effective batch {}", effective_);
    if (budget_ != kNoBudget) text += fmt::format(" in {}", ir::size_text(budget_));
    text += ", times by the cost model of " + options_.target + ":\n";
    for (const Candidate& c : all) {
      std::string what;
      if (c.seconds >= 0) {
        what = fmt::format("{} an update, arena {}", time_text(c.seconds), ir::size_text(c.arena));
        if (c.overhead > 0) what += fmt::format(", recompute {:.1f} %", 100 * c.overhead);
      } else if (c.least > limit()) {
        what = fmt::format("needs at least {} (proven)", ir::size_text(c.least));
      } else if (policy_ != "budget" && c.arena > budget_) {
        what = fmt::format("needs {}", ir::size_text(c.arena));
      } else {
        what = fmt::format("takes at least {} (proven)", time_text(c.bound));
      }
      text += fmt::format("  {} {} x {}: {}\n", &c == &chosen ? "->" : "  ", c.micro, c.launches, what);
    }
    return text;
  }

  // Says how much the smallest candidate needs; where that is not 1, which micro-batch would fit, or what 1 would need.
  std::string failure(const Candidate& smallest, bool hint) {
    std::string text;
    if (smallest.least > limit())
      text = fmt::format("needs at least {} with micro_batch {} (proven)", ir::size_text(smallest.least),
                         smallest.micro);
    else if (policy_ != "budget")
      text = fmt::format("needs {} with micro_batch {} and recompute.policy \"{}\"",
                         ir::size_text(smallest.arena), smallest.micro, policy_);
    else
      text = fmt::format("no plan was found with micro_batch {}; less than {} is impossible (proven)",
                         smallest.micro, ir::size_text(smallest.least));
    text += host_text(smallest);
    if (!hint) return text;
    // The largest micro-batch below that fits, as far as hasty searches tell.
    int64_t most = 0;
    for (int64_t low = 1, high = smallest.micro - 1; low <= high;) {
      const int64_t middle = low + (high - low) / 2;
      std::optional<Candidate> candidate = prepare(middle, smallest.launches);
      if (!candidate) break;
      if (may_fit(*candidate)) {
        most = middle;
        low = middle + 1;
      } else {
        high = middle - 1;
      }
    }
    Candidate fits;
    for (; most > 0 && fits.seconds < 0; most -= 1 + most / 8) {
      std::optional<Candidate> candidate = prepare(most, smallest.launches);
      if (!candidate) break;
      solve(*candidate, 0);
      fits = std::move(*candidate);
    }
    // Whole searches find more, and are short where the step is small.
    const bool quick = smallest.of->step.graph.operations.size() <= kOperationsOfQuickSearch;
    for (int64_t high = smallest.micro; quick && fits.seconds >= 0 && high - fits.micro > 1;) {
      std::optional<Candidate> more = prepare(fits.micro + (high - fits.micro) / 2, smallest.launches);
      if (!more) break;
      solve(*more, options_.plan_effort);
      if (more->seconds < 0)
        high = more->micro;
      else
        fits = std::move(*more);
    }
    if (fits.seconds < 0) {
      const std::optional<Candidate> one = smallest.micro == 1 ? std::nullopt : prepare(1, smallest.launches);
      if (!one) return text;
      if (one->least > limit())
        return text + fmt::format("; micro_batch 1 needs at least {} (proven)", ir::size_text(one->least));
      return text + "; no smaller micro_batch fits";
    }
    solve(fits, options_.plan_effort);
    text += fmt::format("; micro_batch {} fits", fits.micro);
    if (fits.overhead > 0)
      text += fmt::format(" with {:.1f} % recompute", 100 * fits.overhead);
    else
      text += " without recompute";
    // With as many launches that is another batch; the fastest way to the same one is searched for by name.
    const int64_t batch = smallest.micro * smallest.launches;
    return text + fmt::format(
                      ", an update of {} instead of {}; train.effective_batch = {} with micro_batch and "
                      "accumulate = \"auto\" keeps it",
                      fits.micro * smallest.launches, batch, batch);
  }

  // Says which part of the state is on the host, which might be, and what that would do.
  std::string host_text(const Candidate& smallest) {
    const ir::Module& module = smallest.of->fused;
    const int64_t possible = possible_on_host(module), has = passes::host_bytes(module);
    if (*module.settings.memory.host == 0) return "";
    if (has == possible)
      return fmt::format("; the host has {}, which is all that may lie there", ir::size_text(has));
    std::string text =
        fmt::format("; the host has {} in its memory.host of {}, and might have {}", ir::size_text(has),
                    ir::size_text(*module.settings.memory.host), ir::size_text(possible));
    const int64_t host = std::exchange(host_, kNoLimit);
    const std::optional<Candidate> all = prepare(smallest.micro, smallest.launches);
    host_ = host;
    if (!all) return text;
    if (all->least > limit())
      return text + fmt::format(", with which it needs at least {} (proven)", ir::size_text(all->least));
    return text +
           fmt::format("; with memory.host = \"{}B\" nothing is missing", passes::host_bytes(all->of->fused));
  }

  const ir::Module& model_;
  const CompileUnchunked& compile_;
  const passes::Options& options_;
  int64_t budget_ = kNoBudget, step_budget_ = kNoBudget, host_ = 0, effective_ = 1;
  std::string policy_;
  bool open_ = false;
  std::map<std::array<int64_t, 2>, std::optional<ir::Module>> unchunked_;  // by M and K
  // By M, K, chunks of the loss, where the host has state the budget, and what the host may have.
  std::map<std::array<int64_t, 5>, std::shared_ptr<Prepared>> prepared_;
};

namespace {

// The fewest ranks first. Between two numbers that hold equally many sums of lanes nothing changes, unless
// ranks share the optimizer's state.
BatchChoice choose_ranks(const ir::Module& model, const CompileUnchunked& compile,
                         const passes::Options& options) {
  const int64_t lanes = *model.settings.train.lanes;
  const bool share = *model.settings.memory.shard == "optimizer";
  std::string tried;
  for (int64_t ranks = 1;;) {
    const Override with{"train.ranks", fmt::to_string(ranks)};
    const auto compile_with = [&](std::vector<Override> more) {
      more.push_back(with);
      return compile(more);
    };
    const int64_t nodes = passes::most_nodes_from(lanes, ranks);
    const bool last = share ? ranks == lanes : nodes == 1;
    BatchChoice choice = BatchChooser(model, compile_with, options).choose(false, last);
    if (choice.done) {
      choice.overrides.push_back(with);
      choice.why = fmt::format("train.ranks = {}, the fewest that fit in {}\n{}{}", ranks,
                               ir::size_text(*model.settings.memory.budget), tried, choice.why);
      return choice;
    }
    if (choice.problem.empty()) return choice;
    if (last) {
      choice.problem = fmt::format("{}{}: {}", ir::counted(ranks, "rank"), ranks < lanes ? " or more" : "",
                                   choice.problem);
      return choice;
    }
    tried += fmt::format("     {}: {}\n", ir::counted(ranks, "rank"), choice.problem);
    // The next number with fewer.
    int64_t high = share ? ranks + 1 : lanes;
    for (++ranks; ranks < high;) {
      const int64_t middle = ranks + (high - ranks) / 2;
      if (passes::most_nodes_from(lanes, middle) == nodes)
        ranks = middle + 1;
      else
        high = middle;
    }
  }
}

}  // namespace

BatchChooser::BatchChooser(const ir::Module& model, const CompileUnchunked& compile,
                           const passes::Options& options)
    : search_(std::make_unique<Search>(model, compile, options)) {}
BatchChooser::~BatchChooser() = default;

BatchChoice BatchChooser::choose(bool refused, bool hint) { return search_->run(refused, hint); }

BatchChoice BatchChooser::choose_within(int64_t budget) {
  search_->keep_to(budget);
  return search_->run(false, false);
}

bool BatchChooser::fits(int64_t budget, bool hastily_first) {
  search_->keep_to(budget);
  return search_->fits(hastily_first);
}

std::vector<HostPoint> BatchChooser::host_curve(int points) { return search_->host_curve(points); }

std::optional<int64_t> BatchChooser::least(int64_t budget) {
  search_->keep_to(budget);
  const auto smallest = search_->smallest();
  return smallest ? std::optional(smallest->least) : std::nullopt;
}

bool has_choice(const ir::Module& model) {
  const bool open = *model.settings.train.choose_micro_batch || *model.settings.train.choose_accumulate;
  const bool kept = *model.settings.recompute.policy == "budget";
  const bool ranks = *model.settings.train.ranks == 0;
  return open || ranks || (model.settings.memory.budget.given() && !kept);
}

BatchChoice choose_batch(const ir::Module& model, const CompileUnchunked& compile,
                         const passes::Options& options, bool refused) {
  if (*model.settings.train.ranks == 0) return choose_ranks(model, compile, options);
  return BatchChooser(model, compile, options).choose(refused);
}

}  // namespace gacc
