// R28: the settings of a planned module are such that the runtime can follow them.
#include <algorithm>
#include <bit>
#include <limits>

#include "ir/contains.h"
#include "ir/schema/rate_schedule.h"
#include "ir/verify/rules.h"

namespace gacc::ir {

namespace {

constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

class SettingRules {
 public:
  SettingRules(const Module& module, const Broken& broken) : module_(module), broken_(broken) {}

  void run() {
    windows();
    for (const ValueId input : module_.step.inputs) this->input(module_.step[input]);
    schedule();
    plateau();
    for (const Buffer& buffer : module_.buffers) given_list(buffer);
    for (const LoadSettings& each : settings_.loads) load("load.parameters", each);
    for (const LoadSettings& each : settings_.ggufs) load("gguf.parameters", each);
    for (const AdapterSettings& each : settings_.adapters) adapter(each);
    for (const std::string& name : *module_.results.load_owners)
      if (parameter(name) == nullptr) broken("load.owners names `{}`, which is no parameter", name);
    if (*module_.results.predict_needs > 0 && !module_.predict.yields.empty())
      broken("predict.needs is {}, and there is a prediction", *module_.results.predict_needs);
    precision();
    if (const std::string& form = *settings_.predict.form; !contains(kOutputForms, std::string_view(form)))
      broken("predict.form is \"{}\", not \"logits\", \"probabilities\" or \"class\"", form);
  }

 private:
  template <class... A>
  void broken(fmt::format_string<A...> format, A&&... args) {
    broken_("R28", {}, format, std::forward<A>(args)...);
  }
  void between(std::string_view key, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) broken("{} is {}, not {} to {}", key, value, low, high);
  }

  void windows() {
    const auto& train = settings_.train;
    between("train.accumulate", *train.accumulate, 1, kMostInt);
    between("train.lanes", *train.lanes, 1, *train.accumulate);
    if (!std::has_single_bit(static_cast<uint64_t>(*train.lanes)))
      broken("train.lanes is {}, no power of two", *train.lanes);
    if (const int64_t ranks = sharing_ranks(settings_); ranks != 0)
      between("train.ranks", ranks, 1, *train.lanes);
    if (*train.tail != "flush" && *train.tail != "drop" && *train.tail != "carry")
      broken("train.tail is \"{}\", not \"flush\", \"drop\" or \"carry\"", *train.tail);
    between("train.epochs", *train.epochs, 0, kMostInt);
    between("precision.max_skips", *settings_.precision.max_skips, 1, kMostInt);
  }

  void precision() {
    const auto& said = settings_.precision;
    const std::optional<DType> frozen = parse_dtype(*said.frozen);
    if (*said.frozen != "compute" && !(frozen && is_blocks(*frozen)))
      broken("precision.frozen is \"{}\", neither \"compute\" nor a type of blocks", *said.frozen);
    for (const Buffer& buffer : module_.buffers)
      if (buffer.role == BufferRole::half && buffer.type.dtype != *said.compute)
        broken("precision.compute is {}, and `@{}` {}", dtype_text(*said.compute), buffer.name,
               dtype_text(buffer.type.dtype));
    if ((*said.loss_scale == Attr("dynamic")) != module_.find(Named::scale_good).has_value())
      broken("precision.loss_scale is dynamic where `@{}` is, and only there",
             named_info(Named::scale_good).name);
    // Checks the seed of the backward pass.
    const int64_t elements = *module_.results.seed_elements;
    between("precision.seed_elements", elements, 1, std::numeric_limits<int64_t>::max());
    const std::optional<BufferId> scale = module_.find(Named::loss_scale);
    for (const Op& op : module_.step.ops) {
      if (!scale || op.info != &op_div || op.operands[0] != Operand(*scale)) continue;
      if (op.operands[1] != Operand(static_cast<double>(elements)))
        broken("precision.seed_elements is {}, and the gradient starts from `@{}` over another number",
               elements, module_[*scale].name);
    }
  }

  void input(const Value& input) {
    const InputSettings& said = settings_.input(input.name);
    const Shape& shape = input.type.shape;
    const int64_t axis = shape.size() > 1 ? shape[1] : 1;
    for (const auto& [key, list] : {std::pair{"mean", &said.mean}, {"std", &said.std}})
      if (list->size() > 1 && std::ssize(*list) != axis)
        broken("inputs.{}.normalize.{} has {} numbers, the first axis of its shape {}", input.name, key,
               list->size(), axis);
    if (contains(said.std, 0.0)) broken("inputs.{}.normalize.std has a zero", input.name);
    const bool numbers = said.normalize_data || !said.mean.empty() || !said.std.empty();
    if (numbers && !is_float(input.type.dtype))
      broken("inputs.{} is {} and has a normalize", input.name, dtype_text(input.type.dtype));
    if ((said.range || said.ignore_index) && is_float(input.type.dtype))
      broken("inputs.{} is {} and has a range", input.name, dtype_text(input.type.dtype));
    if (!said.values.empty() && is_float(input.type.dtype))
      broken("inputs.{} is {} and has values", input.name, dtype_text(input.type.dtype));
    if (!said.values.empty() && said.range.value_or(0) < std::ssize(said.values))
      broken("inputs.{}.range is {}, and its values are {}", input.name, said.range.value_or(0),
             said.values.size());
    if (!said.columns.empty() && !is_float(input.type.dtype))
      broken("inputs.{} is {} and has columns", input.name, dtype_text(input.type.dtype));
    for (const ColumnSettings& column : said.columns)
      if (column.values.empty()) broken("inputs.{}.columns: `{}` has no values", input.name, column.name);
    if (said.range) between(fmt::format("inputs.{}.range", input.name), *said.range, 1, kMostInt);
    if (said.ignore_index)
      between(fmt::format("inputs.{}.ignore_index", input.name), *said.ignore_index, -kMostInt - 1, kMostInt);
  }

  // The length of the schedule, which the runtime compares with the run's, or tells.
  void schedule() {
    if (follows_run(settings_) != module_.find(Named::run_total).has_value())
      broken("schedule.total is \"run\" where `@{}` is, and only there", named_info(Named::run_total).name);
    const double share = *settings_.schedule.warmup_share;
    if (!(share >= 0 && share < 100) || (share > 0 && !follows_run(settings_)))
      broken("schedule.warmup_share is {}, not 0 to 100 of a schedule.total = \"run\"", share);
    between("schedule.warmup", *settings_.schedule.warmup, 0, kMostInt);
    const Attr* total = settings_.of_type("schedule.total");
    if (total == nullptr || follows_run(settings_)) return;
    const auto* number = std::get_if<int64_t>(total);
    if (number == nullptr || *number <= *settings_.schedule.warmup || *number > kMostInt)
      broken("schedule.total is not above schedule.warmup, nor \"run\"");
  }

  // Checks the schedule that evaluations drive.
  void plateau() {
    if (*settings_.schedule.type != rates::plateau.name) return;
    if (const Attr* metric = settings_.of_type("schedule.metric")) {
      const auto* name = std::get_if<std::string>(metric);
      if (name == nullptr || (*name != "loss" && !contains(*settings_.model.metrics, *name)))
        broken("schedule.metric is neither \"loss\" nor one of model.metrics");
    }
    if (const Attr* patience = settings_.of_type("schedule.patience")) {
      const auto* number = std::get_if<int64_t>(patience);
      if (number == nullptr || *number < 0 || *number > kMostInt)
        broken("schedule.patience is not 0 to {}", kMostInt);
    }
    if (const Attr* threshold = settings_.of_type("schedule.threshold"))
      if (std::get_if<double>(threshold) == nullptr) broken("schedule.threshold is not a real number");
  }

  // A buffer that is named like a setting has its numbers, or those that the runtime learns.
  void given_list(const Buffer& buffer) {
    const Attr* said = settings_.of_type(buffer.name);
    if (buffer.role != BufferRole::given || said == nullptr || *said == Attr("balanced")) return;
    const auto* numbers = std::get_if<std::vector<double>>(said);
    if (numbers == nullptr || std::ssize(*numbers) != elements(buffer.type.shape, 1))
      broken("{} is not the {} real numbers of `@{}`", buffer.name, elements(buffer.type.shape, 1),
             buffer.name);
  }

  const Buffer* parameter(std::string_view name) const {
    const std::optional<BufferId> id = module_.find_buffer(name);
    return id && module_[*id].kind == BufferKind::param ? &module_[*id] : nullptr;
  }

  // Tells whether a file of weights can have it: a parameter, a running statistic, or the name that a weight has of a
  // layer which shares another's.
  bool is_loaded(const std::string& name) const {
    if (const auto id = module_.find_buffer(name))
      return module_[*id].role == BufferRole::weight || module_[*id].role == BufferRole::statistic;
    return std::ranges::count(*module_.results.load_tied, name) > 0;
  }

  void load(std::string_view list, const LoadSettings& load) {
    if (!is_loaded(load.parameter)) broken("{} names `{}`, which is no parameter", list, load.parameter);
    if (load.tensors.empty()) broken("{} has no tensors for `{}`", list, load.parameter);
    const bool split = load.tensors.size() == 1 && !load.parts.empty();
    if (!load.parts.empty() && !split && load.parts.size() != load.tensors.size())
      broken("{} has {} tensors and {} parts for `{}`", list, load.tensors.size(), load.parts.size(),
             load.parameter);
    if (split && !splits(load))
      broken("{} splits a tensor otherwise than the rows of `{}`", list, load.parameter);
    if (!load.interleave.empty() && !interleaves(load, split))
      broken("{} interleaves rows of `{}` that are no whole heads", list, load.parameter);
    if (load.shift && !std::isfinite(*load.shift))
      broken("{} shifts `{}` by {}", list, load.parameter, *load.shift);
  }

  // Returns the rows of a buffer; 0 where there is none of that name, or it is a scalar.
  int64_t rows_of(const std::string& name) const {
    const std::optional<BufferId> id = module_.find_buffer(name);
    return id && !module_[*id].type.shape.empty() ? module_[*id].type.shape.front() : 0;
  }

  // Returns whether each tensor has whole heads of an even number of rows, where it has heads.
  bool interleaves(const LoadSettings& load, bool split) const {
    const int64_t all = rows_of(load.parameter);
    if (all == 0 || split || load.transpose || load.interleave.size() != load.tensors.size() ||
        (load.tensors.size() > 1 && load.parts.empty()))
      return false;
    for (size_t i = 0; i < load.interleave.size(); ++i) {
      const int64_t head = load.interleave[i], rows = load.parts.empty() ? all : load.parts[i];
      if (head < 0 || head % 2 != 0 || (head > 0 && rows % head != 0)) return false;
    }
    return true;
  }

  // Returns whether a parameter's parts of a tensor, those above zero, are its rows once or several times.
  bool splits(const LoadSettings& load) const {
    const int64_t rows = rows_of(load.parameter);
    int64_t all = 0, own = 0;
    for (const int64_t part : load.parts) {
      if (part == 0 || part < -kMostInt || std::abs(part) > kMostInt - all) return false;
      all += std::abs(part);
      own += std::max<int64_t>(part, 0);
    }
    return rows > 0 && own > 0 && rows % own == 0 && rows / own <= kMostInt / all;
  }

  // Adapters are matrices that fit the rows of their weight.
  void adapter(const AdapterSettings& adapter) {
    const auto matrix = [&](std::string_view name) {
      const Buffer* buffer = parameter(name);
      return buffer != nullptr && buffer->type.shape.size() == 2 ? &buffer->type.shape : nullptr;
    };
    const Shape *a = matrix(adapter.name + ".lora_A.weight"), *b = matrix(adapter.name + ".lora_B.weight"),
                *weight = matrix(adapter.weight);
    if (a == nullptr || b == nullptr || weight == nullptr || a->at(0) != b->at(1) ||
        a->at(1) != weight->at(1) || b->at(0) > weight->at(0) || adapter.begin < 0 ||
        adapter.begin > weight->at(0) - b->at(0))
      broken("the adapter `{}` does not fit `{}`", adapter.name, adapter.weight);
  }

  const Module& module_;
  const Settings& settings_ = module_.settings;
  const Broken& broken_;
};

}  // namespace

void verify_settings(const Module& module, const Broken& broken) { SettingRules(module, broken).run(); }

}  // namespace gacc::ir
