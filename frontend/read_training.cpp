// Reads [train], [optimizer], [schedule], [precision], [recompute], [launch] and [memory]: the whole schema
// is checked, and what it says becomes settings of the module.
#include <algorithm>
#include <limits>

#include "frontend/model_file.h"
#include "frontend/schema.h"

namespace gacc::frontend {

namespace {

using Texts = std::initializer_list<std::string_view>;

// Keys that another type of the same table has: reported with the reason, not as unknown.
void only_for(TableReader& table, std::string_view type, Texts keys, std::string_view others) {
  for (const std::string_view key : keys) {
    if (table.find(key) != nullptr) {
      table.diag().error(Kind::conflict, table.at(key), "`{}` is for {}; the type here is \"{}\"",
                         table.path(key), others, type);
    }
  }
}

// A count of samples or launches, or "auto", which gives nothing.
std::optional<int64_t> read_count(TableReader& table, std::string_view key, bool& automatic) {
  const Node* node = table.find(key);
  if (node == nullptr) return 1;
  if (node->form == Node::Form::text) {
    static constexpr std::string_view words[] = {"auto"};
    if (table.choice(*node, fmt::format("value of `{}`", table.path(key)), words)) automatic = true;
    return std::nullopt;
  }
  return table.integer(key, extent);
}

void read_train(const Node& node, ModelFile& model, Diag& diag) {
  TableReader table(node, "[train]", "train.", diag);
  ir::Attrs& settings = model.settings;
  bool auto_micro = false, auto_accumulate = false;
  const auto micro_batch = read_count(table, "micro_batch", auto_micro);
  const auto accumulate = read_count(table, "accumulate", auto_accumulate);
  const bool automatic = auto_micro || auto_accumulate;
  model.micro_batch = micro_batch.value_or(1);
  model.accumulate = accumulate.value_or(1);
  model.micro_batch_at = table.at("micro_batch");
  const auto effective = table.integer("effective_batch", extent);
  if (automatic && effective) {
    // Where one is "auto" and the other not given, that one is chosen as well.
    if (auto_micro || table.find("micro_batch") == nullptr) settings["auto.micro_batch"] = true;
    if (auto_accumulate || table.find("accumulate") == nullptr) settings["auto.accumulate"] = true;
    settings["auto.effective_batch"] = *effective;
  } else if (effective && micro_batch && accumulate && model.micro_batch * model.accumulate != *effective) {
    diag.error(Kind::conflict, table.at("effective_batch"),
               "`train.effective_batch` is {}, but micro_batch {} x accumulate {} is {}", *effective,
               model.micro_batch, model.accumulate, model.micro_batch * model.accumulate);
  }
  if (automatic && table.find("effective_batch") == nullptr) table.require("effective_batch");
  settings["train.micro_batch"] = model.micro_batch;
  settings["train.accumulate"] = model.accumulate;
  static constexpr std::string_view tails[] = {"flush", "drop", "carry"};
  settings["train.tail"] = table.choice("tail", "tail", tails).value_or("flush");
  settings["train.epochs"] = table.integer("epochs", extent).value_or(1);
  settings["train.shuffle"] = table.flag("shuffle").value_or(true);
  static constexpr std::string_view requirements[] = {"exact"};
  if (const auto require = table.choice("require", "requirement", requirements)) {
    settings["train.require"] = *require;
    model.require_at = table.at("require");
  }
  if (const auto limit = table.real("clip_norm", above(0))) settings["train.clip_norm"] = *limit;
  table.finish();
}

// adam, adamw, lion, lamb: two decay rates in [0, 1).
void read_betas(TableReader& table, double beta1, double beta2, ir::Attrs& settings) {
  if (const Node* betas = table.list("betas")) {
    if (betas->items.size() != 2) {
      table.diag().error(Kind::out_of_range, betas->at, "`optimizer.betas` must be two numbers, not {}",
                         betas->items.size());
    } else {
      beta1 = table.real(betas->items[0], "optimizer.betas", below_one).value_or(beta1);
      beta2 = table.real(betas->items[1], "optimizer.betas", below_one).value_or(beta2);
    }
  }
  settings["optimizer.beta1"] = beta1;
  settings["optimizer.beta2"] = beta2;
}

void read_sgd(TableReader& table, ir::Attrs& settings) {
  const double momentum = table.real("momentum", below_one).value_or(0);
  const double dampening = table.real("dampening", fraction).value_or(0);
  const bool nesterov = table.flag("nesterov").value_or(false);
  if (nesterov && (momentum == 0 || dampening != 0)) {
    table.diag().error(Kind::conflict, table.at("nesterov"),
                       "`optimizer.nesterov` needs a momentum and no dampening");
  }
  settings["optimizer.momentum"] = momentum;
  settings["optimizer.dampening"] = dampening;
  settings["optimizer.nesterov"] = nesterov;
}

// With one launch a window the sum of squares is the square of the sum.
void read_micro(TableReader& table, ModelFile& model) {
  model.settings["optimizer.second_moment"] = "micro";
  if (model.accumulate > 1)
    model.inexact.push_back(
        {.name = "optimizer.second_moment = \"micro\" sums the squares of the micro-batches' gradients",
         .at = table.at("second_moment")});
}

void read_optimizer(const Node& node, ModelFile& model, Diag& diag) {
  TableReader table(node, "[optimizer]", "optimizer.", diag);
  ir::Attrs& settings = model.settings;
  settings["optimizer.lr"] = table.real("lr", at_least(0)).value_or(1e-3);
  static constexpr std::string_view types[] = {"sgd", "adam", "adamw", "lion", "lamb"};
  const std::string type = table.require("type") ? table.choice("type", "optimizer", types).value_or("") : "";
  const bool adam = type == "adam" || type == "adamw";
  settings["optimizer.type"] = type;
  settings["optimizer.weight_decay"] =
      table.real("weight_decay", at_least(0)).value_or(type == "adamw" ? 0.01 : 0.0);
  if (type.empty()) {  // the type is wrong and reported: check the values, whatever it was meant to be
    ir::Attrs unused;
    read_sgd(table, unused);
    read_betas(table, 0, 0, unused);
    table.real("eps", at_least(0));
  } else if (type == "sgd") {
    read_sgd(table, settings);
    only_for(table, type, {"betas", "eps"}, "adam, adamw, lion and lamb");
  } else {
    read_betas(table, 0.9, type == "lion" ? 0.99 : 0.999, settings);
    only_for(table, type, {"momentum", "dampening", "nesterov"}, "sgd");
    if (type == "lion")
      only_for(table, type, {"eps"}, "adam, adamw and lamb");
    else
      settings["optimizer.eps"] = table.real("eps", at_least(0)).value_or(1e-8);
  }
  static constexpr std::string_view moments[] = {"window", "micro"};
  if (const auto moment = table.choice("second_moment", "second_moment", moments)) {
    if (!type.empty() && !adam)
      only_for(table, type, {"second_moment"}, "adam and adamw");
    else if (*moment == "micro")
      read_micro(table, model);
  }
  static constexpr std::string_view decays[] = {"all", "matrices"};
  if (table.choice("decay", "decay", decays) == "matrices") settings["optimizer.decay"] = "matrices";
  read_groups(table, model);
  static constexpr std::string_view scalings[] = {"none", "linear", "sqrt"};
  const std::string scaling = table.choice("lr_scaling", "lr_scaling", scalings).value_or("none");
  const auto reference = table.integer("reference_batch", extent);
  if (scaling != "none" && table.require("reference_batch")) {
    settings["optimizer.lr_scaling"] = scaling;
    settings["optimizer.reference_batch"] = reference.value_or(1);
  }
  table.finish();
}

// Each is a comparison in the update's kernel.
constexpr size_t kMilestones = 1000;

void read_milestones(TableReader& table, ir::Attrs& settings) {
  if (!table.require("milestones")) return;
  const auto milestones = table.integers("milestones", at_least(0), kMilestones);
  if (milestones && milestones->empty()) {
    table.diag().error(Kind::out_of_range, table.at("milestones"), "`schedule.milestones` is empty");
  }
  if (milestones && !std::is_sorted(milestones->begin(), milestones->end())) {
    table.diag().error(Kind::out_of_range, table.at("milestones"),
                       "`schedule.milestones` must be in ascending order");
  }
  if (milestones) settings["schedule.milestones"] = *milestones;
}

void read_schedule_numbers(TableReader& table, int64_t warmup, ir::Attrs& settings) {
  const auto keep = [&](const char* key, auto value) {
    if (value) settings[fmt::format("schedule.{}", key)] = *value;
  };
  keep("step_size", table.integer("step_size", extent));
  keep("gamma", table.real("gamma", Range{.low = 0, .low_open = true}));
  keep("min_lr", table.real("min_lr", at_least(0)));
  const auto total = table.integer("total", extent);
  if (total && *total <= warmup) {
    table.diag().error(Kind::conflict, table.at("total"),
                       "`schedule.total` is {}, not more than the warmup of {}", *total, warmup);
  }
  keep("total", total);
  keep("factor", table.real("factor", Range{.low = 0, .high = 1, .low_open = true, .high_open = true}));
  std::vector<std::string_view> metrics = metric_names();
  metrics.insert(metrics.begin(), "loss");
  keep("metric", table.choice("metric", "metric", metrics));
  keep("patience", table.integer("patience", between(0, kLargest)));
  keep("threshold", table.real("threshold", at_least(0)));
}

// What the runtime needs to judge evaluations (runtime/plateau.h).
void read_plateau(TableReader& table, ModelFile& model) {
  ir::Attrs& settings = model.settings;
  settings.try_emplace("schedule.patience", int64_t{10});
  settings.try_emplace("schedule.threshold", 1e-4);
  const std::string name =
      std::get<std::string>(settings.try_emplace("schedule.metric", "loss").first->second);
  const auto measured = std::any_of(model.metrics.begin(), model.metrics.end(),
                                    [&](const Named& known) { return known.name == name; });
  // The loss and the perplexity are known without being measured.
  if (name != "loss" && name != "perplexity" && !measured) {
    table.diag().error(
        Kind::conflict, table.at("metric"),
        "the schedule watches the {0}, which is not measured; add `metrics = [\"{0}\"]` to [model]", name);
  }
}

void read_schedule(const Node& node, ModelFile& model, Diag& diag) {
  ir::Attrs& settings = model.settings;
  TableReader table(node, "[schedule]", "schedule.", diag);
  static constexpr std::string_view types[] = {"constant", "step",   "multistep", "exponential",
                                               "linear",   "cosine", "plateau"};
  const std::string type = table.require("type") ? table.choice("type", "schedule", types).value_or("") : "";
  const int64_t warmup = table.integer("warmup", between(0, kLargest)).value_or(0);
  static constexpr std::string_view units[] = {"updates", "epochs"};
  const std::string unit = table.choice("unit", "unit", units).value_or("updates");

  // Each key, the types that have it, and its check; a key of another type is a conflict.
  struct Key {
    std::string_view key;
    std::vector<std::string_view> types;
    bool required;
  };
  static const Key keys[] = {{"step_size", {"step"}, true},
                             {"gamma", {"step", "multistep", "exponential"}, true},
                             {"milestones", {"multistep"}, true},
                             {"total", {"linear", "cosine"}, true},
                             {"min_lr", {"linear", "cosine", "plateau"}, false},
                             {"metric", {"plateau"}, false},
                             {"factor", {"plateau"}, false},
                             {"patience", {"plateau"}, false},
                             {"threshold", {"plateau"}, false}};
  for (const Key& key : keys) {
    const bool ours = std::find(key.types.begin(), key.types.end(), type) != key.types.end();
    const Node* value = table.find(key.key);
    if (!ours && !type.empty() && value != nullptr) {
      diag.error(Kind::conflict, value->at, "`{}` is for {}; the type here is \"{}\"", table.path(key.key),
                 list_words(key.types), type);
    } else if (key.key == "milestones") {
      if (ours) read_milestones(table, settings);
    } else if (ours && key.required) {
      table.require(key.key);
    }
  }
  // Constant without a warm-up is no schedule at all.
  if (type.empty() || (type == "constant" && warmup == 0)) {
    ir::Attrs unused;
    read_schedule_numbers(table, warmup, unused);
  } else {
    settings["schedule.type"] = type;
    settings["schedule.warmup"] = warmup;
    if (unit != "updates") settings["schedule.unit"] = unit;
    read_schedule_numbers(table, warmup, settings);
    if (type == "plateau") read_plateau(table, model);
  }
  table.finish();
}

// Far from what f32 cannot hold.
constexpr Range kStaticScale = between(0x1p-100, 0x1p100);

void read_precision(const Node& node, ModelFile& model, Diag& diag) {
  TableReader table(node, "[precision]", "precision.", diag);
  static constexpr std::string_view computes[] = {"f32", "f16", "bf16"};
  const std::string compute = table.choice("compute", "precision", computes).value_or("f32");
  ir::Attrs& settings = model.settings;
  settings["precision.compute"] = compute;
  bool dynamic = compute == "f16";
  if (const Node* scale = table.find("loss_scale")) {
    if (scale->form == Node::Form::text) {
      static constexpr std::string_view words[] = {"dynamic", "none"};
      const auto word = table.choice(*scale, "loss scale", words);
      dynamic = word == "dynamic";
    } else {
      dynamic = false;
      if (const auto number = table.real(*scale, "precision.loss_scale", kStaticScale))
        settings["precision.loss_scale"] = *number;
    }
  }
  const auto initial = table.real("scale_initial", Range{.low = 0x1p-14, .high = 0x1p24});
  const auto growth = table.real("scale_growth", above(1));
  const auto backoff =
      table.real("scale_backoff", Range{.low = 0, .high = 1, .low_open = true, .high_open = true});
  const auto interval = table.integer("scale_interval", extent);
  if (dynamic) {
    settings["precision.loss_scale"] = "dynamic";
    settings["precision.scale_initial"] = initial.value_or(65536);
    settings["precision.scale_growth"] = growth.value_or(2);
    settings["precision.scale_backoff"] = backoff.value_or(0.5);
    settings["precision.scale_interval"] = interval.value_or(2000);
  }
  const auto max_skips = table.integer("max_skips", extent);
  for (const std::string_view key : {"scale_initial", "scale_growth", "scale_backoff", "scale_interval"}) {
    if (table.find(key) != nullptr && !dynamic) {
      diag.error(Kind::conflict, table.at(key), "`{}` has no effect without dynamic loss scaling",
                 table.path(key));
    }
  }
  static constexpr std::string_view reactions[] = {"error", "skip"};
  const auto reaction = table.choice("on_nonfinite", "on_nonfinite", reactions);
  if (dynamic && reaction == "error") {
    diag.error(Kind::conflict, table.at("on_nonfinite"),
               "dynamic loss scaling skips windows that are not finite; a static scale or none can make them "
               "an error");
  }
  if (reaction == "skip") settings["precision.on_nonfinite"] = "skip";
  if (dynamic || reaction == "skip") settings["precision.max_skips"] = max_skips.value_or(100);
  table.finish();
}

// With a memory budget and no policy named, recompute is chosen to fit it; "auto" says that in so many words.
void read_recompute(const Node& node, const std::optional<int64_t>& memory, ModelFile& model, Diag& diag) {
  TableReader table(node, "[recompute]", "recompute.", diag);
  static constexpr std::string_view policies[] = {"none", "all", "sqrt", "marked", "budget", "auto"};
  std::string policy =
      table.choice("policy", "recompute policy", policies).value_or(memory ? "auto" : "none");
  const std::optional<int64_t> budget = table.bytes("budget");
  const bool automatic = policy == "auto";
  if (automatic) {
    if (!memory)
      diag.error(Kind::conflict, table.at("policy"),
                 "`recompute.policy = \"auto\"` needs a `memory.budget` to fit");
    policy = "budget";
  }
  if (policy == "budget") {
    if (!memory && table.find("budget") == nullptr && !automatic) table.require("budget");
    constexpr int64_t any = std::numeric_limits<int64_t>::max();
    if (budget || memory)
      model.settings["recompute.budget"] = std::min(budget.value_or(any), memory.value_or(any));
  } else if (table.find("budget") != nullptr) {
    diag.error(Kind::conflict, table.at("budget"),
               "`recompute.budget` is for policy \"budget\"; the policy here is \"{}\"", policy);
  }
  if (policy != "none") model.settings["recompute.policy"] = policy;
  model.recompute_policy = policy;
  table.finish();
}

void read_launch(const Node& node, ModelFile& model, Diag& diag) {
  TableReader table(node, "[launch]", "launch.", diag);
  static constexpr std::string_view modes[] = {"auto", "graph", "persistent"};
  const std::string mode = table.choice("mode", "launch mode", modes).value_or("auto");
  model.settings["launch.mode"] = mode;
  table.finish();
}

std::optional<int64_t> read_memory(const Node& node, ModelFile& model, Diag& diag) {
  TableReader table(node, "[memory]", "memory.", diag);
  const std::optional<int64_t> budget = table.bytes("budget");
  if (budget) model.settings["memory.budget"] = *budget;
  table.finish();
  return budget;
}

}  // namespace

void judge_equivalence(const ModelFile& model, const std::vector<Inexact>& layers, ir::Attrs& settings,
                       Diag& diag) {
  std::vector<Inexact> all = model.inexact;
  all.insert(all.end(), layers.begin(), layers.end());
  std::string because;
  for (const Inexact& one : all) (because += because.empty() ? "" : "; ") += one.name;
  if (!because.empty()) settings["equivalence.because"] = because;
  if (!model.settings.contains("train.require")) return;
  for (const Inexact& one : all) {
    diag.error(Kind::not_exact, one.at, "the update is not the one big batch's: {}{}{}", one.name,
               one.instead.empty() ? "" : "; ", one.instead)
        .note(model.require_at, "it is required here");
  }
}

void read_training(const Node& root, ModelFile& model, Diag& diag) {
  static const Node empty;
  // A table of another form was reported by the caller; absent ones give the defaults.
  const auto section = [&](std::string_view key) -> const Node& {
    const Node* node = root.find(key);
    return node != nullptr && node->is_table() ? *node : empty;
  };
  read_train(section("train"), model, diag);
  if (root.find("optimizer") == nullptr)
    diag.error(Kind::missing_key, {}, "the table [optimizer] is missing");
  else if (root.find("optimizer")->is_table())
    read_optimizer(section("optimizer"), model, diag);
  if (const Node* schedule = root.find("schedule"); schedule != nullptr && schedule->is_table())
    read_schedule(*schedule, model, diag);
  read_precision(section("precision"), model, diag);
  const std::optional<int64_t> memory = read_memory(section("memory"), model, diag);
  read_recompute(section("recompute"), memory, model, diag);
  read_launch(section("launch"), model, diag);
}

}  // namespace gacc::frontend
