#include "frontend/ir_model.h"

#include <algorithm>
#include <set>

#include "frontend/config_json.h"
#include "frontend/loss.h"
#include "frontend/warnings.h"
#include "ir/contains.h"
#include "ir/op_info.h"
#include "ir/positions.h"
#include "ir/text/text.h"
#include "ir/verify/verify.h"

namespace gacc::frontend {

namespace {

using ir::RegionKind;

// Skips blanks and comments.
std::string_view behind_comments(std::string_view text) {
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (!text.starts_with("//")) return text;
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
}

// The places of the settings' keys in the text: a setting has a line of its own.
class Places {
 public:
  explicit Places(std::string_view text) {
    int32_t line = 0;
    while (!text.empty()) {
      const std::string_view all = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(all.size() + 1, text.size()));
      ++line;
      constexpr std::string_view kSet = "set ";
      const size_t blanks = std::min(all.find_first_not_of(" \t"), all.size());
      if (!all.substr(blanks).starts_with(kSet)) continue;
      const size_t begin = blanks + kSet.size();
      const std::string_view key = all.substr(begin, all.find_first_of(" =", begin) - begin);
      of_.try_emplace(std::string(key), Location{.line = line,
                                                 .column = static_cast<int32_t>(begin) + 1,
                                                 .length = static_cast<int32_t>(key.size())});
    }
  }
  Location operator()(std::string_view key) const {
    const auto found = of_.find(key);
    return found != of_.end() ? found->second : Location{};
  }

 private:
  std::map<std::string, Location, std::less<>> of_;
};

Node node_of(const ir::Attr& value, const Location& at) { return to_node(to_value(value), at); }

// Puts a value at a dotted path. The number in optimizer.groups.N is an entry of that list; the parser bounds it.
void put(Node& root, std::string_view path, Node value) {
  const bool groups = path.starts_with("optimizer.groups.");
  Node* at = &root;
  std::string part;
  while (!path.empty()) {
    const bool list = groups && part == "groups";
    part = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(part.size() + 1, path.size()));
    if (list) {
      const size_t number = std::stoul(part);
      at->form = Node::Form::list;
      if (number >= at->items.size()) at->items.resize(number + 1, Node{.at = value.at, .entries = {}});
      at = &at->items[number];
      continue;
    }
    if (at->find(part) == nullptr) at->entries.push_back({part, value.at, {.at = value.at, .entries = {}}});
    at = at->find(part);
  }
  *at = std::move(value);
}

// The tables that say what the settings of a module say. `forward`: it has no loss yet.
class Tables {
 public:
  Tables(const ir::Module& module, const Places& places, bool forward)
      : module_(module), settings_(module.settings), places_(places) {
    root_ = {.entries = {}};
    set("model.name", ir::Attr(module.name));
    for (const ir::ValueId id : module.step.inputs) input(module.step[id]);
    const ir::Attrs given = ir::given(settings_, {});
    for (const auto& [key, value] : given) {
      const bool table = contains(read, key.substr(0, key.find('.'))) && !contains(special, key);
      const bool loss = key.starts_with("loss.");
      if (table && (!loss || forward || key == "loss.type" || key == "loss.target")) set(key, value);
    }
    specials();
  }

  Node take() { return std::move(root_); }

 private:
  static constexpr std::string_view read[] = {"model",     "loss",      "train",  "optimizer", "schedule",
                                              "precision", "recompute", "launch", "memory"};
  // Keys that the tables write in another way.
  static constexpr std::string_view special[] = {"optimizer.beta1",
                                                 "optimizer.beta2",
                                                 "train.choose_micro_batch",
                                                 "train.choose_accumulate",
                                                 "schedule.warmup_share",
                                                 "recompute.budget",
                                                 "memory.budget",
                                                 "memory.host"};

  void set(const std::string& key, const ir::Attr& value) { put(root_, key, node_of(value, places_(key))); }

  void input(const ir::Value& input) {
    // A name may have no dots; one that has is reported where the table is read.
    Node table{.at = module_.step.at, .entries = {}};
    const auto add = [&](std::string_view key, const ir::Attr& value) {
      const std::string path = fmt::format("inputs.{}.{}", input.name, key);
      put(table, key, node_of(value, places_(path)));
    };
    const ir::Shape& shape = input.type.shape;
    if (shape.size() > 1) add("shape", ir::Shape(shape.begin() + 1, shape.end()));
    add("dtype", std::string(ir::dtype_text(input.type.dtype)));
    const ir::InputSettings& said = settings_.input(input.name);
    if (said.range) add("range", *said.range);
    for (const auto& [key, numbers] :
         {std::pair{"normalize.mean", &said.mean}, {"normalize.std", &said.std}}) {
      if (numbers->size() > 1) add(key, *numbers);
      if (numbers->size() == 1) add(key, numbers->front());
    }
    if (said.normalize_data) add("normalize", std::string("data"));
    if (root_.find("inputs") == nullptr)
      root_.entries.push_back({"inputs", module_.step.at, {.at = module_.step.at, .entries = {}}});
    root_.find("inputs")->entries.push_back({input.name, module_.step.at, std::move(table)});
  }

  void specials() {
    if (settings_.of_types.contains("optimizer.beta1") || settings_.of_types.contains("optimizer.beta2"))
      put(root_, "optimizer.betas",
          node_of(
              std::vector{settings_.real("optimizer.beta1", 0.9), settings_.real("optimizer.beta2", 0.999)},
              places_("optimizer.beta1")));
    set("optimizer.type", *settings_.optimizer.type);
    const auto automatic = [&](bool chosen, const std::string& key) {
      if (chosen) set(key, std::string("auto"));
    };
    automatic(*settings_.train.choose_micro_batch, "train.micro_batch");
    automatic(*settings_.train.choose_accumulate, "train.accumulate");
    automatic(*settings_.train.ranks == 0, "train.ranks");
    if (settings_.schedule.warmup_share.given())
      set("schedule.warmup", fmt::format("{}%", *settings_.schedule.warmup_share));
    for (const auto& [key, size] : {std::pair{"recompute.budget", &settings_.recompute.budget},
                                    {"memory.budget", &settings_.memory.budget},
                                    {"memory.host", &settings_.memory.host}})
      if (size->given()) set(key, fmt::format("{}B", **size));
    // The IR already has the choices that a budget makes by default.
    if (settings_.memory.budget.given() || settings_.recompute.policy.given())
      set("recompute.policy", *settings_.recompute.policy);
    if (*settings_.precision.compute != ir::DType::f32 && !settings_.precision.loss_scale.given())
      set("precision.loss_scale", std::string("none"));
  }

  const ir::Module& module_;
  const ir::Settings& settings_;
  const Places& places_;
  Node root_;
};

bool yields_output(const ir::Region& region) {
  return region.yields.size() == 1 && region.yields.front().role == ir::YieldRole::output;
}

// Checks that a module in phase `model` holds nothing that only passes make.
class Checks {
 public:
  Checks(const ir::Module& module, Diag& diag) : module_(module), diag_(diag) {}

  bool run() {
    for (const RegionKind kind : ir::all_regions) {
      const ir::Region& region = module_.region(kind);
      constexpr RegionKind mine[] = {RegionKind::init, RegionKind::step, RegionKind::eval,
                                     RegionKind::predict, RegionKind::measure};
      if (!region.empty() && !contains(mine, kind))
        wrong(region.at, "the passes make `{}`; a model has init, step, eval, predict and measure",
              ir::region_text(kind));
    }
    if (module_.step.ops.empty()) wrong(module_.step.at, "a model needs a step");
    buffers();
    for (const RegionKind kind : {RegionKind::init, RegionKind::step, RegionKind::eval})
      for (const ir::Op& op : module_.region(kind).ops) this->op(op);
    return !diag_.failed();
  }

 private:
  template <class... A>
  void wrong(const Location& at, fmt::format_string<A...> format, A&&... args) {
    diag_.error(Kind::conflict, at, format, std::forward<A>(args)...);
  }

  void op(const ir::Op& op) {
    if (op.info == &ir::op_samples_advance || op.info == &ir::op_seed)
      wrong(op.at, "`{}` is for the passes", op.info->name);
    if (op.origin != ir::natural_origin(RegionKind::step) &&
        op.origin != ir::natural_origin(RegionKind::init))
      wrong(op.at, "`{}` is marked `{}`; the passes make such", op.info->name, ir::origin_text(op.origin));
  }

  void buffers() {
    std::set<int32_t> started;
    for (const ir::Op& op : module_.init.ops)
      for (size_t i = 0; i < op.operands.size(); ++i)
        if (op.info->is_written(i)) started.insert(ir::as_buffer(op.operands[i])->index);
    for (size_t i = 0; i < module_.buffers.size(); ++i) {
      const ir::Buffer& buffer = module_.buffers[i];
      using enum ir::BufferRole;
      const bool known = buffer.role == control && ir::find_named(buffer.name) != nullptr;
      if (buffer.role != weight && buffer.role != statistic && buffer.role != given &&
          buffer.role != change && buffer.role != evaluation && !known)
        wrong(buffer.at, "`@{}` has the role `{}`; the passes make such buffers", buffer.name,
              ir::role_info(buffer.role).text);
      if (buffer.type.dtype != ir::DType::f32 && (buffer.role == weight || buffer.role == statistic))
        wrong(buffer.at, "`@{}` is {}; parameters are f32, and `precision.compute` casts them", buffer.name,
              ir::dtype_text(buffer.type.dtype));
      if ((buffer.role == weight || buffer.role == statistic) && !started.contains(static_cast<int32_t>(i)))
        wrong(buffer.at, "`@{}` has no first value: `init` does not write it", buffer.name);
    }
  }

  const ir::Module& module_;
  Diag& diag_;
};

// Overrides of what ops say here.
void refuse_overrides(Node& root, bool forward, Diag& diag) {
  static constexpr std::string_view kOfLayers[] = {"layers", "lora", "load", "gguf", "predict"};
  std::erase_if(root.entries, [&](const Entry& table) {
    const bool of_layers = contains(kOfLayers, std::string_view(table.key));
    if (of_layers)
      diag.error(Kind::conflict, table.key_at, "[{}] is for model files of layers; here the ops say it",
                 table.key);
    return of_layers;
  });
  const Node* loss = root.find("loss");
  if (loss == nullptr || forward) return;
  for (const Entry& entry : loss->entries)
    if (!entry.value.at.origin.empty())
      diag.error(Kind::conflict, entry.value.at,
                 "the loss is in the text's ops, and `loss.{}` cannot change it", entry.key);
}

// Inputs are those of the text.
void check_inputs(const ir::Module& module, const ModelFile& model, Diag& diag) {
  if (model.inputs.size() != module.step.inputs.size()) {
    for (const InputSpec& input : model.inputs)
      if (!module.step.find(input.name))
        diag.error(Kind::unknown_name, input.at, "`step` has no input `{}`", input.name);
    return;
  }
  for (size_t i = 0; i < model.inputs.size(); ++i) {
    const InputSpec& input = model.inputs[i];
    const ir::Type& type = module.step[module.step.inputs[i]].type;
    if (input.valid && (with_batch(input.keys.integers("shape")) != type.shape ||
                        input.keys.text("dtype") != ir::dtype_text(type.dtype)))
      diag.error(Kind::conflict, input.keys.at(input.keys.given("shape") ? "shape" : "dtype"),
                 "the text says that input `{}` is {}", input.name, ir::type_text(type));
  }
}

// eval's ops are those of step where the text has none, but for what only training does.
void complete_eval(ir::Module& module) {
  if (!module.eval.ops.empty()) return;
  module.eval = module.step;
  module.eval.kind = RegionKind::eval;
  std::erase_if(module.eval.ops, [](const ir::Op& op) { return op.info->writes != 0; });
}

// predict is the part of eval that its output depends on, where the text has none. Returns whether it is.
bool complete_predict(ir::Module& module) {
  if (!module.predict.ops.empty()) return false;
  module.predict = module.eval;
  module.predict.kind = RegionKind::predict;
  ir::remove_unread(module.predict);
  return true;
}

// The loss of the table [loss], in the place of the output that the region yields.
void add_loss(ir::Module& module, ir::Region& region, const ModelFile& model, Parameters& parameters,
              bool metrics, Diag& diag) {
  const ir::Operand output = region.yields.front().what;
  region.yields.clear();
  LayerLowering layers({module, region, diag}, parameters, model);
  layers.take_inputs();
  lower_loss(layers, {.value = *ir::as_value(output), .label = "the output", .at = region.at}, metrics);
}

// Lists what makes an update differ from the big batch's, besides what [optimizer] says.
std::vector<Inexact> inexact_of(const ir::Module& module, const ModelFile& model) {
  std::vector<Inexact> all = model.inexact;
  for (const ir::Op& op : module.step.ops)
    if (op.info == &ir::op_batch_norm && model.accumulate > 1)
      all.push_back(inexact_batch_norm(module.step[op.results.front()].name, op.at));
  return all;
}

// Policies that drop whole segments need to know them.
void check_segments(const ir::Module& module, const ModelFile& model, Diag& diag) {
  const std::string& policy = *model.settings.recompute.policy;
  if (policy == "none" || policy == "budget") return;
  if (std::ranges::any_of(module.step.ops, [](const ir::Op& op) { return op.segment >= 0; })) return;
  diag.error(Kind::conflict, model.file.table("recompute").at("policy"),
             "policy \"{}\" drops segments, and no op of the text is in one; \"budget\" finds its own",
             policy);
}

std::vector<LayerSummary> parameters_of(const ir::Module& module) {
  std::vector<LayerSummary> rows;
  for (const ir::Buffer& buffer : module.buffers) {
    if (buffer.role != ir::BufferRole::weight) continue;
    const int64_t count = ir::elements(buffer.type.shape, 1);
    rows.push_back({.name = buffer.name,
                    .type = "parameter",
                    .output = buffer.type.shape,
                    .parameters = count,
                    .trained = buffer.trainable ? count : 0});
  }
  return rows;
}

}  // namespace

bool is_ir(std::string_view text) {
  constexpr std::string_view kModule = "module";
  text = behind_comments(text);
  if (!text.starts_with(kModule)) return false;
  text.remove_prefix(kModule.size());
  return text.substr(std::min(text.find_first_not_of(" \t"), text.size())).starts_with('@');
}

std::optional<ir::Module> compile_ir(std::string_view text, std::string_view file_name,
                                     const std::vector<Override>& overrides, Diag& diag,
                                     std::vector<LayerSummary>* layers, bool strict) {
  std::optional<ir::Module> module = ir::parse(text, diag);
  if (!module) return std::nullopt;
  if (module->phase != ir::Phase::model) {
    diag.error(Kind::conflict, {},
               "the module is in phase `{}`, and a model is in phase `model`; gacc-opt goes on from there",
               ir::phase_text(module->phase));
    return std::nullopt;
  }
  module->source = file_name;
  const bool forward = yields_output(module->step);
  if (!ir::verify(*module, diag) || !Checks(*module, diag).run()) return std::nullopt;

  const Places places(text);
  for (const auto& said : module->settings.inputs)
    if (std::ranges::none_of(module->step.inputs,
                             [&](ir::ValueId id) { return module->step[id].name == said.first; }))
      diag.error(Kind::unknown_name, {}, "there are settings of an input `{}`, and `step` has none",
                 said.first);
  Node root = Tables(*module, places, forward).take();
  apply_overrides(root, overrides, diag);
  refuse_overrides(root, forward, diag);
  drop_keys_of_types(root, overrides, /*all=*/true);  // a printed text has them with their defaults
  Table table = tables::file;
  for (Key& key : table.keys)
    if (key.name == "layers" || (key.name == "loss" && !forward)) key.fallback.required = false;
  const ModelFile model = read_model(root, table, diag);
  check_inputs(*module, model, diag);
  check_segments(*module, model, diag);
  if (diag.failed()) return std::nullopt;

  // Settings that the tables do not give stay as they are.
  ir::Settings settings = model.settings;
  settings.load = module->settings.load;
  settings.loads = module->settings.loads;
  settings.gguf = module->settings.gguf;
  settings.ggufs = module->settings.ggufs;
  settings.adapters = module->settings.adapters;
  settings.predict = module->settings.predict;
  for (const auto& [key, value] : module->settings.of_types)
    if (key.starts_with("loss.")) settings.of_types.emplace(key, value);
  for (const auto& [name, input] : module->settings.inputs) {
    if (!forward && input.ignore_index) settings.inputs[name].ignore_index = input.ignore_index;
    settings.inputs[name].values = input.values;
    settings.inputs[name].columns = input.columns;
  }
  if (!forward && module->settings.loss.chunks.given()) settings.loss.chunks = *module->settings.loss.chunks;
  module->settings = std::move(settings);
  for (ir::Buffer& buffer : module->buffers) buffer.group = -1;
  assign_groups(model, *module, diag);
  if (ir::keeps_bits(module->settings)) module->measure = ir::Region{RegionKind::measure};
  judge_equivalence(model, inexact_of(*module, model), module->results, diag);
  if (layers != nullptr) *layers = parameters_of(*module);
  if (diag.failed()) return std::nullopt;

  if (forward) {
    complete_eval(*module);
    if (!yields_output(module->eval)) {
      diag.error(Kind::conflict, module->eval.at, "`step` yields its output, and so must `eval`");
      return std::nullopt;
    }
    const bool same = complete_predict(*module);
    const ir::ValueId output = *ir::as_value(module->eval.yields.front().what);
    Parameters parameters(*module, diag);
    add_loss(*module, module->step, model, parameters, /*metrics=*/false, diag);
    if (!diag.failed()) add_loss(*module, module->eval, model, parameters, /*metrics=*/true, diag);
    if (diag.failed()) return std::nullopt;
    if (same) build_measure(*module, output);
    warn_of_model(*module, model, strict, diag);
    if (diag.failed()) return std::nullopt;
  }
  module->results.predict_positions.clear();
  if (const std::optional<std::string> why = ir::mixes_positions(*module, module->predict))
    module->results.predict_positions = why->empty() ? "causal" : *why;
  if (!ir::verify(*module, diag) || !ir::verify_data(*module, diag)) return std::nullopt;
  return module;
}

}  // namespace gacc::frontend
