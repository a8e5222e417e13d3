// Resolves names of a model file: a layer of this block or of one around it, or an input.
#include <algorithm>

#include "frontend/layers.h"

namespace gacc::frontend {

const Flow* LayerLowering::input(std::string_view name) const {
  const auto found = inputs_.find(name);
  return found != inputs_.end() ? &found->second : nullptr;
}

std::optional<int64_t> LayerLowering::rows_of(std::string_view input) const {
  const auto found = table_rows_.find(input);
  return found != table_rows_.end() ? std::optional(found->second) : std::nullopt;
}

Flow LayerLowering::resolve(const Named& name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->parent)
    if (const auto found = at->layers.find(name.name); found != at->layers.end()) return found->second.output;
  if (const Flow* found = input(name.name)) return *found;
  unknown(name, scope, true);
  return {};
}

std::optional<Flow> LayerLowering::find_output(const Named& name) const {
  if (const auto found = top_.layers.find(name.name); found != top_.layers.end()) return found->second.output;
  if (const Flow* found = input(name.name)) return *found;
  unknown(name, top_, true);
  return std::nullopt;
}

std::optional<ir::BufferId> LayerLowering::tied_weight(const Named& name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    const auto found = at->layers.find(name.name);
    if (found == at->layers.end()) continue;
    const auto& [_, owner] = *found;
    if (!owner.weight && owner.output.value)  // an owner that is wrong itself was reported
      diag_.error(Kind::conflict, name.at, "layer `{}` has no weight to share", name.name);
    return owner.weight;
  }
  unknown(name, scope, false);
  return std::nullopt;
}

void LayerLowering::unknown(const Named& name, const Scope& scope, bool with_inputs) const {
  std::vector<std::string_view> known;
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (at->specs != nullptr) {
      const auto later = std::find_if(at->specs->begin(), at->specs->end(),
                                      [&](const LayerSpec& other) { return other.name == name.name; });
      if (later != at->specs->end()) {
        diag_
            .error(Kind::unknown_name, name.at, "layer `{}` comes later; only earlier ones can be named",
                   name.name)
            .note(later->name_at, "it is defined here");
        return;
      }
    }
    for (const auto& [layer, _] : at->layers) known.push_back(layer);
  }
  if (with_inputs)
    for (const auto& [input, _] : inputs_) known.push_back(input);
  const std::string block = name.name.substr(0, name.name.find('.'));
  if (block != name.name && std::ranges::find(known, block) != known.end()) {
    diag_.error(Kind::unknown_name, name.at,
                "`{}` lies in the block `{}`, and its layers cannot be named from outside; put both layers "
                "into one block or into none",
                name.name, block);
    return;
  }
  diag_.error(Kind::unknown_name, name.at, "there is no layer {}`{}` here{}", with_inputs ? "or input " : "",
              name.name, did_you_mean(name.name, known));
}

}  // namespace gacc::frontend
