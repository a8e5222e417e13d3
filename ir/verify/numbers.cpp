// R17: numbers that choose a row or class lie in its range.
#include <algorithm>
#include <optional>
#include <vector>

#include "ir/positions.h"
#include "ir/verify/rules.h"

namespace gacc::ir {

namespace {

struct NumberRules : RegionRules {
  void run() {
    if (region.kind != RegionKind::answer && region.kind != RegionKind::decode) inputs_of_step();
    numbers();
  }

  // Eval and predict read what step reads, since the runtime knows one type of each input ...
  void inputs_of_step() {
    for (const ValueId id : region.inputs) {
      if (region.kind == RegionKind::measure && id == region.inputs.front()) continue;  // R34
      const Value& input = region[id];
      const std::optional<ValueId> same = module.step.find(input.name);
      const std::vector<ValueId>& inputs = module.step.inputs;
      const bool found = same && contains(inputs, *same) && module.step[*same].type == input.type;
      if (!found)
        broken("R17", region.at, "{} has the input `%{}` of type {}; step has not", region_text(region.kind),
               input.name, type_text(input.type));
    }
  }

  // ... and numbers that choose a row or class are elements of inputs whose range fits, positions in documents, or
  // selected among such and a number.
  struct Source {
    std::optional<ValueId> input;
    double least = 0, largest = 0;  // of what is none
  };
  using Sources = std::vector<Source>;
  void numbers() {
    std::vector<Sources> known(region.values.size());  // by value: what its elements come from; or none
    for (const ValueId input : region.inputs) known[index(input)] = {{input}};
    const auto sources = [&](const Operand& operand) {
      if (const double* number = as_number(operand)) return Sources{{{}, *number, *number}};
      const ValueId* value = as_value(operand);
      return value != nullptr ? known[index(*value)] : Sources();
    };
    for (const Op& op : region.ops) {
      if (op.info == &op_documents) {
        const int64_t positions = OpView{module, region, op}.operand(0).shape[1];
        known[index(op.results[1])] = {{{}, 0, static_cast<double>(positions - 1)}};
      }
      const bool selects = op.info == &op_select;  // its first operand chooses
      for (size_t i = selects ? 1 : 0; (selects || op.info->copies) && i < op.operands.size(); ++i) {
        const Sources more = sources(op.operands[i]);
        Sources& all = known[index(op.results.front())];
        if (more.empty()) {
          all.clear();
          break;
        }
        all.insert(all.end(), more.begin(), more.end());
      }
      if (op.info->numbers < 0) continue;
      const Operand& operand = op.operands[op.info->numbers];
      const Sources from = sources(operand);
      if (from.empty())
        broken("R17", op.at, "`{}` takes numbers from {}, which is no input", op.info->name, text(operand));
      for (const Source& source : from) {
        if (source.input)
          number(op, region[*source.input].name);
        else
          number(op, source.least, source.largest);
      }
    }
  }
  void number(const Op& op, double least, double largest) {
    const auto rows = static_cast<double>(op.info->numbered(OpView{module, region, op}));
    const Attr* ignores = find_attr(op, "ignore_index");
    const bool ignored =
        ignores != nullptr && least == largest && static_cast<double>(std::get<int64_t>(*ignores)) == least;
    if ((least < 0 || largest >= rows) && !ignored)
      broken("R17", op.at, "numbers may be {} to {}; `{}` takes 0 to {}", least, largest, op.info->name,
             rows - 1);
  }
  void number(const Op& op, const std::string& input) {
    const int64_t most = op.info->numbered(OpView{module, region, op});
    if (region.kind == RegionKind::answer) {  // the runtime gives it rows of its table
      const int64_t rows = region[region.inputs[0]].type.shape[0];
      if (rows > most)
        broken("R17", op.at, "input `%{}` has a range of {}; `{}` takes one of 1 to {}", input, rows,
               op.info->name, most);
      return;
    }
    if (region.kind == RegionKind::decode && input == region[region.inputs[1]].name)
      return number(op, 0, static_cast<double>(cached_positions(module) - 1));
    const int64_t range = module.settings.input(input).range.value_or(0);
    if (range < 1 || range > most)
      broken("R17", op.at, "input `%{}` has {}; `{}` takes one of 1 to {}", input,
             range < 1 ? "no range" : fmt::format("a range of {}", range), op.info->name, most);
    const int64_t ignored = module.settings.input(input).ignore_index.value_or(0);
    const Attr* ignores = find_attr(op, "ignore_index");
    if ((ignored < 0 || ignored >= most) && (ignores == nullptr || *ignores != Attr(ignored)))
      broken("R17", op.at, "input `%{}` may be {}; `{}` takes 0 to {}", input, ignored, op.info->name,
             most - 1);
  }
};

}  // namespace

void verify_numbers(const Module& module, const Region& region, const Broken& broken) {
  NumberRules{{module, region, broken}}.run();
}

}  // namespace gacc::ir
