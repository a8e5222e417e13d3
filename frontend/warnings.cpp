#include "frontend/warnings.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "ir/op_info.h"

namespace gacc::frontend {

namespace {

// The op whose numbers the operand has, perhaps in another shape or thinned out by dropout; null for an input.
const ir::Op* maker_of_numbers(const ir::Region& region, ir::Operand what) {
  for (;;) {
    const size_t maker = maker_of(region, what);
    if (maker == region.ops.size()) return nullptr;
    const ir::Op& op = region.ops[maker];
    if (!op.info->copies && op.info->name != "dropout") return &op;
    what = op.operands.front();
  }
}

// Elementwise functions, and what they make of logits.
struct Bounded {
  std::string_view op, means;
};
constexpr Bounded bounded[] = {
    {"relu", "is never below 0"},
    {"gelu", "is never below -0.17"},
    {"gelu_tanh", "is never below -0.17"},
    {"silu", "is never below -0.28"},
    {"sigmoid", "is 0 to 1"},
    {"tanh", "is -1 to 1"},
    {"softmax", "is 0 to 1"},
    {"log_softmax", "is never above 0"},
};

constexpr Kind kinds[] = {Kind::unused_input, Kind::unused_layer,     Kind::spare_outputs,
                          Kind::large_decay,  Kind::activation_twice, Kind::bounded_logits,
                          Kind::not_causal,   Kind::channels_last,    Kind::one_class};

class Warnings {
 public:
  Warnings(const ir::Module& module, const ModelFile& model, bool strict, Diag& diag)
      : module_(module), region_(module.step), model_(model), strict_(strict), diag_(diag) {}

  void run() {
    unread_inputs();
    unread_layers();
    decay();
    for (const ir::Op& op : region_.ops) {
      const std::string_view name = op.info->name;
      if (name == "conv2d") channels(op);
      const bool classes = name == "cross_entropy" || name == "weighted_cross_entropy";
      if (!classes && name != "bce_with_logits") continue;
      logits(op, classes);
      if (classes && region_[*ir::as_value(op.operands.front())].type.shape.back() == 1)
        warn(Kind::one_class, op.at,
             "cross_entropy of one class is always 0; for yes or no take bce_with_logits");
      if (classes) next_tokens(op);
      if (classes) spare_outputs(op);
    }
  }

 private:
  // Copies of a repeated block have one place, and are reported once.
  template <class... A>
  void warn(Kind kind, const Location& at, fmt::format_string<A...> format, A&&... args) {
    const auto is_kind = [&](const Node& node) { return node.text == kind_text(kind); };
    if (std::ranges::any_of(model_.file.table("model").nodes("allow"), is_kind)) return;
    if (!said_.emplace(kind, at.line, at.column).second) return;
    if (strict_)
      diag_.error(kind, at, format, std::forward<A>(args)...);
    else
      diag_.warn(kind, at, format, std::forward<A>(args)...);
  }

  // An input that the loss does not depend on costs memory and time.
  void unread_inputs() {
    for (const ir::ValueId input : region_.inputs) {
      if (ir::is_read(region_, input)) continue;
      const auto spec = std::ranges::find(model_.inputs, region_[input].name, &InputSpec::name);
      warn(Kind::unused_input, spec->at, "no layer reads the input `{}`, nor does the loss", spec->name);
    }
  }

  // A result in vain costs time, and its parameters memory; nothing trains them.
  void unread_layers() {
    const std::span<const Node> predicted = model_.predicted();
    for (const ir::Op& op : region_.ops) {
      const auto read = [&](ir::ValueId result) { return ir::is_read(region_, result); };
      if (op.results.empty() || std::ranges::any_of(op.results, read)) continue;
      const std::string& name = region_[op.results.front()].name;
      if (predicted.empty() || predicted.front().text != name)
        warn(Kind::unused_layer, op.at, "no layer reads the output of `{}`, nor does the loss", name);
    }
  }

  // A target's range is what it has; outputs beyond it are never right. Vocabularies are often padded.
  void spare_outputs(const ir::Op& loss) {
    constexpr int64_t kMostClasses = 1000;
    const std::string& target = *model_.settings.loss.target;
    const auto spec = std::ranges::find(model_.inputs, target, &InputSpec::name);
    const int64_t outputs = region_[*ir::as_value(loss.operands.front())].type.shape.back();
    if (spec == model_.inputs.end() || spec->range() == 0 || spec->range() >= outputs ||
        outputs > kMostClasses)
      return;
    const ir::Op* last = maker_of_numbers(region_, loss.operands.front());
    warn(Kind::spare_outputs, last != nullptr ? last->at : loss.at,
         "{} outputs for the {} classes of `{}`: the others are never right", outputs, spec->range(), target);
  }

  // AdamW and its like leave 1 - lr weight_decay of a weight at every update.
  void decay() {
    constexpr double kLarge = 1;
    const Values* optimizer = model_.file.find("optimizer");
    if (optimizer == nullptr || !optimizer->lists("weight_decay")) return;
    if (const double decay = optimizer->real("weight_decay"); decay >= kLarge)
      warn(Kind::large_decay, optimizer->at("weight_decay"),
           "`optimizer.weight_decay` is {}; usual are 0 to 0.1, and it takes {:.4g} of each weight at every "
           "update",
           decay, decay * optimizer->real("lr"));
  }

  // A square image of 1, 3 or 4 columns is one whose channels come last, as files have them.
  void channels(const ir::Op& convolution) {
    const ir::ValueId image = *ir::as_value(convolution.operands.front());
    const auto spec = std::ranges::find(model_.inputs, region_[image].name, &InputSpec::name);
    const ir::Shape& shape = region_[image].type.shape;  // of the samples, then of one
    if (spec == model_.inputs.end() || !contains(region_.inputs, image) || shape[1] != shape[2]) return;
    const int64_t last = shape[3];
    if (shape[1] > 4 && (last == 1 || last == 3 || last == 4))
      warn(Kind::channels_last, spec->at,
           "a convolution takes `{}` as {} channels of {} x {}; an image of {} x {} and {} channels is [{}, "
           "{}, {}]",
           spec->name, shape[1], shape[2], last, shape[1], shape[2], last, last, shape[1], shape[2]);
  }

  void logits(const ir::Op& loss, bool classes) {
    const ir::Op* last = maker_of_numbers(region_, loss.operands.front());
    if (last == nullptr) return;
    const std::string_view name = last->info->name, type = model_.loss.type->schema.name;
    if (classes ? name == "softmax" || name == "log_softmax" : name == "sigmoid")
      return warn(Kind::activation_twice, last->at,
                  "the loss takes this {}, and {} makes its own of what it gets; leave it out", name, type);
    const auto found = std::ranges::find(bounded, name, &Bounded::op);
    if (found != std::end(bounded))
      warn(Kind::bounded_logits, last->at, "{} takes logits, which may be any number; {} {}: leave it out",
           type, name, found->means);
  }

  // Targets of the tokens' own type and number of values are the tokens that come next.
  void next_tokens(const ir::Op& loss) {
    const ir::Shape& logits = region_[*ir::as_value(loss.operands.front())].type.shape;
    const auto target = std::ranges::find(region_.inputs, *model_.settings.loss.target,
                                          [&](ir::ValueId input) { return region_[input].name; });
    const bool language = std::ranges::any_of(region_.ops, [&](const ir::Op& op) {
      if (op.info->name != "embedding" || !ir::as_value(op.operands[0])) return false;
      const ir::ValueId tokens = *ir::as_value(op.operands[0]);
      return tokens != *target && region_[tokens].type == region_[*target].type &&
             ir::operand_type(module_, region_, op.operands[1]).shape.front() == logits.back();
    });
    if (!language || logits.size() != 3) return;
    for (const ir::Op& op : region_.ops) {
      const ir::Attr* causal = ir::find_attr(op, "causal");
      if (causal == nullptr || std::get<bool>(*causal)) continue;
      if (region_[op.results.front()].type.shape[1] != logits[1]) continue;
      warn(
          Kind::not_causal, op.at,
          "this attention sees later positions, and with them the tokens that `{}` asks for, if they are the "
          "next ones; set `causal = true`",
          region_[*target].name);
    }
  }

  const ir::Module& module_;
  const ir::Region& region_;
  const ModelFile& model_;
  const bool strict_;
  Diag& diag_;
  std::set<std::tuple<Kind, int32_t, int32_t>> said_;
};

}  // namespace

Words warning_names() {
  Words names;
  for (const Kind kind : kinds) names.push_back(kind_text(kind));
  return names;
}

void warn_of_model(const ir::Module& module, const ModelFile& model, bool strict, Diag& diag) {
  Warnings(module, model, strict, diag).run();
}

}  // namespace gacc::frontend
