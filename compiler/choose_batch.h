// The joint choice: micro_batch, accumulate, ranks and recompute under memory.budget. Frontend and passes do
// not know each other, so it is here.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frontend/frontend.h"
#include "passes/pass.h"

namespace gacc {

// The model with these overrides as the pass chunk-loss gets it, the first for which a budget matters; or nothing
// (with the reason reported elsewhere).
using CompileUnchunked = std::function<std::optional<ir::Module>(const std::vector<Override>& overrides)>;

// The fastest plan that was found.
struct ChosenBatch {
  int64_t micro_batch = 1, accumulate = 1;
  int64_t arena = 0, host = 0;              // bytes; host: of what lies in its memory (memory.host)
  int64_t link_bytes = 0;                   // that an update takes from there
  double overhead = 0, overhead_bound = 0;  // of recompute; proven
};

// The least arena that a plan is found in where the host has no more than `host` bytes.
struct HostPoint {
  int64_t host = 0, arena = 0;  // bytes that lie there then, and of the arena
  bool proven = false;          // no smaller arena would do
};

struct BatchChoice {
  bool done = false;
  ChosenBatch found{};
  std::vector<Override> overrides{};  // to add: train.micro_batch, train.accumulate, train.ranks
  std::string why{};                  // what was chosen and what not, a line each
  std::string problem{};              // when nothing fits: what would, proven
  int64_t least = 0;                  // bytes that the smallest micro-batch needs, proven
};

// Tells whether the model leaves something to choose, or states a budget that must be shown to hold: with policy
// "budget" the pass recompute keeps it.
bool has_choice(const ir::Module& model);

// `model`: as the frontend made it, with what is "auto" still open. Branch and bound over the micro-batches
// that divide the effective batch: in order of a proven lower bound of the time of an update; ties go to
// fewer launches. A larger budget never gives a longer update by the model. Where train.ranks is open, the
// fewest ranks come first. `refused`: the model leaves nothing open, and the pass recompute found no plan for
// it; what is left is to say what would fit.
BatchChoice choose_batch(const ir::Module& model, const CompileUnchunked& compile,
                         const passes::Options& options, bool refused = false);

// The same for one budget after the other, all but the choice of ranks. What the budgets share is made once.
class BatchChooser {
 public:
  // Keeps references.
  BatchChooser(const ir::Module& model, const CompileUnchunked& compile, const passes::Options& options);
  ~BatchChooser();
  // The model's budget. `hint`: where nothing fits, look for a micro-batch that does.
  BatchChoice choose(bool refused, bool hint = true);
  // Another one than the model's.
  BatchChoice choose_within(int64_t budget);
  // Tells whether choose_batch and the pass recompute find a plan for the smallest micro-batch then. `hastily_first`:
  // says no where a hasty search finds none, which is quicker, and misses some.
  bool fits(int64_t budget, bool hastily_first);
  // Returns the bytes that the smallest micro-batch needs then, proven; nothing when it does not compile.
  std::optional<int64_t> least(int64_t budget);
  // Returns up to `points` of what lies on the host against the least arena, from nothing there to all that may be,
  // for the smallest micro-batch. Each is a plan that a hasty search has found, to a 64th of what there is to save,
  // of steps above 200 operations to an eighth, above 1,000 to a half.
  std::vector<HostPoint> host_curve(int points);

 private:
  class Search;
  std::unique_ptr<Search> search_;
};

}  // namespace gacc
