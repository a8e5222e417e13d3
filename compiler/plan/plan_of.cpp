#include "compiler/plan/plan_of.h"

#include <algorithm>

#include "ir/cost.h"
#include "ir/positions.h"
#include "ir/row_pitch.h"
#include "ir/schema/rate_schedule.h"
#include "ir/text/text.h"
#include "passes/pass.h"
#include "passes/plan_memory.h"

namespace gacc {

namespace {

std::optional<int64_t> input_offset(const ir::Region& region, const std::string& name) {
  for (const ir::ValueId input : region.inputs)
    if (region[input].name == name) return region[input].offset.value_or(0);
  return std::nullopt;
}

DType shared(ir::DType type) { return static_cast<DType>(type); }  // one list

AnswerForm answer_of(const ir::Settings& settings) {
  const std::string& form = *settings.predict.form;
  const bool binary = *settings.loss.type == "bce_with_logits";
  if (form == "probabilities") return binary ? AnswerForm::sigmoid : AnswerForm::softmax;
  if (form == "class") return binary ? AnswerForm::above_half : AnswerForm::argmax;
  return AnswerForm::logits;
}

PlanPredict predict_of(const ir::Module& module) {
  PlanPredict predict{.needs = *module.results.predict_needs,
                      .positions = *module.results.predict_positions,
                      .short_text = *module.results.predict_short_text};
  const bool parts = !module.answer.yields.empty();
  const ir::Region& region = parts ? module.answer : module.predict;
  const ir::Region& decode = module.decode;
  if (const int64_t positions = ir::cached_positions(module); positions > 0) {
    const auto place = [&](ir::ValueId value) { return decode[value].offset.value_or(0); };
    predict.decode = {.positions = positions,
                      .token_offset = place(decode.inputs[0]),
                      .position_offset = place(decode.inputs[1]),
                      .offset = place(*ir::as_value(decode.yields.front().what))};
  }
  if (region.yields.empty()) return predict;
  const ir::Value& output = region[*ir::as_value(region.yields.front().what)];
  predict.batch = module.most_samples(region);
  predict.offset = output.offset.value_or(0);
  predict.shape.assign(output.type.shape.begin() + 1, output.type.shape.end());
  if (parts) {
    const ir::Value &table = region[region.inputs.at(0)], &numbers = region[region.inputs.at(1)];
    predict.shape.at(0) = table.type.shape.at(0);
    predict.rows = numbers.type.shape.at(1);
    predict.rows_offset = numbers.offset.value_or(0);
  }
  predict.measured = !module.measure.ops.empty();
  predict.answer = answer_of(module.settings);
  predict.answer_shape = predict.shape;
  if (predict.answer == AnswerForm::argmax) predict.answer_shape.pop_back();
  return predict;
}

// Returns nothing where eval yields no answers.
std::optional<PlanAnswers> answers_of(const ir::Module& module) {
  if (module.eval.yields.empty()) return std::nullopt;
  const auto place = [](const ir::Region& region) {
    if (region.yields.empty()) return int64_t{0};
    return region[*ir::as_value(region.yields.front().what)].offset.value_or(0);
  };
  const ir::Shape& shape = module.eval[*ir::as_value(module.eval.yields.front().what)].type.shape;
  PlanAnswers answers{.eval_offset = place(module.eval),
                      .measure_offset = place(module.measure),
                      .shape = {shape.begin() + 1, shape.end()},
                      .classes = 0};
  if (const ir::Attr* classes = module.settings.of_type("loss.answer_classes"))
    answers.classes = std::get<int64_t>(*classes);
  if (*module.settings.loss.type == "bce_with_logits") {
    answers.form = PlanAnswers::Form::binary;
    answers.classes = 2;
  } else if (answers.classes > 0) {
    answers.form = PlanAnswers::Form::numbers;
  } else {
    answers.classes = answers.shape.back();
  }
  return answers;
}

PlateauRules plateau_of(const ir::Settings& settings) {
  const auto said = [&](std::string_view key) {
    const ir::Attr* set = settings.of_type(fmt::format("schedule.{}", key));
    return set != nullptr ? *set : *find_key(ir::rates::plateau.keys, key)->fallback.value;
  };
  return {std::get<std::string>(said("metric")), std::get<int64_t>(said("patience")),
          std::get<double>(said("threshold"))};
}

// Returns nothing for a schedule that fits every run.
std::optional<PlanLength> length_of(const ir::Settings& settings) {
  const auto& said = settings.schedule;
  PlanLength length{.total = *said.warmup,
                    .last = "the end of the warm-up",
                    .warmup = *said.warmup,
                    .warmup_share = *said.warmup_share,
                    .epochs = *said.unit == "epochs"};
  if (const ir::Attr* total = settings.of_type("schedule.total")) {
    length.total = ir::follows_run(settings) ? 0 : std::get<int64_t>(*total);
    length.last.clear();
  } else if (const ir::Attr* step = settings.of_type("schedule.step_size")) {
    length.total += std::get<int64_t>(*step);
    length.last = "the first step";
  } else if (const ir::Attr* milestones = settings.of_type("schedule.milestones")) {
    const auto& all = std::get<std::vector<int64_t>>(*milestones);
    length.total += all.empty() ? 0 : all.back();
    length.last = "the last milestone";
  } else if (length.total == 0) {
    return std::nullopt;
  }
  return length;
}

// Returns nothing for another schedule than step and exponential.
std::optional<PlanDecay> decay_of(const ir::Settings& settings) {
  const std::string& type = *settings.schedule.type;
  const bool steps = type == ir::rates::step.name;
  if (!steps && type != ir::rates::exponential.name) return std::nullopt;
  return PlanDecay{.gamma = std::get<double>(*settings.of_type("schedule.gamma")),
                   .each = steps ? std::get<int64_t>(*settings.of_type("schedule.step_size")) : 1,
                   .warmup = *settings.schedule.warmup,
                   .epochs = *settings.schedule.unit == "epochs"};
}

std::vector<PlanLoad::Parameter> parameters_of(const std::vector<ir::LoadSettings>& loads) {
  std::vector<PlanLoad::Parameter> all;
  for (const ir::LoadSettings& each : loads)
    all.push_back(
        {each.parameter, each.tensors, each.transpose, each.parts, each.interleave, each.shift.value_or(0)});
  return all;
}

// Returns nothing where the model file has no [load].
std::optional<PlanLoad> load_of(const ir::Settings& settings) {
  if (!settings.load.prefix.given()) return std::nullopt;
  return PlanLoad{.parameters = parameters_of(settings.loads),
                  .prefix = *settings.load.prefix,
                  .ignore = *settings.load.ignore,
                  .part = *settings.load.part};
}

// Returns nothing where it has no [gguf].
std::optional<PlanLoad> gguf_of(const ir::Settings& settings) {
  if (settings.ggufs.empty()) return std::nullopt;
  return PlanLoad{.parameters = parameters_of(settings.ggufs), .ignore = *settings.gguf.ignore};
}

std::vector<PlanAdapter> adapters_of(const ir::Settings& settings) {
  std::vector<PlanAdapter> all;
  for (const ir::AdapterSettings& each : settings.adapters)
    all.push_back({each.name, each.weight, each.begin, each.alpha});
  return all;
}

std::vector<PlanTie> ties_of(const ir::Results& results) {
  const ir::Texts &names = *results.load_tied, &owners = *results.load_owners;
  std::vector<PlanTie> ties;
  for (size_t i = 0; i < std::min(names.size(), owners.size()); ++i) ties.push_back({names[i], owners[i]});
  return ties;
}

void add_inputs(const ir::Module& module, Plan& plan) {
  for (const ir::ValueId id : module.step.inputs) {
    const ir::Value& value = module.step[id];
    PlanInput input;
    input.name = value.name;
    const bool half = ir::is_narrow(value.type.dtype);  // pass half-inputs
    input.dtype = half ? DType::f32 : shared(value.type.dtype);
    if (half) input.stored = shared(value.type.dtype);
    input.shape.assign(value.type.shape.begin() + (value.type.shape.empty() ? 0 : 1), value.type.shape.end());
    input.step_offset = value.offset.value_or(0);
    input.eval_offset = input_offset(module.eval, value.name).value_or(0);
    input.predict_offset = input_offset(module.predict, value.name);
    input.measure_offset = input_offset(module.measure, value.name);
    input.documents = input.predict_offset &&
                      std::ranges::none_of(ir::token_inputs(module.predict), [&](ir::ValueId given) {
                        return module.predict[given].name == value.name;
                      });
    const ir::InputSettings& said = module.settings.input(value.name);
    input.mean = said.mean;
    input.std = said.std;
    input.normalize_data = said.normalize_data;
    input.range = said.range;
    input.ignore_index = said.ignore_index;
    input.target = value.name == *module.settings.loss.target;
    if (const ir::Attr* weights = module.settings.of_type("loss.class_weights"))
      input.balanced = input.target && *weights == ir::Attr("balanced");
    input.probability = input.target && *module.settings.loss.type == "bce_with_logits";
    input.values = said.values;
    for (const ir::ColumnSettings& column : said.columns)
      input.columns.emplace_back(column.name, column.values);
    plan.inputs.push_back(std::move(input));
  }
}

// Returns what a launch leaves of a running statistic's change by the launches before it.
double kept_of_change(const ir::Module& module, ir::BufferId change) {
  for (const ir::Op& op : module.step.ops) {
    const ir::Attr* momentum = ir::find_attr(op, "momentum");
    const ir::BufferId* moved = op.operands.empty() ? nullptr : ir::as_buffer(op.operands.front());
    if (momentum && moved && *moved == change) return 1 - std::get<double>(*momentum);
  }
  return 1;
}

void add_buffers(const ir::Module& module, Plan& plan) {
  for (const ir::BufferId id : module.buffer_ids()) {
    const ir::Buffer& buffer = module[id];
    if (buffer.role == ir::BufferRole::slot || buffer.role == ir::BufferRole::part)
      continue;  // behind all others
    PlanBuffer entry;
    entry.name = buffer.name;
    entry.role = static_cast<BufferRole>(buffer.role);  // one list
    if (buffer.of) entry.of = module[*buffer.of].name;
    entry.dtype = shared(buffer.type.dtype);
    entry.shape = buffer.type.shape;
    entry.offset = buffer.offset.value_or(0);
    entry.bytes = ir::type_bytes(buffer.type, plan.micro_batch);
    entry.room = ir::room_bytes(buffer);
    entry.trainable = buffer.trainable;
    if (const auto whole = ir::full_length_type(module, buffer)) entry.whole = whole->shape;
    if (const ir::BufferId storage = ir::storage_of(module, id); storage != id)
      entry.in = module[storage].name;
    if (buffer.role == ir::BufferRole::change && plan.lanes > 1) entry.kept = kept_of_change(module, id);
    // class_weights, pos_weight
    const ir::Attr* said = module.settings.of_type(buffer.name);
    if (buffer.role == ir::BufferRole::given && said != nullptr)
      if (const auto* numbers = std::get_if<std::vector<double>>(said)) entry.values = *numbers;
    if (buffer.kind == ir::BufferKind::param) plan.parameters += ir::elements(buffer.type.shape, 1);
    plan.buffers.push_back(std::move(entry));
  }
}

int64_t launches_of(const ir::Module& module, const ir::Region& region) {
  int64_t count = 0;
  for (const ir::Kernel& kernel : ir::kernels(module, region)) count += kernel.form != ir::KernelForm::alias;
  return count;
}

PlanBytes bytes_of(const ir::Module& module) {
  const passes::MemoryReport report = passes::memory_report(module);
  return {.weights = report.weights,
          .half_weights = report.half_weights,
          .gradients = report.gradients,
          .optimizer = report.optimizer,
          .activations = report.activations,
          .workspace = report.workspace,
          .inputs = report.inputs,
          .peak = report.peak,
          .lower_bound = report.lower_bound,
          .host = report.host};
}

}  // namespace

Plan plan_of(const ir::Module& module) {
  const ir::Settings& settings = module.settings;
  Plan plan;
  plan.model = module.name;
  plan.target = module.target;
  plan.micro_batch = module.micro_batch();
  plan.accumulate = module.accumulate();
  plan.lanes = *settings.train.lanes;
  plan.keeps_bits = ir::keeps_bits(settings);
  if (const int64_t ranks = ir::sharing_ranks(settings); ranks > 1) plan.shard = ranks;
  plan.tail = parse_tail(*settings.train.tail);
  plan.epochs = *settings.train.epochs;
  plan.shuffle = *settings.train.shuffle;
  plan.seed = *settings.model.seed;
  plan.lr = *settings.optimizer.lr;
  plan.optimizer = *settings.optimizer.type;
  plan.precision = shared(*settings.precision.compute);
  plan.metrics = *settings.model.metrics;
  plan.arena_bytes = module.arena_bytes.value_or(0);
  plan.host_bytes = module.host_bytes;
  plan.bytes = bytes_of(module);
  for (const passes::Pass& pass : passes::all_passes()) plan.passes.emplace_back(pass.name);
  plan.flops_per_launch = ir::cost(module, module.step).flops;
  // With "auto" the step may run as one kernel, on a GPU that can; the plan counts what it is made of.
  plan.kernels_per_launch = *settings.launch.mode == "persistent" ? 1 : launches_of(module, module.step);
  // Accumulators hold sums; what is not exact all the same, the frontend says.
  plan.because = *module.results.because;
  plan.exact = plan.because.empty();
  const bool dynamic = *settings.precision.loss_scale == ir::Attr("dynamic");
  plan.skip_nonfinite = dynamic || *settings.precision.on_nonfinite == "skip";
  plan.max_skips = *settings.precision.max_skips;
  if (const auto& elements = module.results.seed_elements; elements.given())
    plan.seed_rules = SeedRules{*elements, dynamic};
  if (*settings.schedule.type == ir::rates::plateau.name) plan.plateau = plateau_of(settings);
  plan.length = length_of(settings);
  plan.decay = decay_of(settings);
  plan.predict = predict_of(module);
  plan.answers = answers_of(module);
  plan.load = load_of(settings);
  plan.gguf = gguf_of(settings);
  plan.adapters = adapters_of(settings);
  plan.ties = ties_of(module.results);
  plan.presumes = *module.results.load_presumes;
  add_inputs(module, plan);
  add_buffers(module, plan);
  for (const auto& [key, value] : ir::given(settings, module.results))
    plan.settings.emplace_back(key, ir::attr_text(value));
  plan.operations = operations_digest(module);
  return plan;
}

}  // namespace gacc
