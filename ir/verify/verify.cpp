#include "ir/verify/verify.h"

#include <tuple>

#include "ir/verify/rules.h"

namespace gacc::ir {

namespace {

// R30: how the step and the update run is what was asked for, and what their schedules say.
void verify_launch_modes(const Module& module, const Broken& broken) {
  const Results& results = module.results;
  const std::string& asked = *module.settings.launch.mode;
  for (const auto& [key, made, region] :
       {std::tuple("launch.step", &results.launch_step, &module.step),
        std::tuple("launch.update", &results.launch_update, &module.update)}) {
    const std::string& mode = **made;
    if (mode != "graph" && mode != "persistent")
      broken("R30", region->at, "{} is \"{}\", not \"graph\" or \"persistent\"", key, mode);
    if (made->given() && !region->ops.empty() && (asked == "graph" || region == &module.step) &&
        asked != "auto" && mode != asked)
      broken("R30", region->at, "{} is \"{}\", and launch.mode asks for \"{}\"", key, mode, asked);
    if (region->schedule && region->schedule->persistent && mode != "persistent")
      broken("R30", region->schedule->persistent->at, "{} has a persistent kernel, and {} is \"{}\"",
             region_text(region->kind), key, mode);
  }
}

// R9: every size of a value depends on these.
void verify_samples(const Module& module, const Broken& broken) {
  const int64_t batch = module.micro_batch(), predicted = module.most_samples(module.predict);
  if (batch < 1 || batch >= (int64_t{1} << 31)) broken("R9", {}, "train.micro_batch is {}", batch);
  if (batch >= 1 && (predicted < 1 || predicted > batch))
    broken("R9", {}, "predict.batch is {}; a micro-batch has {}", predicted, batch);
}

void verify_schedules(const Module& module, const Broken& broken) {
  const bool scheduled = module.phase >= Phase::scheduled;
  if (scheduled == module.target.empty())
    broken("R18", {}, "a module has a target in phase scheduled, and only then");
  for (const RegionKind kind : all_regions) {
    const Region& region = module.region(kind);
    if (region.schedule.has_value() != (scheduled && !region.ops.empty()))
      broken("R18", region.at, "{} has {} schedule in phase {}", region_text(kind),
             region.schedule ? "a" : "no", phase_text(module.phase));
    else if (region.schedule)
      verify_schedule(module, region, broken.anew());
  }
}

}  // namespace

bool verify(const Module& module, Diag& diag) {
  const Broken broken(diag);
  verify_samples(module, broken);
  if (broken.none()) verify_buffers(module, broken);
  if (broken.none()) verify_buffer_places(module, broken);
  if (!broken.none()) return false;  // the rules below ask what buffers are, and where they lie
  verify_host_buffers(module, broken);
  verify_launch_modes(module, broken);
  for (const RegionKind kind : all_regions) {
    const Region& region = module.region(kind);
    verify_definitions(module, region, broken);
    if (!broken.none()) return false;  // later rules index by what is defined
    verify_ops(module, region, broken);
    if (!broken.none()) return false;
    verify_writes(module, region, broken);
    verify_host_state(module, region, broken);
    verify_yields(module, region, broken);
    verify_clones(module, region, broken);
    if (broken.none()) verify_places(module, region, broken);
  }
  if (module.phase >= Phase::planned && broken.none() && verify_data(module, diag))
    verify_settings(module, broken);
  if (broken.none()) verify_schedules(module, broken);
  return broken.none();
}

bool verify_data(const Module& module, Diag& diag) {
  const Broken broken(diag);
  for (const RegionKind kind : all_regions) verify_numbers(module, module.region(kind), broken);
  return broken.none();
}

}  // namespace gacc::ir
