// Reads [train], [optimizer], [schedule], [precision], [recompute], [launch] and [memory], and hands on [load]:
// what they say becomes settings of the module.
#include <fnmatch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "frontend/model_file.h"
#include "ir/parts.h"
#include "ir/text/size_text.h"

namespace gacc::frontend {

namespace {

// A lane has a launch at least, and a rank a lane.
void read_lanes(const Values& keys, bool choose, bool budget, ModelFile& model, Diag& diag) {
  const bool automatic = keys.text("ranks") == "auto";
  const int64_t lanes = keys.integer("lanes"), ranks = automatic ? 1 : keys.integer("ranks");
  if (!keys["lanes"].good || !keys["ranks"].good) return;
  const auto fitting = [](int64_t most) {
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(most)));
  };
  if (fitting(lanes) != lanes)
    diag.error(Kind::out_of_range, keys.at("lanes"),
               "`train.lanes` is {}; it must be a power of two: {} or {}", lanes, fitting(lanes),
               2 * fitting(lanes));
  else if (!choose && lanes > model.accumulate)
    diag.error(Kind::out_of_range, keys.at("lanes"),
               "`train.lanes` is {}, but an update has {} (train.accumulate) of {} "
               "(train.micro_batch): lanes = {} is the most; smaller micro-batches make more launches",
               lanes, ir::counted(model.accumulate, "launch"), ir::counted(model.micro_batch, "sample"),
               fitting(model.accumulate));
  if (automatic) model.settings.train.ranks = 0;
  if (*model.settings.memory.shard == "optimizer" && !keys.given("ranks"))
    diag.error(Kind::missing_key, keys.place,
               "`memory.shard = \"optimizer\"` needs `train.ranks`, the number of ranks that share the "
               "optimizer's state, and at least as many `train.lanes`");
  if (automatic && !budget)
    diag.error(Kind::conflict, keys.at("ranks"), "`train.ranks = \"auto\"` needs a `memory.budget` to fit");
  if (ranks > lanes)
    diag.error(
        Kind::out_of_range, keys.at("ranks"),
        "`train.ranks` is {}, but there {} {} (train.lanes), and each rank needs one: lanes = {} is enough",
        ranks, lanes == 1 ? "is" : "are", lanes == 1 ? "one lane" : fmt::format("{} lanes", lanes),
        std::bit_ceil(static_cast<uint64_t>(ranks)));
}

void read_train(const Values& keys, bool budget, ModelFile& model, Diag& diag) {
  keys.store(model.settings);
  auto& settings = model.settings.train;
  const auto automatic = [&](std::string_view key) { return keys.text(key) == "auto"; };
  const bool choose = automatic("micro_batch") || automatic("accumulate");
  model.micro_batch = std::max<int64_t>(keys.integer("micro_batch"), 1);
  model.accumulate = std::max<int64_t>(keys.integer("accumulate"), 1);
  settings.micro_batch = model.micro_batch;
  settings.accumulate = model.accumulate;
  if (!choose) settings.effective_batch.clear();
  read_lanes(keys, choose, budget, model, diag);
  const int64_t effective = keys.integer("effective_batch");
  if (choose && !keys.given("effective_batch")) {
    diag.error(Kind::missing_key, keys.place,
               "[train] needs `effective_batch`, the samples of an update, where micro_batch or accumulate "
               "is \"auto\"");
  } else if (choose && effective > 0) {
    // When one of the two is "auto" and the other is not given, both are chosen.
    const auto chosen = [&](std::string_view key) { return automatic(key) || !keys.given(key); };
    if (chosen("micro_batch")) settings.choose_micro_batch = true;
    if (chosen("accumulate")) settings.choose_accumulate = true;
    for (const auto& [fixed, count] :
         {std::pair("micro_batch", model.micro_batch), std::pair("accumulate", model.accumulate)})
      if (!chosen(fixed) && keys[fixed].good && effective % count != 0)
        diag.error(Kind::conflict, keys.at("effective_batch"),
                   "`train.effective_batch` is {}, no multiple of `train.{}` {}; make that one \"auto\", too",
                   effective, fixed, count)
            .note(keys.at(fixed), "it is set here");
  } else if (effective > 0 && keys["micro_batch"].good && keys["accumulate"].good &&
             model.micro_batch * model.accumulate != effective) {
    diag.error(Kind::conflict, keys.at("effective_batch"),
               "`train.effective_batch` is {}, but micro_batch {} x accumulate {} is {}", effective,
               model.micro_batch, model.accumulate, model.micro_batch * model.accumulate);
  }
}

// Refuses what cannot keep the bits of weights for every split of an effective batch. Layers and losses see to the
// rest.
void check_bits(const ModelFile& model, Diag& diag) {
  const Values train = model.file.table("train");
  if (!ir::keeps_bits(model.settings)) return;
  const auto refuse = [&](const Location& at, const std::string& why) {
    diag.error(Kind::not_exact, at, "{}", why).note(train.at("require"), "\"bits\" is required here");
  };
  if (*model.settings.train.tail == "carry")
    refuse(train.at("tail"),
           "`train.tail = \"carry\"` counts launches over the end of an epoch, so the samples of a "
           "window depend on how many a launch has; \"flush\" and \"drop\" do not");
  if (*model.settings.loss.chunks > 1)
    refuse(model.file.table("loss").at("chunks"),
           "`loss.chunks` adds up a part of all samples before the next part, so sums depend on the "
           "micro-batch");
  if (model.micro_batch > ir::kMostParts)
    refuse(
        train.at("micro_batch"),
        fmt::format(
            "`train.micro_batch` is {}; with \"bits\", which adds up a launch sample after sample, it is at "
            "most {}",
            model.micro_batch, ir::kMostParts));
  const auto& said = model.settings.train;
  if (!*said.choose_micro_batch && !*said.choose_accumulate && model.accumulate % *said.lanes != 0)
    refuse(train.at("lanes"),
           fmt::format(
               "`train.lanes` is {}, no divisor of `train.accumulate` {}: which samples a lane has would "
               "depend on the micro-batch",
               *said.lanes, model.accumulate));
}

// `lr_factor`, or `lr`, which is a factor of what optimizer.lr says.
double factor_of(const Values& group, double rate, Diag& diag) {
  const bool both = group.given("lr") && group.given("lr_factor");
  if (both)
    diag.error(Kind::conflict, group.at("lr"), "a group has `lr` or `lr_factor`, not both");
  else if (group.has("lr") && rate == 0)
    diag.error(Kind::conflict, group.at("lr"),
               "`{}` is a multiple of `optimizer.lr`, which is 0; use `lr_factor`", group.name("lr"));
  return group.has("lr") && rate != 0 ? group.real("lr") / rate : group.real("lr_factor");
}

// Reads the settings of parameters chosen by name.
void read_groups(const Values& optimizer, ModelFile& model, Diag& diag) {
  for (const Values& group : optimizer["groups"].tables) {
    if (group["match"].good && group.nodes("match").empty())
      diag.error(Kind::out_of_range, group.at("match"), "`{}` is empty", group.name("match"));
    ir::GroupSettings& settings = model.settings.groups.emplace_back();
    settings.match = group.get<ir::Texts>("match");
    if (group.has("weight_decay")) settings.weight_decay = group.real("weight_decay");
    const double factor = factor_of(group, optimizer.real("lr"), diag);
    if (factor != 1) settings.lr_factor = factor;
  }
}

void read_optimizer(const Values& keys, ModelFile& model, Diag& diag) {
  keys.store(model.settings);
  auto& settings = model.settings.optimizer;
  settings.type = std::string(keys.type != nullptr ? keys.type->name : "");
  ir::Attrs& own = model.settings.of_types;
  if (const auto betas = own.extract("optimizer.betas")) {
    own["optimizer.beta1"] = keys.reals("betas")[0];
    own["optimizer.beta2"] = keys.reals("betas")[1];
  }
  if (keys.type != nullptr && keys.lists("nesterov") && keys.flag("nesterov") &&
      (keys.real("momentum") == 0 || keys.real("dampening") != 0))
    diag.error(Kind::conflict, keys.at("nesterov"), "`optimizer.nesterov` needs a momentum and no dampening");
  // A slice may end in rows of zeros, whose step must be 0, not 0 / 0.
  if (*model.settings.memory.shard == "optimizer" && keys.type != nullptr && keys.lists("eps") &&
      static_cast<float>(keys.real("eps")) == 0)
    diag.error(Kind::conflict, keys.at("eps"), "`memory.shard = \"optimizer\"` needs an `eps` above 0");
  // With one launch a window the sum of squares is the square of the sum.
  if (settings.second_moment.given() && model.accumulate > 1)
    model.inexact.push_back(
        {.name = "optimizer.second_moment = \"micro\" sums the squares of the micro-batches' gradients",
         .at = keys.at("second_moment")});
  read_groups(keys, model, diag);
  if (keys.text("lr_scaling") == "none")
    settings.reference_batch.clear();
  else if (!keys.given("reference_batch"))
    diag.error(Kind::missing_key, keys.place,
               "[optimizer] needs `reference_batch`, the batch that lr is meant for");
}

// Returns the updates of the warm-up, of which a share of the run's is known to the runtime alone
// (runtime/run/rates.h, which rounds a share as this does).
int64_t read_warmup(const Values& keys, ModelFile& model, Diag& diag) {
  const double share = keys.real("warmup");
  if (share == 0) return keys.integer("warmup");
  auto& settings = model.settings.schedule;
  if (!keys.lists("total")) {
    diag.error(Kind::conflict, keys.at("warmup"),
               "`schedule.warmup` is a share of `total`, which \"{}\" does not have; give a number of {}",
               keys.type->name, keys.text("unit"));
    return 0;
  }
  if (keys.text("total") == "run") {
    settings.warmup_share = share;
    return 0;
  }
  const int64_t total = keys.integer("total");
  constexpr double kRounding = 1e-9;  // 7 % of 100 are 7
  const auto part = static_cast<int64_t>(std::ceil(static_cast<double>(total) * share / 100 - kRounding));
  settings.warmup = std::clamp<int64_t>(part, 0, std::max<int64_t>(0, total - 1));
  return *settings.warmup;
}

void read_schedule(const Values& keys, ModelFile& model, Diag& diag) {
  if (keys.type == nullptr) return;
  const int64_t warmup = read_warmup(keys, model, diag);
  if (keys.lists("milestones") && keys["milestones"].good) {
    const std::vector<int64_t> milestones = keys.integers("milestones");
    if (milestones.empty() || !std::is_sorted(milestones.begin(), milestones.end()))
      diag.error(Kind::out_of_range, keys.at("milestones"), "`schedule.milestones` {}",
                 milestones.empty() ? "is empty" : "must be in ascending order");
  }
  if (keys.lists("total") && keys.has("total") && keys.text("total") != "run" &&
      keys.integer("total") <= warmup)
    diag.error(Kind::conflict, keys.at("total"), "`schedule.total` is {}, not more than the warmup of {}",
               keys.integer("total"), warmup);
  if (keys.lists("metric")) {
    const std::string name = keys.text("metric");
    const bool measured =
        std::ranges::any_of(model.metrics(), [&](const Node& each) { return each.text == name; });
    // The loss and the perplexity are known without being measured.
    if (keys["metric"].good && name != "loss" && name != "perplexity" && !measured)
      diag.error(Kind::conflict, keys.at("metric"),
                 "the schedule watches the {0}, which is not measured; add `metrics = [\"{0}\"]` to [model]",
                 name);
  }
  // Constant without a warm-up is no schedule at all.
  if (keys.type->name == "constant" && warmup == 0) return;
  keys.store(model.settings);
  model.settings.schedule.type = std::string(keys.type->name);
}

void read_precision(const Values& keys, ModelFile& model, Diag& diag) {
  auto& settings = model.settings.precision;
  const std::string compute = keys.text("compute"), reaction = keys.text("on_nonfinite");
  const bool dynamic = keys.has("loss_scale") ? keys.text("loss_scale") == "dynamic" : compute == "f16";
  settings.compute = ir::parse_dtype(compute).value_or(ir::DType::f32);
  if (const std::string frozen = keys.text("frozen"); frozen != *settings.frozen) settings.frozen = frozen;
  if (dynamic)
    settings.loss_scale = "dynamic";
  else if (keys.has("loss_scale") && keys.text("loss_scale") != "none")
    settings.loss_scale = *keys["loss_scale"].value;
  ir::Results none;
  for (const std::string_view key : {"scale_initial", "scale_growth", "scale_backoff", "scale_interval"}) {
    if (dynamic)
      set(model.settings, none, keys.name(key), *keys[key].value);
    else if (keys.given(key))
      diag.error(Kind::conflict, keys.at(key), "`{}` has no effect without dynamic loss scaling",
                 keys.name(key));
  }
  if (dynamic && reaction == "error") {
    diag.error(Kind::conflict, keys.at("on_nonfinite"),
               "dynamic loss scaling skips windows that are not finite; a static scale or none can make them "
               "an error");
  }
  if (reaction == "skip") settings.on_nonfinite = reaction;
  if (dynamic || reaction == "skip") settings.max_skips = keys.integer("max_skips");
}

// With a memory budget and no policy named, recompute is chosen to fit it; "auto" says that in so many words.
void read_recompute(const Values& keys, const std::optional<int64_t>& memory, ModelFile& model, Diag& diag) {
  std::string policy = keys.has("policy") ? keys.text("policy") : memory ? "auto" : "none";
  const bool automatic = policy == "auto";
  if (automatic && !memory)
    diag.error(Kind::conflict, keys.at("policy"),
               "`recompute.policy = \"auto\"` needs a `memory.budget` to fit");
  if (automatic) policy = "budget";
  if (policy == "budget") {
    constexpr int64_t any = std::numeric_limits<int64_t>::max();
    const int64_t budget = std::min(keys.has("budget") ? keys.integer("budget") : any, memory.value_or(any));
    if (budget != any)
      model.settings.recompute.budget = budget;
    else if (!keys.given("budget") && !automatic)
      diag.error(Kind::missing_key, keys.place, "[recompute] needs `budget`, such as \"512MiB\"");
  } else if (keys.given("budget")) {
    diag.error(Kind::conflict, keys.at("budget"),
               "`recompute.budget` is for policy \"budget\"; the policy here is \"{}\"", policy);
  }
  if (policy != "none") model.settings.recompute.policy = policy;
}

}  // namespace

void judge_equivalence(const ModelFile& model, const std::vector<Inexact>& all, ir::Results& results,
                       Diag& diag) {
  ir::Texts because;
  for (const Inexact& one : all) because.push_back(one.name);
  if (!because.empty()) results.because = because;
  if (!model.settings.train.require.given()) return;
  for (const Inexact& one : all) {
    diag.error(Kind::not_exact, one.at, "the update is not the one big batch's: {}{}{}", one.name,
               one.instead.empty() ? "" : "; ", one.instead)
        .note(model.file.table("train").at("require"), "it is required here");
  }
}

void read_training(ModelFile& model, Diag& diag) {
  const Values& file = model.file;
  const Values memory = file.table("memory");
  memory.store(model.settings);
  std::optional<int64_t> budget;
  if (memory.has("budget")) budget = memory.integer("budget");
  if (memory.has("host") && !budget)
    diag.error(Kind::conflict, memory.at("host"),
               "`memory.host` needs a `memory.budget`, which says how much has to lie there");
  read_train(file.table("train"), budget.has_value(), model, diag);
  if (const Values* keys = file.find("optimizer")) read_optimizer(*keys, model, diag);
  if (const Values* keys = file.find("schedule")) read_schedule(*keys, model, diag);
  read_precision(file.table("precision"), model, diag);
  file.table("launch").store(model.settings);
  read_recompute(file.table("recompute"), budget, model, diag);
  check_bits(model, diag);
  if (const Values* keys = file.find("load")) read_load(*keys, model.settings, diag);
  if (const Values* keys = file.find("gguf")) read_gguf(*keys, model.settings, diag);
}

bool matches_glob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

void assign_groups(const ModelFile& model, ir::Module& module, Diag& diag) {
  if (diag.failed()) return;  // parameters may be missing
  Words names;
  for (const ir::Buffer& buffer : module.buffers)
    if (buffer.kind == ir::BufferKind::param) names.push_back(buffer.name);
  const std::vector<Values>& groups = (*model.file.find("optimizer"))["groups"].tables;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const Node& pattern : groups[g].nodes("match")) {
      bool found = false;
      for (ir::Buffer& buffer : module.buffers) {
        if (buffer.kind != ir::BufferKind::param || !matches_glob(pattern.text, buffer.name)) continue;
        found = true;
        if (buffer.group < 0) buffer.group = static_cast<int32_t>(g);
      }
      if (!found)
        diag.error(Kind::unknown_name, pattern.at, "no parameter is named `{}`{}", pattern.text,
                   did_you_mean(pattern.text, names));
    }
  }
}

}  // namespace gacc::frontend
